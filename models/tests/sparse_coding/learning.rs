//! Activations and what is learned from them.
use super::{BETA, CPU, SIZES, activations, beginning, bits, difference, first_line, signals, unit_rows};
use candle::{DType, Result, Tensor};
use chandlery::dictionary::Replace;
use chandlery::sparse_coding::basis::{BasisMethod, BasisUpdate, Statistics};
use chandlery::sparse_coding::lasso::Solver;
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::{Decode, Encode, MinibatchTrainer, Philox, Preparation, Trainer};

fn trainer(config: SparseCodingTrainConfig) -> Result<SparseCodingTrainer> {
    SparseCodingTrainer::new(&beginning(DType::F64)?, config, Philox::new(7, 0))
}

#[test]
fn activations_are_optimal_and_figures_are_their_formulas() -> Result<()> {
    let (model, x) = (beginning(DType::F64)?, signals()?);
    let config = SparseCodingConfig { tolerance: 1e-10, ..model.config().clone() };
    let model = SparseCoding::from_tensor(config, model.basis().clone())?;
    let a = model.encode(&x)?;
    let rest = (&x - model.decode(&a)?)?;
    let q = rest.matmul(&model.basis().t()?)?.to_vec2::<f64>()?;
    for (q, a) in q.iter().flatten().zip(a.to_vec2::<f64>()?.iter().flatten()) {
        let off = if *a == 0. { (q.abs() - BETA).max(0.) } else { (q - BETA * a.signum()).abs() };
        assert!(off < 1e-4, "activation {a} with correlation {q}");
    }
    let (m, n) = a.dims2()?;
    let figures = model.figures(&x)?;
    let squares = rest.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let objective = (0.5 * squares + BETA * a.abs()?.sum_all()?.to_scalar::<f64>()?) / m as f64;
    let nonzero = a.ne(0.)?.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()?;
    assert!((figures.objective / objective - 1.).abs() < 1e-12);
    assert!((figures.rmse / (squares / (m * SIZES[1]) as f64).sqrt() - 1.).abs() < 1e-12);
    assert!((figures.nonzero_fraction - nonzero).abs() < 1e-12 && nonzero > 0.05 && nonzero < 0.9);
    assert!(figures.max_relative_gap <= 1e-10, "{figures:?}");
    assert_eq!(n, SIZES[0]);

    let config = SparseCodingConfig { nonnegative: true, ..model.config().clone() };
    let a = SparseCoding::from_tensor(config, model.basis().clone())?.encode(&x)?;
    let least = a.flatten_all()?.min(0)?.to_scalar::<f64>()?;
    assert!(least >= 0. && a.max_all()?.to_scalar::<f64>()? > 0.);
    assert_eq!(model.encode(&x.narrow(0, 0, 0)?)?.dims(), [0, SIZES[0]]);
    Ok(())
}

#[test]
fn training_by_every_solver_is_within_its_stop_of_the_same_objective() -> Result<()> {
    let x = signals()?;
    let learn = |solver| -> Result<_> {
        let model = beginning(DType::F64)?;
        let config = SparseCodingConfig { solver, tolerance: 1e-6, ..model.config().clone() };
        let model = SparseCoding::from_tensor(config, model.basis().clone())?;
        let mut trainer = SparseCodingTrainer::new(&model, Default::default(), Philox::new(7, 0))?;
        let steps: Vec<_> = (0..4).map(|t| trainer.partial_fit(&x.narrow(0, 100 * t, 100)?)).collect();
        let steps: Result<Vec<_>> = steps.into_iter().collect();
        Ok((steps?, trainer.current().clone()))
    };
    let (want, exact) = learn(Solver::ActiveSet)?;
    let figures = SparseCoding::from_tensor(exact.config().clone(), exact.basis().clone())?.figures(&x)?;
    for solver in
        [Solver::CoordinateDescent, Solver::Fista, Solver::CoordinateBlocks { block: 5 }, Solver::PRINTED]
    {
        let (got, model) = learn(solver)?;
        // A gap of 1e-6; the printed stop ends where an iteration gains 1e-6, some hundred of which
        // may be left.
        let bound = if solver == Solver::PRINTED { 1e-4 } else { 2e-6 };
        let (a, b) = (got[0].figures.objective, want[0].figures.objective);
        assert!((a / b - 1.).abs() < bound, "{solver:?}: {a} beside {b} in the first batch");
        assert!(solver == Solver::PRINTED || got[0].figures.max_relative_gap <= 1e-6, "{solver:?}");
        // Later batches have bases of their own: what they leave differs as the activations did.
        let config = exact.config().clone();
        let learned = SparseCoding::from_tensor(config, model.basis().clone())?.figures(&x)?;
        let off = (learned.objective / figures.objective - 1.).abs();
        assert!(off < 10. * bound, "{solver:?}: off by {off} at the end");
    }
    // The paper's stop looks at no gap: some are above any other solver's.
    let (printed, _) = learn(Solver::PRINTED)?;
    assert!(printed.iter().any(|step| step.figures.max_relative_gap > 1e-6), "{printed:?}");
    let err = SparseCodingConfig { solver: Solver::CoordinateBlocks { block: 0 }, ..exact.config().clone() }
        .validate()
        .expect_err("refused");
    assert_eq!(first_line(err), "Lasso: coordinates of a block must be at least 1, got 0");
    Ok(())
}

#[test]
fn a_solver_is_kept_with_the_model_and_the_default_is_not_named() -> Result<()> {
    let config = SparseCodingConfig::new(3, 2, 0.1);
    let text = |config: &SparseCodingConfig| serde_json::to_string(config).map_err(candle::Error::wrap);
    assert!(!text(&config)?.contains("solver"));
    for solver in [Solver::PRINTED, Solver::CoordinateBlocks { block: 7 }, Solver::Fista] {
        let config = SparseCodingConfig { solver, ..config.clone() };
        let back: SparseCodingConfig = serde_json::from_str(&text(&config)?).map_err(candle::Error::wrap)?;
        assert_eq!(back, config);
    }
    Ok(())
}

#[test]
fn a_step_is_its_equations() -> Result<()> {
    let x = signals()?;
    for method in BasisMethod::ALL {
        let basis = BasisUpdate { method, iterations: 2 };
        let config = SparseCodingTrainConfig { basis, forgetting: 3., ..SparseCodingTrainConfig::default() };
        let mut trainer = trainer(config)?;
        let (given, [n, p, _]) = (beginning(DType::F64)?, SIZES);
        let mut statistics = Statistics::none(n, p, DType::F64, &CPU)?;
        for t in 1..=4 {
            // Each step from where the trainer is: an ill-conditioned A makes roundings of the steps
            // before larger.
            let model = SparseCoding::from_tensor(given.config().clone(), trainer.current().basis().copy()?)?;
            let batch = x.narrow(0, (t - 1) * 100, 100)?;
            let step = trainer.partial_fit(&batch)?;
            assert_eq!(step.batch, t as u64);
            let figures = model.figures(&batch)?;
            assert!((step.figures.objective / figures.objective - 1.).abs() < 1e-9, "{method:?}: batch {t}");
            assert_eq!(step.figures.nonzero_fraction, figures.nonzero_fraction);
            // (1 − 1/t)³
            let beta = [0., 1. / 8., 8. / 27., 27. / 64.][t - 1];
            statistics = statistics.after(&model.encode(&batch)?, &batch, beta)?;
            let want = basis.apply(model.basis(), &statistics)?;
            assert_eq!(step.replaced, 0);
            let off = difference(trainer.current().basis(), &want)?;
            assert!(off < 1e-8, "{method:?}: batch {t} is off by {off}");
        }
    }
    Ok(())
}

#[test]
fn learning_comes_near_the_objective_of_the_true_atoms_on_other_signals() -> Result<()> {
    let [n, p, _] = SIZES;
    // The objective that the atoms of the signals themselves give.
    let truth = unit_rows(&super::random(n, p, 6)?)?;
    let x = signals()?;
    let other = activations(300, n, 55)?.matmul(&truth)?;
    let objective = |basis: &Tensor| -> Result<f64> {
        let model = SparseCoding::from_tensor(SparseCodingConfig::new(n, p, BETA), basis.clone())?;
        Ok(model.figures(&other)?.objective)
    };
    let (begin, best) = (objective(beginning(DType::F64)?.basis())?, objective(&truth)?);
    assert!(begin > 1.15 * best, "random directions must be worse: {begin}, {best}");
    for method in BasisMethod::ALL {
        let basis = BasisUpdate { method, iterations: 2 };
        let mut trainer = trainer(SparseCodingTrainConfig { basis, ..SparseCodingTrainConfig::default() })?;
        for batch in 0..120 {
            trainer.step(&x.narrow(0, batch % 4 * 100, 100)?, None)?;
        }
        let end = objective(trainer.current().basis())?;
        assert!(end < best + 0.15 * (begin - best), "{method:?}: {begin} to {end}, the best is {best}");
        let metrics = trainer.metrics()?;
        assert_eq!(metrics.steps, 120);
        assert!(metrics.figures.objective > end && metrics.figures.max_relative_gap <= 1e-4, "{metrics:?}");
        let error = first_line(trainer.metrics().expect_err("nothing since"));
        assert_eq!(
            error,
            "SparseCodingTrainer::metrics: steps since the last call must be at least 1, got 0"
        );
    }
    Ok(())
}

#[test]
fn unused_atoms_become_the_signals_that_are_represented_worst() -> Result<()> {
    // The second atom is orthogonal to every signal; the third signal lies off the first atom.
    let basis = Tensor::new(&[[1f32, 0., 0.], [0., 0., 1.]], &CPU)?;
    let x = Tensor::new(&[[3f32, 0., 0.], [2., 0., 0.], [1., 4., 0.]], &CPU)?;
    let model = SparseCoding::from_tensor(SparseCodingConfig::new(2, 3, 0.1), basis)?;
    for (replace, replaced) in [(Replace::WorstRepresented, 1), (Replace::None, 0)] {
        let config = SparseCodingTrainConfig { replace, max_idle: 3, ..SparseCodingTrainConfig::default() };
        let mut trainer = SparseCodingTrainer::new(&model, config, Philox::new(1, 0))?;
        let step = trainer.partial_fit(&x)?;
        assert_eq!((step.used, step.replaced), (1, replaced));
        let atom = trainer.current().basis().to_vec2::<f32>()?[1].clone();
        let length = 17f32.sqrt();
        let want = if replaced == 1 { [1. / length, 4. / length, 0.] } else { [0., 0., 1.] };
        assert!(atom.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{replace:?}: {atom:?}");
        // A new atom has no past.
        assert_eq!(trainer.statistics().gram().to_vec2::<f32>()?[1], [0., 0.]);
    }
    Ok(())
}

#[test]
fn a_batch_that_is_not_finite_names_its_step_and_changes_nothing() -> Result<()> {
    let (x, mut trainer) = (signals()?, trainer(SparseCodingTrainConfig::default())?);
    trainer.partial_fit(&x)?;
    let before = (bits(trainer.current().basis())?, bits(trainer.statistics().gram())?);
    for bad in [f64::NAN, f64::INFINITY, 1e200] {
        let batch = x.narrow(0, 0, 20)?.copy()?;
        batch.slice_set(&Tensor::full(bad, (1, SIZES[1]), &CPU)?, 0, 3)?;
        let error = trainer.partial_fit(&batch).map(drop).expect_err("refused").to_string();
        assert!(error.contains("batch 2"), "{bad}: {error}");
        assert_eq!((bits(trainer.current().basis())?, bits(trainer.statistics().gram())?), before);
    }
    assert_eq!(trainer.partial_fit(&x)?.batch, 2);
    Ok(())
}

#[test]
fn bytes_go_through_the_preparation() -> Result<()> {
    let bytes = Tensor::new(&[[255u8, 0, 255], [0, 255, 255]], &CPU)?;
    let floats = Tensor::new(&[[1f32, 0., 1.], [0., 1., 1.]], &CPU)?;
    let basis = Tensor::new(&[[0.6f32, 0.8, 0.], [0., 0.6, 0.8]], &CPU)?;
    let model = SparseCoding::from_tensor(SparseCodingConfig::new(2, 3, 0.1), basis)?;
    assert_eq!(bits(&model.encode(&bytes)?)?, bits(&model.encode(&floats)?)?);
    assert_eq!(model.config().preparation, Preparation::default());
    let mut trainer =
        SparseCodingTrainer::new(&model, SparseCodingTrainConfig::default(), Philox::new(1, 0))?;
    trainer.partial_fit(&bytes)?;
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() -> Result<()> {
    let model = beginning(DType::F64)?;
    let x = signals()?;
    let cases: [(Result<Tensor>, &str); 3] = [
        (model.encode(&x.narrow(1, 0, 5)?), "x must have shape [batch, 9], got [400, 5]"),
        (model.decode(&x), "activations must have shape [batch, 12], got [400, 9]"),
        (model.figures(&x.narrow(0, 0, 0)?).map(|_| x.clone()), "rows must be at least 1, got 0"),
    ];
    for (got, want) in cases {
        let message = first_line(got.expect_err("refused"));
        assert!(message.ends_with(want), "{message}");
    }
    // Finite, but no product of theirs is, in f32.
    let long = (Tensor::ones((12, 9), DType::F64, x.device())? * 1e20)?;
    let model = |dtype| SparseCoding::from_tensor(SparseCodingConfig::new(12, 9, 1.), long.to_dtype(dtype)?);
    let message = first_line(model(DType::F32).map(drop).expect_err("refused"));
    assert!(message.contains("lengths whose squares are finite in F32"), "{message}");
    model(DType::F64)?;
    let mut config = SparseCodingConfig::new(12, 9, f64::NAN);
    let message = |config: &SparseCodingConfig| first_line(config.validate().expect_err("refused"));
    assert_eq!(message(&config), "SparseCodingConfig: beta must be at least 0, got NaN");
    (config.beta, config.tolerance) = (1., 0.);
    assert_eq!(message(&config), "SparseCodingConfig: tolerance must be above 0, got 0");
    let config = SparseCodingTrainConfig { forgetting: -1., ..SparseCodingTrainConfig::default() };
    let message = first_line(trainer(config).map(drop).expect_err("refused"));
    assert_eq!(message, "SparseCodingTrainConfig: forgetting must be at least 0, got -1");
    let mut trainer = trainer(SparseCodingTrainConfig::default())?;
    let message = first_line(trainer.partial_fit(&x.narrow(0, 0, 0)?).map(drop).expect_err("refused"));
    assert_eq!(message, "SparseCodingTrainer::partial_fit: signals of a batch must be at least 1, got 0");
    Ok(())
}
