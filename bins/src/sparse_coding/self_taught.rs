//! The command `self-taught`: activations over a basis of some digits classify others.
use super::args::SelfTaughtArgs;
use super::train::{TRAINER, draw_basis, first_model};
use crate::report::Outcome;
use crate::self_taught;
use anyhow::{Context, Result};
use candle::Device;
use chandlery::sparse_coding::{Metrics, SparseCodingConfig, SparseCodingTrainer};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split, count};
use serde_json::json;

/// Learns features and measures what they are worth.
pub fn self_taught(args: &SelfTaughtArgs) -> Result<Outcome> {
    let learn = |split: &Split, seed: u64, device: &Device| {
        let config = SparseCodingConfig {
            nonnegative: args.nonnegative.unwrap_or(true),
            tolerance: args.learn.gap,
            solver: args.learn.solver.into(),
            image: split.image,
            ..SparseCodingConfig::new(args.atoms, split.n_features(), args.penalty)
        };
        let first = first_model(config, split, seed, device)?;
        let mut trainer = SparseCodingTrainer::new(&first, args.learn.config(), Philox::new(seed, TRAINER))?;
        let batch = args.learn.batch.min(split.n_samples());
        let mut feed = Feed::new(split, device, FeedConfig::new(batch, seed))?;
        let metrics = trainer.fit(&mut feed, args.epochs)?.pop().context("--epochs must be at least 1")?;
        Ok((trainer.model()?, metrics))
    };
    let name = count(args.atoms, "activation");
    self_taught::run(
        &args.task,
        args.out.as_deref(),
        &name,
        learn,
        |model, metrics, folder, rows, results| {
            let Metrics { figures, .. } = metrics;
            results.insert("n_atoms".to_owned(), json!(args.atoms));
            results.insert("objective".to_owned(), json!(figures.objective));
            results.insert("nonzero_fraction".to_owned(), json!(figures.nonzero_fraction));
            if let Some(folder) = folder {
                folder.save_model("", |path| model.save_pretrained(path))?;
                draw_basis(&model, rows, folder)?;
            }
            Ok(())
        },
    )
}
