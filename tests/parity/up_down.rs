//! The up-down algorithm with the same draws makes the same network on the CPU and on the GPU,
//! recorded or not.
use crate::resume::resumed;
use candle::{DType, Device, Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer, Stage};
use chandlery::schedule::Schedule;
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;
const BATCH: usize = 20;
/// Eight minibatches an epoch; from epoch 2 on a step has three Gibbs steps, and so another
/// recording.
const STEPS: usize = 40;

/// As in the parity of contrastive divergence: products differ in the order of their sums, 1e-6 of
/// a pre-activation, which moves means by as much and once in a million draws a state. There are
/// 250,000 draws here, of weights of order .1.
const RTOL: f32 = 2e-4;
const ATOL: f32 = 2e-5;

fn network(device: &Device) -> Result<LabelledDbn> {
    let config = DbnConfig::new(&[37, 29, 23, 31]);
    LabelledDbn::from_dbn(&Dbn::init(config, Philox::new(61, 0), &CPU)?, 5)?.to(DType::F32, device)
}

fn trainer(stage: Stage, persistent: bool, device: &Device) -> Result<LabelledDbnTrainer> {
    let training = LabelledDbnTrainConfig {
        stage,
        batch: BATCH,
        persistent,
        learning_rate: Schedule::linear(0.1, 0., 10),
        momentum: Schedule::constant(0.5),
        k: Schedule::steps([(0, 1.), (2, 3.)]),
        l2: 1e-3,
        ..LabelledDbnTrainConfig::default()
    };
    LabelledDbnTrainer::new(&network(device)?, training, Philox::new(61, 1))
}

fn train(trainer: &mut LabelledDbnTrainer, from: usize, to: usize, device: &Device) -> Result<()> {
    let rows = (uniform((8 * BATCH, 37), &CPU, Philox::new(60, 0))? * 256.)?.to_dtype(DType::U8)?;
    let labels = Tensor::from_iter((0..8 * BATCH as u32).map(|i| i * i % 5), &CPU)?;
    let (rows, labels) = (rows.to_device(device)?, labels.to_device(device)?);
    for step in from..to {
        let at = step % 8 * BATCH;
        trainer.begin_epoch(step / 8)?;
        // The last minibatch of an epoch is not full.
        let n = if step % 8 == 7 { BATCH - 7 } else { BATCH };
        trainer.step(&rows.narrow(0, at, n)?, Some(&labels.narrow(0, at, n)?))?;
    }
    Ok(())
}

#[test]
fn a_label_that_is_no_class_is_refused_and_the_device_lives() -> Result<()> {
    let want = "LabelledDbnTrainer::step: labels must be below n_classes = 5, got 4294967295";
    let first = |error: candle::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    for device in devices()? {
        let mut trainer = trainer(Stage::UpDown, false, &device)?;
        train(&mut trainer, 0, 3, &device)?;
        trainer.check()?;
        let mut labels = vec![1u32; BATCH];
        labels[7] = u32::MAX;
        let rows = Tensor::zeros((BATCH, 37), DType::U8, &device)?;
        match trainer.step(&rows, Some(&Tensor::new(labels, &device)?)) {
            Err(error) => assert_eq!((first(error), device.is_cpu()), (want.to_owned(), true)),
            // The host looks when it reads from the device next.
            Ok(()) => {
                assert!(device.is_cuda());
                assert_eq!(trainer.check().map_err(first), Err(want.to_owned()));
                assert_eq!(trainer.metrics().map_err(first).err(), Some(want.to_owned()));
            }
        }
        assert_eq!(rows.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?, 0., "{:?}", device.location());
    }
    Ok(())
}

const CASES: [(Stage, bool); 3] = [(Stage::Top, true), (Stage::UpDown, false), (Stage::UpDown, true)];

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn forty_steps_are_the_same_on_every_device() -> Result<()> {
    for (stage, persistent) in CASES {
        let mut on_cpu = trainer(stage, persistent, &CPU)?;
        train(&mut on_cpu, 0, STEPS, &CPU)?;
        let want_metrics = on_cpu.metrics()?;
        for device in devices()? {
            let mut other = trainer(stage, persistent, &device)?;
            train(&mut other, 0, STEPS, &device)?;
            let metrics = other.metrics()?;
            let what = format!("{stage:?}, persistent {persistent}, on {:?}", device.location());
            for ((name, got), (_, want)) in other.model()?.tensors().iter().zip(on_cpu.model()?.tensors()) {
                assert_close(&format!("{what}: {name}"), got, &want, RTOL, ATOL)?;
            }
            let ratio = metrics.top_error / want_metrics.top_error;
            assert!((ratio - 1.).abs() < 1e-3, "{what}: top error {ratio} of the CPU's");
        }
    }
    Ok(())
}

#[test]
fn a_run_resumes_bit_for_bit_on_every_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for device in devices()? {
        for (stage, persistent) in CASES {
            let mut whole = trainer(stage, persistent, &device)?;
            train(&mut whole, 0, STEPS, &device)?;
            let whole = whole.model()?;
            for stop in [1, 15, 16, 39] {
                let steps = |trainer: &mut LabelledDbnTrainer, from, to| train(trainer, from, to, &device);
                let second = resumed(&path, trainer(stage, persistent, &device)?, steps, stop, STEPS)?;
                let what = format!(
                    "{stage:?}, persistent {persistent}, stopped at {stop}, on {:?}",
                    device.location()
                );
                for ((name, got), (_, want)) in second.model()?.tensors().iter().zip(whole.tensors()) {
                    assert_same_bits(&format!("{what}: {name}"), got, &want)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn free_energies_and_samples_are_the_same_on_every_device() -> Result<()> {
    let mut trainer = trainer(Stage::UpDown, false, &CPU)?;
    train(&mut trainer, 0, STEPS, &CPU)?;
    let on_cpu = trainer.model()?;
    let rows = uniform((50, 37), &CPU, Philox::new(62, 0))?;
    let labels = Tensor::from_iter((0..50u32).map(|i| i % 5), &CPU)?;
    for device in devices()? {
        let dbn = on_cpu.to(DType::F32, &device)?;
        let (rows, labels) = (rows.to_device(&device)?, labels.to_device(&device)?);
        let what = format!("on {:?}", device.location());
        // Energies are sums of some tens of terms of order 1, each rounded.
        let (got, want) = (dbn.free_energies(&rows)?, on_cpu.free_energies(&rows.to_device(&CPU)?)?);
        assert_close(&format!("free energies {what}"), &got, &want, 1e-5, 1e-5)?;
        let got = dbn.sample(&labels, 5, Philox::new(63, 0))?;
        let want = on_cpu.sample(&labels.to_device(&CPU)?, 5, Philox::new(63, 0))?;
        assert_close(&format!("samples {what}"), &got, &want, RTOL, ATOL)?;
    }
    Ok(())
}
