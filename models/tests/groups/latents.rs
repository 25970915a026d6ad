//! Sparse autoencoders of today: every kind, with what is rare in a step.
use super::{BATCH, CPU, minibatches, several_are_one};
use candle::{DType, Result};
use candle_nn::VarBuilder;
use chandlery::Model;
use chandlery::Trainer;
use chandlery::sparse_autoencoder::sae::{
    Kind, LossConfig, PairTrainer, Penalty, Resampling, Sae, SaeConfig, SaeTrainConfig, SaeTrainer,
};
use chandlery_ops::core::normal;
use chandlery_ops::{Philox, Precision};
use std::collections::HashMap;

const VISIBLE: usize = 7;
const LATENTS: usize = 24;

/// A model whose latents have biases. Without, what one active latent leaves of a row has no part along
/// it, and Adam makes steps of the rounding of a gradient that is 0.
fn model(config: &SaeConfig) -> Result<Sae> {
    let mut tensors: HashMap<_, _> =
        Sae::init(config.clone(), Philox::new(1, 0), &CPU)?.tensors().into_iter().collect();
    let biases = (normal(LATENTS, &CPU, Philox::new(1, 2))? * 0.1)?;
    assert!(tensors.insert("encoder.bias".to_owned(), biases).is_some());
    Sae::new(config.clone(), VarBuilder::from_tensors(tensors, DType::F32, &CPU))
}

/// Latents that die within a minibatch, and large steps.
fn training(loss: LossConfig) -> SaeTrainConfig {
    SaeTrainConfig {
        loss: LossConfig { aux_k: 3, ..loss },
        batch: BATCH,
        learning_rate: Some(0.01),
        warm_up: 0,
        sparsity_warm_up: 2,
        dead_rows: 20,
        ..SaeTrainConfig::default()
    }
}

fn holds(what: &str, config: &SaeConfig, training: &SaeTrainConfig, width: usize) -> Result<()> {
    let make =
        || Ok(PairTrainer::from(SaeTrainer::new(&model(config)?, training.clone(), Philox::new(1, 1))?));
    let alone = several_are_one(what, &minibatches(width)?, 2e-5, make, PairTrainer::in_group)?;
    assert!(alone.metrics["l0"].as_f64() > Some(0.1), "{what}: {:?}", alone.metrics);
    Ok(())
}

#[test]
fn latents_of_several_ranks_are_those_of_one() -> Result<()> {
    let config = |kind| SaeConfig::new(VISIBLE, LATENTS, kind);
    let loss = || LossConfig { sparsity: 0.01, ..LossConfig::default() };
    let free = LossConfig { unit_atoms: false, penalty: Penalty::Tanh { scale: 4. }, ..loss() };
    let top_k = Kind::TopK { k: 3 };
    let cut = SaeTrainConfig { clip: Some(0.1), ..training(loss()) };
    let anew = SaeTrainConfig { resampling: Some(Resampling { every: 2, until: 9 }), ..training(free) };
    for (what, kind, training) in [
        ("multi-TopK", &top_k, training(LossConfig { multi_top_k: true, ..loss() })),
        ("TopK, cut", &top_k, cut),
        ("TopK in bf16", &top_k, SaeTrainConfig { precision: Precision::Bf16, ..training(loss()) }),
        ("BatchTopK", &Kind::BatchTopK { k: 3 }, training(loss())),
        ("Matryoshka", &Kind::matryoshka(3, LATENTS), training(loss())),
        ("ReLU", &Kind::Relu, anew),
        ("JumpReLU", &Kind::JumpRelu, training(loss())),
        ("JumpReLU, free lengths", &Kind::JumpRelu, training(free)),
        ("gated", &Kind::Gated, training(loss())),
    ] {
        holds(what, &config(kind.clone()), &training, VISIBLE)?;
    }
    Ok(())
}

#[test]
fn transcoders_of_several_ranks_are_those_of_one() -> Result<()> {
    let config = SaeConfig {
        n_targets: Some(5),
        subtract_bias: false,
        skip: true,
        ..SaeConfig::new(VISIBLE, LATENTS, Kind::BatchTopK { k: 3 })
    };
    holds("transcoder", &config, &training(LossConfig::default()), VISIBLE + 5)
}
