//! Settings that change on the way.
use super::{CPU, message, short};
use candle::{Result, Tensor};
use chandlery::tsne::{Affinity, Change, Method, NewValues, Progress, TsneConfig, TsneTrainer, measure};
use chandlery::{FullBatchTrainer, LoadOptions, Model, Philox, Trainer};
use chandlery_ops::core::normal;
use chandlery_ops::tsne::knn;
use std::ops::ControlFlow;

const PLACE: Philox = Philox { seed: 9, stream: 0, offset: 0 };

fn rows(n: usize) -> Result<Tensor> {
    let labels = Tensor::new((0..n).map(|i| (i % 4) as u32).collect::<Vec<_>>(), &CPU)?;
    let centres = (normal((4, 6), &CPU, Philox::new(81, 0))? * 4.)?;
    centres.index_select(&labels, 0)? + normal((n, 6), &CPU, Philox::new(81, 1))?
}

/// One of every kind, and all at once; each at an iteration that is looked at without it.
fn every_kind() -> Vec<Vec<Change>> {
    let at = |iteration, to| Change { iteration, to };
    let none = NewValues::default;
    let kinds = [
        NewValues { exaggeration: Some(3.), ..none() },
        NewValues { learning_rate: Some(20.), ..none() },
        NewValues { momentum: Some(0.4), ..none() },
        NewValues { degrees_of_freedom: Some(0.6), ..none() },
        NewValues { perplexities: Some(vec![5.]), ..none() },
    ];
    let all = NewValues {
        exaggeration: Some(2.),
        learning_rate: Some(30.),
        momentum: Some(0.5),
        degrees_of_freedom: Some(2.),
        perplexities: Some(vec![4., 9.]),
    };
    let mut each: Vec<Vec<Change>> = kinds.iter().map(|to| vec![at(50, to.clone())]).collect();
    each.push(vec![at(0, kinds[4].clone()), at(50, all.clone()), at(150, kinds[3].clone()), at(200, all)]);
    each
}

fn rest(run: &mut TsneTrainer) -> Result<Vec<Progress>> {
    let mut seen = vec![];
    while let Some(progress) = run.step()? {
        seen.push(progress);
    }
    Ok(seen)
}

fn bits(run: &TsneTrainer) -> Result<Vec<Vec<f32>>> {
    run.layout()?.to_vec2()
}

#[test]
fn a_schedule_and_the_same_changes_by_callback_come_to_the_same_bits() -> Result<()> {
    let rows = rows(90)?;
    for method in [Method::Exact, Method::BarnesHut, Method::Fft] {
        let plain = TsneConfig { keep_neighbours: true, ..short(method) };
        let mut unchanged = TsneTrainer::new(plain.clone(), PLACE, &rows)?;
        rest(&mut unchanged)?;
        for changes in every_kind() {
            let mut scheduled =
                TsneTrainer::new(TsneConfig { changes: changes.clone(), ..plain.clone() }, PLACE, &rows)?;
            let want = rest(&mut scheduled)?;
            let mut run = TsneTrainer::new(plain.clone(), PLACE, &rows)?;
            let mut seen = vec![];
            let apply = |run: &mut TsneTrainer| {
                let now = changes.iter().filter(|change| change.iteration == run.iteration());
                now.map(|change| change.to.clone())
                    .collect::<Vec<_>>()
                    .into_iter()
                    .try_for_each(|to| run.change(to))
            };
            apply(&mut run)?;
            run.fit_with(|run, progress| {
                seen.push(*progress);
                apply(run)?;
                Ok(ControlFlow::Continue(()))
            })?;
            assert_eq!(seen, want, "{method:?} {changes:?}");
            assert_eq!(bits(&run)?, bits(&scheduled)?, "{method:?} {changes:?}");
            assert_eq!(run.config().changes, changes);
            assert_eq!(run.model()?.config(), scheduled.model()?.config());
            assert_ne!(bits(&run)?, bits(&unchanged)?, "{method:?} {changes:?}: nothing changed");
        }
    }
    Ok(())
}

#[test]
fn a_run_that_is_killed_and_resumed_anywhere_comes_to_the_same_bits() -> Result<()> {
    let rows = rows(90)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    for changes in every_kind() {
        let config = TsneConfig { changes: changes.clone(), ..short(Method::Exact) };
        let mut whole = TsneTrainer::new(config.clone(), PLACE, &rows)?;
        let seen = rest(&mut whole)?;
        for killed in 0..seen.len() {
            let mut run = TsneTrainer::new(config.clone(), PLACE, &rows)?;
            for _ in 0..killed {
                run.step()?;
            }
            run.save(&path, &serde_json::Value::Null)?;
            let (mut again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
            assert_eq!(again.kl()?, run.kl()?, "after {killed} of {changes:?}");
            assert_eq!(rest(&mut again)?, seen[killed..], "after {killed} of {changes:?}");
            assert_eq!(bits(&again)?, bits(&whole)?, "after {killed} of {changes:?}");
            assert_eq!(again.model()?.config(), whole.model()?.config());
        }
    }
    Ok(())
}

#[test]
fn points_in_an_order_of_their_own_follow_new_affinities() -> Result<()> {
    // So many that they are sorted.
    let n = 20_500;
    let rows = rows(n)?;
    let config = TsneConfig {
        perplexity: 4.,
        early_iterations: 75,
        iterations: 30,
        changes: vec![Change {
            iteration: 60,
            to: NewValues { perplexities: Some(vec![2.]), ..NewValues::default() },
        }],
        ..TsneConfig::default()
    };
    let mut run = TsneTrainer::new(config, PLACE, &rows)?;
    let seen = rest(&mut run)?;
    assert!(seen.iter().any(|progress| progress.iteration == 60), "{seen:?}");
    // What the graph in the order of the descent gives is what the one in the order of the rows
    // does.
    let want = measure::kl_of_affinities(run.affinities(), &run.layout()?, 1.)?;
    assert!((run.metrics()?.kl - want).abs() < 0.01 * want, "{} for {want}", run.metrics()?.kl);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    run.save(&path, &serde_json::Value::Null)?;
    let (again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
    assert!((again.kl()? - want).abs() < 1e-6 * want, "{} for {want}", again.kl()?);
    Ok(())
}

#[test]
fn annealing_ends_near_the_divergence_of_a_plain_run() -> Result<()> {
    let rows = rows(400)?;
    let plain =
        TsneConfig { perplexity: 30., early_iterations: 100, iterations: 400, ..TsneConfig::default() };
    let to = NewValues { perplexities: Some(vec![30.]), ..NewValues::default() };
    let annealed = TsneConfig {
        perplexity: 100.,
        changes: vec![Change { iteration: 250, to }],
        neighbours: Some(300),
        ..plain.clone()
    };
    let plain = TsneConfig { neighbours: Some(300), ..plain };
    let mut of_plain = TsneTrainer::new(plain.clone(), PLACE, &rows)?;
    rest(&mut of_plain)?;
    let mut run = TsneTrainer::new(annealed.clone(), PLACE, &rows)?;
    let seen = rest(&mut run)?;
    let (got, want) = (run.metrics()?.kl, of_plain.metrics()?.kl);
    assert!((got - want).abs() < 0.05 * want, "{got} for {want}");
    // The affinities are those of the plain run, and so is what is saved of them.
    assert_eq!(run.affinities().values.to_vec1::<f32>()?, of_plain.affinities().values.to_vec1::<f32>()?);
    let folder = tempfile::tempdir()?;
    run.model()?.save_pretrained(folder.path())?;
    let back = chandlery::tsne::Embedding::from_pretrained(folder.path(), &LoadOptions::default())?;
    assert_eq!((back.config().perplexity, back.config().neighbours), (30., Some(300)));
    assert_eq!(back.config().changes, annealed.changes);
    let kl = measure::true_kl(&rows, back.layout(), back.config(), PLACE)?;
    assert!((kl - got).abs() < 1e-6 * got, "{kl} for {got}");
    // Divergences of different affinities are not compared.
    let at = |iteration| seen.iter().find(|progress| progress.iteration == iteration);
    assert!(at(250).is_some_and(|progress| progress.fall.is_some()), "{seen:?}");
    assert!(at(275).is_some_and(|progress| progress.fall.is_none()), "{seen:?}");
    assert!(at(300).is_some_and(|progress| progress.fall.is_some()), "{seen:?}");
    Ok(())
}

#[test]
fn a_run_does_not_end_before_its_last_change() -> Result<()> {
    let rows = rows(60)?;
    let to = NewValues { exaggeration: Some(2.), ..NewValues::default() };
    let config = TsneConfig { stop_below: Some(1e9), ..short(Method::Exact) };
    let end = |changes| -> Result<Option<usize>> {
        let mut run = TsneTrainer::new(TsneConfig { changes, ..config.clone() }, PLACE, &rows)?;
        Ok(rest(&mut run)?.last().map(|last| last.iteration))
    };
    assert_eq!(end(vec![])?, Some(125));
    assert_eq!(end(vec![Change { iteration: 190, to }])?, Some(200));
    Ok(())
}

#[test]
fn changes_that_make_no_sense_are_refused() -> Result<()> {
    let rows = rows(60)?;
    let none = NewValues::default;
    let with = |changes: Vec<(usize, NewValues)>| TsneConfig {
        changes: changes.into_iter().map(|(iteration, to)| Change { iteration, to }).collect(),
        ..short(Method::Exact)
    };
    let factor = |x| NewValues { exaggeration: Some(x), ..none() };
    let perplexities = |all: &[f64]| NewValues { perplexities: Some(all.to_vec()), ..none() };
    for (config, want) in [
        (with(vec![(10, none())]), "a value must be given"),
        (with(vec![(10, factor(0.))]), "exaggeration must be above 0, got 0"),
        (with(vec![(10, NewValues { learning_rate: Some(-1.), ..none() })]), "learning_rate must be above 0"),
        (with(vec![(10, NewValues { momentum: Some(1.), ..none() })]), "momentum must be in [0, 1)"),
        (
            with(vec![(10, NewValues { degrees_of_freedom: Some(f32::NAN), ..none() })]),
            "degrees_of_freedom must be above 0",
        ),
        (with(vec![(10, perplexities(&[]))]), "1 to 8 perplexities, got 0"),
        (with(vec![(10, perplexities(&[0.5]))]), "perplexity must be at least 1, got 0.5"),
        (with(vec![(250, factor(2.))]), "below 250, those of the whole descent, got 250"),
        (with(vec![(20, factor(2.)), (10, factor(2.))]), "must ascend by iteration, got 20 before 10"),
        (
            TsneConfig { affinity: Affinity::Uniform, ..with(vec![(10, perplexities(&[4.]))]) },
            "perplexities are for affinities of perplexities, got Uniform",
        ),
        (
            TsneConfig { neighbours: Some(12), ..with(vec![(10, perplexities(&[15.]))]) },
            "neighbours must be in 15..=59 for 60 rows at perplexity 15, got 12",
        ),
    ] {
        let error = message(TsneTrainer::new(config, PLACE, &rows));
        assert!(error.contains(want), "{error}, want {want}");
    }
    // Of few rows they are lowered, as others are.
    let run = TsneTrainer::new(with(vec![(10, perplexities(&[50.]))]), PLACE, &rows)?;
    assert_eq!(run.config().changes[0].to.perplexities, Some(vec![59. / 3.]));
    assert!(run.notes()[0].contains("perplexity 50 was lowered to 19.67"), "{:?}", run.notes());
    let near = knn(&rows, 12, chandlery::tsne::Metric::Euclidean)?;
    let error = message(TsneTrainer::from_neighbours(with(vec![(10, perplexities(&[15.]))]), PLACE, &near));
    assert!(
        error.contains("at most 12, the number of neighbours, got 15 in the change at iteration 10"),
        "{error}"
    );

    let mut run = TsneTrainer::new(short(Method::Exact), PLACE, &rows)?;
    let error = message(run.change(perplexities(&[5.])));
    assert!(error.contains("got none at iteration 0") && error.contains("keep_neighbours"), "{error}");
    let keep = TsneConfig { keep_neighbours: true, ..short(Method::Exact) };
    let mut kept = TsneTrainer::new(keep, PLACE, &rows)?;
    kept.step()?;
    let error = message(kept.change(perplexities(&[31.])));
    assert!(
        error.contains("at most 30, the number of neighbours, got 31 in the change at iteration 25"),
        "{error}"
    );
    assert!(kept.config().changes.is_empty());
    rest(&mut run)?;
    let error = message(run.change(factor(2.)));
    assert!(error.contains("below 250"), "{error}");
    let (graph, layout) = (run.affinities().clone(), run.layout()?);
    let error = message(TsneTrainer::from_affinities(with(vec![(10, perplexities(&[5.]))]), graph, &layout));
    assert!(error.contains("perplexities can change where the run has its neighbours"), "{error}");
    Ok(())
}
