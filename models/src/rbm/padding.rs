//! The layers of RBMs in training, with units that are always 0 beside their own; see
//! [`padding`](crate::padding).
//!
//! The draws of a row follow from the width in training, on every device alike.
use super::{HiddenUnit, Rbm, RbmConfig, RbmTrainConfig, VisibleUnit};
use crate::padding::{OFF, Width, corner, with_biases, with_zeros};
use candle::{Result, Tensor};
use chandlery_datasets::Preparation;

/// The layers of some RBMs, with units for training beside their own.
#[derive(Debug, Clone)]
pub(super) struct Padding {
    /// Units of each layer, the lowest first.
    layers: Vec<Width>,
    visible: VisibleUnit,
    hidden: HiddenUnit,
}

impl Padding {
    /// Those of an RBM that is trained so above others; none where no layer needs more units, or one
    /// is of patches or maps. Visible units with learned variances, or with noise, get none: they
    /// would not stay at 0.
    pub(super) fn of(lower: &[Rbm], rbm: &Rbm, training: &RbmTrainConfig) -> Option<Self> {
        let own = rbm.config();
        let is_dense = lower.iter().chain([rbm]).all(|layer| layer.config().connections.is_dense());
        let has_noise = training.k > 1 || training.persistent || training.sample_visible;
        let visible_stay = match own.visible {
            VisibleUnit::Bernoulli => true,
            VisibleUnit::Gaussian => !has_noise,
            VisibleUnit::GaussianLearned => false,
        };
        let padded = |n: usize, stay: bool| match stay && is_dense {
            true => Width::padded(n),
            false => Width::as_it_is(n),
        };
        let below = lower.iter().map(|layer| padded(layer.config().n_visible, true));
        let top = [padded(own.n_visible, visible_stay), padded(own.n_hidden, true)];
        let layers: Vec<_> = below.chain(top).collect();
        let any = layers.iter().any(|width| width.has_more());
        any.then_some(Self { layers, visible: own.visible, hidden: own.hidden })
    }

    /// The RBM above so many others, with the units of both its layers.
    pub(super) fn rbm(&self, place: usize, rbm: &Rbm) -> Result<Rbm> {
        let (v, h) = (self.layers[place].all, self.layers[place + 1].all);
        let RbmConfig { visible, hidden, .. } = *rbm.config();
        let config = RbmConfig {
            n_visible: v,
            n_hidden: h,
            preparation: Preparation::default(),
            ..rbm.config().clone()
        };
        Rbm::from_tensors(
            config,
            with_zeros(rbm.weight(), &[h, v])?,
            with_biases(rbm.bias(), h, hidden_bias(hidden))?,
            with_biases(rbm.visible_bias(), v, visible_bias(visible))?,
            rbm.log_variance().cloned(),
        )
    }

    /// All of some RBMs, the lowest first.
    pub(super) fn lower(&self, lower: &[Rbm]) -> Result<Vec<Rbm>> {
        lower.iter().enumerate().map(|(place, rbm)| self.rbm(place, rbm)).collect()
    }

    /// The RBM in training without its additional units, `config` as it was.
    pub(super) fn rbm_back(&self, rbm: &Rbm, config: &RbmConfig) -> Result<Rbm> {
        let [v, h] = self.top().map(|width| width.own);
        Rbm::from_tensors(
            config.clone(),
            corner(rbm.weight(), &[h, v])?.contiguous()?,
            rbm.bias().narrow(0, 0, h)?,
            rbm.visible_bias().narrow(0, 0, v)?,
            rbm.log_variance().cloned(),
        )
    }

    /// A tensor of the state of a training as checkpoints hold it.
    pub(super) fn state_back(&self, name: &str, t: &Tensor) -> Result<Tensor> {
        let [v, h] = self.top().map(|width| width.own);
        match sides(name) {
            Some(dims) => {
                let last = t.rank() - 1;
                let cut = |t: Tensor, (from_last, is_hidden): (usize, bool)| {
                    t.narrow(last - from_last, 0, if is_hidden { h } else { v })
                };
                dims.iter().try_fold(t.clone(), |t, &dim| cut(t, dim))?.contiguous()
            }
            None => Ok(t.clone()),
        }
    }

    /// The opposite of [`state_back`](Self::state_back).
    pub(super) fn state(&self, name: &str, t: &Tensor) -> Result<Tensor> {
        let [v, h] = self.top();
        match name {
            "hidden_state" => states_with(t, h.all, hidden_bias(self.hidden)),
            "visible_state" => states_with(t, v.all, visible_bias(self.visible)),
            _ => {
                let last = t.rank().saturating_sub(1);
                let dims = sides(name).unwrap_or_default();
                dims.iter().try_fold(t.clone(), |t, &(from_last, is_hidden)| {
                    let Width { own, all } = if is_hidden { h } else { v };
                    t.pad_with_zeros(last - from_last, 0, all - own)
                })
            }
        }
    }

    /// Biases of the visible units with those of the others.
    pub(super) fn visible_biases(&self, bias: &Tensor) -> Result<Tensor> {
        with_biases(bias, self.top()[0].all, visible_bias(self.visible))
    }

    /// States of hidden units, `[rows, _]`, without the others.
    pub(super) fn hidden_back(&self, states: &Tensor) -> Result<Tensor> {
        states.narrow(1, 0, self.top()[1].own)
    }

    /// Both layers of the RBM in training.
    fn top(&self) -> [Width; 2] {
        let n = self.layers.len();
        [self.layers[n - 2], self.layers[n - 1]]
    }
}

/// Dimensions of a tensor of the state, from the last one on, and whether they are of hidden units.
fn sides(name: &str) -> Option<&'static [(usize, bool)]> {
    match name {
        "params" | "velocity" => Some(&[(0, false), (1, true)]),
        "hidden_state" | "chain" => Some(&[(0, true)]),
        "visible_state" => Some(&[(0, false)]),
        _ => None,
    }
}

fn hidden_bias(unit: HiddenUnit) -> f64 {
    match unit {
        HiddenUnit::Bernoulli | HiddenUnit::Rectified => OFF,
        HiddenUnit::Gaussian => 0.,
    }
}

fn visible_bias(unit: VisibleUnit) -> f64 {
    match unit {
        VisibleUnit::Bernoulli => OFF,
        VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => 0.,
    }
}

/// Biases, their velocities and what is gathered for them, `[4, _]`.
fn states_with(t: &Tensor, n: usize, value: f64) -> Result<Tensor> {
    let biases = with_biases(&t.get(0)?, n, value)?.unsqueeze(0)?;
    let rest = t.narrow(0, 1, t.dim(0)? - 1)?.pad_with_zeros(1, 0, n.saturating_sub(t.dim(1)?))?;
    Tensor::cat(&[biases, rest], 0)
}

#[cfg(test)]
mod tests {
    use super::super::train::RbmTrainer;
    use super::super::{SparsityConfig, WeightStorage};
    use super::*;
    use crate::trainer::{MinibatchTrainer, Trainer};
    use candle::{DType, Device::Cpu};
    use chandlery_ops::core::uniform;
    use chandlery_ops::{Philox, Precision};

    /// Below, for the top RBM, and rows for the lowest.
    fn layers(config: RbmConfig) -> Result<(Vec<Rbm>, Rbm, Tensor)> {
        let below = Rbm::init(RbmConfig::new(70, config.n_visible), Philox::new(1, 0), &Cpu)?;
        let rows = uniform((6, 70), &Cpu, Philox::new(2, 0))?;
        Ok((vec![below], Rbm::init(config, Philox::new(1, 2), &Cpu)?, rows))
    }

    /// Largest magnitude of the units beside those that were given.
    fn strays(trainer: &RbmTrainer, (v, h): (usize, usize)) -> Result<f32> {
        let mut largest = 0f32;
        for (name, t) in trainer.own_state()? {
            let beyond = |dim: usize, n: usize| t.narrow(dim, n, t.dim(dim)? - n);
            let found = match name {
                "params" | "velocity" => {
                    let last = t.rank() - 1;
                    vec![beyond(last, v)?, beyond(last - 1, h)?]
                }
                // Running means and errors; biases are as they were.
                "hidden_state" => vec![beyond(1, h)?.narrow(0, 2, 2)?],
                "visible_state" => vec![beyond(1, v)?.narrow(0, 1, 3)?],
                "chain" => vec![beyond(1, h)?],
                _ => vec![],
            };
            for t in found {
                let numbers = t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
                largest = numbers.iter().fold(largest, |a, b| a.max(b.abs()));
                assert!(numbers.iter().all(|x| x.is_finite()), "{name}");
            }
        }
        Ok(largest)
    }

    #[test]
    fn no_gradient_reaches_the_weights_of_more_units() -> Result<()> {
        let plain = RbmTrainConfig { batch: 6, learning_rate: 0.5.into(), ..RbmTrainConfig::default() };
        let sparsity = Some(SparsityConfig { target: 0.1, cost: 0.5, decay: 0.9 });
        let trainings = [
            plain.clone(),
            RbmTrainConfig { k: 3, l1: 0.01, max_norm: Some(1.), ..plain.clone() },
            RbmTrainConfig { persistent: true, sparsity, ..plain.clone() },
            RbmTrainConfig { precision: Precision::Bf16, ..plain.clone() },
            RbmTrainConfig {
                precision: Precision::Bf16,
                weights: WeightStorage::Bf16Stochastic,
                ..plain.clone()
            },
        ];
        let hidden = [HiddenUnit::Bernoulli, HiddenUnit::Rectified, HiddenUnit::Gaussian];
        for (training, hidden) in
            trainings.iter().flat_map(|training| hidden.map(|hidden| (training, hidden)))
        {
            for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian] {
                let rate = if hidden == HiddenUnit::Bernoulli { 0.5 } else { 0.01 };
                let training = RbmTrainConfig { learning_rate: rate.into(), ..training.clone() };
                let (lower, rbm, rows) = layers(RbmConfig { visible, hidden, ..RbmConfig::new(67, 77) })?;
                let preparation = Preparation::default();
                let mut trainer =
                    RbmTrainer::above(&lower, &rbm, &preparation, training.clone(), Philox::new(1, 1))?;
                for rows in [&rows, &rows, &rows.narrow(0, 0, 5)?, &rows] {
                    trainer.step(rows, None)?;
                }
                trainer.check()?;
                // The chains may still be where they began, with fair coins.
                let stray = strays(&trainer, (67, 77))?;
                let noise = hidden == HiddenUnit::Gaussian;
                assert!(stray == 0. || noise, "{visible} {hidden} {training:?}: {stray}");
                let learned = trainer.model()?;
                assert_eq!(learned.config(), rbm.config());
                let moved = (learned.weight() - rbm.weight())?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(moved > 1e-4 && moved.is_finite(), "{visible} {hidden}: {moved}");
                if training.persistent {
                    assert_eq!(trainer.chains()?.dims(), [6, 77]);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn checkpoints_hold_the_units_that_were_given_and_give_the_others_back() -> Result<()> {
        let (lower, rbm, rows) = layers(RbmConfig::new(100, 129))?;
        let training = RbmTrainConfig { batch: 6, persistent: true, ..RbmTrainConfig::default() };
        let make =
            || RbmTrainer::above(&lower, &rbm, &Preparation::default(), training.clone(), Philox::new(1, 1));
        let mut first = make()?;
        first.step(&rows, None)?;
        let stored = first.stored_state()?;
        let shapes: Vec<_> = stored.iter().map(|(_, t)| t.dims().to_vec()).collect();
        assert!(shapes.contains(&vec![2, 129, 100]) && shapes.contains(&vec![4, 129]), "{shapes:?}");
        let mut second = make()?;
        second.restore(&crate::checkpoint::Checkpoint::of(stored))?;
        for trainer in [&mut first, &mut second] {
            trainer.step(&rows, None)?;
        }
        let weights = |trainer: &RbmTrainer| trainer.model()?.weight().to_vec2::<f32>();
        assert_eq!(weights(&first)?, weights(&second)?);
        assert_eq!(strays(&second, (100, 129))?, 0.);
        Ok(())
    }

    #[test]
    fn aligned_layers_small_ones_and_noisy_visible_units_stay_as_they_are() -> Result<()> {
        let of = |visible, sizes: (usize, usize), training: &RbmTrainConfig| -> Result<Option<Vec<_>>> {
            let config = RbmConfig { visible, ..RbmConfig::new(sizes.0, sizes.1) };
            let rbm = Rbm::init(config, Philox::new(1, 0), &Cpu)?;
            let layers =
                |padding: Padding| padding.layers.iter().map(|width| (width.own, width.all)).collect();
            Ok(Padding::of(&[], &rbm, training).map(layers))
        };
        let plain = RbmTrainConfig::default();
        let persistent = RbmTrainConfig { persistent: true, ..plain.clone() };
        assert_eq!(of(VisibleUnit::Bernoulli, (64, 512), &plain)?, None);
        assert_eq!(of(VisibleUnit::Bernoulli, (63, 61), &plain)?, None);
        assert_eq!(of(VisibleUnit::Bernoulli, (785, 500), &plain)?, Some(vec![(785, 800), (500, 512)]));
        assert_eq!(of(VisibleUnit::Gaussian, (785, 500), &plain)?, Some(vec![(785, 800), (500, 512)]));
        assert_eq!(of(VisibleUnit::Gaussian, (785, 500), &persistent)?, Some(vec![(785, 785), (500, 512)]));
        Ok(())
    }
}
