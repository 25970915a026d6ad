//! What `fit` promises, of minibatches and of all rows at once.
use super::{BATCH, CPU, N, first_line};
use candle::{Result, Tensor};
use chandlery::datasets::{Feed, FeedConfig, Split};
use chandlery::{Epochs, Event, FullBatchTrainer, MinibatchTrainer, Philox, Trainer};
use chandlery_ops::core::uniform;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;

/// Rows of an epoch: the last minibatch is not full.
const ROWS: usize = 34;
const MINIBATCHES: usize = 4;

fn feed() -> Result<Feed> {
    let rows = Split::from_tensors(&uniform((ROWS, N), &CPU, Philox::new(9, 0))?, None);
    let labels = Some((0..ROWS as u32).map(|i| i % 3).collect());
    let rows = Split { labels, ..rows.map_err(candle::Error::wrap)? };
    Feed::new(&rows, &CPU, FeedConfig::new(BATCH, 5)).map_err(candle::Error::wrap)
}

fn numbers(metrics: &impl serde::Serialize) -> Value {
    serde_json::to_value(metrics).expect("numbers")
}

/// A trainer is one without its type, too.
fn as_object<T: Trainer>(trainer: &T) -> &dyn Trainer<Model = T::Model, Metrics = T::Metrics> {
    trainer
}

/// `values` gives what a model is; the models of `new` are not trained.
pub fn of_minibatches<T: MinibatchTrainer>(
    name: &str,
    new: &impl Fn() -> Result<T>,
    values: &impl Fn(&T::Model) -> Result<Vec<f32>>,
    path: &Path,
) -> Result<()> {
    // A fit is a loop of steps.
    let (mut feed, mut whole, mut looped) = (feed()?, new()?, new()?);
    let metrics = whole.fit(&mut feed, 3)?;
    for (epoch, metrics) in metrics.iter().enumerate() {
        looped.begin_epoch(epoch)?;
        feed.start_epoch(epoch as u64, 0).map_err(candle::Error::wrap)?;
        while let Some(minibatch) = feed.next().map_err(candle::Error::wrap)? {
            looped.step(&minibatch.rows, minibatch.labels.as_ref())?;
        }
        assert_eq!(numbers(metrics), numbers(&looped.metrics()?), "{name}, epoch {epoch}");
    }
    assert_eq!((metrics.len(), whole.steps(), looped.steps()), (3, 12, 12), "{name}");
    let want = values(&whole.model()?)?;
    assert!(values(&looped.model()?)? == want, "{name}: a fit is no loop of steps");

    // A look sees every epoch, and steps between, some trainers' several at once; one that ends the
    // training ends it there.
    let mut seen = vec![];
    let made = new()?.fit_with(&mut feed, 3, |event| {
        let (at, steps) = match event {
            Event::Steps { epoch, minibatches, trainer } => ((epoch, minibatches), trainer.steps()),
            Event::Epoch { epoch, metrics, trainer } => {
                assert_eq!(numbers(metrics)["steps"].as_u64(), Some(MINIBATCHES as u64), "{name}");
                ((epoch + 1, 0), trainer.steps())
            }
        };
        assert_eq!(steps as usize, MINIBATCHES * at.0 + at.1, "{name}");
        seen.push(at);
        Ok(if at == (1, 3) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    assert!(seen.is_sorted() && seen.windows(2).any(|pair| pair == [(0, 4), (1, 0)]), "{name}: {seen:?}");
    assert_eq!((seen.last(), made.len()), (Some(&(1, 3)), 1), "{name}: {seen:?}");

    // Saved within an epoch or after one, and taken up.
    for (epoch, minibatches) in [(1, 3), (2, 0)] {
        new()?.fit_with(&mut feed, 3, |event| {
            let (at, trainer) = match event {
                Event::Steps { epoch, minibatches, trainer } => ((epoch, minibatches), trainer),
                Event::Epoch { epoch, trainer, .. } => ((epoch + 1, 0), trainer),
            };
            if at != (epoch, minibatches) {
                return Ok(ControlFlow::Continue(()));
            }
            trainer.save(path, &json!(at))?;
            Ok(ControlFlow::Break(()))
        })?;
        let (mut trainer, at) = T::load(path, &CPU)?;
        assert_eq!(at, json!((epoch, minibatches)), "{name}");
        let rest = trainer.fit(&mut feed, Epochs { minibatches, ..(epoch..3).into() })?;
        assert_eq!(rest.len(), 3 - epoch, "{name}");
        assert!(values(&trainer.model()?)? == want, "{name}, from epoch {epoch}: other values");
    }

    // The best of six epochs is the second, and two more pass before it is known.
    let (mut trainer, mut figures, mut models) =
        (new()?, [3., 2., f64::NAN, 2.5, 1., 0.].into_iter(), vec![]);
    let best = trainer.fit_best(&mut feed, 6, 2, |model| {
        models.push(values(model)?);
        Ok(figures.next().unwrap_or(f64::NAN))
    })?;
    assert_eq!((best.epoch, best.figure, models.len()), (1, 2., 4), "{name}");
    assert!(values(&best.model)? == models[1], "{name}: another model than that of the best epoch");
    let never = first_line(new()?.fit_best(&mut feed, 1, 2, |_| Ok(f64::NAN)).err().expect("a best epoch"));
    assert!(never.contains("must be a number, got none"), "{name}: {never}");

    assert_eq!(as_object(&whole).steps(), 12, "{name}");
    assert!(values(&as_object(&whole).model()?)? == want, "{name}");
    Ok(())
}

/// `iterations` are what [`FullBatchTrainer::set_iterations`] is told for so many steps as `new`
/// makes, and for more.
pub fn of_all_rows<T: FullBatchTrainer>(
    name: &str,
    rows: &Tensor,
    iterations: [usize; 2],
    new: impl Fn() -> Result<T>,
    values: impl Fn(&T::Model) -> Result<Vec<f32>>,
) -> Result<&'static str> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let (mut whole, mut looped) = (new()?, new()?);
    assert!(whole.metrics().is_err(), "{name}: metrics without iterations");
    let untrained = values(&whole.model()?)?;
    let metrics = whole.fit()?;
    let mut steps = vec![];
    while let Some(made) = looped.step()? {
        assert_eq!(numbers(&made), numbers(&looped.metrics()?), "{name}");
        steps.push(numbers(&made));
    }
    assert_eq!(metrics.iter().map(numbers).collect::<Vec<_>>(), steps, "{name}: a fit is no loop of steps");
    let want = values(&whole.model()?)?;
    assert!(steps.len() > 2 && want != untrained, "{name}: {} steps", steps.len());
    assert!(values(&looped.model()?)? == want, "{name}");
    whole.check()?;
    // There is nothing left to do, and nothing is done.
    assert!(whole.step()?.is_none() && whole.fit()?.is_empty(), "{name}");
    assert!(values(&whole.model()?)? == want, "{name}");

    for stop in [0, 1, 2] {
        let mut first = new()?;
        let mut left = stop;
        let made = match stop {
            0 => vec![],
            _ => first.fit_with(|_, _| {
                left -= 1;
                Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?,
        };
        assert_eq!(made.len(), stop, "{name}");
        first.save(&path, &json!({ "stop": stop }))?;
        let (mut second, progress) = T::load(&path, rows, &CPU)?;
        assert_eq!(progress, json!({ "stop": stop }), "{name}");
        assert_eq!(second.steps(), first.steps(), "{name}");
        if stop > 0 {
            assert_eq!(numbers(&second.metrics()?), steps[stop - 1], "{name}");
        }
        let rest: Vec<_> = second.fit()?.iter().map(numbers).collect();
        assert_eq!(rest, steps[stop..], "{name}, stopped after {stop}");
        assert!(values(&second.model()?)? == want, "{name}, stopped after {stop}: other values");
    }

    // One that was finished, saved and loaded goes on when it is given more.
    whole.save(&path, &Value::Null)?;
    let (mut longer, _) = T::load(&path, rows, &CPU)?;
    assert!(longer.step()?.is_none(), "{name}");
    let made = whole.steps();
    for trainer in [&mut whole, &mut longer] {
        trainer.set_iterations(iterations[1])?;
        trainer.fit()?;
        let more = (iterations[1] - iterations[0]) as u64;
        assert_eq!(trainer.steps(), made + more, "{name}");
    }
    assert!(values(&longer.model()?)? == values(&whole.model()?)?, "{name}: longer");
    assert_eq!(as_object(&whole).steps(), whole.steps(), "{name}");
    Ok(std::any::type_name::<T>())
}
