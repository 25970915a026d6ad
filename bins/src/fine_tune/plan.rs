//! From the settings to the trainer: the rows, the network, and how it is trained.
use crate::args::fine_tune::FineTuneSettings;
use crate::options::plan_by_rows;
use crate::rows::Data;
use anyhow::{Result, anyhow, bail, ensure};
use candle::Device;
use chandlery::Philox;
use chandlery::feedforward::{
    Activation, Feedforward, FeedforwardConfig, FeedforwardTrainConfig, ReconstructionLoss, Task,
};
use chandlery::schedule::{Plan, Schedule};
use chandlery_datasets::{Split, count};

/// Places in the random sequence of a run's seed, one for each use.
pub mod streams {
    /// Weights of a network that begins at random.
    pub const WEIGHTS: u64 = 1 << 32;
    /// Units that dropout leaves out.
    pub const DROPOUT: u64 = 11 << 32;
    /// Rows whose labels are used, where not all are.
    pub const LABELLED: u64 = 12 << 32;
}

/// Inputs from which a classifier drops some by default.
const MANY_INPUTS: usize = 10;

impl FineTuneSettings {
    /// Minibatches and epochs for many rows; an autoencoder learns more slowly.
    pub fn usual(&self) -> Plan {
        let plan = FeedforwardTrainConfig::PLAN;
        Plan { epochs: if self.classify { plan.epochs } else { 2 * plan.epochs }, ..plan }
    }

    /// Passes over the training rows.
    pub fn n_epochs(&self) -> usize {
        self.epochs.unwrap_or(self.usual().epochs)
    }

    /// Rows per step.
    pub fn n_batch(&self) -> usize {
        self.batch.unwrap_or(self.usual().batch)
    }

    /// Chooses by the number of rows what was not asked for; returns what to say of it.
    pub fn choose(&mut self, n_rows: usize) -> Option<String> {
        plan_by_rows(self.usual(), n_rows, &mut self.batch, &mut self.epochs)
    }
}

/// The rows of a run: those that are learned from, and those that show how it goes.
pub struct Rows {
    /// Learned from.
    pub train: Split,
    /// Of the training split, not learned from.
    pub held_out: Option<Split>,
}

impl Rows {
    /// With `--labelled`, only so many rows are learned from; with `--patience` as well, a fifth of
    /// them are held out, so that no other label is looked at.
    pub fn choose(data: &Data, settings: &FineTuneSettings) -> Result<Self> {
        if settings.classify {
            ensure!(
                data.train.labels.is_some() && data.n_classes >= 2,
                "--classify: rows must have labels of at least 2 classes, got {} in {}; {}",
                if data.train.labels.is_some() { "1 class" } else { "none" },
                data.name,
                data.label_them()
            );
        }
        let Some(n) = settings.labels else {
            return Ok(Self { train: data.train.clone(), held_out: data.held_out.clone() });
        };
        let chosen = balanced(&data.train, n, data.n_classes, settings.seed)?;
        match settings.held_out_patience() {
            Some(_) => {
                ensure!(n >= 10, "--labelled: must be at least 10 with --patience, got {n}");
                let (train, held_out) = chosen.hold_out(n / 5, settings.seed)?;
                Ok(Self { train, held_out: Some(held_out) })
            }
            None => Ok(Self { train: chosen, held_out: data.held_out.clone() }),
        }
    }
}

/// A seeded choice of `n` rows, as many of each class as can be; where `n` does not divide, lower
/// classes get one more.
fn balanced(split: &Split, n: usize, n_classes: usize, seed: u64) -> Result<Split> {
    let Some(labels) = split.labels.as_deref() else { bail!("--labelled: rows must have labels, got none") };
    let mut wanted: Vec<usize> =
        (0..n_classes).map(|class| n / n_classes + usize::from(class < n % n_classes)).collect();
    let mut chosen = Vec::with_capacity(n);
    for row in Philox::new(seed, streams::LABELLED).permutation(split.n_samples()) {
        let left = &mut wanted[labels[row as usize] as usize];
        if *left > 0 {
            *left -= 1;
            chosen.push(row);
        }
    }
    if let Some(class) = wanted.iter().position(|&left| left > 0) {
        bail!("--labelled {n}: class {class} has {} too few; ask for fewer", count(wanted[class], "row"))
    }
    chosen.sort_unstable();
    Ok(split.select(&chosen)?)
}

/// The network at its first step, made of the pre-trained one, and how it learns.
pub fn network(
    trained: &Feedforward,
    data: &Data,
    settings: &FineTuneSettings,
    device: &Device,
) -> Result<(Feedforward, FeedforwardTrainConfig)> {
    let n_inputs = trained.config().n_inputs();
    ensure!(
        data.train.n_features() == n_inputs,
        "--data: rows must have {n_inputs} values for this network, got {}",
        data.train.n_features()
    );
    let class_names = data.class_names.clone().filter(|_| settings.classify);
    let config = FeedforwardConfig { class_names, ..trained.config().clone() };
    let network = match settings.from_scratch {
        true => Feedforward::init(config, Philox::new(settings.seed, streams::WEIGHTS), device)?,
        false => Feedforward::from_tensors(config, trained.layers().to_vec())?,
    };
    let training = training(network.config(), settings)?;
    Ok((network, training))
}

/// How the network learns.
pub fn training(network: &FeedforwardConfig, settings: &FineTuneSettings) -> Result<FeedforwardTrainConfig> {
    // Of few inputs each carries what no other does.
    let many = network.layers.first().is_some_and(|lowest| lowest.n_inputs >= MANY_INPUTS);
    let (input, hidden) = match settings.classify {
        true => (if many { 0.2 } else { 0. }, 0.5),
        false => (0., 0.),
    };
    let input = settings.input_dropout.unwrap_or(input);
    let hidden = settings.dropout.unwrap_or(hidden);
    let dropout = |layer: usize| match network.task {
        _ if layer == 0 => input,
        // This layer reads the code.
        Task::Autoencode { encoder_layers } if layer == encoder_layers => 0.,
        _ => hidden,
    };
    let bits = network.layers.last().map(|layer| layer.activation) == Some(Activation::Sigmoid);
    let rate = settings.learning_rate.unwrap_or(match settings.optimizer {
        crate::args::fine_tune::OptimizerArg::Adam => 0.001,
        crate::args::fine_tune::OptimizerArg::Sgd => 0.1,
    });
    let training = FeedforwardTrainConfig {
        batch: settings.n_batch(),
        learning_rate: Schedule::linear(rate, 0., settings.n_epochs()),
        momentum: Schedule::constant(settings.momentum),
        optimizer: settings.optimizer.into(),
        weight_decay: settings.weight_decay,
        dropout: (0..network.layers.len()).map(dropout).collect(),
        max_norm: settings.max_norm,
        loss: match settings.loss {
            Some(loss) => loss.into(),
            None if bits => ReconstructionLoss::CrossEntropy,
            None => ReconstructionLoss::SquaredError,
        },
        precision: settings.precision.parse().map_err(|err| anyhow!("--precision: {err}"))?,
    };
    training.validate(network)?;
    Ok(training)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_choice_of_labels_is_balanced_seeded_and_says_when_there_are_too_few() {
        // Class 2 has half as many rows as the others.
        let labels: Vec<u32> = (0..50).map(|i| [0, 1, 0, 1, 2][i % 5]).collect();
        let split = Split::from_u8((0..50).collect(), 1, Some(labels)).unwrap();
        let chosen = |seed| balanced(&split, 11, 3, seed).unwrap();
        let count = |class| chosen(1).labels.unwrap().iter().filter(|&&l| l == class).count();
        assert_eq!([0, 1, 2].map(count), [4, 4, 3]);
        let rows = |split: Split| split.to_tensor(&Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(rows(chosen(1)), rows(chosen(1)));
        assert_ne!(rows(chosen(1)), rows(chosen(2)));
        let err = balanced(&split, 36, 3, 1).unwrap_err();
        assert_eq!(err.to_string(), "--labelled 36: class 2 has 2 rows too few; ask for fewer");
    }
}
