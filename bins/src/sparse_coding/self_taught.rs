//! The command `self-taught`: activations over a basis of some digits classify others.
use super::args::SelfTaughtArgs;
use super::train::first_model;
use super::{draw, streams};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::run_folder::{Existing, RunFolder};
use crate::self_taught::{Features, compare};
use anyhow::Result;
use candle::{DType, Device, Module};
use chandlery::sparse_coding::{Metrics, SparseCoding, SparseCodingConfig, SparseCodingTrainer};
use chandlery::{Philox, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split, count};
use serde_json::{Value, json};

/// Learns features and measures what they are worth.
pub fn self_taught(args: &SelfTaughtArgs) -> Result<Outcome> {
    let common = &args.task.common;
    let report = Report::new(common.json);
    let device = common.open_device()?;
    let folder = match &args.out {
        Some(out) => Some(RunFolder::create("self-taught", Some(out), Existing::Refuse)?),
        None => None,
    };
    // Of the first seed.
    let mut first = None;
    let name = count(args.atoms, "activation");
    let mut results = compare(&args.task, &report, &device, &name, |rows, seed| {
        let (model, metrics) = learn(args, rows, seed, &device)?;
        first.get_or_insert_with(|| (model.clone(), metrics, rows.clone()));
        let features: Features = Box::new(move |rows| model.forward(rows));
        Ok(features)
    })?;
    results.insert("n_atoms".to_owned(), json!(args.atoms));
    if let Some((model, metrics, rows)) = &first {
        results.insert("objective".to_owned(), json!(metrics.figures.objective));
        results.insert("nonzero_fraction".to_owned(), json!(metrics.figures.nonzero_fraction));
        if let Some(folder) = &folder {
            model.save_pretrained(folder.path())?;
            let energy = model.forward(&rows.take(1000)?.raw(&device)?)?.sqr()?.sum(0)?;
            draw::basis(model, &energy.to_dtype(DType::F64)?.to_vec1()?, folder.path())?;
            report.line(&format!("{}", folder.path().display()))?;
        }
    }
    report.finish(&Value::Object(results))?;
    Ok(Outcome::Done)
}

/// The model, and the metrics of its last epoch.
fn learn(
    args: &SelfTaughtArgs,
    split: &Split,
    seed: u64,
    device: &Device,
) -> Result<(SparseCoding, Metrics)> {
    let config = SparseCodingConfig {
        nonnegative: !args.signed,
        tolerance: args.learn.tolerance,
        image: split.image,
        ..SparseCodingConfig::new(args.atoms, split.n_features(), args.beta)
    };
    let _spinner = Spinner::new("learning features");
    let first = first_model(config, split, seed, device)?;
    let mut trainer =
        SparseCodingTrainer::new(&first, args.learn.config(), Philox::new(seed, streams::TRAINER))?;
    let batch = args.learn.batch.min(split.n_samples());
    let mut feed = Feed::new(split, device, FeedConfig::new(batch, seed))?;
    for epoch in 0..args.epochs {
        feed.start_epoch(epoch as u64, 0)?;
        if epoch + 1 == args.epochs && epoch > 0 {
            trainer.metrics()?;
        }
        while let Some(minibatch) = feed.next()? {
            trainer.step(&minibatch.rows, None)?;
        }
    }
    let metrics = trainer.metrics()?;
    Ok((trainer.model()?, metrics))
}
