//! Convolutional RBMs on a GPU follow the CPU; the biases of their maps are the same bits.
use candle::{DType, Device, Result, Tensor};
use chandlery::conv_rbm::{ConvGrid, Padding};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::Precision;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{BiasStep, Phases, Sparsity, bias_step_, bias_step_reference, bias_sums_shape};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

#[test]
fn a_trainer_of_filters_on_a_gpu_follows_the_cpu() -> Result<()> {
    let base = ConvGrid { pool: 2, ..ConvGrid::of_image([25, 33, 1], 6, 12) };
    let grids = [
        base,
        ConvGrid { planes: 3, padding: Padding::Same, pool: 1, ..base },
        ConvGrid { size: 4, pool: 3, height: 24, width: 30, padding: Padding::Same, n_filters: 5, ..base },
    ];
    for grid in grids {
        for (visible, persistent, k) in [
            (VisibleUnit::Bernoulli, false, 1),
            (VisibleUnit::Bernoulli, false, 3),
            (VisibleUnit::Bernoulli, true, 1),
            (VisibleUnit::Gaussian, false, 1),
            (VisibleUnit::Gaussian, false, 2),
        ] {
            let lowest = RbmConfig { visible, ..RbmConfig::convolution(grid)? };
            let Some(above) = lowest.hidden_conv_grid(3, 7) else { candle::bail!("no places") };
            let next = RbmConfig::convolution(above)?;
            let top = RbmConfig::new(next.n_hidden, 36);
            let rows = uniform((24, grid.n_values()), &CPU, Philox::new(71, 0))?;
            let run = |device: &Device, layer: usize, precision: Precision| -> Result<Tensor> {
                // The same weights everywhere: normal draws on the CPU.
                let layers = [&lowest, &next, &top].map(|config| {
                    Rbm::init(config.clone(), Philox::new(71, 1), &CPU)?.to(DType::F32, device)
                });
                let [lowest, next, top] = layers;
                let layers = [lowest?, next?, top?];
                let config = RbmTrainConfig {
                    batch: 8,
                    persistent: persistent && layer == 0,
                    sample_visible: visible == VisibleUnit::Gaussian && k == 1,
                    k,
                    learning_rate: 0.1.into(),
                    sparsity: Some(SparsityConfig { target: 0.1, cost: 0.5, decay: 0.9 }),
                    precision,
                    ..RbmTrainConfig::default()
                };
                let (lower, rbm) = (&layers[..layer], &layers[layer]);
                let mut trainer =
                    RbmTrainer::above(lower, rbm, &Default::default(), config, Philox::new(71, 2))?;
                for minibatch in rows.to_device(device)?.chunk(3, 0)? {
                    trainer.step(&minibatch, None)?;
                }
                trainer.check()?;
                trainer.model()?.weight().to_device(&CPU)
            };
            for device in devices()? {
                for layer in 0..3 {
                    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
                        let what = format!(
                            "{grid:?} CD-{k} {visible:?} layer {layer} {precision:?} on {:?}",
                            device.location()
                        );
                        let want = run(&CPU, layer, precision)?;
                        // Three steps of .1; a draw that falls to the other side moves a weight of
                        // the dense layer by .1 over the rows, and less where it is shared.
                        let atol = if layer == 2 { 2e-2 } else { 2e-3 };
                        assert_close(&what, &run(&device, layer, precision)?, &want, 1e-3, atol)?;
                        if layer < 2 {
                            let exact = run(&CPU, layer, Precision::F32)?;
                            assert_same_bits(&format!("precision: {what}"), &want, &exact)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn biases_by_stretches_are_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    // Rows at, above and far above a stretch of 4096; units below, at and above those of a block.
    for (rows, units) in [(5, 3), (4096, 1), (4097, 33), (20_000, 24), (9_000, 70)] {
        let planes = uniform((2, rows, units), &CPU, Philox::new(72, 0))?;
        let state = normal((4, units), &CPU, Philox::new(72, 1))?;
        let scalars = Tensor::new(&[0.1f32 / rows as f32, 0.5, 0.1], &CPU)?;
        let sparsity = Some(Sparsity { target: 0.1, cost: 0.5, decay: 0.9 });
        for (sparsity, gather_error) in [(sparsity, false), (None, true)] {
            for dtype in [DType::F32, DType::BF16] {
                let planes = planes.to_dtype(dtype)?;
                let step =
                    BiasStep { phases: Phases::Difference, sparsity, gather_error, scale: None, sums: None };
                let want = bias_step_reference(&state, &planes, &scalars, step)?;
                let mut on_cpu: Option<Tensor> = None;
                for device in devices()? {
                    let what =
                        format!("[{rows}, {units}] {dtype:?} {gather_error} on {:?}", device.location());
                    let state = state.to_device(&device)?.copy()?;
                    let sums = Tensor::zeros(bias_sums_shape(rows, units), DType::F32, &device)?;
                    let step = BiasStep { sums: Some(&sums), ..step };
                    bias_step_(&state, &planes.to_device(&device)?, &scalars.to_device(&device)?, step)?;
                    let state = state.to_device(&CPU)?;
                    match &on_cpu {
                        None => {
                            // Sums of 20,000 numbers below 1; the fourth plane is the rounding
                            // error of the third.
                            assert_close(&what, &state.narrow(0, 0, 3)?, &want.narrow(0, 0, 3)?, 1e-5, 1e-5)?;
                            on_cpu = Some(state);
                        }
                        Some(cpu) => assert_same_bits(&what, &state, cpu)?,
                    }
                }
            }
        }
    }
    Ok(())
}
