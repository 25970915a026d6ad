//! From the settings to what is trained: the layers, and how each learns.
use super::args::Settings;
use super::streams;
use crate::options::{LossArg, plan_by_rows};
use crate::rows::{Data, OutsideUnit};
use anyhow::{Context, Result, anyhow, ensure};
use candle::Device;
use chandlery::dae::{DaeConfig, DaeTrainConfig, StackedDae, StackedDaeConfig, StackedDaeTrainer};
use chandlery::feedforward::{Activation, ReconstructionLoss};
use chandlery::{Philox, in_unit_interval};
use chandlery_datasets::preparation::{Preparation, RowStatistics, StepConfig};
use chandlery_datasets::{Split, count};
use chandlery_ops::layers::Corruption;

/// Learning rates when none is asked for: of sigmoid units on values between 0 and 1, and of
/// others.
const LEARNING_RATES: (f64, f64) = (0.1, 0.001);

/// Chooses by the training rows what was not asked for; returns what to say of it.
pub fn choose(train: &Split, settings: &mut Settings) -> Result<Vec<String>> {
    let n = train.n_samples();
    let said = plan_by_rows(DaeTrainConfig::PLAN, n, &mut settings.batch, &mut settings.epochs);
    let mut notes = Vec::from_iter(said);
    if settings.prepare.prepare.is_none()
        && let Some(OutsideUnit { range: (min, max), .. }) = OutsideUnit::of(train, settings.seed)?
    {
        settings.prepare.choose([StepConfig::MinMax]);
        notes.push(format!(
            "values from {min} to {max}: --prepare minmax, chosen for this table; --prepare standardise is the other way"
        ));
    }
    Ok(notes)
}

/// A trainer at its first step.
pub fn new_trainer(data: &Data, settings: &Settings, device: &Device) -> Result<StackedDaeTrainer> {
    let preparation =
        Preparation::fit(&data.train, settings.prepare.steps(), settings.seed).context("--prepare")?;
    let n_visible = preparation.n_outputs(data.train.n_features())?;
    let read = Values::of(&RowStatistics::of(&data.train, &preparation, settings.seed)?, settings)?;
    let layers = layers(n_visible, read, settings);
    let training = training(&layers, settings)?;
    let config = StackedDaeConfig { layers, preparation, image: data.train.image };
    let stack = StackedDae::init(config, Philox::new(settings.seed, streams::WEIGHTS), device)?;
    Ok(StackedDaeTrainer::new(&stack, training, Philox::new(settings.seed, streams::NOISE))?)
}

/// What the values are that a layer reads, and gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Between 0 and 1.
    Unit,
    /// Between -1 and 1.
    Signed,
    /// Any.
    Real,
}

impl Values {
    /// Those of prepared rows.
    fn of(statistics: &RowStatistics, settings: &Settings) -> Result<Self> {
        let RowStatistics { min, max, stdev, .. } = statistics;
        ensure!(stdev.is_finite(), "--data: rows must hold finite numbers, got NaN or infinity");
        if in_unit_interval(*min, *max) {
            return Ok(Self::Unit);
        }
        ensure!(
            settings.loss != Some(LossArg::CrossEntropy),
            "--loss cross-entropy: rows must lie between 0 and 1, got {min} to {max}; use --prepare minmax, or --loss squared-error"
        );
        Ok(Self::Real)
    }

    /// Those of hidden units.
    fn of_units(hidden: Activation) -> Self {
        match hidden {
            Activation::Sigmoid => Self::Unit,
            Activation::Tanh => Self::Signed,
            Activation::Relu | Activation::Identity => Self::Real,
        }
    }

    /// The outputs that give such values back.
    fn output(self) -> Activation {
        match self {
            Self::Unit => Activation::Sigmoid,
            Self::Signed => Activation::Tanh,
            Self::Real => Activation::Identity,
        }
    }

    fn loss(self, asked: Option<LossArg>) -> ReconstructionLoss {
        match self {
            Self::Unit => asked.map_or(ReconstructionLoss::CrossEntropy, Into::into),
            Self::Signed | Self::Real => ReconstructionLoss::SquaredError,
        }
    }
}

/// The autoencoders of a stack, lowest first, above rows of `n_visible` values.
fn layers(n_visible: usize, read: Values, settings: &Settings) -> Vec<DaeConfig> {
    let hidden = Activation::from(settings.hidden_unit);
    let (mut below, mut values) = (n_visible, read);
    let layer = |&n_hidden: &usize| {
        let layer = DaeConfig {
            tied: !settings.untied,
            hidden,
            output: values.output(),
            loss: values.loss(settings.loss),
            ..DaeConfig::new(below, n_hidden)
        };
        (below, values) = (n_hidden, Values::of_units(hidden));
        layer
    };
    settings.hidden.iter().map(layer).collect()
}

/// The noise of each layer, lowest first.
pub fn corruptions(settings: &Settings) -> Result<Vec<Corruption>> {
    let (given, n) = (settings.corruption.len(), settings.hidden.len());
    ensure!(
        given == 1 || given == n,
        "--corruption: give one for all layers, or one for each of {}, got {given}",
        count(n, "layer")
    );
    let each = settings.corruption.iter().cycle().take(n);
    each.map(|name| name.parse().map_err(|err| anyhow!("--corruption: {err}"))).collect()
}

/// How each layer learns, lowest first.
fn training(layers: &[DaeConfig], settings: &Settings) -> Result<Vec<DaeTrainConfig>> {
    let precision = settings.precision.parse().map_err(|err| anyhow!("--precision: {err}"))?;
    let of_layer = |(layer, corruption): (&DaeConfig, Corruption)| {
        let sigmoid = (layer.hidden, layer.output) == (Activation::Sigmoid, Activation::Sigmoid);
        let usual = if sigmoid { LEARNING_RATES.0 } else { LEARNING_RATES.1 };
        DaeTrainConfig {
            batch: settings.n_batch(),
            learning_rate: settings.learning_rate.unwrap_or(usual).into(),
            momentum: settings.momentum.into(),
            weight_decay: settings.weight_decay,
            corruption,
            precision,
        }
    };
    Ok(layers.iter().zip(corruptions(settings)?).map(of_layer).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dae::args::Cli;
    use clap::Parser;

    fn settings(flags: &[&str]) -> Settings {
        Cli::try_parse_from(["dae"].iter().chain(flags)).unwrap().train.settings()
    }

    #[test]
    fn outputs_and_loss_of_a_layer_fit_what_it_reads() {
        use Activation::{Identity, Relu, Sigmoid, Tanh};
        use ReconstructionLoss::{CrossEntropy, SquaredError};
        let outputs = |flags: &[&str], read| {
            let layers = layers(9, read, &settings(flags));
            StackedDaeConfig { layers: layers.clone(), ..StackedDaeConfig::new(&[9, 1]) }.validate().unwrap();
            layers.iter().map(|l| (l.n_visible, l.hidden, l.output, l.loss)).collect::<Vec<_>>()
        };
        let two = ["--hidden", "7,5"];
        assert_eq!(
            outputs(&two, Values::Unit),
            [(9, Sigmoid, Sigmoid, CrossEntropy), (7, Sigmoid, Sigmoid, CrossEntropy)]
        );
        assert_eq!(
            outputs(&two, Values::Real),
            [(9, Sigmoid, Identity, SquaredError), (7, Sigmoid, Sigmoid, CrossEntropy)]
        );
        assert_eq!(
            outputs(&[&two[..], &["--hidden-unit", "rectified"]].concat(), Values::Unit),
            [(9, Relu, Sigmoid, CrossEntropy), (7, Relu, Identity, SquaredError)]
        );
        assert_eq!(
            outputs(
                &[&two[..], &["--hidden-unit", "tanh", "--loss", "squared-error"]].concat(),
                Values::Unit
            ),
            [(9, Tanh, Sigmoid, SquaredError), (7, Tanh, Tanh, SquaredError)]
        );
    }

    #[test]
    fn one_noise_is_for_all_layers_and_several_are_for_one_each() {
        let noises = |flags: &[&str]| corruptions(&settings(&[&["--hidden", "4,3,2"], flags].concat()));
        assert_eq!(noises(&[]).unwrap(), [Corruption::SaltAndPepper(0.3); 3]);
        let each = ["--corruption", "masking:0.1,none,gaussian:0.2"];
        assert_eq!(
            noises(&each).unwrap(),
            [Corruption::Masking(0.1), Corruption::None, Corruption::Gaussian(0.2)]
        );
        assert_eq!(
            noises(&["--corruption", "none,none"]).unwrap_err().to_string(),
            "--corruption: give one for all layers, or one for each of 3 layers, got 2"
        );
    }
}
