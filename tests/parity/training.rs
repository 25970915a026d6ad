//! The same network trained for 50 steps on the CPU and on the GPU with the same draws is the same
//! network.
use crate::resume::assert_two_layers_resume;
use candle::{DType, Device, Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{HiddenUnit, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit};
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;
const STEPS: usize = 50;

fn rows(n: usize, cols: usize) -> Result<Tensor> {
    (uniform((n, cols), &CPU, Philox::new(50, 0))? * 256.)?.to_dtype(DType::U8)
}

fn train(config: &RbmConfig, training: &RbmTrainConfig, device: &Device) -> Result<(Rbm, f64)> {
    let rbm = Rbm::init(config.clone(), Philox::new(51, 0), &CPU)?.to(DType::F32, device)?;
    let rows = rows(8 * training.batch, config.n_visible)?.to_device(device)?;
    let mut trainer = RbmTrainer::new(&rbm, training.clone(), Philox::new(51, 1))?;
    for step in 0..STEPS {
        trainer.begin_epoch(step / 8)?;
        // The last minibatch of an epoch is not full.
        let n = if step % 8 == 7 { training.batch - 7 } else { training.batch };
        trainer.step(&rows.narrow(0, step % 8 * training.batch, n)?, None)?;
    }
    let error = trainer.metrics()?.reconstruction_error;
    Ok((trainer.model()?.to(DType::F32, &CPU)?, error))
}

/// Products differ in the order of their sums, about 1e-6 of a pre-activation. That moves means by
/// as much; and once in a million draws it moves a state, which changes an entry of the weights by
/// rate/batch = 1e-3 in one step, and again when momentum repeats it. The draws here (60,000 to
/// 250,000) are few enough that most runs have none; weights are of order .1.
const RTOL: f32 = 2e-4;
const ATOL: f32 = 2e-5;

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn fifty_steps_are_the_same_on_every_device() -> Result<()> {
    let base = RbmTrainConfig { batch: 20, ..RbmTrainConfig::default() };
    let sparsity = Some(SparsityConfig { target: 0.1, cost: 1., decay: 0.9 });
    let cases = [
        ("CD-1", RbmConfig::new(37, 29), base.clone()),
        (
            "CD-3, drawn",
            RbmConfig::new(37, 29),
            RbmTrainConfig { k: 3, sample_visible: true, ..base.clone() },
        ),
        ("CD-3", RbmConfig::new(37, 29), RbmTrainConfig { k: 3, ..base.clone() }),
        ("CD-3 of sizes that fuse", RbmConfig::new(64, 40), RbmTrainConfig { k: 3, ..base.clone() }),
        ("binary rows drawn", RbmConfig::new(37, 29), RbmTrainConfig { binarize: true, ..base.clone() }),
        ("PCD-1", RbmConfig::new(37, 29), RbmTrainConfig { persistent: true, ..base.clone() }),
        (
            "decays, max-norm, sparsity",
            RbmConfig::new(64, 40),
            // A weight that passes 0 one step earlier on one device differs by l1 · rate and what
            // momentum makes of it: less than ATOL.
            RbmTrainConfig { l1: 5e-5, l2: 1e-2, max_norm: Some(1.), sparsity, ..base.clone() },
        ),
        (
            "Gaussian, rectified",
            RbmConfig {
                visible: VisibleUnit::Gaussian,
                hidden: HiddenUnit::Rectified,
                ..RbmConfig::new(37, 29)
            },
            RbmTrainConfig { learning_rate: 0.005.into(), ..base.clone() },
        ),
        (
            "learned deviations",
            RbmConfig { visible: VisibleUnit::GaussianLearned, ..RbmConfig::new(37, 29) },
            RbmTrainConfig { learning_rate: 0.01.into(), ..base.clone() },
        ),
    ];
    for (name, config, training) in &cases {
        let (want, want_error) = train(config, training, &CPU)?;
        for device in devices()? {
            let (got, error) = train(config, training, &device)?;
            for ((part, got), (_, want)) in got.tensors().into_iter().zip(want.tensors()) {
                assert_close(&format!("{name}: {part} on {:?}", device.location()), &got, &want, RTOL, ATOL)?;
            }
            assert!(
                (error / want_error - 1.).abs() < 1e-4,
                "{name}: reconstruction error {error}, want {want_error}"
            );
        }
    }
    Ok(())
}

#[test]
fn many_minibatches_at_once_make_the_steps_of_one_after_the_other() -> Result<()> {
    let base = RbmTrainConfig { batch: 20, ..RbmTrainConfig::default() };
    let grid = PatchGrid { planes: 1, height: 32, width: 24, depth: 1, window: 16, stride: 8 };
    let patches = RbmConfig::patches(grid, 8)?;
    let cases = [
        ("odd sizes", RbmConfig::new(37, 29), base.clone()),
        (
            "CD-2, drawn",
            RbmConfig::new(64, 40),
            RbmTrainConfig { k: 2, sample_visible: true, ..base.clone() },
        ),
        ("CD-3", RbmConfig::new(64, 40), RbmTrainConfig { k: 3, ..base.clone() }),
        ("CD-3 of patches", patches.clone(), RbmTrainConfig { k: 3, ..base.clone() }),
        ("binary rows drawn", RbmConfig::new(64, 40), RbmTrainConfig { binarize: true, ..base.clone() }),
        ("PCD-1", RbmConfig::new(64, 40), RbmTrainConfig { persistent: true, ..base.clone() }),
        ("patches", patches, base.clone()),
        ("large", RbmConfig::new(2304, 2000), RbmTrainConfig { batch: 64, ..base.clone() }),
    ];
    for (name, config, training) in &cases {
        for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
            let training = RbmTrainConfig { precision, ..training.clone() };
            for device in devices()? {
                let rbm = Rbm::init(config.clone(), Philox::new(51, 0), &CPU)?.to(DType::F32, &device)?;
                let new = || RbmTrainer::new(&rbm, training.clone(), Philox::new(51, 1));
                let (mut at_once, mut one_by_one) = (new()?, new()?);
                // Groups of every length; of a GPU the third run of a group is recorded.
                let n = if device.is_cpu() { 2 } else { 2 * at_once.steps_at_once() - 1 };
                let rows = rows(n * training.batch, config.n_visible)?.to_device(&device)?;
                for _ in 0..if device.is_cpu() { 1 } else { 4 } {
                    at_once.steps_of(&rows, None, n)?;
                    for i in 0..n {
                        one_by_one.step(&rows.narrow(0, i * training.batch, training.batch)?, None)?;
                    }
                }
                let what = format!("{name}, {precision:?}, {n} minibatches on {:?}", device.location());
                let (got, want) = (at_once.model()?, one_by_one.model()?);
                for ((part, got), (_, want)) in got.tensors().into_iter().zip(want.tensors()) {
                    assert_same_bits(&format!("{what}: {part}"), &got, &want)?;
                }
                let (got, want) = (at_once.metrics()?, one_by_one.metrics()?);
                assert_eq!(
                    (got.steps, got.reconstruction_error),
                    (want.steps, want.reconstruction_error),
                    "{what}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn faster_precisions_learn_the_same_to_their_accuracy() -> Result<()> {
    for device in devices()? {
        let config = RbmConfig::new(64, 40);
        let run = |precision| {
            train(&config, &RbmTrainConfig { batch: 20, precision, ..RbmTrainConfig::default() }, &device)
        };
        let (_, want) = run(Precision::F32)?;
        for (precision, tolerance) in [(Precision::Tf32, 2e-3), (Precision::Bf16, 2e-2)] {
            let (_, error) = run(precision)?;
            assert!(
                (error / want - 1.).abs() < tolerance,
                "{precision:?} on {:?}: reconstruction error {error}, in f32 {want}",
                device.location()
            );
        }
    }
    Ok(())
}

#[test]
fn a_network_trains_and_resumes_bit_for_bit_on_every_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for device in devices()? {
        let training =
            RbmTrainConfig { batch: 20, persistent: true, binarize: true, ..RbmTrainConfig::default() };
        let dbn = Dbn::init(DbnConfig::new(&[37, 29, 17]), Philox::new(52, 0), &device)?;
        let rows = rows(160, 37)?.to_device(&device)?;
        let new = || DbnTrainer::new(&dbn, vec![training.clone(); 2], Philox::new(52, 1));
        assert_two_layers_resume(&path, new, &rows, STEPS, &[1, 33, STEPS, STEPS + 7])?;
    }
    Ok(())
}
