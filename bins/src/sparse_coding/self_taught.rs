//! The command `self-taught`: activations over a basis of some digits classify others.
use super::args::SelfTaughtArgs;
use super::train::first_model;
use super::{draw, streams};
use crate::progress::Spinner;
use crate::report::Outcome;
use crate::self_taught::{self, Features};
use anyhow::Result;
use candle::{Device, Module};
use chandlery::sparse_coding::{Metrics, SparseCoding, SparseCodingConfig, SparseCodingTrainer};
use chandlery::{Philox, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split, count};
use serde_json::json;

/// Learns features and measures what they are worth.
pub fn self_taught(args: &SelfTaughtArgs) -> Result<Outcome> {
    let name = count(args.atoms, "activation");
    let learn = |rows: &Split, seed: u64, device: &Device| {
        let (model, metrics) = learn(args, rows, seed, device)?;
        let of_model = model.clone();
        let features: Features = Box::new(move |rows| of_model.forward(rows));
        Ok(((model, metrics, rows.clone()), features))
    };
    self_taught::run(&args.task, args.out.as_deref(), &name, learn, |first, folder, device, results| {
        let (model, metrics, rows) = first;
        results.insert("n_atoms".to_owned(), json!(args.atoms));
        results.insert("objective".to_owned(), json!(metrics.figures.objective));
        results.insert("nonzero_fraction".to_owned(), json!(metrics.figures.nonzero_fraction));
        if let Some(folder) = folder {
            model.save_pretrained(&folder.of_model("")?)?;
            draw::basis(&model, &rows, device, folder)?;
        }
        Ok(())
    })
}

/// The model, and the metrics of its last epoch.
fn learn(
    args: &SelfTaughtArgs,
    split: &Split,
    seed: u64,
    device: &Device,
) -> Result<(SparseCoding, Metrics)> {
    let config = SparseCodingConfig {
        nonnegative: args.nonnegative.unwrap_or(true),
        tolerance: args.learn.gap,
        image: split.image,
        ..SparseCodingConfig::new(args.atoms, split.n_features(), args.penalty)
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
