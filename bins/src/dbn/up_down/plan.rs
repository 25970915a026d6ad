//! From the settings to the trainer: the network, and how it is trained in each stage.
use super::args::UpDownSettings;
use crate::dbn::{saved, streams};
use crate::rows::Data;
use anyhow::{Context, Result, anyhow, ensure};
use candle::Device;
use chandlery::Philox;
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer, Stage};
use chandlery::schedule::Schedule;

/// The stages of a run, in order.
pub const STAGES: [Stage; 2] = [Stage::Top, Stage::UpDown];

/// What a stage is called.
pub fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Top => "top",
        Stage::UpDown => "up-down",
    }
}

/// Epochs of a stage.
pub fn epochs(settings: &UpDownSettings, stage: Stage) -> usize {
    match stage {
        Stage::Top => settings.top_epochs,
        Stage::UpDown => settings.epochs,
    }
}

/// A trainer at the first step of a stage.
pub fn trainer(dbn: &LabelledDbn, settings: &UpDownSettings, stage: usize) -> Result<LabelledDbnTrainer> {
    let philox = Philox::new(settings.seed, streams::UP_DOWN + stage as u64);
    Ok(LabelledDbnTrainer::new(dbn, training(settings, STAGES[stage])?, philox)?)
}

/// How a network learns in a stage.
pub fn training(settings: &UpDownSettings, stage: Stage) -> Result<LabelledDbnTrainConfig> {
    let epochs = epochs(settings, stage);
    let (rate, k) = match stage {
        Stage::Top => {
            (settings.top_learning_rate, Schedule::constant(settings.k.first().copied().unwrap_or(0) as f64))
        }
        Stage::UpDown => (settings.learning_rate, rising(&settings.k, epochs)),
    };
    Ok(LabelledDbnTrainConfig {
        stage,
        batch: settings.batch,
        learning_rate: Schedule::linear(rate, 0., epochs.max(1)),
        label_rate: settings.label_rate,
        momentum: Schedule::constant(settings.momentum),
        k,
        persistent: settings.persistent.unwrap_or(true),
        l2: settings.weight_decay,
        precision: settings.precision.parse().map_err(|err| anyhow!("--precision: {err}"))?,
    })
}

/// Each number for an equal part of the epochs; where epochs are fewer than numbers, the last
/// numbers.
fn rising(k: &[usize], epochs: usize) -> Schedule {
    let k = &k[k.len().saturating_sub(epochs.max(1))..];
    let first = |part: usize| part * epochs / k.len();
    Schedule::steps(k.iter().enumerate().map(|(part, &k)| (first(part), k as f64)).collect::<Vec<_>>())
}

/// The trained network that a run begins with, given labels.
pub fn with_labels(model: &str, data: &Data, device: &Device) -> Result<LabelledDbn> {
    let dbn = saved::plain(model, "up-down", device)?;
    let inputs = dbn.config().n_inputs();
    ensure!(
        data.train.n_features() == inputs,
        "--data {}: rows must have the network's {inputs} inputs, got {}",
        data.name,
        data.train.n_features()
    );
    ensure!(
        data.n_classes >= 2,
        "--data {}: rows must have labels of at least 2 classes, got {}; {}",
        data.name,
        data.n_classes,
        data.label_them()
    );
    let dbn = LabelledDbn::from_dbn(&dbn, data.n_classes).with_context(|| model.to_owned())?;
    Ok(dbn.with_class_names(data.class_names.clone())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gibbs_steps_rise_over_equal_parts_of_the_epochs() {
        let at = |epochs: usize| {
            let k = rising(&[3, 6, 10], epochs);
            (0..epochs).map(|epoch| k.at(epoch)).collect::<Vec<_>>()
        };
        assert_eq!(at(6), [3., 3., 6., 6., 10., 10.]);
        assert_eq!(at(4), [3., 6., 10., 10.]);
        assert_eq!(at(2), [6., 10.]);
        assert_eq!(at(1), [10.]);
        let config =
            LabelledDbnTrainConfig { k: rising(&[3, 6, 10], 0), ..LabelledDbnTrainConfig::default() };
        config.validate().unwrap();
    }
}
