//! From what was asked for to what is trained: the RBMs, and how each learns.
use super::args::Settings;
use super::streams;
use crate::data::Data;
use anyhow::{Context, Result, bail, ensure};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::{CdConfig, HiddenUnit, RbmConfig, SparsityConfig, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery_datasets::Split;
use chandlery_datasets::preparation::{Preparation, RowStatistics, StepConfig};

/// A trainer at its first step.
pub fn new_trainer(data: &Data, settings: &Settings, device: &Device) -> Result<DbnTrainer> {
    let gaussian = VisibleUnit::from(settings.visible).is_gaussian();
    if VisibleUnit::from(settings.visible) == VisibleUnit::GaussianLearned && settings.hidden.len() > 1 {
        bail!(
            "--visible gaussian-learned: there must be one layer, got {}; use gaussian, or --hidden {}",
            settings.hidden.len(),
            settings.hidden[0]
        )
    }
    if gaussian && settings.binarize {
        bail!("--binarize: --visible must be bernoulli, got {:?}; leave one of them out", settings.visible)
    }
    let (preparation, statistics) = prepare(&data.train, settings)?;
    let n_visible = preparation.n_outputs(data.train.n_features())?;
    let config = DbnConfig { layers: layers(n_visible, settings), preparation, image: data.train.image };
    let training = training_of(&config, settings)?;
    let dbn = Dbn::init(config, Philox::new(settings.seed, streams::WEIGHTS), device)?;
    let mut trainer = DbnTrainer::new(&dbn, training, Philox::new(settings.seed, streams::UNITS))?;
    trainer.set_visible_mean(&Tensor::new(statistics.mean, device)?)?;
    Ok(trainer)
}

/// How each layer of a network is trained, lowest first.
pub fn training_of(config: &DbnConfig, settings: &Settings) -> Result<Vec<CdConfig>> {
    config.layers.iter().map(|layer| training(layer, settings)).collect()
}

/// What is done to raw rows before the lowest layer reads them, fitted to the training rows; and what rows look like then.
///
/// Real-valued units have the standard deviation 1, and so get rows; binary ones must get probabilities.
fn prepare(train: &Split, settings: &Settings) -> Result<(Preparation, RowStatistics)> {
    let gaussian = VisibleUnit::from(settings.visible).is_gaussian();
    let unit = gaussian.then_some(StepConfig::UnitVariance);
    let steps: Vec<StepConfig> = settings.prepare.iter().copied().chain(unit).collect();
    let flag = if settings.prepare.is_empty() { "--visible gaussian" } else { "--prepare" };
    let preparation = Preparation::fit(train, &steps, settings.seed).context(flag)?;
    let statistics = RowStatistics::of(train, &preparation, settings.seed)?;
    ensure!(
        gaussian || statistics.min >= 0. && statistics.max <= 1.,
        "--visible bernoulli: rows must lie between 0 and 1, got {} to {}; rescale them, or use --visible gaussian",
        statistics.min,
        statistics.max
    );
    Ok((preparation, statistics))
}

/// The RBMs of a network, lowest first.
fn layers(n_features: usize, settings: &Settings) -> Vec<RbmConfig> {
    let top = settings.hidden.len().saturating_sub(1);
    let mut below = n_features;
    let mut visible = settings.visible.into();
    settings
        .hidden
        .iter()
        .enumerate()
        .map(|(i, &n_hidden)| {
            let unit = settings.code_unit.filter(|_| i == top).unwrap_or(settings.hidden_unit);
            let hidden = HiddenUnit::from(unit);
            let layer = RbmConfig { visible, hidden, ..RbmConfig::new(below, n_hidden) };
            (below, visible) = (n_hidden, hidden.as_visible());
            layer
        })
        .collect()
}

/// How an RBM is trained.
fn training(layer: &RbmConfig, settings: &Settings) -> Result<CdConfig> {
    let real = layer.visible.is_gaussian() || layer.hidden != HiddenUnit::Bernoulli;
    let rate = settings.learning_rate.unwrap_or(if real { 0.001 } else { 0.1 });
    let persistent = settings.persistent.unwrap_or(!real);
    // Chains that persist must keep up with the weights: momentum, which makes long steps, leaves them behind.
    let momentum = settings.momentum.unwrap_or(if persistent { 0. } else { 0.9 });
    let slow = (settings.epochs / 5).max(1);
    let precision = settings.precision.parse().map_err(|err| anyhow::anyhow!("--precision: {err}"))?;
    Ok(CdConfig {
        batch: settings.batch,
        learning_rate: Schedule::linear(rate, settings.final_learning_rate, settings.epochs),
        momentum: Schedule::steps([(0, momentum.min(0.5)), (slow, momentum)]),
        k: settings.k,
        persistent,
        l1: settings.l1,
        l2: settings.l2,
        max_norm: settings.max_norm,
        sparsity: settings.sparsity_target.zip(settings.sparsity_cost).map(|(target, cost)| SparsityConfig {
            target,
            cost,
            decay: 0.9,
        }),
        binarize: settings.binarize,
        precision,
        ..CdConfig::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dbn::cli::Cli;
    use clap::Parser;

    fn settings(flags: &[&str]) -> Settings {
        Cli::try_parse_from(["dbn"].iter().chain(flags)).unwrap().train.settings()
    }

    #[test]
    fn units_of_a_layer_are_those_that_the_one_below_has() {
        let settings = settings(&["--hidden", "7,5,3", "--hidden-unit", "rectified"]);
        let layers = layers(9, &settings);
        let shapes: Vec<_> = layers.iter().map(|l| (l.n_visible, l.n_hidden, l.visible)).collect();
        use VisibleUnit::{Bernoulli, Gaussian};
        assert_eq!(shapes, [(9, 7, Bernoulli), (7, 5, Gaussian), (5, 3, Gaussian)]);
        DbnConfig { layers, ..DbnConfig::new(&[1, 1]) }.validate().unwrap();
        let rates: Vec<_> = super::layers(9, &settings)
            .iter()
            .map(|layer| training(layer, &settings).unwrap().learning_rate.at(0))
            .collect();
        assert_eq!(rates, [0.001; 3]);
    }

    #[test]
    fn the_code_layer_may_have_units_of_its_own() {
        let settings = settings(&["--hidden", "7,2", "--code-unit", "gaussian"]);
        let layers = layers(9, &settings);
        let units: Vec<_> = layers.iter().map(|l| (l.visible, l.hidden)).collect();
        let binary = VisibleUnit::Bernoulli;
        assert_eq!(units, [(binary, HiddenUnit::Bernoulli), (binary, HiddenUnit::Gaussian)]);
        let config = training(&layers[1], &settings).unwrap();
        assert!(config.learning_rate.at(0) == 0.001 && !config.persistent);
    }

    #[test]
    fn rows_that_units_cannot_hold_are_refused() {
        let split = Split::from_f32(vec![0., -2., 1., 0.5], 2, None).unwrap();
        let err = prepare(&split, &settings(&[])).unwrap_err();
        assert_eq!(
            err.to_string(),
            "--visible bernoulli: rows must lie between 0 and 1, got -2 to 1; rescale them, or use --visible gaussian"
        );
        let flat = Split::from_f32(vec![3.; 4], 2, None).unwrap();
        let err = prepare(&flat, &settings(&["--visible", "gaussian"])).unwrap_err();
        assert_eq!(
            format!("{err:#}"),
            "--visible gaussian: Preparation: rows must vary to be given unit variance, got 3 everywhere"
        );
    }

    #[test]
    fn rows_of_real_valued_units_have_unit_variance_after_what_was_asked_for() {
        let bytes = Split::from_u8(vec![0, 255, 51, 255, 102, 255], 2, None).unwrap();
        let (preparation, statistics) = prepare(&bytes, &settings(&["--visible", "gaussian"])).unwrap();
        // Feature 0: 0, 0.2, 0.4; feature 1 is 1. Variances 0.08/3 and 0; their mean is 0.04/3.
        assert!((statistics.stdev - 1.).abs() < 1e-6);
        let scale = preparation.as_scale(candle::DType::F32).unwrap();
        assert!((scale - 75f64.sqrt()).abs() < 1e-3, "{scale}");
        let asked = settings(&["--visible", "gaussian", "--prepare", "row-mean,pca=1"]);
        let (preparation, statistics) = prepare(&bytes, &asked).unwrap();
        assert_eq!((preparation.n_outputs(2).unwrap(), statistics.mean.len()), (1, 1));
        assert!((statistics.stdev - 1.).abs() < 1e-6);
    }

    #[test]
    fn momentum_rises_after_a_fifth_of_the_epochs() {
        let settings = settings(&["--epochs", "20", "--momentum", "0.8"]);
        let config = training(&RbmConfig::new(2, 2), &settings).unwrap();
        assert_eq!([0, 3, 4, 19].map(|epoch| config.momentum.at(epoch)), [0.5, 0.5, 0.8, 0.8]);
        let persistent = training(&RbmConfig::new(2, 2), &self::settings(&[])).unwrap();
        assert!(persistent.persistent && persistent.momentum.at(19) == 0.);
        let plain = training(&RbmConfig::new(2, 2), &self::settings(&["--persistent=false"])).unwrap();
        assert!(!plain.persistent && plain.momentum.at(19) == 0.9);
        let short = training(&RbmConfig::new(2, 2), &self::settings(&["--epochs", "1"])).unwrap();
        short.validate().unwrap();
    }
}
