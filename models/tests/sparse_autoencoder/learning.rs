//! Training finds sparse features, and says when it cannot.
use super::{first_line, pairs, start};
use candle::Module;
use candle::{DType, Result, Tensor};
use chandlery::Philox;
use chandlery::feedforward::Optimizer;
use chandlery::optim::Outcome;
use chandlery::sparse_autoencoder::{
    CostConfig, FullBatchOptimizer, START_STDEV, SparseAutoencoder, SparseAutoencoderConfig,
    SparseAutoencoderLbfgsTrainConfig, SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig,
    SparseAutoencoderTrainer, Start,
};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Trainer};

/// Each of four pairs of values is high in a quarter of the rows: a feature for each pair is active
/// as often.
const COST: CostConfig = CostConfig {
    weight_decay: 1e-4,
    sparsity_weight: 0.1,
    sparsity_target: 0.25,
    precision: chandlery::Precision::F32,
};

#[test]
fn features_become_as_sparse_as_asked_and_give_the_rows_back_better_than_their_mean() -> Result<()> {
    let rows = pairs(400)?;
    for double in [false, true] {
        let fit = SparseAutoencoderLbfgsTrainConfig {
            cost: COST,
            iterations: 200,
            double,
            ..SparseAutoencoderLbfgsTrainConfig::default()
        };
        let mut run = SparseAutoencoderLbfgsTrainer::new(&start()?, fit, &rows)?;
        let before = run.parts()?;
        run.fit()?;
        let outcome = run.outcome();
        assert!(matches!(outcome, Some(Outcome::Iterations | Outcome::LineSearch)), "{outcome:?}");
        let (after, model) = (run.parts()?, run.model()?);
        let mean_error =
            (rows.broadcast_sub(&rows.mean_keepdim(0)?)?.sqr()?.sum_all()?.to_scalar::<f32>()? / 800.) as f64;
        assert!(
            after.squared_error < 0.1 * mean_error && before.squared_error > mean_error,
            "{before:?} {after:?}, mean {mean_error}"
        );
        let activity = model.forward(&rows)?.mean(0)?.to_vec1::<f32>()?;
        assert!(activity.iter().all(|a| (a - 0.25).abs() < 0.1), "{activity:?}");
    }
    Ok(())
}

#[test]
fn conjugate_gradient_ends_where_l_bfgs_does_and_gradient_descent_comes_closer_with_time() -> Result<()> {
    let rows = pairs(400)?;
    let ends = |optimizer, learning_rate, iterations| -> Result<(f64, f64)> {
        let fit = SparseAutoencoderLbfgsTrainConfig {
            cost: COST,
            iterations,
            optimizer,
            learning_rate,
            double: true,
            ..SparseAutoencoderLbfgsTrainConfig::default()
        };
        let mut run = SparseAutoencoderLbfgsTrainer::new(&start()?, fit, &rows)?;
        let before = run.parts()?.cost;
        let costs: Vec<f64> = run.fit()?.iter().map(|made| made.value).collect();
        assert!(costs.windows(2).all(|pair| pair[1] < pair[0]), "{optimizer:?}: {costs:?}");
        Ok((before, run.parts()?.cost))
    };
    let (before, best) = ends(FullBatchOptimizer::Lbfgs, None, 600)?;
    let (_, cg) = ends(FullBatchOptimizer::ConjugateGradient, None, 600)?;
    // The cost is not convex: both come to minima, which need not be the same.
    assert!((cg - best).abs() < 0.02 * (before - best), "{cg}, L-BFGS {best}, from {before}");
    for rate in [None, Some(0.3)] {
        let (_, early) = ends(FullBatchOptimizer::GradientDescent, rate, 50)?;
        let (_, late) = ends(FullBatchOptimizer::GradientDescent, rate, 600)?;
        assert!(
            best < late && late < early && early < before,
            "{rate:?}: {before} {early} {late}, best {best}"
        );
    }
    Ok(())
}

#[test]
fn the_start_of_the_paper_is_normal_with_a_hundredth_and_the_usual_one_uniform() -> Result<()> {
    let config = SparseAutoencoderConfig::new(80, 60);
    for (drawn, stdev, most) in [
        // The standard deviation of a uniform law is its limit over √3.
        (Start::Uniform, (6f64 / 141.).sqrt() / 3f64.sqrt(), (6f64 / 141.).sqrt()),
        (Start::Gaussian, START_STDEV, 5. * START_STDEV),
    ] {
        let config = SparseAutoencoderConfig { start: drawn, ..config.clone() };
        let model = SparseAutoencoder::init(config, Philox::new(3, 0), &super::CPU)?;
        let theta = model.flat()?.to_dtype(DType::F64)?;
        let weights = theta.narrow(0, 0, 9600)?;
        let (mean, square) = (weights.mean_all()?, weights.sqr()?.mean_all()?);
        let (mean, square) = (mean.to_scalar::<f64>()?, square.to_scalar::<f64>()?);
        // Of 9600 draws: the mean to 5 of its deviations, the deviation to 5 %.
        assert!(mean.abs() < 5. * stdev / 9600f64.sqrt(), "{drawn:?}: {mean}");
        assert!((square.sqrt() / stdev - 1.).abs() < 0.05, "{drawn:?}: {}", square.sqrt());
        let largest = weights.abs()?.max_all()?.to_scalar::<f64>()?;
        assert!(largest <= most && largest > 0.7 * most, "{drawn:?}: {largest}");
        assert_eq!(theta.narrow(0, 9600, 140)?.abs()?.max_all()?.to_scalar::<f64>()?, 0., "biases");
        let text = serde_json::to_string(model.config()).map_err(candle::Error::wrap)?;
        assert_eq!(text.contains("start"), drawn == Start::Gaussian, "{text}");
    }
    Ok(())
}

#[test]
fn minibatches_come_close_to_all_rows_at_once() -> Result<()> {
    let rows = pairs(400)?;
    let fit = SparseAutoencoderLbfgsTrainConfig {
        cost: COST,
        iterations: 100,
        ..SparseAutoencoderLbfgsTrainConfig::default()
    };
    let mut run = SparseAutoencoderLbfgsTrainer::new(&start()?, fit, &rows)?;
    let before = run.parts()?.cost;
    run.fit()?;
    let best = run.parts()?.cost;
    for (optimizer, rate) in [(Optimizer::Adam, 0.02), (Optimizer::Sgd, 0.3)] {
        let config = SparseAutoencoderTrainConfig {
            cost: COST,
            batch: 100,
            learning_rate: rate.into(),
            optimizer,
            ..SparseAutoencoderTrainConfig::default()
        };
        let mut trainer = SparseAutoencoderTrainer::new(&start()?, config)?;
        for epoch in 0..150 {
            trainer.begin_epoch(epoch)?;
            for minibatch in rows.chunk(4, 0)? {
                trainer.step(&minibatch, None)?;
            }
        }
        trainer.check()?;
        let learned = SparseAutoencoderLbfgsTrainer::new(&trainer.model()?, fit, &rows)?.parts()?.cost;
        assert!(
            learned - best < 0.15 * (before - best),
            "{optimizer:?}: {learned}, best {best}, from {before}"
        );
    }
    Ok(())
}

#[test]
fn a_row_with_nan_ends_the_run_with_the_iteration_named_and_the_trainer_with_the_steps() -> Result<()> {
    let rows = Tensor::cat(&[pairs(30)?, Tensor::full(f32::NAN, (1, 8), &super::CPU)?], 0)?;
    let mut run =
        SparseAutoencoderLbfgsTrainer::new(&start()?, SparseAutoencoderLbfgsTrainConfig::default(), &rows)?;
    let message = run.fit().map_err(first_line).err().unwrap_or_default();
    assert!(
        message.starts_with(
            "SparseAutoencoderLbfgsTrainer: the cost became NaN or infinite at evaluation 1, in iteration 1; "
        ),
        "{message}"
    );
    let finite = run.model()?.flat()?.to_vec1::<f32>()?;
    assert!(finite.iter().all(|x| x.is_finite()), "the model stays where it was");
    let config = SparseAutoencoderTrainConfig { batch: 31, ..SparseAutoencoderTrainConfig::default() };
    let mut trainer = SparseAutoencoderTrainer::new(&start()?, config)?;
    trainer.step(&rows, None)?;
    let message = trainer.metrics().map_err(first_line).err().unwrap_or_default();
    assert!(
        message.starts_with("SparseAutoencoderTrainer: the cost became NaN between steps 1 and 1; "),
        "{message}"
    );
    assert!(trainer.check().is_err());
    Ok(())
}

#[test]
fn bytes_and_floats_learn_alike_and_maximal_inputs_have_norm_one() -> Result<()> {
    let bytes = (pairs(60)? * 255.)?.to_dtype(DType::U8)?;
    let floats = (bytes.to_dtype(DType::F32)? * (1. / 255.))?;
    let config = SparseAutoencoderConfig::new(8, 5);
    let start = SparseAutoencoder::init(config, Philox::new(9, 0), &super::CPU)?;
    let fit =
        SparseAutoencoderLbfgsTrainConfig { iterations: 5, ..SparseAutoencoderLbfgsTrainConfig::default() };
    let learn = |rows: &Tensor| {
        let mut run = SparseAutoencoderLbfgsTrainer::new(&start, fit, rows)?;
        run.fit()?;
        run.model()
    };
    let (a, b) = (learn(&bytes)?, learn(&floats)?);
    let apart = (a.flat()? - b.flat()?)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(apart < 1e-4, "{apart}");
    let norms = a.maximal_inputs()?.sqr()?.sum(1)?.to_vec1::<f32>()?;
    assert!(norms.iter().all(|norm| (norm - 1.).abs() < 1e-6), "{norms:?}");
    Ok(())
}
