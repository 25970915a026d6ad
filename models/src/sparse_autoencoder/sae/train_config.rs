//! How a sparse autoencoder with latents learns.
use super::loss_config::{LossConfig, Moment};
use super::{Kind, SaeConfig};
use crate::check::{at_least_one, range};
use crate::rbm::precision_name;
use candle::Result;
use chandlery_ops::layers::Precision;
use serde::{Deserialize, Serialize};

/// When dead latents start anew from rows that are reconstructed badly: for ReLU with its penalty,
/// whose dead latents no gradient reaches.
///
/// A latent is dead there when it did not fire for [`dead_rows`](SaeTrainConfig::dead_rows). Its
/// rows become the error of a row, of length 1 in the decoder and of a fifth of the mean length in
/// the encoder; its bias and moments become 0. Source: Bricken et al. 2023, "Neuron resampling".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resampling {
    /// Steps from one time to the next, at least 1.
    pub every: u64,
    /// Steps after which it ends.
    pub until: u64,
}

/// What each rank of a group has of a minibatch's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Division {
    /// Some of the rows, and the whole model.
    #[default]
    Rows,
    /// All rows, and some of the latents: for models that fit no single device. Of ReLU, TopK,
    /// BatchTopK and gated latents, and of JumpReLU from given thresholds.
    Latents,
}

/// How a [`Sae`](super::Sae) learns from minibatches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaeTrainConfig {
    /// What the loss weighs.
    pub loss: LossConfig,
    /// Rows of a minibatch, at least 1. Default 4096.
    pub batch: usize,
    /// Of the encoder's product and, with bf16, of all rows that gradients are summed from; the
    /// parameters that are stepped are f32. Default f32.
    #[serde(with = "precision_name")]
    pub precision: Precision,
    /// Steps that are planned, by which the rate decays; none, the default, where it does not.
    pub steps: Option<u64>,
    /// Step size of Adam, above 0; none, the default, for `2e-4 / √(n_latents / 2¹⁴)`, as in Gao et
    /// al.
    pub learning_rate: Option<f64>,
    /// First steps in which the rate rises from 0, in proportion. Default 1000.
    pub warm_up: u64,
    /// Share of the planned steps, the last, in which the rate falls to 0, in proportion; in [0, 1].
    /// Default a fifth.
    pub decay: f64,
    /// Length that the gradient of all parameters is cut to, above 0; none, the default, for no cut,
    /// which saves a second sum of gradients.
    pub clip: Option<f64>,
    /// First steps in which [`sparsity`](LossConfig::sparsity) rises from 0, in proportion. Default
    /// 5000.
    pub sparsity_warm_up: u64,
    /// `k` of the first step, which goes to the model's over [`k_steps`](Self::k_steps); none, the
    /// default, for the model's from the start.
    pub first_k: Option<usize>,
    /// Steps over which `k` changes, in proportion. Default 5000.
    pub k_steps: u64,
    /// Rows without it being active after which a latent is dead, at least 1. Default 10,000,000, as
    /// in Gao et al.
    pub dead_rows: u64,
    /// Share of the threshold of BatchTopK and Matryoshka that a step keeps, in [0, 1). Default
    /// 0.999.
    pub threshold_decay: f64,
    /// Whether the decoder's bias starts at the geometric median of the first minibatch. Default
    /// yes.
    pub start_at_median: bool,
    /// Share of the latents of a row that are active when training of JumpReLU starts, in [0, 1]: by
    /// it the first minibatch sets all thresholds. 0 leaves those of the model. Default a sixteenth.
    ///
    /// A step moves a threshold by about the learning rate's share of it, so that one that starts
    /// far from the values of the data takes tens of thousands of steps to reach them.
    pub start_share: f64,
    /// When dead latents start anew. Default never.
    pub resampling: Option<Resampling>,
    /// What ranks of a [group](crate::Trainer::in_group) divide. Default rows.
    pub division: Division,
}

impl Default for SaeTrainConfig {
    fn default() -> Self {
        Self {
            loss: LossConfig::default(),
            batch: 4096,
            precision: Precision::F32,
            steps: None,
            learning_rate: None,
            warm_up: 1000,
            decay: 0.2,
            clip: None,
            sparsity_warm_up: 5000,
            first_k: None,
            k_steps: 5000,
            dead_rows: 10_000_000,
            threshold_decay: 0.999,
            start_at_median: true,
            start_share: 1. / 16.,
            resampling: None,
            division: Division::Rows,
        }
    }
}

/// How far `steps` steps are on a way of `over`, at most 1.
fn way(steps: u64, over: u64) -> f64 {
    if steps >= over { 1. } else { steps as f64 / over as f64 }
}

impl SaeTrainConfig {
    /// # Errors
    /// When a field is out of its range, also for a model of this configuration; the message names
    /// it.
    pub fn validate(&self, model: &SaeConfig) -> Result<()> {
        const OP: &str = "SaeTrainConfig";
        self.loss.validate()?;
        at_least_one(OP, "batch", self.batch)?;
        at_least_one(OP, "dead_rows", self.dead_rows as usize)?;
        if let Some(steps) = self.steps {
            at_least_one(OP, "steps", steps as usize)?;
        }
        if let Some(rate) = self.learning_rate {
            range(OP, "learning_rate", rate, "above 0", |x| x > 0.)?;
        }
        if let Some(clip) = self.clip {
            range(OP, "clip", clip, "above 0", |x| x > 0.)?;
        }
        range(OP, "decay", self.decay, "in [0, 1]", |x| (0. ..=1.).contains(&x))?;
        range(OP, "threshold_decay", self.threshold_decay, "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "start_share", self.start_share, "in [0, 1]", |x| (0. ..=1.).contains(&x))?;
        if let Some(resampling) = self.resampling {
            at_least_one(OP, "resampling.every", resampling.every as usize)?;
            if model.n_targets.is_some() {
                candle::bail!(
                    "{OP}: resampling must be none for a transcoder, whose errors are not its inputs"
                )
            }
        }
        if self.division == Division::Latents {
            let refused = |what: &str, instead: &str| {
                candle::bail!("{OP}: division by latents is not for {what}; {instead}, or divide rows")
            };
            match (&model.kind, self.resampling) {
                (Kind::Matryoshka { .. }, _) => return refused("Matryoshka", "take another kind"),
                (_, Some(_)) => return refused("resampling", "give none"),
                (Kind::JumpRelu, _) if self.start_share > 0. => {
                    return refused(
                        "JumpReLU whose thresholds start by the first minibatch",
                        "give start_share 0",
                    );
                }
                _ => {}
            }
        }
        let n = model.n_latents;
        if let Some(first) = self.first_k
            && (model.kind.k().is_none() || !(1..=n).contains(&first))
        {
            candle::bail!("{OP}: first_k must be 1 to {n}, of a kind that has k, got {first}")
        }
        if self.loss.multi_top_k && !matches!(model.kind, Kind::TopK { .. }) {
            candle::bail!("{OP}: loss.multi_top_k must be false but for TopK, got true")
        }
        Ok(())
    }

    /// The step size after so many steps, for so many latents.
    pub fn rate(&self, steps: u64, n_latents: usize) -> f64 {
        let full = self.learning_rate.unwrap_or_else(|| 2e-4 / (n_latents as f64 / 16_384.).sqrt());
        let rise = way(steps + 1, self.warm_up);
        let fall = self.steps.map_or(1., |all| {
            let (left, last) = (all.saturating_sub(steps) as f64, self.decay * all as f64);
            if left >= last { 1. } else { left / last }
        });
        full * rise * fall
    }

    /// What follows schedules, after so many steps.
    pub fn moment(&self, steps: u64, kind: &Kind) -> Moment {
        let sparsity = self.loss.sparsity * way(steps + 1, self.sparsity_warm_up);
        let last = kind.k().unwrap_or(0) as f64;
        let first = self.first_k.map_or(last, |k| k as f64);
        let k = first + (last - first) * way(steps, self.k_steps);
        Moment { sparsity, k: k.round() as usize }
    }
}
