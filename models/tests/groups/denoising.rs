//! Denoising autoencoders: the noise of one rank, gradients summed.
use super::{BATCH, CPU, each, minibatches, several_are_one};
use candle::Result;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::feedforward::{Activation, ReconstructionLoss};
use chandlery::{MinibatchTrainer, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::layers::Corruption;

/// A width of rows that is no multiple of a block of draws.
const VISIBLE: usize = 7;

/// Units of layers to which steps add others.
const WIDE: usize = 69;

#[test]
fn denoising_autoencoders_of_several_ranks_are_those_of_one() -> Result<()> {
    let papers = DaeConfig::new(VISIBLE, 5);
    let wide = DaeConfig { n_visible: WIDE, n_hidden: 66, ..papers.clone() };
    let untied = DaeConfig {
        tied: false,
        hidden: Activation::Tanh,
        output: Activation::Identity,
        loss: ReconstructionLoss::SquaredError,
        ..papers.clone()
    };
    for (what, config, corruption, momentum) in [
        ("the paper's", &papers, Corruption::SaltAndPepper(0.3), 0.),
        ("with momentum", &papers, Corruption::Masking(0.3), 0.5),
        ("untied", &untied, Corruption::Gaussian(0.2), 0.5),
        ("wide", &wide, Corruption::SaltAndPepper(0.3), 0.),
        ("wide, with momentum", &wide, Corruption::Flip(0.3), 0.5),
    ] {
        let make = || {
            let training = DaeTrainConfig {
                batch: BATCH,
                momentum: momentum.into(),
                weight_decay: 1e-3,
                corruption,
                ..DaeTrainConfig::default()
            };
            DaeTrainer::new(&Dae::init(config.clone(), Philox::new(1, 0), &CPU)?, training, Philox::new(1, 1))
        };
        several_are_one(what, &minibatches(config.n_visible)?, 2e-5, make, DaeTrainer::in_group)?;
    }
    Ok(())
}

#[test]
fn an_autoencoder_above_others_reads_what_they_make_of_the_ranks_own_rows() -> Result<()> {
    for (visible, between, hidden) in [(VISIBLE, 6, 4), (WIDE, 66, 70)] {
        let below = Dae::init(DaeConfig::new(visible, between), Philox::new(1, 0), &CPU)?;
        let make = || {
            let training = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
            let top = Dae::init(DaeConfig::new(between, hidden), Philox::new(1, 2), &CPU)?;
            let preparation = &below.config().preparation;
            DaeTrainer::above(std::slice::from_ref(&below), &top, preparation, training, Philox::new(1, 1))
        };
        several_are_one("above another", &minibatches(visible)?, 2e-5, make, DaeTrainer::in_group)?;
    }
    Ok(())
}

#[test]
fn minibatches_too_small_for_the_ranks_are_refused() -> Result<()> {
    let dae = Dae::init(DaeConfig::new(VISIBLE, 5), Philox::new(1, 0), &CPU)?;
    let said = each(3, |group| {
        let trainer = DaeTrainer::new(&dae, DaeTrainConfig::default(), Philox::new(1, 1))?;
        Ok(trainer.in_group(group).map(drop).unwrap_err().to_string())
    })?;
    let first = said[0].lines().next().unwrap_or_default();
    assert_eq!(first, "DaeTrainer::in_group: batch must be at least 9 for 3 ranks, got 8");
    Ok(())
}

#[test]
fn rows_that_one_rank_may_not_have_are_refused_on_all_of_them() -> Result<()> {
    let dae = Dae::init(DaeConfig::new(VISIBLE, 5), Philox::new(1, 0), &CPU)?;
    let training = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
    let rows = minibatches(VISIBLE)?[0].clone();
    // The last row, which is the last rank's.
    rows.slice_set(&(rows.narrow(0, BATCH - 1, 1)? + 2.)?, 0, BATCH - 1)?;
    let said = each(3, |group| {
        let mut trainer = DaeTrainer::new(&dae, training.clone(), Philox::new(1, 1))?.in_group(group)?;
        trainer.step(&rows, None)?;
        Ok(trainer.check().unwrap_err().to_string())
    })?;
    let want = "DaeTrainer: prepared rows must lie between 0 and 1 for sigmoid outputs, got";
    assert!(said.iter().all(|said| said.starts_with(want)), "{said:?}");
    Ok(())
}
