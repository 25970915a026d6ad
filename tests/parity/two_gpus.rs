//! Two GPUs in one process: `cargo test --features cuda --test parity -- --ignored two_gpus`, on a
//! machine that has them.
#![cfg(feature = "cuda")]
use candle::{DType, Device, Module, Result, Tensor};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{MinibatchTrainer, Trainer};
use chandlery_ops::codes::{Pursuit, bomp};
use chandlery_ops::core::{ChunkUpload, normal, uniform};
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits};

fn both() -> Result<[Device; 2]> {
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
