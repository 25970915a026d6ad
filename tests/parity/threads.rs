//! Threads that share a GPU do not disturb each other, on devices of their own and on clones of
//! one.
#![allow(clippy::expect_used)]
use candle::{D, DType, Device, Module, Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{Decode, LoadOptions, MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::codes::{Pursuit, bomp};
use chandlery_ops::core::{Replay, advance_, normal, normal_, uniform};
use chandlery_tests::{assert_same_bits, devices};
use std::sync::Barrier;

const THREADS: u64 = 8;

/// A result, on the CPU.
type Named = (&'static str, Tensor);

/// Trains a machine and a classifier (both record their steps), evaluates, encodes and loads: every
/// result, on the CPU.
fn work(device: &Device, folder: &str, seed: u64) -> Result<Vec<Named>> {
    let philox = |stream| Philox::new(seed, stream);
    let rows = uniform((80, 64), device, philox(0))?;

    let rbm = Rbm::init(RbmConfig::new(64, 48), philox(1), device)?;
    let mut trainer =
        RbmTrainer::new(&rbm, RbmTrainConfig { batch: 20, ..RbmTrainConfig::default() }, philox(2))?;
    for step in 0..40 {
        trainer.step(&rows.narrow(0, step % 4 * 20, 20)?, None)?;
    }
    trainer.metrics()?;
    let rbm = trainer.model()?;

    let network = Feedforward::init(FeedforwardConfig::classifier(&[64, 40, 3]), philox(3), device)?;
    let training = FeedforwardTrainConfig { batch: 20, ..FeedforwardTrainConfig::default() };
    let labels = Tensor::from_vec((0..80u32).map(|i| i % 3).collect::<Vec<_>>(), 80, device)?;
    let mut classifier = FeedforwardTrainer::new(&network, training, philox(4))?;
    for step in 0..20 {
        let at = step % 4 * 20;
        classifier.step(&rows.narrow(0, at, 20)?, Some(&labels.narrow(0, at, 20)?))?;
    }

    let dictionary = normal((96, 64), device, philox(5))?;
    let codes = bomp(&rows, &dictionary, &Pursuit::new(5))?;
    let loaded = Dbn::from_pretrained(folder, &LoadOptions::on(device))?;
    let results = [
        ("the machine's weight", rbm.weight().clone()),
        ("its reconstruction", rbm.reconstruct(&rows)?),
        ("the classifier's first weight", classifier.model()?.layers()[0].0.clone()),
        ("its scores", classifier.model()?.forward(&rows)?),
        ("the codes", codes.values),
        ("their atoms", codes.indices.to_dtype(DType::F32)?),
        ("features of a loaded network", loaded.forward(&rows)?.sum(D::Minus1)?),
    ];
    results.into_iter().map(|(name, result)| Ok((name, result.to_device(&Device::Cpu)?))).collect()
}

#[test]
fn eight_threads_at_once_get_what_each_gets_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_str().expect("a path of this test");
    Dbn::init(DbnConfig::new(&[64, 32, 16]), Philox::new(9, 9), &Device::Cpu)?
        .save_pretrained(folder.path())?;
    for device in devices()? {
        let want = (0..THREADS).map(|seed| work(&device, path, seed)).collect::<Result<Vec<_>>>()?;
        for own in [false, true] {
            let start = Barrier::new(THREADS as usize);
            let thread = |seed: u64| -> Result<Vec<Vec<Named>>> {
                start.wait();
                let mut rounds = vec![];
                for _ in 0..4 {
                    let device = match (own, &device) {
                        (true, Device::Cuda(_)) => chandlery_ops::core::cuda_device(0)?,
                        (_, device) => device.clone(),
                    };
                    rounds.push(work(&device, path, seed)?);
                }
                Ok(rounds)
            };
            let got: Vec<Result<_>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || thread(seed))).collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
            });
            let mut differ = vec![];
            for (seed, (rounds, want)) in got.into_iter().zip(&want).enumerate() {
                for (round, got) in rounds?.into_iter().enumerate() {
                    for ((part, got), (_, want)) in got.iter().zip(want) {
                        let same =
                            got.flatten_all()?.to_vec1::<f32>()? == want.flatten_all()?.to_vec1::<f32>()?;
                        if !same {
                            differ.push(format!("{part} of thread {seed} in round {round}"));
                        }
                    }
                }
            }
            assert!(differ.is_empty(), "own devices: {own}; other than alone: {}", differ.join(", "));
        }
    }
    Ok(())
}

#[test]
fn another_device_reads_what_a_replay_wrote() -> Result<()> {
    for device in devices()? {
        let other = match &device {
            Device::Cuda(_) => chandlery_ops::core::cuda_device(0)?,
            device => device.clone(),
        };
        // 64 MB: a draw takes longer than the launches of the next lines.
        let x = Tensor::zeros(16 << 20, DType::F32, &device)?;
        let counter = Tensor::zeros(1, DType::I64, &device)?;
        let (to, count) = (x.clone(), counter.clone());
        let mut replay = Replay::new(&device, move || {
            normal_(&to, chandlery_ops::core::Draws::Counter { philox: Philox::new(3, 0), counter: &count })?;
            advance_(&count, 1 << 22)
        });
        for run in 0..6u64 {
            replay.run()?;
            let copied = x.to_device(&other)?;
            let want = normal(16 << 20, &device, Philox::new(3, 0).advanced((run as usize) << 24))?;
            // The last entries are written last.
            let tail = |t: &Tensor| t.narrow(0, (16 << 20) - 4096, 4096);
            assert_same_bits(&format!("run {run}"), &tail(&copied)?, &tail(&want)?)?;
        }
    }
    Ok(())
}
