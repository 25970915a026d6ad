//! Layers, losses and optimisers: equal to their references, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery::conv_rbm::{ConvGrid, Padding};
use chandlery::datasets::ImageShape;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::feedforward::{
    Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Optimizer, ReconstructionLoss,
};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::RbmConfig;
use chandlery::schedule::Schedule;
use chandlery::{Decode, MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::{Draws, advance_, normal};
use chandlery_ops::layers::{
    Activation, AdamStep, Dropout, OutputLoss, SgdStep, adam_step_, adam_step_reference, layer_backward_,
    layer_backward_into_, layer_backward_reference, layer_forward_, layer_forward_into_,
    layer_forward_reference, output_loss_, output_loss_reference, sgd_step_, sgd_step_reference,
    softmax_loss_, softmax_loss_reference,
};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;
const ACTIVATIONS: [Activation; 4] =
    [Activation::Identity, Activation::Sigmoid, Activation::Relu, Activation::Tanh];
const PLACE: Philox = Philox { seed: 11, stream: 22, offset: u64::MAX - 5 };

/// Rows and units: tails of 1, 2 and 3 elements, sizes around a warp, a block and a row's lanes,
/// layers of a 784-500-500-2000 network, and more elements than one grid has threads for (the
/// last).
const SHAPES: [(usize, usize); 13] = [
    (1, 1),
    (1, 3),
    (5, 1),
    (2, 31),
    (3, 33),
    (7, 37),
    (2, 127),
    (3, 128),
    (4, 129),
    (33, 10),
    (100, 500),
    (50, 2000),
    (1025, 4100),
];

/// Functions are within 2.5 ulp of the truth and so are candle's; derivatives are a product of two
/// of them.
const RTOL: f32 = 2e-6;
/// 1 − y² keeps an ulp of 1 where y is near ±1.
const ATOL: f32 = 1e-6;

fn draw(rows: usize, n: usize, stream: u64) -> Result<Tensor> {
    normal((rows, n), &CPU, Philox::new(60, stream))? * 2.
}

#[test]
fn layers_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (rows, n) in SHAPES {
            let (pre, bias) = (draw(rows, n, 0)?, draw(1, n, 1)?.squeeze(0)?);
            let delta = draw(rows, n, 2)?;
            for activation in ACTIVATIONS {
                for rate in [None, Some(0.3f32)] {
                    let what =
                        format!("{activation:?} [{rows}, {n}] dropout {rate:?} on {:?}", device.location());
                    let dropout = rate.map(|rate| Dropout { rate, draws: Draws::At(PLACE) });
                    let run = |device: &Device| -> Result<(Tensor, Tensor)> {
                        let (a, d) = (pre.to_device(device)?.copy()?, delta.to_device(device)?.copy()?);
                        layer_forward_(&a, Some(&bias.to_device(device)?), activation, dropout)?;
                        layer_backward_(&d, &a, activation, dropout)?;
                        Ok((a.to_device(&CPU)?, d.to_device(&CPU)?))
                    };
                    let rounded = |device: &Device| -> Result<(Tensor, Tensor)> {
                        let (a, d) = (pre.to_device(device)?, delta.to_device(device)?);
                        let out = Tensor::zeros(a.shape(), DType::BF16, device)?;
                        layer_forward_into_(&out, &a, Some(&bias.to_device(device)?), activation, dropout)?;
                        let y = out.to_device(&CPU)?.to_dtype(DType::F32)?;
                        layer_backward_into_(&out, &d, activation, dropout)?;
                        Ok((y, out.to_device(&CPU)?.to_dtype(DType::F32)?))
                    };
                    let (a, d) = run(&device)?;
                    let (a_cpu, d_cpu) = run(&CPU)?;
                    assert_same_bits(&format!("output of {what}"), &a, &a_cpu)?;
                    assert_same_bits(&format!("delta of {what}"), &d, &d_cpu)?;
                    // In bf16 the output is rounded, and the derivative is that of what was rounded.
                    let (y, of_y) = rounded(&device)?;
                    let in_bf16 = |t: &Tensor| t.to_dtype(DType::BF16)?.to_dtype(DType::F32);
                    assert_same_bits(&format!("rounded output of {what}"), &y, &in_bf16(&a)?)?;
                    let want = delta.copy()?;
                    layer_backward_(&want, &y, activation, dropout)?;
                    assert_same_bits(&format!("rounded delta of {what}"), &of_y, &in_bf16(&want)?)?;
                    let place = rate.map(|rate| (rate, PLACE));
                    let want = layer_forward_reference(&pre, Some(&bias), activation, place)?;
                    assert_close(&format!("output of {what}"), &a, &want, RTOL, 0.)?;
                    let plain = layer_forward_reference(&pre, Some(&bias), activation, None)?;
                    let want = layer_backward_reference(&delta, &plain, activation, place)?;
                    assert_close(&format!("delta of {what}"), &d, &want, RTOL, 20. * ATOL)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_counter_on_the_device_moves_the_dropped_units() -> Result<()> {
    for device in devices()? {
        let pre = draw(9, 7, 0)?.to_device(&device)?;
        let counter = Tensor::new(&[0i64], &device)?;
        for step in 0..3u64 {
            let at = Philox { offset: PLACE.offset.wrapping_add(16 * step), ..PLACE };
            let run = |draws| -> Result<Tensor> {
                let a = pre.copy()?;
                let dropout = Some(Dropout { rate: 0.5, draws });
                layer_forward_(&a, None, Activation::Identity, dropout)?;
                Ok(a)
            };
            let got = run(Draws::Counter { philox: PLACE, counter: &counter })?;
            assert_same_bits(&format!("step {step} on {:?}", device.location()), &got, &run(Draws::At(at))?)?;
            advance_(&counter, 16)?;
        }
    }
    Ok(())
}

/// A row's loss is a sum of `n` terms of about 1, each rounded once as it is formed and log2(n) +
/// n/lanes times in sums.
fn sum_tolerance(n: usize) -> f32 {
    (n as f32) * 4. / 16_777_216.
}

#[test]
fn losses_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    let losses = ACTIVATIONS.map(OutputLoss::SquaredError).into_iter().chain([OutputLoss::CrossEntropy]);
    for device in devices()? {
        for (batch, n) in SHAPES {
            let (pre, bias) = (draw(batch, n, 3)?, draw(1, n, 4)?.squeeze(0)?);
            let target = chandlery_ops::core::uniform((batch, n), &CPU, Philox::new(60, 5))?;
            let labels: Vec<u32> = (0..batch).map(|i| (i * 7 % n) as u32).collect();
            let labels = Tensor::from_vec(labels, batch, &CPU)?;
            // These are a third of a minibatch.
            let of = 3 * batch;
            let run = |device: &Device, loss: Option<OutputLoss>| -> Result<(Tensor, Tensor)> {
                let (x, b) = (pre.to_device(device)?.copy()?, bias.to_device(device)?);
                // Not zero to begin with: sums must be added to what was there.
                let gathered = Tensor::ones((2, batch), DType::F64, device)?;
                match loss {
                    Some(loss) => output_loss_(&x, &b, &target.to_device(device)?, loss, of, &gathered)?,
                    None => softmax_loss_(&x, &b, &labels.to_device(device)?, of, &gathered)?,
                }
                Ok((x.to_device(&CPU)?, (gathered - 1.)?.to_device(&CPU)?))
            };
            for loss in losses.clone().map(Some).chain([None]) {
                let what = format!("{loss:?} [{batch}, {n}] on {:?}", device.location());
                let (delta, sums) = run(&device, loss)?;
                let (delta_cpu, sums_cpu) = run(&CPU, loss)?;
                assert_same_bits(&format!("delta of {what}"), &delta, &delta_cpu)?;
                assert_same_bits(&format!("sums of {what}"), &sums, &sums_cpu)?;
                let (want, want_sums) = match loss {
                    Some(loss) => output_loss_reference(&pre, &bias, &target, loss)?,
                    None => softmax_loss_reference(&pre, &bias, &labels)?,
                };
                let (want, scale) = ((want * (batch as f64 / of as f64))?, 1. / of as f32);
                assert_close(&format!("delta of {what}"), &delta, &want, 4. * RTOL, 8. * ATOL * scale)?;
                assert_close(&format!("sums of {what}"), &sums, &want_sums, 1e-5, 16. * sum_tolerance(n))?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_bad_label_and_a_nan_spoil_their_row_and_no_other() -> Result<()> {
    for device in devices()? {
        let mut pre = draw(4, 5, 6)?.to_vec2::<f32>()?;
        pre[2][3] = f32::NAN;
        let pre = Tensor::new(pre, &device)?;
        let bias = Tensor::zeros(5, DType::F32, &device)?;
        let gathered = Tensor::zeros((2, 4), DType::F64, &device)?;
        let labels = Tensor::new(&[0u32, 5, 1, 4], &device)?;
        if device.is_cpu() {
            let refused = softmax_loss_(&pre, &bias, &labels, 4, &gathered).map_err(|e| e.to_string());
            let refused = refused.as_ref().map_err(|e| e.lines().next().unwrap_or_default());
            let want = "softmax_loss_: labels must be below 5, the number of classes, got 5 in row 1";
            assert_eq!(refused, Err(want));
            continue;
        }
        softmax_loss_(&pre, &bias, &labels, 4, &gathered)?;
        let losses = gathered.get(0)?.to_vec1::<f64>()?;
        assert_eq!(losses.map_nan(), [false, true, true, false], "on {:?}: {losses:?}", device.location());
        for (row, spoiled) in pre.to_vec2::<f32>()?.iter().zip(losses.map_nan()) {
            assert!(row.iter().all(|x| x.is_nan() == spoiled), "{row:?}");
        }
    }
    Ok(())
}

trait MapNan {
    fn map_nan(&self) -> Vec<bool>;
}

impl MapNan for Vec<f64> {
    fn map_nan(&self) -> Vec<bool> {
        self.iter().map(|x| x.is_nan()).collect()
    }
}

#[test]
fn optimisers_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    let adam = AdamStep { weight_decay: 0.01, ..AdamStep::default() };
    let sgd = SgdStep { weight_decay: 0.01 };
    for device in devices()? {
        // One parameter, a tail, a block, and more than the grid has threads for.
        for n in [1, 255, 256, 1000, 600_000] {
            let start = draw(4, n, 7)?;
            // The fourth plane is a mean square.
            let start = Tensor::cat(&[start.narrow(0, 0, 3)?, start.narrow(0, 3, 1)?.sqr()?], 0)?;
            for (t, decayed) in [(1, n / 2), (2, 0), (1000, n)] {
                let what = format!("{n} parameters, step {t}, on {:?}", device.location());
                let run = |device: &Device, is_adam: bool| -> Result<Tensor> {
                    let scalars = Tensor::new(&[0.01f32, 0.9], device)?;
                    let steps = Tensor::new(&[i64::from(t) - 1], device)?;
                    let state = start.narrow(0, 0, if is_adam { 4 } else { 3 })?.to_device(device)?.copy()?;
                    // None, all, and all but some at the end.
                    let copied = if t == 1 { 0 } else { n.saturating_sub(decayed / 3) };
                    let copy = (t > 1).then(|| Tensor::zeros(copied, DType::BF16, device)).transpose()?;
                    let copy = copy.as_ref();
                    match is_adam {
                        true => adam_step_(&state, &scalars, &steps, adam, .., decayed, copy)?,
                        false => sgd_step_(&state, &scalars, sgd, decayed, copy)?,
                    }
                    if let Some(copy) = copy {
                        let want = state.get(0)?.narrow(0, 0, copied)?.to_device(&CPU)?;
                        let want = want.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
                        let got = copy.to_device(&CPU)?.to_dtype(DType::F32)?;
                        assert_same_bits(&format!("copy: {what}"), &got, &want)?;
                    }
                    state.to_device(&CPU)
                };
                let (a, s) = (run(&device, true)?, run(&device, false)?);
                assert_same_bits(&format!("adam: {what}"), &a, &run(&CPU, true)?)?;
                assert_same_bits(&format!("sgd: {what}"), &s, &run(&CPU, false)?)?;
                let rate = f64::from(0.01f32);
                // A handful of roundings of numbers of about 2; m and v may cancel.
                let want = adam_step_reference(&start, rate, t, adam, decayed)?;
                assert_close(&format!("adam: {what}"), &a, &want, 1e-6, 2e-6)?;
                let want =
                    sgd_step_reference(&start.narrow(0, 0, 3)?, rate, f64::from(0.9f32), sgd, decayed)?;
                assert_close(&format!("sgd: {what}"), &s, &want, 1e-6, 2e-6)?;
            }
        }
    }
    Ok(())
}

fn train(
    network: &Feedforward,
    training: &FeedforwardTrainConfig,
    device: &Device,
    steps: usize,
) -> Result<Feedforward> {
    let network = network.to(DType::F32, device)?;
    let n_inputs = network.config().n_inputs();
    let rows = (chandlery_ops::core::uniform((80, n_inputs), &CPU, Philox::new(61, 0))? * 256.)?
        .to_dtype(DType::U8)?;
    let rows = rows.to_device(device)?;
    let labels = Tensor::from_vec((0..80u32).map(|i| i * 5 / 3 % 3).collect::<Vec<_>>(), 80, device)?;
    let mut trainer = FeedforwardTrainer::new(&network, training.clone(), Philox::new(61, 1))?;
    for step in 0..steps {
        trainer.begin_epoch(step / 4)?;
        let at = step % 4 * 20;
        // The last minibatch of an epoch is not full.
        let n = if step % 4 == 3 { 13 } else { 20 };
        trainer.step(&rows.narrow(0, at, n)?, Some(&labels.narrow(0, at, n)?))?;
    }
    trainer.metrics()?;
    trainer.model()?.to(DType::F32, &CPU)
}

#[test]
fn a_label_that_is_no_class_stops_training_by_its_number() -> Result<()> {
    let want = "FeedforwardTrainer::step: labels must be below n_classes = 3, got 3";
    let first = |error: candle::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    for device in devices()? {
        let network =
            Feedforward::init(FeedforwardConfig::classifier(&[6, 4, 3]), Philox::new(62, 0), &device)?;
        let training = FeedforwardTrainConfig { batch: 4, ..FeedforwardTrainConfig::default() };
        let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(62, 1))?;
        let rows = Tensor::zeros((4, 6), DType::F32, &device)?;
        let step = |trainer: &mut FeedforwardTrainer, labels: [u32; 4]| {
            trainer.step(&rows, Some(&Tensor::new(&labels, &device)?))
        };
        step(&mut trainer, [0, 1, 2, 2])?;
        trainer.check()?;
        match step(&mut trainer, [0, 3, 1, 2]) {
            Err(error) => assert_eq!((first(error), device.is_cpu()), (want.to_owned(), true)),
            Ok(()) => {
                assert!(device.is_cuda());
                assert_eq!(trainer.check().map_err(first), Err(want.to_owned()));
            }
        }
    }
    Ok(())
}

/// Products differ in the order of their sums, about 1e-6 of an entry, or in bf16 by 2^-9; thirty
/// steps of gradient descent at most pass that on. Relative and absolute.
fn trained_tolerance(precision: Precision) -> (f32, f32) {
    if precision == Precision::Bf16 { (1e-2, 5e-3) } else { (1e-3, 2e-5) }
}

/// Patches on patches, and pooled filters on filters, on 6 x 8 pixels of two channels.
fn stacks_of_windows() -> Result<[Dbn; 2]> {
    let image = ImageShape { height: 6, width: 8, channels: 2 };
    let patches = RbmConfig::patches(PatchGrid::of_image(image, 4, 2), 3)?;
    let Some(grid) = patches.hidden_grid(2, 1) else { candle::bail!("patches have a grid") };
    let patches_on = RbmConfig::patches(grid, 4)?;
    let maps =
        RbmConfig::convolution(ConvGrid { padding: Padding::Same, ..ConvGrid::of_image(image, 3, 5) })?;
    let Some(grid) = maps.hidden_conv_grid(3, 4) else { candle::bail!("maps have a grid") };
    let maps_on = RbmConfig::convolution(ConvGrid { pool: 2, ..grid })?;
    let dbn = |layers| Dbn::init(DbnConfig { layers, ..DbnConfig::new(&[1, 1]) }, Philox::new(63, 0), &CPU);
    Ok([dbn(vec![patches, patches_on])?, dbn(vec![maps, maps_on])?])
}

#[test]
fn thirty_steps_are_the_same_on_every_device_recorded_or_not() -> Result<()> {
    let classifier = FeedforwardConfig::classifier(&[37, 29, 17, 3]);
    let autoencoder = FeedforwardConfig::autoencoder(&[37, 29, 5]);
    // Gradient descent: Adam divides gradients near 0 by their size, and with it their rounding.
    let base = FeedforwardTrainConfig {
        batch: 20,
        optimizer: Optimizer::Sgd,
        learning_rate: Schedule::linear(0.1, 0.01, 8),
        ..FeedforwardTrainConfig::default()
    };
    let dropout = vec![0.2, 0.5, 0.5];
    let (wide_classifier, wide_autoencoder) =
        (FeedforwardConfig::classifier(&[40, 24, 16, 3]), FeedforwardConfig::autoencoder(&[40, 24, 8]));
    // Steps add units to these.
    let (odd_classifier, odd_autoencoder) =
        (FeedforwardConfig::classifier(&[77, 69, 65, 3]), FeedforwardConfig::autoencoder(&[77, 69, 65]));
    let in_bf16 = FeedforwardTrainConfig { precision: Precision::Bf16, ..base.clone() };
    // Thirty longer steps against the errors of 77 outputs pass rounding on a thousandfold, those of
    // cross-entropies more so, at any widths.
    let slow = |rate: f64| Schedule::linear(rate, 0.1 * rate, 8);
    let [patches, maps] = stacks_of_windows()?;
    let of_windows = [
        ("classifier of patches", Feedforward::from_dbn(&patches, 3)?),
        ("autoencoder of patches", Feedforward::unroll(&patches)?),
        ("classifier of pooled maps", Feedforward::from_dbn(&maps, 3)?),
        ("autoencoder of pooled maps", Feedforward::unroll(&maps)?),
    ];
    let of_windows = of_windows.each_ref().map(|(name, network)| {
        let dropout = vec![0.1; network.config().layers.len()];
        (*name, network.config(), FeedforwardTrainConfig { dropout, ..base.clone() })
    });
    let of_layers = [
        ("classifier", &classifier, base.clone()),
        (
            "classifier, dropout, decay, max-norm",
            &classifier,
            FeedforwardTrainConfig {
                dropout: dropout.clone(),
                weight_decay: 1e-3,
                max_norm: Some(2.),
                ..base.clone()
            },
        ),
        ("classifier in bf16", &wide_classifier, in_bf16.clone()),
        (
            "classifier in bf16, dropout, max-norm",
            &wide_classifier,
            FeedforwardTrainConfig { dropout: dropout.clone(), max_norm: Some(2.), ..in_bf16.clone() },
        ),
        ("autoencoder in bf16", &wide_autoencoder, in_bf16.clone()),
        (
            "classifier of odd widths, dropout, max-norm",
            &odd_classifier,
            FeedforwardTrainConfig { dropout: dropout.clone(), max_norm: Some(2.), ..base.clone() },
        ),
        ("classifier of odd widths in bf16", &odd_classifier, in_bf16.clone()),
        (
            "autoencoder of odd widths in bf16",
            &odd_autoencoder,
            FeedforwardTrainConfig { learning_rate: slow(0.02), ..in_bf16.clone() },
        ),
        (
            "autoencoder of odd widths, bits",
            &odd_autoencoder,
            FeedforwardTrainConfig {
                learning_rate: slow(0.002),
                loss: ReconstructionLoss::CrossEntropy,
                ..base.clone()
            },
        ),
        ("autoencoder, squares", &autoencoder, base.clone()),
        (
            "autoencoder, bits",
            &autoencoder,
            FeedforwardTrainConfig { loss: ReconstructionLoss::CrossEntropy, ..base.clone() },
        ),
    ];
    for (name, config, training) in of_layers.into_iter().chain(of_windows) {
        let network = Feedforward::init(config.clone(), Philox::new(61, 2), &CPU)?;
        let want = train(&network, &training, &CPU, 30)?;
        for device in devices()? {
            let got = train(&network, &training, &device, 30)?;
            // On a GPU all steps but the first two are replays of a recording, which the CPU does
            // not have.
            for ((part, got), (_, want)) in got.tensors().into_iter().zip(want.tensors()) {
                let what = format!("{name}: {part} on {:?}", device.location());
                let (rtol, atol) = trained_tolerance(training.precision);
                assert_close(&what, &got, &want, rtol, atol)?;
            }
            let again = train(&network, &training, &device, 30)?;
            for ((part, again), (_, got)) in again.tensors().into_iter().zip(got.tensors()) {
                assert_same_bits(
                    &format!("{name}: {part}, run twice on {:?}", device.location()),
                    &again,
                    &got,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn adam_learns_the_same_on_every_device_and_in_every_precision() -> Result<()> {
    let config = FeedforwardConfig::autoencoder(&[64, 40, 8]);
    let network = Feedforward::init(config, Philox::new(62, 0), &CPU)?;
    let rows =
        (chandlery_ops::core::uniform((80, 64), &CPU, Philox::new(61, 0))? * 256.)?.to_dtype(DType::U8)?;
    let rows = (rows.to_dtype(DType::F32)? / 255.)?;
    let run = |precision, device: &Device| -> Result<f64> {
        let training = FeedforwardTrainConfig { batch: 20, precision, ..FeedforwardTrainConfig::default() };
        train(&network, &training, device, 60)?.reconstruction_error(&rows)
    };
    let want = run(Precision::F32, &CPU)?;
    assert!(want < 0.9 * network.reconstruction_error(&rows)?);
    for device in devices()? {
        for (precision, tolerance) in
            [(Precision::F32, 1e-4), (Precision::Tf32, 2e-3), (Precision::Bf16, 2e-2)]
        {
            let error = run(precision, &device)?;
            let off = (error / want - 1.).abs();
            assert!(off < tolerance, "{precision:?} on {:?}: {error}, in f32 {want}", device.location());
        }
    }
    Ok(())
}
