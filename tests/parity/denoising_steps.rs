//! Many steps of a denoising autoencoder in one launch against the plain loops.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, normal, uniform};
use chandlery_ops::layers::{
    Corruption, DENOISING_FIGURES, DenoisingParams, DenoisingSteps, denoising_steps_, denoising_steps_fit,
    denoising_steps_reference,
};
use chandlery_tests::devices;

const CPU: Device = Device::Cpu;
/// Visible and hidden units, rows of a minibatch, steps: units below, at and above what a thread, a
/// warp, a block and a cluster take; each number of samples that a thread takes at a time, whole
/// and not.
const SHAPES: [[usize; 4]; 12] = [
    [1, 1, 1, 2],
    [9, 5, 1, 9],
    [17, 33, 2, 5],
    [100, 40, 3, 4],
    [257, 70, 4, 3],
    [784, 500, 1, 4],
    [784, 500, 8, 3],
    [1024, 512, 16, 2],
    [301, 129, 13, 3],
    [65, 300, 32, 3],
    [784, 500, 100, 2],
    [40, 511, 67, 2],
];
/// Sums of up to 1024 terms in another order, over a few steps.
const TOLERANCE: f32 = 5e-5;

fn params(values: &Tensor, n_visible: usize, n_hidden: usize) -> DenoisingParams<'_> {
    let bias_at = n_visible * n_hidden + 3;
    DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at: bias_at + n_hidden + 1 }
}

fn run(
    values: &Tensor,
    shape: [usize; 4],
    rows: &Tensor,
    steps: DenoisingSteps,
    draws: Draws<'_>,
) -> Result<(Tensor, Vec<f64>)> {
    let values = values.copy()?;
    let table = Tensor::zeros((2, DENOISING_FIGURES), DType::F64, values.device())?;
    denoising_steps_(params(&values, shape[0], shape[1]), rows, &table, steps, draws)?;
    Ok((values.to_device(&CPU)?, table.sum(1)?.to_vec1()?))
}

#[test]
fn many_steps_in_one_launch_follow_the_plain_loops() -> Result<()> {
    for device in devices()? {
        let mut fitted = 0;
        for shape @ [v, h, batch, n_steps] in SHAPES {
            if !device.is_cpu() && !denoising_steps_fit(&device, v, h, batch)? {
                continue;
            }
            fitted += 1;
            let values = (normal(v * h + v + h + 4, &CPU, Philox::new(1, 0))? * 0.1)?;
            let bytes =
                (uniform((n_steps * batch, v), &CPU, Philox::new(1, 1))? * 255.)?.to_dtype(DType::U8)?;
            for corruption in [
                Corruption::SaltAndPepper(0.3),
                Corruption::Gaussian(0.5),
                Corruption::Flip(0.2),
                Corruption::None,
            ] {
                let philox = Philox::new(7, 3).advanced(12);
                let steps = DenoisingSteps {
                    batch,
                    learning_rate: 0.1,
                    weight_decay: 0.01,
                    scale: 1. / 255.,
                    corruption,
                };
                let (want, figures) =
                    denoising_steps_reference(params(&values, v, h), &bytes, steps, philox)?;
                let there = values.to_device(&device)?;
                let (got, seen) = run(&there, shape, &bytes.to_device(&device)?, steps, Draws::At(philox))?;
                let off = (&got - want)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(off < TOLERANCE, "{device:?} {shape:?} {corruption}: off by {off}");
                for (got, want) in seen.iter().zip(figures) {
                    assert!(
                        (got / want - 1.).abs() < 1e-5,
                        "{device:?} {shape:?} {corruption}: {got} for {want}"
                    );
                }
                let floats = (bytes.to_device(&device)?.to_dtype(DType::F32)? * f64::from(1f32 / 255.))?;
                // The counter of the device takes the place of an offset.
                let counter = Tensor::new(&[3i64], &device)?;
                let draws = Draws::Counter { philox: Philox::new(7, 3), counter: &counter };
                let (again, _) = run(&there, shape, &floats, DenoisingSteps { scale: 1., ..steps }, draws)?;
                assert_eq!(
                    got.to_vec1::<f32>()?,
                    again.to_vec1::<f32>()?,
                    "{device:?} {shape:?} {corruption}"
                );
            }
        }
        // An older GPU takes none of them; the CPU takes all.
        assert!(!device.is_cpu() || fitted == SHAPES.len());
        println!("{device:?}: {fitted} of {} shapes", SHAPES.len());
    }
    Ok(())
}
