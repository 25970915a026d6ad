//! Denoising autoencoders on every device: the same steps in every form, resumed bit for bit, and
//! checkpoints that change devices.
use crate::resume::resumed;
use candle::{DType, Device, Error, Result, Tensor};
use chandlery::dae::reference::Serial;
use chandlery::dae::{
    Dae, DaeConfig, DaeTrainConfig, DaeTrainer, StackedDae, StackedDaeConfig, StackedDaeTrainer,
};
use chandlery::{MinibatchTrainer, Model, Philox, Precision, Trainer};
use chandlery_datasets::DataOptions;
use chandlery_ops::core::uniform;
use chandlery_ops::layers::{Corruption, cd_update_takes_halves, warpgroups_multiply};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;
const STEPS: usize = 12;

/// Networks and minibatches: one op for many steps, kernels on numbers in two parts, and an op for
/// each module.
fn cases() -> Result<Vec<Case>> {
    let train = |batch, momentum: f64, weight_decay| DaeTrainConfig {
        batch,
        momentum: momentum.into(),
        weight_decay,
        ..DaeTrainConfig::default()
    };
    let paper = |n_visible, n_hidden| DaeConfig::new(n_visible, n_hidden);
    // A rate at which rounding stays rounding.
    let bf16 = |training: DaeTrainConfig| DaeTrainConfig {
        precision: Precision::Bf16,
        learning_rate: 0.02.into(),
        ..training
    };
    let tf32 = |training: DaeTrainConfig| DaeTrainConfig { precision: Precision::Tf32, ..bf16(training) };
    // Sums of up to 1200 terms in another order, over twelve steps; of bf16 numbers, which are
    // rounded to neighbours after it.
    let (exact, rounded, of_tf32) = ((3e-6, 1e-5), (1e-3, 1e-3), (1.5e-4, 2e-4));
    let mut cases = vec![
        ("small minibatches", paper(60, 37), train(8, 0., 0.), exact),
        ("large minibatches", paper(784, 500), train(128, 0., 0.01), exact),
        ("momentum", paper(100, 60), train(20, 0.5, 0.01), exact),
        ("beyond a multiprocessor", paper(1200, 1100), train(24, 0., 0.), exact),
        ("odd sizes", paper(61, 37), train(130, 0.5, 0.), exact),
        ("untied", DaeConfig { tied: false, ..paper(60, 40) }, train(16, 0.5, 0.01), exact),
        ("TF32", paper(784, 500), tf32(train(128, 0.5, 0.01)), of_tf32),
        ("TF32 in many small minibatches", paper(104, 60), tf32(train(20, 0., 0.)), of_tf32),
        ("TF32, odd sizes", paper(61, 37), tf32(train(130, 0.5, 0.)), of_tf32),
        ("more units", paper(785, 501), train(128, 0., 0.01), exact),
        ("more units in small minibatches", paper(785, 501), train(10, 0., 0.), exact),
        ("more units, rows that end within a block of draws", paper(77, 65), train(66, 0.5, 0.), exact),
        ("more units, untied", DaeConfig { tied: false, ..paper(71, 73) }, train(16, 0.5, 0.01), exact),
        ("more units, TF32", paper(785, 501), tf32(train(128, 0.5, 0.01)), of_tf32),
        ("more units, bf16", paper(785, 501), bf16(train(128, 0.5, 0.01)), rounded),
        ("more units, bf16 in many small minibatches", paper(101, 67), bf16(train(20, 0., 0.)), rounded),
        ("more units, bf16, rows that end within a block", paper(101, 67), bf16(train(33, 0., 0.)), rounded),
        ("more units, TF32, rows that end within a block", paper(77, 65), tf32(train(33, 0.5, 0.)), of_tf32),
        ("bf16", paper(784, 504), bf16(train(128, 0.5, 0.01)), rounded),
        ("bf16 in many small minibatches", paper(104, 60), bf16(train(20, 0., 0.)), rounded),
    ];
    // Matrices with so many tiles that a GPU of capability 9.0 has their weights in halves. Its
    // updates are of one kernel for up to 192 rows and of another for more: of the second network a
    // minibatch that is not full is for the first.
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        for (what, (n_visible, n_hidden), batch) in
            [("in halves", (1792, 1800), 64), ("more units, in halves", (1789, 1797), 194)]
        {
            let sizes = [n_hidden, n_visible].map(|n: usize| n.next_multiple_of(8));
            let halves = [batch, batch - 3].map(|batch| cd_update_takes_halves(&device, sizes, batch));
            assert_eq!(halves, [warpgroups_multiply(&device); 2], "{what}");
            // The wider, the lower that rate.
            let training = DaeTrainConfig { learning_rate: 0.01.into(), ..bf16(train(batch, 0.5, 0.01)) };
            cases.push((what, paper(n_visible, n_hidden), training, rounded));
        }
    }
    let case = |(what, config, training, (atol, of_loss))| Case { what, config, training, atol, of_loss };
    Ok(cases.into_iter().map(case).collect())
}

struct Case {
    what: &'static str,
    config: DaeConfig,
    training: DaeTrainConfig,
    /// How far weights may be from those of the CPU, and losses, relative to them.
    atol: f32,
    of_loss: f64,
}

fn start(config: &DaeConfig, device: &Device) -> Result<Dae> {
    Dae::init(config.clone(), Philox::new(5, 0), &CPU)?.to(DType::F32, device)
}

fn rows(config: &DaeConfig, batch: usize) -> Result<Tensor> {
    uniform((4 * batch, config.n_visible), &CPU, Philox::new(5, 1))
}

fn run(trainer: &mut DaeTrainer, rows: &Tensor, from: usize, to: usize) -> Result<()> {
    let batch = trainer.config().batch;
    for step in from..to {
        trainer.begin_epoch(step / 4)?;
        // The last minibatch of an epoch is not full.
        let n = if step % 4 == 3 { batch - 3 } else { batch };
        trainer.step(&rows.narrow(0, step % 4 * batch, n)?, None)?;
    }
    Ok(())
}

fn assert_models(what: &str, got: &Dae, want: &Dae, atol: Option<f32>) -> Result<()> {
    for ((name, got), (_, want)) in got.tensors().into_iter().zip(want.tensors()) {
        match atol {
            None => assert_same_bits(&format!("{what}: {name}"), &got, &want)?,
            Some(atol) => assert_close(&format!("{what}: {name}"), &got, &want, 1e-5, atol)?,
        }
    }
    Ok(())
}

#[test]
fn every_form_follows_the_cpu_resumes_bit_for_bit_and_moves_between_devices() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for Case { what, config, training, atol, of_loss } in cases()? {
        let all = rows(&config, training.batch)?;
        let new =
            |device: &Device| DaeTrainer::new(&start(&config, device)?, training.clone(), Philox::new(5, 2));
        let mut on_cpu = new(&CPU)?;
        run(&mut on_cpu, &all, 0, STEPS)?;
        let want = on_cpu.metrics()?;
        let on_cpu = on_cpu.model()?;
        for device in devices()? {
            let what = format!("{what} on {:?}", device.location());
            let rows = all.to_device(&device)?;
            let mut whole = new(&device)?;
            run(&mut whole, &rows, 0, STEPS)?;
            let metrics = whole.metrics()?;
            for (got, want) in [(metrics.loss, want.loss), (metrics.rmse, want.rmse)] {
                assert!((got / want - 1.).abs() < of_loss, "{what}: {got} for {want}");
            }
            let whole = whole.model()?;
            assert_models(&what, &whole, &on_cpu, Some(atol))?;
            for stop in [1, 5] {
                let steps = |trainer: &mut DaeTrainer, from, to| run(trainer, &rows, from, to);
                let second = resumed(&path, new(&device)?, steps, stop, STEPS)?;
                assert_models(&format!("{what}, stopped at {stop}"), &second.model()?, &whole, None)?;
                // The checkpoint of one device goes on upon another.
                let (mut elsewhere, at) = DaeTrainer::load(&path, &CPU)?;
                assert_eq!(at, stop);
                run(&mut elsewhere, &all, stop, STEPS)?;
                assert_models(&format!("{what}, then on the CPU"), &elsewhere.model()?, &on_cpu, Some(atol))?;
            }
        }
    }
    Ok(())
}

#[test]
fn many_minibatches_at_once_make_the_steps_of_one_after_the_other() -> Result<()> {
    for Case { what, config, training, .. } in cases()? {
        for device in devices()? {
            let new = || DaeTrainer::new(&start(&config, &device)?, training.clone(), Philox::new(5, 2));
            let (mut at_once, mut one_by_one) = (new()?, new()?);
            // Some groups, and some minibatches left over; of a GPU the third run of a group is
            // recorded.
            let n = if device.is_cpu() { 3 } else { 2 * at_once.steps_at_once().min(40) + 3 };
            let rows = uniform((n * training.batch, config.n_visible), &CPU, Philox::new(5, 1))?;
            let rows = rows.to_device(&device)?;
            for _ in 0..3 {
                at_once.steps_of(&rows, None, n)?;
                for i in 0..n {
                    one_by_one.step(&rows.narrow(0, i * training.batch, training.batch)?, None)?;
                }
            }
            let what = format!("{what}, {n} minibatches on {:?}", device.location());
            assert_models(&what, &at_once.model()?, &one_by_one.model()?, None)?;
            let (got, want) = (at_once.metrics()?, one_by_one.metrics()?);
            assert_eq!(got.steps, want.steps, "{what}");
            assert!((got.loss / want.loss - 1.).abs() < 1e-9, "{what}: loss {} for {}", got.loss, want.loss);
        }
    }
    Ok(())
}

/// Training rows, held-out rows and epochs of the comparison with the serial program.
const LEARNING: (usize, usize, usize) = (256, 100, 2);

#[test]
fn held_out_error_after_equal_epochs_is_within_a_hundredth_of_the_serial_programs() -> Result<()> {
    let (n, n_held_out, epochs) = LEARNING;
    let digits = chandlery_datasets::open("mnist-sample", &DataOptions::default()).map_err(Error::wrap)?;
    let values =
        digits.train.take(n + n_held_out).and_then(|rows| rows.to_tensor(&CPU)).map_err(Error::wrap)?;
    let (rows, held_out) = (values.narrow(0, 0, n)?, values.narrow(0, n, n_held_out)?);
    let config = DaeConfig::new(values.dim(1)?, 64);
    // Of one op for many steps, and of numbers in two parts. Rates at which rounding stays
    // rounding: at the default one, single rows throw the first steps about.
    for (batch, learning_rate) in [(1, 0.01), (8, 0.05), (128, 0.5)] {
        let training =
            DaeTrainConfig { batch, learning_rate: learning_rate.into(), ..DaeTrainConfig::default() };
        let begin = start(&config, &CPU)?;
        let error = |dae: &Dae| {
            let held_out = held_out.to_device(dae.weight().device())?;
            Ok::<_, Error>(dae.errors_prepared(&held_out, &held_out)?.rmse)
        };
        let mut serial = Serial::<f64>::of(&begin)?;
        let mut philox = Philox::new(5, 2);
        let of_rows: Vec<f64> = rows.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        for x in (0..epochs).flat_map(|_| of_rows.chunks(batch * config.n_visible)) {
            let corrupted = Serial::corrupt(x, training.corruption, philox, 0);
            philox = philox.advanced(x.len());
            serial.step(x, &corrupted, training.learning_rate.at(0));
        }
        let (before, want) = (error(&begin)?, error(&serial.dae(&CPU)?)?);
        assert!(want < 0.95 * before, "minibatches of {batch}: nothing was learned, {want} from {before}");
        for device in devices()? {
            let mut trainer =
                DaeTrainer::new(&start(&config, &device)?, training.clone(), Philox::new(5, 2))?;
            let rows = rows.to_device(&device)?;
            for _ in 0..epochs {
                trainer.steps_of(&rows, None, n / batch)?;
            }
            let got = error(&trainer.model()?)?;
            let what = format!("minibatches of {batch} on {:?}", device.location());
            assert!((got / want - 1.).abs() < 0.01, "{what}: {got}, of the serial program {want}");
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn stacks_learn_alike_on_every_device() -> Result<()> {
    for sizes in [[64, 48, 32], [77, 69, 65]] {
        stacks_of_these_sizes_learn_alike(sizes)?;
    }
    Ok(())
}

fn stacks_of_these_sizes_learn_alike(sizes: [usize; 3]) -> Result<()> {
    let stack = |device: &Device| StackedDae::init(StackedDaeConfig::new(&sizes), Philox::new(6, 0), device);
    let training = |share| DaeTrainConfig {
        batch: 20,
        corruption: Corruption::Masking(share),
        momentum: 0.5.into(),
        ..DaeTrainConfig::default()
    };
    let rows = uniform((80, sizes[0]), &CPU, Philox::new(6, 1))?;
    let mut models = Vec::new();
    for device in devices()? {
        let mut trainer =
            StackedDaeTrainer::new(&stack(&device)?, vec![training(0.1), training(0.3)], Philox::new(6, 2))?;
        let rows = rows.to_device(&device)?;
        for step in 0..2 * STEPS {
            if step == STEPS {
                trainer.next_layer()?;
            }
            trainer.step(&rows.narrow(0, step % 4 * 20, 20)?, None)?;
        }
        models.push(trainer.model()?);
    }
    for model in &models {
        for (got, want) in model.layers().iter().zip(models[0].layers()) {
            assert_models("a stack", got, want, Some(3e-6))?;
        }
    }
    Ok(())
}
