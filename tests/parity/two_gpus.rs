//! Two GPUs in one process: `cargo test --features cuda --test parity -- --ignored two_gpus`, on a
//! machine that has them.
#![cfg(feature = "cuda")]
use candle::{DType, Device, Module, Result, Tensor};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::codes::{Pursuit, bomp};
use chandlery_ops::core::{ChunkUpload, normal, uniform};
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Group, Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests that exchange between GPUs take turns: groups of one process on the same GPUs wait for each
/// other for ever where they do not.
pub(super) fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn both() -> Result<[Device; 2]> {
    Ok([chandlery_ops::core::cuda_device(0)?, chandlery_ops::core::cuda_device(1)?])
}

#[test]
#[ignore = "needs two GPUs"]
fn ops_of_one_thread_go_to_the_gpu_of_their_operands() -> Result<()> {
    let devices = both()?;
    let mut results = vec![];
    // In turn, so that the other GPU was used last each time.
    for round in 0..3 {
        for device in &devices {
            let a = normal((65, 33), device, Philox::new(round, 0))?;
            let b = normal((33, 40), device, Philox::new(round, 1))?;
            let c = Tensor::zeros((65, 40), DType::F32, device)?;
            gemm_(&c, &a, &b, Factors::OVERWRITE, Precision::F32)?;
            assert_close("a product", &c, &a.matmul(&b)?, 1e-5, 1e-5)?;
            let codes = bomp(&a, &normal((64, 33), device, Philox::new(round, 2))?, &Pursuit::new(4))?;
            let mut upload = ChunkUpload::new(device, DType::F32, 4, 2)?;
            upload.send(4, &mut |bytes| {
                bytes.fill(1);
                Ok(())
            })?;
            results.push([c, codes.values, upload.receive()?.contiguous()?]);
        }
    }
    for pair in results.chunks(2) {
        for (first, second) in pair[0].iter().zip(&pair[1]) {
            assert_same_bits("both GPUs", &first.to_device(&Device::Cpu)?, &second.to_device(&Device::Cpu)?)?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_train_at_once_in_two_threads_and_in_turn_in_one() -> Result<()> {
    let train = |device: &Device, steps: usize| -> Result<Vec<RbmTrainer>> {
        let rbm = Rbm::init(RbmConfig::new(64, 48), Philox::new(1, 0), device)?;
        let mut trainer = RbmTrainer::new(
            &rbm,
            RbmTrainConfig { batch: 20, ..RbmTrainConfig::default() },
            Philox::new(1, 1),
        )?;
        let rows = uniform((20, 64), device, Philox::new(1, 2))?;
        for _ in 0..steps {
            trainer.step(&rows, None)?;
        }
        Ok(vec![trainer])
    };
    let weights = |trainer: &RbmTrainer| trainer.model()?.weight().to_device(&Device::Cpu);
    let devices = both()?;
    let alone = weights(&train(&devices[0], 50)?[0])?;
    // At once.
    let threads: Vec<Result<Tensor>> = std::thread::scope(|scope| {
        let spawned: Vec<_> =
            devices.iter().map(|device| scope.spawn(move || weights(&train(device, 50)?[0]))).collect();
        spawned
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| candle::bail!("a thread panicked")))
            .collect()
    });
    for got in threads {
        assert_same_bits("trained in threads", &got?, &alone)?;
    }
    // In turn: each replay finds the other GPU current.
    let mut trainers = [train(&devices[0], 0)?, train(&devices[1], 0)?];
    for _ in 0..50 {
        for (trainer, device) in trainers.iter_mut().zip(&devices) {
            trainer[0].step(&uniform((20, 64), device, Philox::new(1, 2))?, None)?;
        }
    }
    for trainer in &trainers {
        assert_same_bits("trained in turn", &weights(&trainer[0])?, &alone)?;
        trainer[0].model()?.forward(&uniform(
            (3, 64),
            trainer[0].model()?.weight().device(),
            Philox::new(0, 0),
        )?)?;
    }
    Ok(())
}

/// What each rank makes of its seat and its device.
pub(super) fn each<T: Send>(
    seats: Vec<Group>,
    devices: &[Device],
    of_rank: impl Fn(&Group, &Device) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    Group::on_threads(seats, |group| of_rank(group, &devices[group.rank()])).into_iter().collect()
}

#[test]
#[ignore = "needs two GPUs"]
fn collectives_of_gpus_are_those_of_threads_on_the_cpu() -> Result<()> {
    const N: usize = 1003;
    let devices = both()?;
    let made = |group: &Group, device: &Device| -> Result<Vec<Tensor>> {
        let mut made = vec![];
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::U32] {
            // Whole numbers, whose sums have no rounding in any type.
            let numbers = |n: usize| {
                let numbers = (0..n).map(|i| (i % 50 + group.rank() + 1) as u32).collect::<Vec<_>>();
                Tensor::new(numbers, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
            };
            let (sum, all, part) = (numbers(N)?, numbers(2 * N)?, numbers(N)?.zeros_like()?);
            let (gathered, sent) = (numbers(2 * N)?, numbers(N)?);
            group.all_reduce_(&sum)?;
            group.reduce_scatter_(&part, &all)?;
            group.all_gather_(&gathered, &numbers(N)?)?;
            group.broadcast_(&sent, 1)?;
            made.extend([sum, part, gathered, sent]);
        }
        made.into_iter().map(|t| t.to_device(&Device::Cpu)).collect()
    };
    let _turn = in_turn();
    let on_gpus = each(Group::on_gpus(&devices)?, &devices, made)?;
    let on_cpu = each(Group::threads(2), &[Device::Cpu, Device::Cpu], made)?;
    for (got, want) in on_gpus.iter().flatten().zip(on_cpu.iter().flatten()) {
        let exact = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec1::<f64>();
        assert_eq!(exact(got)?, exact(want)?, "{:?}", got.dtype());
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn a_network_of_two_gpus_is_that_of_one_and_the_same_bits_when_repeated() -> Result<()> {
    let devices = both()?;
    let trained = |group: &Group, device: &Device| -> Result<Vec<Tensor>> {
        let network =
            Feedforward::init(FeedforwardConfig::classifier(&[50, 70, 9]), Philox::new(1, 0), device)?;
        let training = FeedforwardTrainConfig {
            batch: 100,
            dropout: vec![0.1, 0.4],
            learning_rate: 0.003.into(),
            ..FeedforwardTrainConfig::default()
        };
        let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(1, 1))?.in_group(group)?;
        // More than it takes to record a step, and one that is not full.
        for i in 0..30 {
            let n = if i % 10 == 9 { 37 } else { 100 };
            let rows = uniform((n, 50), device, Philox::new(2, i))?;
            let labels = Tensor::from_vec((0..n as u32).map(|j| j % 9).collect(), n, device)?;
            trainer.step(&rows, Some(&labels))?;
        }
        trainer.check()?;
        let loss = Tensor::new(&[trainer.metrics()?.loss], &Device::Cpu)?;
        let parameters = trainer.model()?.tensors().into_iter().map(|(_, t)| t.to_device(&Device::Cpu));
        parameters.chain([Ok(loss)]).collect()
    };
    let alone = trained(&Group::single(), &devices[0])?;
    let _turn = in_turn();
    let first = each(Group::on_gpus(&devices)?, &devices, trained)?;
    let again = each(Group::on_gpus(&devices)?, &devices, trained)?;
    for (i, want) in alone.iter().enumerate() {
        assert_close("two GPUs", &first[0][i], want, 1e-4, 1e-4)?;
        assert_same_bits("the other rank", &first[1][i], &first[0][i])?;
        assert_same_bits("another run", &again[0][i], &first[0][i])?;
    }
    Ok(())
}
