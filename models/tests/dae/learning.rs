//! What is learned: noise is undone, and figures are those of the model.
use super::{CPU, awake, grey};
use candle::{DType, Module, Result, Tensor};
use candle_nn::Linear;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::{Decode, MinibatchTrainer, Philox, Preparation, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::layers::{Corruption, corrupt};

/// Rows of 24 values that are 0 but for a run of six ones, at one of 19 places: noise can be told
/// from them.
fn bars(n: usize, seed: u64) -> Result<Tensor> {
    let at = uniform(n, &CPU, Philox::new(seed, 0))?.to_vec1::<f32>()?;
    let rows = at.iter().flat_map(|u| {
        let first = (u * 19.) as usize;
        (0..24).map(move |i| if (first..first + 6).contains(&i) { 1f32 } else { 0. })
    });
    Tensor::from_iter(rows, &CPU)?.reshape((n, 24))
}

fn rmse(a: &Tensor, b: &Tensor) -> Result<f64> {
    Ok((a - b)?.to_dtype(DType::F64)?.sqr()?.mean_all()?.to_scalar::<f64>()?.sqrt())
}

#[test]
fn noise_in_rows_that_were_never_seen_is_undone() -> Result<()> {
    let (train, test) = (bars(400, 1)?, bars(200, 2)?);
    let noise = Corruption::SaltAndPepper(0.3);
    let noisy = corrupt(&test, noise, Philox::new(3, 0))?;
    // To leave the noise, or to say the mean row: neither comes near.
    let mean = train.mean_keepdim(0)?.broadcast_as(test.shape())?;
    let (left, mean) = (rmse(&noisy, &test)?, rmse(&mean, &test)?);
    let dae = Dae::init(DaeConfig::new(24, 40), Philox::new(4, 0), &CPU)?;
    let config = DaeTrainConfig { corruption: noise, learning_rate: 0.3.into(), ..DaeTrainConfig::default() };
    let mut trainer = DaeTrainer::new(&dae, config, Philox::new(4, 1))?;
    let mut losses = vec![];
    for epoch in 0..40 {
        trainer.begin_epoch(epoch)?;
        for rows in train.chunk(50, 0)? {
            trainer.step(&rows, None)?;
        }
        losses.push(trainer.metrics()?.loss);
    }
    let dae = trainer.model()?;
    let error = dae.errors_prepared(&noisy, &test)?;
    assert!(error.rmse < 0.6 * left.min(mean), "{} where noise has {left}, the mean {mean}", error.rmse);
    assert!((rmse(&dae.reconstruct(&noisy)?, &test)? - error.rmse).abs() < 1e-6);
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    let untrained = Dae::init(DaeConfig::new(24, 40), Philox::new(4, 0), &CPU)?;
    assert!(
        untrained.errors_prepared(&noisy, &test)?.rmse > left.min(mean),
        "the control has learned it too"
    );
    Ok(())
}

#[test]
fn metrics_are_the_errors_of_the_reconstructions_from_noise() -> Result<()> {
    // At a rate of 0 every step sees the same model.
    let dae = awake(DaeConfig::new(13, 9), 5)?;
    let config = DaeTrainConfig { batch: 6, learning_rate: 0.0.into(), ..DaeTrainConfig::default() };
    let draws = Philox::new(7, 0);
    let rows = grey(18, 13)?;
    let mut noisy = vec![];
    for step in 0..3 {
        // 78 values use 20 blocks.
        let draws = Philox { offset: 20 * step as u64, ..draws };
        noisy.push(corrupt(&rows.narrow(0, 6 * step, 6)?, config.corruption, draws)?);
    }
    let want = dae.errors_prepared(&Tensor::cat(&noisy, 0)?, &rows)?;
    let mut trainer = DaeTrainer::new(&dae, config, draws)?;
    for rows in rows.chunk(3, 0)? {
        trainer.step(&rows, None)?;
    }
    let metrics = trainer.metrics()?;
    assert_eq!(metrics.steps, 3);
    let cross_entropy = want.cross_entropy.expect("sigmoid outputs");
    assert!((metrics.loss - cross_entropy).abs() < 1e-5 * cross_entropy, "{metrics:?}, want {want:?}");
    assert!((metrics.rmse - want.rmse).abs() < 1e-6, "{metrics:?}, want {want:?}");
    Ok(())
}

#[test]
fn bytes_go_through_the_preparation_and_come_back_by_its_inverse() -> Result<()> {
    let bytes = Tensor::from_iter((0..8 * 12u32).map(|i| (i * 37 % 256) as u8), &CPU)?.reshape((8, 12))?;
    let floats = (bytes.to_dtype(DType::F32)? / 255.)?;
    let preparation = Preparation::scale(0.5).map_err(candle::Error::wrap)?;
    let config = DaeConfig { preparation, ..DaeConfig::new(12, 5) };
    let dae = awake(config, 6)?;
    let mut models = vec![];
    for (rows, philox) in [(&bytes, Philox::new(2, 0)), (&floats, Philox::new(2, 0))] {
        let mut trainer = DaeTrainer::new(&dae, DaeTrainConfig::default(), philox)?;
        for _ in 0..5 {
            trainer.step(rows, None)?;
        }
        models.push(trainer.model()?);
    }
    let apart = rmse(models[0].weight(), models[1].weight())?;
    assert!(apart < 1e-6, "{apart}");
    // Rows are halved before they are read, and doubled after.
    let (made, restored) = (dae.reconstruct_prepared(&(&floats * 0.5)?)?, dae.reconstruct(&floats)?);
    assert!(rmse(&(made * 2.)?, &restored)? < 1e-6);
    Ok(())
}

#[test]
fn the_encoder_is_a_linear_layer_of_candle() -> Result<()> {
    let dae = awake(DaeConfig::new(12, 5), 8)?;
    let rows = grey(4, 12)?;
    let linear: Linear = dae.encoder();
    let want = candle_nn::ops::sigmoid(&linear.forward(&rows)?)?;
    assert!(rmse(&dae.forward(&rows)?, &want)? < 1e-7);
    Ok(())
}

#[test]
fn steps_are_the_same_bits_on_any_number_of_threads() -> Result<()> {
    // Wide enough for products on several threads.
    let dae = awake(DaeConfig::new(300, 130), 9)?;
    let rows = grey(64, 300)?;
    let run = |threads: usize| -> Result<Vec<f32>> {
        let pool = rayon_pool(threads);
        pool.install(|| {
            let config = DaeTrainConfig { batch: 8, ..DaeTrainConfig::default() };
            let mut trainer = DaeTrainer::new(&dae, config, Philox::new(1, 1))?;
            for rows in rows.chunk(8, 0)? {
                trainer.step(&rows, None)?;
            }
            trainer.model()?.weight().flatten_all()?.to_vec1()
        })
    };
    let one = run(1)?;
    for threads in [2, 3] {
        assert!(run(threads)? == one, "{threads} threads give other weights");
    }
    Ok(())
}

fn rayon_pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool")
}
