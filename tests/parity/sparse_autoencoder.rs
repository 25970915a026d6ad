//! The cost of a sparse autoencoder and its training by L-BFGS: the same on every device to
//! rounding, with all threads at once.
use candle::{DType, Device, Result, Tensor};
use chandlery::sparse_autoencoder::{
    Cost, CostConfig, Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer,
};
use chandlery::{FullBatchTrainer, Model, Philox, Trainer};
use chandlery_ops::core::{normal, uniform};
use chandlery_tests::devices;

/// `‖a − b‖ / ‖b‖`; NaN where an entry is.
fn apart(a: &Tensor, b: &Tensor) -> Result<f64> {
    let on_host = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (a, b) = (on_host(a)?, on_host(b)?);
    let norm = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>().map(f64::sqrt);
    Ok(norm((a - &b)?)? / norm(b)?)
}

#[test]
fn cost_and_gradient_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for decoder in [Decoder::Sigmoid, Decoder::Linear] {
            for (v, h, m) in [(1, 2, 3), (17, 33, 31), (64, 25, 257), (65, 130, 1000)] {
                for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
                    let model = SparseAutoencoderConfig { decoder, ..SparseAutoencoderConfig::new(v, h) };
                    let rows = uniform((m, v), &Device::Cpu, Philox::new(1, 0))?.to_dtype(dtype)?;
                    let theta = (normal(model.n_parameters(), &Device::Cpu, Philox::new(1, 1))? * 0.3)?
                        .to_dtype(dtype)?;
                    let on = |device: &Device, chunk| -> Result<(Tensor, Tensor)> {
                        let rows = rows.to_device(device)?;
                        let cost =
                            Cost::new(model.clone(), CostConfig::default(), &rows, chunk, dtype, device)?;
                        cost.evaluate(&theta.to_device(device)?)
                    };
                    let (want, want_gradient) = on(&Device::Cpu, None)?;
                    for chunk in [None, Some(100)] {
                        let (value, gradient) = on(&device, chunk)?;
                        let what =
                            format!("{v}-{h}-{v} {dtype:?} {decoder:?} {chunk:?} on {:?}", device.location());
                        let (value, gradient) = (apart(&value, &want)?, apart(&gradient, &want_gradient)?);
                        assert!(value <= tolerance && gradient <= tolerance, "{what}: {value}, {gradient}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn runs_end_at_the_same_cost_and_repeat_themselves_to_the_bit() -> Result<()> {
    for device in devices()? {
        let rows = uniform((500, 20), &Device::Cpu, Philox::new(2, 0))?.affine(0.8, 0.1)?;
        let start =
            SparseAutoencoder::init(SparseAutoencoderConfig::new(20, 12), Philox::new(2, 1), &Device::Cpu)?;
        let run = |device: &Device| -> Result<(f64, Vec<f32>)> {
            let fit = SparseAutoencoderLbfgsTrainConfig {
                iterations: 40,
                ..SparseAutoencoderLbfgsTrainConfig::default()
            };
            let mut run = SparseAutoencoderLbfgsTrainer::new(
                &start.to(DType::F32, device)?,
                fit,
                &rows.to_device(device)?,
            )?;
            run.fit()?;
            Ok((run.parts()?.cost, run.model()?.flat()?.to_vec1::<f32>()?))
        };
        let (cost, theta) = run(&device)?;
        let (want, _) = run(&Device::Cpu)?;
        assert!((cost - want).abs() < 0.01 * want, "{cost} on {:?}, {want} on the CPU", device.location());
        assert_eq!(run(&device)?, (cost, theta), "on {:?}", device.location());
    }
    Ok(())
}
