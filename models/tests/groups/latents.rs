//! Sparse autoencoders of today: every kind, with what is rare in a step.
use super::{BATCH, CPU, Run, each, minibatches, several_are_one, trained};
use candle::{DType, Result};
use candle_nn::VarBuilder;
use chandlery::sparse_autoencoder::sae::{
    Division, Kind, LossConfig, PairTrainer, Penalty, Resampling, Sae, SaeConfig, SaeTrainConfig, SaeTrainer,
};
use chandlery::{LoadOptions, MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::normal;
use chandlery_ops::{Group, Philox, Precision};
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

/// Divided by latents, whose parts on 2 ranks are 12 and 12, on 3 each 8, on 4 8, 8, 4 and 4.
#[test]
fn latents_divided_over_ranks_are_those_of_one() -> Result<()> {
    let loss = || LossConfig { sparsity: 0.01, ..LossConfig::default() };
    let by = |training| SaeTrainConfig { division: Division::Latents, start_share: 0., ..training };
    let free = LossConfig { unit_atoms: false, penalty: Penalty::Tanh { scale: 4. }, ..loss() };
    let top_k = Kind::TopK { k: 3 };
    let cut = SaeTrainConfig { clip: Some(0.1), ..training(loss()) };
    for (what, kind, training) in [
        ("TopK by latents", &top_k, training(loss())),
        ("multi-TopK by latents", &top_k, training(LossConfig { multi_top_k: true, ..loss() })),
        ("TopK of more than a rank has, by latents", &Kind::TopK { k: 7 }, cut),
        ("BatchTopK by latents", &Kind::BatchTopK { k: 3 }, training(loss())),
        ("ReLU by latents", &Kind::Relu, training(free)),
        ("JumpReLU by latents", &Kind::JumpRelu, training(loss())),
        ("gated by latents", &Kind::Gated, training(loss())),
    ] {
        holds(what, &SaeConfig::new(VISIBLE, LATENTS, kind.clone()), &by(training), VISIBLE)?;
    }
    let config = SaeConfig {
        n_targets: Some(5),
        subtract_bias: false,
        skip: true,
        ..SaeConfig::new(VISIBLE, LATENTS, top_k)
    };
    holds("transcoder by latents", &config, &by(training(loss())), VISIBLE + 5)
}

#[test]
fn a_rank_that_draws_and_reads_its_latents_alone_trains_the_model_of_one() -> Result<()> {
    // Parts of 8, 8 and 5 latents; dimensions that are no multiple of a block of draws.
    let config = SaeConfig::new(VISIBLE, 21, Kind::TopK { k: 3 });
    let training = SaeTrainConfig { division: Division::Latents, ..training(LossConfig::default()) };
    let places = [Philox::new(1, 0), Philox::new(1, 1)];
    let made = |group: &Group| SaeTrainer::init(config.clone(), training.clone(), places, group, &CPU);
    let rows = minibatches(VISIBLE)?;
    let first = |trainer: SaeTrainer| Run::of(&trainer.model()?, 0);
    let whole = first(made(&Group::single())?)?;
    for drawn in each(3, |group| first(made(group)?))? {
        assert_eq!(drawn, whole, "the draws of one rank");
    }
    let alone = trained(made(&Group::single())?, &rows)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint.safetensors");
    let (begun, rest) = rows.split_at(2);
    each(3, |group| {
        let mut trainer = made(group)?;
        begun.iter().try_for_each(|rows| trainer.step(rows, None))?;
        if group.rank() == 0 { trainer.save(&path, &serde_json::Value::Null) } else { trainer.join_save() }
    })?;
    chandlery::checkpoint::verify(&path)?;
    let mut ranks = each(4, |group| trained(SaeTrainer::read(&path, &CPU, group)?.0, rest))?;
    ranks.push(trained(SaeTrainer::load(&path, &CPU)?.0, rest)?);
    for run in &ranks {
        alone.hold("a checkpoint of 3 ranks, read by 4 and by 1", run, 2e-5);
    }
    // The model of a checkpoint is that of the trainer that reads it.
    SaeTrainer::save_model_of(&path, folder.path())?;
    let saved = Sae::from_pretrained(folder.path(), &LoadOptions::on(&CPU))?;
    assert_eq!(Run::of(&saved, 0)?, first(SaeTrainer::load(&path, &CPU)?.0)?);
    Ok(())
}

#[test]
fn what_does_not_go_by_latents_is_refused_by_name() -> Result<()> {
    let refused = |kind: Kind, training: SaeTrainConfig, latents: usize, what: &str| -> Result<()> {
        let training = SaeTrainConfig { division: Division::Latents, ..training };
        let config = SaeConfig::new(VISIBLE, latents, kind);
        let places = [Philox::new(1, 0), Philox::new(1, 1)];
        for made in Group::on_threads(Group::threads(4), |group| {
            SaeTrainer::init(config.clone(), training.clone(), places, group, &CPU).map(drop)
        }) {
            let text = made.err().map_or_else(String::new, |e| e.to_string());
            assert!(text.contains(what), "{text}");
        }
        Ok(())
    };
    let usual = || training(LossConfig::default());
    let anew = SaeTrainConfig { resampling: Some(Resampling { every: 2, until: 9 }), ..usual() };
    refused(Kind::matryoshka(3, LATENTS), usual(), LATENTS, "division by latents is not for Matryoshka")?;
    refused(Kind::Relu, anew, LATENTS, "division by latents is not for resampling")?;
    refused(Kind::JumpRelu, usual(), LATENTS, "division by latents is not for JumpReLU")?;
    refused(Kind::TopK { k: 3 }, usual(), 12, "latents must be at least 13 for 4 ranks, got 12")?;
    refused(Kind::TopK { k: 3 }, usual(), 1 << 40, "GB of a device")
}
