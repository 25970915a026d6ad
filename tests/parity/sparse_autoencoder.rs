//! The cost of a sparse autoencoder and its training by L-BFGS: the same on every device to
//! rounding, with all threads at once.
use candle::{DType, Device, Result, Tensor};
use chandlery::sparse_autoencoder::{
    Cost, CostConfig, Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer,
};
use chandlery::sparse_autoencoder::{SparseAutoencoderTrainConfig, SparseAutoencoderTrainer};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Model, Philox, Precision, Trainer};
use chandlery_ops::core::{normal, uniform};
use chandlery_tests::{devices, sizes_here};

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

/// Networks that are too large for the one op of small ones, and rows; products of the last are so
/// large that in f32 they are made of two parts on some GPUs.
const LARGE: [(usize, usize, usize); 5] =
    [(257, 131, 301), (300, 120, 1), (785, 50, 64), (256, 196, 1000), (1030, 260, 4100)];

#[test]
fn evaluations_in_turn_are_those_of_the_cpu_and_leave_earlier_ones_as_they_are() -> Result<()> {
    for device in devices()? {
        // The CPU multiplies f32 numbers for TF32, which are off by 5e-4 a product, and rounds to
        // bf16 as GPUs do, but sums in another order, so that an activation may round differently.
        for (precision, tolerance) in
            [(Precision::F32, 1e-5), (Precision::Tf32, 3e-3), (Precision::Bf16, 1e-2)]
        {
            for decoder in [Decoder::Sigmoid, Decoder::Linear] {
                for (v, h, m) in sizes_here(&LARGE, |(v, h, m)| v * h * m) {
                    let is_largest = m > 4000;
                    if is_largest && (precision, decoder) != (Precision::F32, Decoder::Sigmoid) {
                        continue;
                    }
                    let model = SparseAutoencoderConfig { decoder, ..SparseAutoencoderConfig::new(v, h) };
                    let config = CostConfig { precision, ..CostConfig::default() };
                    let rows = uniform((m, v), &Device::Cpu, Philox::new(3, 0))?;
                    let cost = |device: &Device| {
                        let rows = rows.to_device(device)?;
                        Cost::new(model.clone(), config, &rows, None, DType::F32, device)
                    };
                    let (on_cpu, there) = (cost(&Device::Cpu)?, cost(&device)?);
                    let n = if is_largest { 2 } else { 5 };
                    let theta = |i: u64| -> Result<Tensor> {
                        normal(model.n_parameters(), &Device::Cpu, Philox::new(3, 1 + i))? * 0.05
                    };
                    let mut made = vec![];
                    for i in 0..n {
                        let (value, gradient) = there.evaluate(&theta(i)?.to_device(&device)?)?;
                        let (want, want_gradient) = on_cpu.evaluate(&theta(i)?)?;
                        let what = format!(
                            "{v}-{h}-{v}, {m} rows, {precision:?} {decoder:?}, evaluation {i} on {:?}",
                            device.location()
                        );
                        let (of_value, of_gradient) =
                            (apart(&value, &want)?, apart(&gradient, &want_gradient)?);
                        assert!(
                            of_value <= tolerance && of_gradient <= tolerance,
                            "{what}: {of_value}, {of_gradient}"
                        );
                        // The gradient of the hidden bias alone, which is small beside the others.
                        let bias = |t: &Tensor| t.narrow(0, 2 * v * h, h);
                        let of_bias = apart(&bias(&gradient)?, &bias(&want_gradient)?)?;
                        assert!(of_bias <= 3. * tolerance, "{what}: {of_bias} of the bias");
                        let read = (value.to_scalar::<f64>()?, gradient.to_vec1::<f32>()?);
                        made.push((value, gradient, read));
                    }
                    // Again, replayed on a GPU where the first was launched.
                    let (value, gradient) = there.evaluate(&theta(0)?.to_device(&device)?)?;
                    let again = (value.to_scalar::<f64>()?, gradient.to_vec1::<f32>()?);
                    assert!(again == made[0].2, "{v}-{h}-{v}, {m} rows, {precision:?} repeats itself");
                    for (value, gradient, read) in &made {
                        let now = (value.to_scalar::<f64>()?, gradient.to_vec1::<f32>()?);
                        assert!(now == *read, "{v}-{h}-{v}, {m} rows: a result was written over");
                    }
                    let parts = there.parts(&theta(1)?.to_device(&device)?)?;
                    assert_eq!(parts.cost, made[1].2.0);
                }
            }
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn passes_in_bf16_at_odd_widths_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        // The last two are so large that products add the decay.
        let sizes =
            [(65, 77, 7), (785, 501, 7), (785, 501, 193), (64, 96, 1000), (2101, 2003, 33), (1024, 4104, 65)];
        for (v, h, m) in sizes {
            for decoder in [Decoder::Sigmoid, Decoder::Linear] {
                if decoder == Decoder::Linear && v * h > 1 << 20 {
                    continue;
                }
                let model = SparseAutoencoderConfig { decoder, ..SparseAutoencoderConfig::new(v, h) };
                // So much decay that a gradient without it is off.
                let config =
                    CostConfig { precision: Precision::Bf16, weight_decay: 1., ..CostConfig::default() };
                let rows = uniform((m, v), &Device::Cpu, Philox::new(5, 0))?;
                let cost = |device: &Device| {
                    Cost::new(model.clone(), config, &rows.to_device(device)?, None, DType::F32, device)
                };
                let (on_cpu, there) = (cost(&Device::Cpu)?, cost(&device)?);
                let random = normal(model.n_parameters(), &Device::Cpu, Philox::new(5, 1))?;
                // The third is recorded, and the fourth replayed.
                for i in 0..4 {
                    let theta = (&random * (f64::from(i + 1) / 3. / (v.max(h) as f64).sqrt()))?;
                    let (value, gradient) = there.evaluate(&theta.to_device(&device)?)?;
                    if i == 1 {
                        continue;
                    }
                    let (want, want_gradient) = on_cpu.evaluate(&theta)?;
                    let what = format!("{v}-{h}-{v}, {m} rows, {decoder:?}, {i} on {:?}", device.location());
                    let of_value = apart(&value, &want)?;
                    assert!(of_value <= 1e-4, "{what}: {of_value}");
                    // Both multiply the same numbers of 8 bits. Sums differ by 1e-6 or so, for which
                    // one feature or delta in a thousand is rounded the other way, by 2⁻⁸ of it:
                    // 1e-4 of all of them, with room for deltas that cancel.
                    let n = v * h;
                    for (part, start, len) in
                        [("W", 0, n), ("W'", n, n), ("b", 2 * n, h), ("c", 2 * n + h, v)]
                    {
                        let of = |t: &Tensor| t.narrow(0, start, len);
                        let off = apart(&of(&gradient)?, &of(&want_gradient)?)?;
                        assert!(off <= 2e-3, "{what}: {off} of {part}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn passes_of_f32_at_odd_widths_are_those_of_the_cpu() -> Result<()> {
    // From 2^26 terms on lines are longer than what is in them: of both layers, of one, and, of two
    // products of the last network, of numbers that are made of two parts on some GPUs.
    let sizes = [(785, 501, 171), (784, 501, 193), (501, 784, 193), (1030, 263, 4100)];
    for device in devices()? {
        for (v, h, m) in sizes {
            for (precision, decoder, tolerance) in [
                (Precision::F32, Decoder::Sigmoid, 1e-5),
                (Precision::F32, Decoder::Linear, 1e-5),
                (Precision::Tf32, Decoder::Sigmoid, 3e-3),
                (Precision::Tf32, Decoder::Linear, 3e-3),
            ] {
                if m > 4000 && (precision, decoder) != (Precision::F32, Decoder::Linear) {
                    continue;
                }
                let model = SparseAutoencoderConfig { decoder, ..SparseAutoencoderConfig::new(v, h) };
                // As much decay that a gradient without it is off, and one of decay alone too.
                let config = CostConfig { precision, weight_decay: 0.1, ..CostConfig::default() };
                let rows = uniform((m, v), &Device::Cpu, Philox::new(6, 0))?;
                let cost = |device: &Device| {
                    Cost::new(model.clone(), config, &rows.to_device(device)?, None, DType::F32, device)
                };
                let (on_cpu, there) = (cost(&Device::Cpu)?, cost(&device)?);
                let random = normal(model.n_parameters(), &Device::Cpu, Philox::new(6, 1))?;
                // The third is recorded, and the fourth replayed.
                for i in [0, 1, 2, 3] {
                    let theta = (&random * (f64::from(i + 1) / 3. / (v.max(h) as f64).sqrt()))?;
                    let (value, gradient) = there.evaluate(&theta.to_device(&device)?)?;
                    if i == 1 || m > 4000 && i == 2 {
                        continue;
                    }
                    let (want, want_gradient) = on_cpu.evaluate(&theta)?;
                    let what = format!(
                        "{v}-{h}-{v}, {m} rows, {precision:?} {decoder:?}, {i} on {:?}",
                        device.location()
                    );
                    let of_value = apart(&value, &want)?;
                    assert!(of_value <= tolerance, "{what}: {of_value}");
                    let n = v * h;
                    for (part, start, len) in
                        [("W", 0, n), ("W'", n, n), ("b", 2 * n, h), ("c", 2 * n + h, v)]
                    {
                        let of = |t: &Tensor| t.narrow(0, start, len);
                        let off = apart(&of(&gradient)?, &of(&want_gradient)?)?;
                        // Biases have sums of deltas that cancel in part.
                        let most = if len == n { tolerance } else { 3. * tolerance };
                        assert!(off <= most, "{what}: {off} of {part}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn minibatches_train_as_on_the_cpu() -> Result<()> {
    const BATCH: usize = 65;
    for device in devices()? {
        // The last is so large that a GPU copies its rows to lines that are longer.
        for (v, h) in sizes_here(&[(20, 12), (257, 131), (1187, 893)], |(v, h)| v * h * BATCH) {
            let model =
                SparseAutoencoder::init(SparseAutoencoderConfig::new(v, h), Philox::new(4, 0), &Device::Cpu)?;
            let rows = uniform((5 * BATCH + 3, v), &Device::Cpu, Philox::new(4, 1))?.affine(0.8, 0.1)?;
            let trained = |device: &Device| -> Result<Tensor> {
                let config =
                    SparseAutoencoderTrainConfig { batch: BATCH, ..SparseAutoencoderTrainConfig::default() };
                let mut trainer = SparseAutoencoderTrainer::new(&model.to(DType::F32, device)?, config)?;
                let there = rows.to_device(device)?;
                // The last minibatch has fewer rows.
                for start in (0..rows.dim(0)?).step_by(BATCH) {
                    trainer.step(&there.narrow(0, start, BATCH.min(rows.dim(0)? - start))?, None)?;
                }
                assert_eq!(there.to_vec2::<f32>()?, rows.to_vec2::<f32>()?, "rows stay as they are");
                trainer.model()?.flat()
            };
            let off = apart(&trained(&device)?, &trained(&Device::Cpu)?)?;
            // Adam divides by the size of a gradient, so that rounding in small ones counts.
            assert!(off <= 1e-3, "{v}-{h}-{v} on {:?}: {off}", device.location());
        }
    }
    Ok(())
}
