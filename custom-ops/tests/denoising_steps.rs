//! Many steps of a denoising autoencoder in one op, on the CPU, against plain loops.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, normal, uniform};
use chandlery_ops::layers::{
    Corruption, DENOISING_FIGURES, DenoisingParams, DenoisingSteps, denoising_steps_,
    denoising_steps_reference,
};

/// Visible and hidden units, rows of a minibatch, steps: below, at and above vectors, quadruples of
/// units, groups and pairs of rows.
const SHAPES: [[usize; 4]; 8] = [
    [1, 1, 1, 3],
    [5, 3, 2, 4],
    [16, 4, 1, 5],
    [17, 33, 3, 4],
    [33, 64, 8, 3],
    [100, 70, 5, 3],
    [784, 31, 7, 2],
    [130, 600, 9, 2],
];
/// Sums of up to 800 terms in another order.
const TOLERANCE: f32 = 2e-5;
const PHILOX: Philox = Philox { seed: 1, stream: 2, offset: 0 };
const DRAWS: Draws<'static> = Draws::At(PHILOX);

fn params(values: &Tensor, n_visible: usize, n_hidden: usize) -> DenoisingParams<'_> {
    let bias_at = n_visible * n_hidden + 3;
    DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at: bias_at + n_hidden + 1 }
}

fn problem([n_visible, n_hidden, batch, n_steps]: [usize; 4]) -> Result<(Tensor, Tensor, DenoisingSteps)> {
    let values = normal(n_visible * n_hidden + n_visible + n_hidden + 4, &Cpu, Philox::new(1, 0))?;
    let rows = uniform((n_steps * batch, n_visible), &Cpu, Philox::new(1, 1))?;
    let steps = DenoisingSteps {
        batch,
        learning_rate: 0.1,
        weight_decay: 0.01,
        scale: 1.,
        corruption: Corruption::SaltAndPepper(0.3),
    };
    Ok(((values * 0.1)?, rows, steps))
}

fn figures(table: &Tensor) -> Result<Vec<f64>> {
    table.sum(1)?.to_vec1()
}

#[test]
fn steps_follow_the_plain_loops() -> Result<()> {
    for shape @ [v, h, ..] in SHAPES {
        let (values, rows, steps) = problem(shape)?;
        for corruption in [
            Corruption::SaltAndPepper(0.3),
            Corruption::Gaussian(0.5),
            Corruption::Flip(0.2),
            Corruption::None,
        ] {
            let steps = DenoisingSteps { corruption, ..steps };
            let (want, [entropy, squares]) =
                denoising_steps_reference(params(&values, v, h), &rows, steps, PHILOX)?;
            let (got, table) = (values.copy()?, Tensor::zeros((2, DENOISING_FIGURES), DType::F64, &Cpu)?);
            denoising_steps_(params(&got, v, h), &rows, &table, steps, DRAWS)?;
            let off = (got - want)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(off < TOLERANCE, "{shape:?} {corruption}: off by {off}");
            for (got, want) in figures(&table)?.into_iter().zip([entropy, squares]) {
                assert!((got / want - 1.).abs() < 1e-5, "{shape:?} {corruption}: {got} for {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn bytes_are_values_times_the_scale() -> Result<()> {
    let (values, rows, steps) = problem([20, 9, 3, 2])?;
    let bytes = (rows * 255.)?.to_dtype(DType::U8)?;
    let floats = (bytes.to_dtype(DType::F32)? * f64::from(1f32 / 255.))?;
    let table = Tensor::zeros((2, DENOISING_FIGURES), DType::F64, &Cpu)?;
    let (of_bytes, of_floats) = (values.copy()?, values.copy()?);
    denoising_steps_(
        params(&of_bytes, 20, 9),
        &bytes,
        &table,
        DenoisingSteps { scale: 1. / 255., ..steps },
        DRAWS,
    )?;
    denoising_steps_(params(&of_floats, 20, 9), &floats, &table, steps, DRAWS)?;
    assert_eq!(of_bytes.to_vec1::<f32>()?, of_floats.to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn steps_in_one_call_are_steps_one_by_one() -> Result<()> {
    let (values, rows, steps) = problem([50, 40, 4, 6])?;
    let table = Tensor::zeros((2, DENOISING_FIGURES), DType::F64, &Cpu)?;
    let (once, apart) = (values.copy()?, values.copy()?);
    denoising_steps_(params(&once, 50, 40), &rows, &table, steps, DRAWS)?;
    let mut philox = PHILOX;
    for rows in rows.chunk(6, 0)? {
        denoising_steps_(params(&apart, 50, 40), &rows.contiguous()?, &table, steps, Draws::At(philox))?;
        philox = philox.advanced(4 * 50);
    }
    assert_eq!(once.to_vec1::<f32>()?, apart.to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_in_words() -> Result<()> {
    let (values, rows, steps) = problem([20, 9, 3, 2])?;
    let table = Tensor::zeros((2, DENOISING_FIGURES), DType::F64, &Cpu)?;
    let call = |params, rows: &Tensor, steps| {
        denoising_steps_(params, rows, &table, steps, DRAWS).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let good = params(&values, 20, 9);
    let short = call(good, &rows.narrow(0, 0, 5)?.contiguous()?, steps);
    assert!(short.contains("whole minibatches") && short.contains("5 rows for a batch of 3"), "{short}");
    let wide = call(good, &rows.narrow(1, 0, 19)?.contiguous()?, steps);
    assert!(wide.contains("rows must have 20 columns"), "{wide}");
    let early = call(DenoisingParams { bias_at: 100, ..good }, &rows, steps);
    assert!(early.contains("one after the other"), "{early}");
    let share = call(good, &rows, DenoisingSteps { corruption: Corruption::Masking(1.5), ..steps });
    assert!(share.contains("must be in [0, 1], got 1.5"), "{share}");
    Ok(())
}
