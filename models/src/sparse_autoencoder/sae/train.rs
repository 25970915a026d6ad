//! Training by minibatches, for all kinds.
//!
//! A step takes the [`Gradients`](super::loss::Gradients) of a minibatch and makes one step of Adam
//! along them, that of encoder and decoder latent by latent
//! ([`latent_step_`](chandlery_ops::codes::latent_step_)). Rows of the decoder keep length 1, and
//! gradients have no part along them. JumpReLU's thresholds are stepped as their logarithms.
//!
//! Sources: Gao et al. 2024, appendix A; Kingma and Ba, "Adam: a method for stochastic
//! optimization", ICLR 2015.
mod anew;
mod files;
mod step;

use super::config::THRESHOLD;
use super::divided::{LatentPart, Part};
use super::largest::Dead;
use super::{Division, Kind, Sae, SaeConfig, SaeTrainConfig, unit_rows};
use crate::check::{all_finite, at_least_one, batch_of};
use crate::checkpoint;
use crate::model::Model;
use crate::prepare::prepared;
use crate::share::Share;
use crate::trainer::{MinibatchTrainer, Trainer, check_minibatch};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::codes::CodeWidth;
use chandlery_ops::layers::Precision;
use chandlery_ops::{Group, Philox};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

const OP: &str = "SaeTrainer";

/// What the steps since the last report measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Rows of these steps.
    pub rows: u64,
    /// Mean loss of a minibatch.
    pub loss: f64,
    /// Fraction of variance unexplained: the squared error over that of the mean of each minibatch.
    pub fvu: f64,
    /// Mean number of active latents of a row.
    pub l0: f64,
    /// Share of latents that are dead after the last step, in [0, 1].
    pub dead: f64,
}

/// Trains one [`Sae`] in f32; see the [module](self).
pub struct SaeTrainer {
    config: SaeTrainConfig,
    model: SaeConfig,
    philox: Philox,
    /// Parameters and moments, `[3, n, n_visible]` and `[3, n, n_targets]` of this rank's latents.
    encoder: Tensor,
    decoder: Tensor,
    /// Parameters of both in bf16, with that precision.
    halves: Option<[Tensor; 2]>,
    /// Parameters beside them, gradient and moments, `[4, n]`, one after the other.
    others: Tensor,
    scalars: Tensor,
    /// Steps made, for the optimiser.
    counter: Tensor,
    /// Rows since each latent was last active, i64 `[n]`.
    idle: Tensor,
    /// Latents that AuxK may use: those that were dead at the last of every [`LISTED`] steps.
    dead: Option<Dead>,
    /// How wide the codes of the next minibatch are, as far as is known.
    width: CodeWidth,
    /// Sums since the last report: loss, squared errors, squares about the mean, active latents;
    /// f64.
    totals: Tensor,
    steps: u64,
    reported: u64,
    /// Rows since the last report.
    rows: u64,
    /// Ranks that have rows of each minibatch.
    group: Group,
    /// Which of the latents this rank has, and what a model of these alone is.
    latents: LatentPart,
    own: SaeConfig,
}

/// Every so many steps the latents that are dead are listed, which waits for the device.
const LISTED: u64 = 16;

impl SaeTrainer {
    /// Takes a copy of `model` and trains it. Rows from which dead latents start anew are drawn
    /// from `philox` on.
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn new(model: &Sae, config: SaeTrainConfig, philox: Philox) -> Result<Self> {
        let of = model.config();
        let (latents, device) = (LatentPart::whole(of.n_latents), model.device());
        let mut trainer = Self::empty(of, config, philox, latents, device)?;
        let decoder =
            if trainer.config.loss.unit_atoms { unit_rows(&model.decoder)? } else { model.decoder.clone() };
        for (state, w) in [(&trainer.encoder, &model.encoder), (&trainer.decoder, &decoder)] {
            state.slice_set(&w.to_dtype(DType::F32)?.contiguous()?.unsqueeze(0)?, 0, 0)?;
        }
        for (name, t) in &model.others {
            trainer.set(name, t)?;
        }
        trainer.round()?;
        Ok(trainer)
    }

    /// One whose parameters are 0.
    fn empty(
        model: &SaeConfig,
        config: SaeTrainConfig,
        philox: Philox,
        latents: LatentPart,
        device: &Device,
    ) -> Result<Self> {
        model.validate()?;
        config.validate(model)?;
        let own = latents.config(model);
        let state = |d: usize| Tensor::zeros((3, own.n_latents, d), DType::F32, device);
        let others = own.parts().iter().map(|part| part.len()).sum::<usize>();
        Ok(Self {
            halves: None,
            encoder: state(own.n_visible)?,
            decoder: state(own.n_outputs())?,
            dead: None,
            width: CodeWidth::default(),
            others: Tensor::zeros((4, others), DType::F32, device)?,
            scalars: Tensor::zeros(2, DType::F32, device)?,
            counter: Tensor::new(&[0i64], device)?,
            idle: Tensor::zeros(own.n_latents, DType::I64, device)?,
            totals: Tensor::zeros(4, DType::F64, device)?,
            steps: 0,
            reported: 0,
            rows: 0,
            group: Group::single(),
            model: model.clone(),
            config,
            philox,
            latents,
            own,
        })
    }

    /// Forms the copies in bf16 anew, where there are some.
    fn round(&mut self) -> Result<()> {
        self.halves = match self.config.precision {
            Precision::Bf16 => {
                let half = |state: &Tensor| state.get(0)?.to_dtype(DType::BF16);
                Some([half(&self.encoder)?, half(&self.decoder)?])
            }
            Precision::F32 | Precision::Tf32 => None,
        };
        Ok(())
    }

    /// What this rank has of a minibatch.
    fn part(&self, batch: usize) -> Part {
        let all_have = !self.group.rows_of(self.group.world() - 1, batch).is_empty();
        let group = if all_have { self.group.clone() } else { Group::single() };
        Part { rows: Share::new(&group, batch), latents: self.latents.group().clone() }
    }

    /// How the model is trained.
    pub fn config(&self) -> &SaeTrainConfig {
        &self.config
    }

    /// What the model is.
    pub fn model_config(&self) -> &SaeConfig {
        &self.model
    }

    /// Changes how many steps are planned, by which the rate decays: for a run that is to go on
    /// longer than was planned.
    ///
    /// # Errors
    /// When there would be none.
    pub fn set_planned_steps(&mut self, steps: u64) -> Result<()> {
        let config = SaeTrainConfig { steps: Some(steps), ..self.config.clone() };
        config.validate(&self.model)?;
        self.config = config;
        Ok(())
    }

    /// One update from raw `rows`, `[batch, n_inputs]`, as [`step`](MinibatchTrainer::step), whose
    /// targets are `targets`, `[batch, n_targets]`, floats of any type, which are not prepared: for
    /// transcoders.
    ///
    /// # Errors
    /// When shapes, types or devices do not fit.
    pub fn step_to(&mut self, rows: &Tensor, targets: &Tensor) -> Result<()> {
        let batch = check_minibatch(OP, rows, self.config.batch, self.model.n_inputs())?;
        if batch_of(OP, "targets", targets, self.model.n_outputs())? != batch {
            candle::bail!("{OP}::step_to: targets must be as many as rows, {batch}, got {}", targets.dim(0)?)
        }
        let part = self.part(batch);
        let x = self.own_rows(&part.rows, rows)?;
        let targets = part.rows.own(targets)?.to_dtype(DType::F32)?.contiguous()?;
        self.learn(&part, &x, &targets)
    }

    /// What the encoder reads of this rank's rows.
    fn own_rows(&self, share: &Share, rows: &Tensor) -> Result<Tensor> {
        prepared(OP, &self.model.preparation, &share.own(rows)?, DType::F32)?.contiguous()
    }

    /// Where a parameter beside the weights lies in `others`.
    fn place_of(&self, name: &str) -> (usize, usize) {
        place_in(&self.own, name)
    }

    /// The model as it is; shares the memory of what is stepped, but for logarithms.
    fn view(&self, precision: Precision) -> Result<Sae> {
        let params = self.others.get(0)?;
        let others = self.own.parts().into_iter().map(|part| {
            let (at, len) = self.place_of(part.name);
            let t = params.narrow(0, at, len)?.reshape(&part.shape[..])?;
            Ok((part.name, if logs(&self.model.kind, part.name) { t.exp()? } else { t }))
        });
        let others = others.collect::<Result<_>>()?;
        let weights = match &self.halves {
            Some(halves) if precision == Precision::Bf16 => halves.clone(),
            _ => [self.encoder.get(0)?, self.decoder.get(0)?],
        };
        Ok(Sae::of(&self.own, weights, others, precision))
    }

    /// Sets a parameter beside the weights.
    fn set(&self, name: &str, to: &Tensor) -> Result<()> {
        let to = to.to_dtype(DType::F32)?.to_device(self.device())?.flatten_all()?.contiguous()?;
        let to = if logs(&self.model.kind, name) { to.maximum(LEAST_THRESHOLD)?.log()? } else { to };
        self.others.get(0)?.slice_set(&to, 0, self.place_of(name).0)
    }

    /// Latents that are dead, u32, ascending. Waits for the device.
    fn dead_now(&self) -> Result<Vec<u32>> {
        Ok(places(&self.idle.to_vec1::<i64>()?, |&idle| self.is_dead(idle)))
    }

    /// Whether a latent that was last active so many rows ago is dead.
    fn is_dead(&self, idle: i64) -> bool {
        idle as u64 >= self.config.dead_rows
    }

    /// Lists the latents that are dead.
    fn list_dead(&mut self) -> Result<()> {
        // None is dead before so many rows.
        let is_early = self.steps.saturating_mul(self.config.batch as u64) < self.config.dead_rows;
        let own = if is_early { vec![] } else { self.dead_now()? };
        let n = self.latents.sum(own.len() as f64, &self.totals)? as usize;
        self.dead = dead_of(own, n, self.device())?;
        Ok(())
    }

    /// Sums since the last report, of how many steps.
    fn since_report(&self) -> Result<(Vec<f64>, u64)> {
        let (totals, steps) = (self.totals.to_vec1::<f64>()?, self.steps - self.reported);
        if totals.iter().any(|total| !total.is_finite()) {
            candle::bail!(
                "{OP}: the loss or an error became infinite or NaN between steps {} and {}; lower the learning rate, or look for such values in the input",
                self.reported + 1,
                self.steps
            )
        }
        Ok((totals, steps))
    }

    /// The parts of its state, by name.
    fn state(&self) -> [(&'static str, &Tensor); 4] {
        [
            ("encoder", &self.encoder),
            ("decoder", &self.decoder),
            ("others", &self.others),
            ("counter", &self.counter),
        ]
    }
}

/// Where `of` holds in a list with an entry for each latent, ascending.
fn places<T>(all: &[T], of: impl Fn(&T) -> bool) -> Vec<u32> {
    (0u32..).zip(all).filter_map(|(j, one)| of(one).then_some(j)).collect()
}

/// Dead latents of this rank, of so many of all ranks; none where nobody has any.
fn dead_of(own: Vec<u32>, n: usize, device: &Device) -> Result<Option<Dead>> {
    if n == 0 {
        return Ok(None);
    }
    let own = if own.is_empty() { None } else { Some(Tensor::new(own, device)?) };
    Ok(Some(Dead { own, n }))
}

/// Where a parameter beside the weights begins in those of a model, one behind the other, and how
/// many numbers it has.
fn place_in(config: &SaeConfig, name: &str) -> (usize, usize) {
    let mut at = 0;
    for part in config.parts() {
        if part.name == name {
            return (at, part.len());
        }
        at += part.len();
    }
    (at, 0)
}

/// The least threshold that JumpReLU is stepped from.
const LEAST_THRESHOLD: f64 = 1e-6;

/// Whether the logarithm of a parameter is stepped.
fn logs(kind: &Kind, name: &str) -> bool {
    *kind == Kind::JumpRelu && name == THRESHOLD
}

impl Trainer for SaeTrainer {
    type Model = Sae;
    type Metrics = Metrics;

    fn check(&mut self) -> Result<()> {
        self.since_report()?;
        all_finite(OP, self.steps, self.state())
    }

    fn metrics(&mut self) -> Result<Metrics> {
        let (totals, steps) = self.since_report()?;
        at_least_one(&format!("{OP}::metrics"), "steps since the last call", steps as usize)?;
        let &[loss, errors, about_mean, active] = &totals[..] else { candle::bail!("{OP}: four sums") };
        let rows = self.rows;
        let dead = self.latents.sum(self.dead_now()?.len() as f64, &self.totals)?;
        (self.totals, self.reported, self.rows) = (self.totals.zeros_like()?, self.steps, 0);
        Ok(Metrics {
            steps,
            rows,
            loss: loss / steps as f64,
            fvu: errors / about_mean,
            l0: active / rows as f64,
            dead: dead / self.model.n_latents as f64,
        })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Trains with the other ranks of a group: each passes its own rows of every minibatch,
    /// [`Group::rows`], through the model, and all make the step of all rows, so that all have the same
    /// parameters to the bit: those of one rank up to the order of sums.
    ///
    /// All ranks make the same trainer or load the same checkpoint, begin with the parameters of rank
    /// 0, and make the same calls of [`step`](MinibatchTrainer::step), each with all rows of the
    /// minibatch. Each rank sums the gradients of the weights from what all ranks gather: for each row
    /// what the encoder read and the gradient at the reconstruction, `n_visible + n_targets` numbers of
    /// the precision's type (for each prefix of Matryoshka once), and 12 bytes for each entry of its
    /// codes; with a penalty, for each entry 4 to 16 more. The gradients would be
    /// `4 n_latents (n_visible + n_targets)` bytes. BatchTopK and Matryoshka gather the values of the
    /// largest `k · batch` of each rank besides, and kinds other than TopK wait for the device. Where a
    /// minibatch has too few rows to give each rank some, each makes all of it.
    ///
    /// Divided by [latents](super::Division::Latents), each rank has the rows of encoder and decoder,
    /// biases and moments of some of the latents, and makes all rows. Ranks gather `4 k` bytes of each
    /// row and rank (of ReLU, JumpReLU and gated latents nothing), and sum `4 n_targets` bytes of each
    /// row; both once more for AuxK. [`model`](Trainer::model) is then a call of all ranks together.
    /// [`init`](Self::init) and [`read`](Self::read) make no more of a model than the part of a rank.
    ///
    /// # Errors
    /// When memory is short, a rank is gone, or there are too few latents for so many ranks.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        if self.config.division == Division::Latents && !group.is_single() {
            return self.with_latents_of(group);
        }
        let of_first = |(_, state): (_, &Tensor)| group.broadcast_(state, 0);
        self.state().into_iter().chain([("idle", &self.idle)]).try_for_each(of_first)?;
        self.round()?;
        self.group = group.clone();
        Ok(self)
    }

    fn model(&self) -> Result<Sae> {
        if self.latents.group().is_single() {
            return self.view(Precision::F32)?.to_device(self.device());
        }
        let Sae { encoder, decoder, others, .. } = self.view(Precision::F32)?;
        let of_all = |t: &Tensor| self.latents.gathered(t, 0);
        let parts = self.own.parts();
        let others = others
            .iter()
            .zip(&parts)
            .map(|((name, t), part)| Ok((*name, if part.of_latents { of_all(t)? } else { t.copy()? })));
        let others = others.collect::<Result<_>>()?;
        Ok(Sae::of(&self.model, [of_all(&encoder)?, of_all(&decoder)?], others, Precision::F32))
    }

    fn device(&self) -> &Device {
        self.encoder.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        self.write(path, progress)
    }

    fn join_save(&self) -> Result<()> {
        self.pass_on()
    }
}

impl MinibatchTrainer for SaeTrainer {
    /// Of a transcoder, refused: see [`step_to`](SaeTrainer::step_to).
    fn step(&mut self, rows: &Tensor, _: Option<&Tensor>) -> Result<()> {
        let batch = check_minibatch(OP, rows, self.config.batch, self.model.n_inputs())?;
        if self.model.n_targets.is_some() {
            candle::bail!("{OP}::step: a transcoder must have targets; give them to step_to")
        }
        let part = self.part(batch);
        let x = self.own_rows(&part.rows, rows)?;
        self.learn(&part, &x, &x)
    }

    fn rows_group(&self) -> Group {
        self.group.clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        checkpoint::verify(path)?;
        Self::read(path, device, &Group::single())
    }
}
