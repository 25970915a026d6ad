//! Training by minibatches, for all kinds.
//!
//! A step takes the [`Gradients`] of a minibatch and makes one step of Adam along them, that of
//! encoder and decoder latent by latent ([`latent_step_`]). Rows of the decoder keep length 1, and
//! gradients have no part along them. JumpReLU's thresholds are stepped as their logarithms.
//!
//! Sources: Gao et al. 2024, appendix A; Kingma and Ba, "Adam: a method for stochastic
//! optimization", ICLR 2015.
use super::config::{BIAS, DECODER_BIAS, THRESHOLD};
use super::loss::Gradients;
use super::pass::row_sums;
use super::start::{drawn_rows, geometric_median, is_due};
use super::{Kind, Sae, SaeConfig, SaeTrainConfig, unit_rows};
use crate::check::{all_finite, at_least_one, batch_of};
use crate::checkpoint::{self, Checkpoint, place, put_back};
use crate::model::Model;
use crate::prepare::prepared;
use crate::share::Share;
use crate::trainer::{MinibatchTrainer, Trainer, check_minibatch};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::codes::{CodeWidth, LatentState, batch_threshold, latent_step_};
use chandlery_ops::core::{advance_, set_scalars_};
use chandlery_ops::layers::{AdamStep, Precision, adam_step_};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
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
    /// Parameters and moments, `[3, n_latents, n_visible]` and `[3, n_latents, n_targets]`.
    encoder: Tensor,
    decoder: Tensor,
    /// Parameters of both in bf16, with that precision.
    halves: Option<[Tensor; 2]>,
    /// Parameters beside them, gradient and moments, `[4, n]`, one after the other.
    others: Tensor,
    scalars: Tensor,
    /// Steps made, for the optimiser.
    counter: Tensor,
    /// Rows since each latent was last active, i64 `[n_latents]`.
    idle: Tensor,
    /// Latents that AuxK may use: those that were dead at the last of every [`LISTED`] steps.
    dead: Option<Tensor>,
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
}

/// Every so many steps the latents that are dead are listed, which waits for the device.
const LISTED: u64 = 16;

/// The name of the trainer in its checkpoints.
const NAME: &str = "sae";

#[derive(Serialize, Deserialize)]
struct Notes {
    model: SaeConfig,
    training: SaeTrainConfig,
    #[serde(with = "place")]
    philox: Philox,
    progress: Value,
}

impl SaeTrainer {
    /// Takes a copy of `model` and trains it. Rows from which dead latents start anew are drawn
    /// from `philox` on.
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn new(model: &Sae, config: SaeTrainConfig, philox: Philox) -> Result<Self> {
        let of = model.config();
        config.validate(of)?;
        let device = model.device();
        let state = |w: &Tensor, planes: usize| {
            let all = Tensor::zeros((planes, w.dim(0)?, w.dim(1)?), DType::F32, device)?;
            all.slice_set(&w.to_dtype(DType::F32)?.contiguous()?.unsqueeze(0)?, 0, 0)?;
            Ok::<_, candle::Error>(all)
        };
        let decoder = if config.loss.unit_atoms { unit_rows(&model.decoder)? } else { model.decoder.clone() };
        let others = model.others.iter().map(|(name, t)| {
            let t = t.to_dtype(DType::F32)?.flatten_all()?;
            if logs(&of.kind, name) { t.maximum(LEAST_THRESHOLD)?.log() } else { Ok(t) }
        });
        let others = Tensor::cat(&others.collect::<Result<Vec<_>>>()?, 0)?;
        let (encoder, decoder) = (state(&model.encoder, 3)?, state(&decoder, 3)?);
        let mut trainer = Self {
            halves: None,
            encoder,
            decoder,
            dead: None,
            width: CodeWidth::default(),
            others: state(&others.unsqueeze(0)?, 4)?.squeeze(1)?,
            scalars: Tensor::zeros(2, DType::F32, device)?,
            counter: Tensor::new(&[0i64], device)?,
            idle: Tensor::zeros(of.n_latents, DType::I64, device)?,
            totals: Tensor::zeros(4, DType::F64, device)?,
            steps: 0,
            reported: 0,
            rows: 0,
            group: Group::single(),
            model: of.clone(),
            config,
            philox,
        };
        trainer.round()?;
        Ok(trainer)
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

    /// This rank's share of a minibatch.
    fn share(&self, batch: usize) -> Share {
        let all_have = !self.group.rows_of(self.group.world() - 1, batch).is_empty();
        if all_have { Share::new(&self.group, batch) } else { Share::new(&Group::single(), batch) }
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
        let share = self.share(batch);
        let x = self.own(&share, rows)?;
        let targets = share.own(targets)?.to_dtype(DType::F32)?.contiguous()?;
        self.learn(&share, &x, &targets)
    }

    /// What the encoder reads of this rank's rows.
    fn own(&self, share: &Share, rows: &Tensor) -> Result<Tensor> {
        prepared(OP, &self.model.preparation, &share.own(rows)?, DType::F32)?.contiguous()
    }

    /// Where a parameter beside the weights lies in `others`.
    fn place_of(&self, name: &str) -> (usize, usize) {
        let mut at = 0;
        for part in self.model.parts() {
            if part.name == name {
                return (at, part.len());
            }
            at += part.len();
        }
        (at, 0)
    }

    /// The model as it is; shares the memory of what is stepped, but for logarithms.
    fn view(&self, precision: Precision) -> Result<Sae> {
        let params = self.others.get(0)?;
        let others = self.model.parts().into_iter().map(|part| {
            let (at, len) = self.place_of(part.name);
            let t = params.narrow(0, at, len)?.reshape(&part.shape[..])?;
            Ok((part.name, if logs(&self.model.kind, part.name) { t.exp()? } else { t }))
        });
        let others = others.collect::<Result<_>>()?;
        let weights = match &self.halves {
            Some(halves) if precision == Precision::Bf16 => halves.clone(),
            _ => [self.encoder.get(0)?, self.decoder.get(0)?],
        };
        Ok(Sae::of(&self.model, weights, others, precision))
    }

    /// Sets a parameter beside the weights, of which no logarithm is stepped.
    fn set(&self, name: &str, to: &Tensor) -> Result<()> {
        let to = to.to_dtype(DType::F32)?.to_device(self.device())?.flatten_all()?.contiguous()?;
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

    fn learn(&mut self, share: &Share, x: &Tensor, targets: &Tensor) -> Result<()> {
        if self.steps == 0 && self.config.start_at_median {
            self.set(DECODER_BIAS, &geometric_median(&share.gathered(targets)?)?)?;
        }
        if self.steps == 0 && self.model.kind == Kind::JumpRelu {
            self.start_thresholds(&share.gathered(x)?)?;
        }
        let batch = share.of();
        let sae = self.view(self.config.precision)?;
        let moment = self.config.moment(self.steps, &self.model.kind);
        if self.config.loss.aux_k > 0 && self.steps.is_multiple_of(LISTED) {
            let idle = self.idle.to_vec1::<i64>()?;
            self.dead = listed(&idle, |&idle| self.is_dead(idle), self.device())?;
        }
        let dead = self.dead.as_ref();
        let (loss, rows) = (&self.config.loss, [x, targets]);
        // A guess that does not fit would be made again by one rank alone.
        let mut width = share.group().is_single().then_some(&mut self.width);
        let of =
            |width: Option<&mut CodeWidth>| Gradients::of_share(&sae, loss, moment, share, rows, dead, width);
        let mut gradients = of(width.as_deref_mut())?;
        if let Some(width) = width
            && !width.fits()?
        {
            gradients = of(Some(width))?;
        }
        if self.model.kind == Kind::JumpRelu {
            for (name, gradient) in &mut gradients.others {
                if *name == THRESHOLD {
                    *gradient = (&*gradient * sae.other(THRESHOLD)?)?;
                }
            }
        }
        let factor = self.set_scalars(&gradients, &sae)?;
        self.step_others(&gradients, factor.as_ref())?;
        let of = gradients.of_latents();
        let halves = self.halves.as_ref().map(|[encoder, decoder]| [encoder, decoder]);
        let state = LatentState { encoder: &self.encoder, decoder: &self.decoder, halves };
        latent_step_(state, &of, &self.scalars, &self.counter, AdamStep::default())?;
        advance_(&self.counter, 1)?;
        if let Some(cut) = &gradients.cut {
            self.follow_threshold(cut, sae.other(THRESHOLD)?)?;
        }
        let is_fired = gradients.fired.gt(0f64)?;
        let idle = (&self.idle + batch as f64)?;
        self.idle = is_fired.where_cond(&idle.zeros_like()?, &idle)?;
        let figures = [
            gradients.loss.clone(),
            gradients.squared_error.clone(),
            gradients.spread.clone(),
            row_sums(&gradients.fired.to_dtype(DType::F64)?.unsqueeze(0)?)?.squeeze(0)?,
        ];
        self.totals = (&self.totals + Tensor::stack(&figures, 0)?)?;
        self.steps += 1;
        self.rows += batch as u64;
        if is_due(self.config.resampling, self.steps) {
            self.resample(&share.gathered(&gradients.residual)?)?;
        }
        Ok(())
    }

    /// Puts the rate and the factor on gradients into the scalars; the factor too, where gradients
    /// are cut.
    fn set_scalars(&self, gradients: &Gradients, sae: &Sae) -> Result<Option<Tensor>> {
        let rate = self.config.rate(self.steps, self.model.n_latents) as f32;
        set_scalars_(&self.scalars, &[rate, 1.])?;
        let Some(clip) = self.config.clip else { return Ok(None) };
        let norm = gradients.squares(sae)?.sqrt()?.maximum(clip)?;
        let factor = (norm.recip()? * clip)?.to_dtype(DType::F32)?.reshape(1)?;
        self.scalars.slice_set(&factor, 0, 1)?;
        Ok(Some(factor))
    }

    /// Steps the parameters beside the weights.
    fn step_others(&self, gradients: &Gradients, factor: Option<&Tensor>) -> Result<()> {
        let all = self.others.zeros_like()?.get(0)?;
        for (name, gradient) in &gradients.others {
            let gradient = gradient.flatten_all()?.contiguous()?;
            let gradient = match factor {
                Some(factor) => gradient.broadcast_mul(factor)?,
                None => gradient,
            };
            all.slice_set(&gradient, 0, self.place_of(name).0)?;
        }
        self.others.slice_set(&all.unsqueeze(0)?, 0, 1)?;
        adam_step_(&self.others, &self.scalars, &self.counter, AdamStep::default(), 0)
    }

    /// Thresholds start where a share of all pre-activations of the first minibatch is above them.
    fn start_thresholds(&self, x: &Tensor) -> Result<()> {
        let sae = self.view(self.config.precision)?;
        let products = sae.products(&sae.centred(x)?[1])?;
        let count = (self.config.start_share * products.elem_count() as f64) as usize;
        if count == 0 {
            return Ok(());
        }
        let least = batch_threshold(&products, sae.other(BIAS)?, count)?.to_dtype(DType::F32)?;
        // Infinite where nothing is above 0.
        let least = least.to_vec1::<f32>()?[0];
        if !least.is_finite() {
            return Ok(());
        }
        let thresholds = Tensor::new(&[least.max(LEAST_THRESHOLD as f32)], self.device())?.log()?;
        self.set(THRESHOLD, &thresholds.broadcast_as(self.model.n_latents)?)
    }

    /// The threshold of inference follows the least value that was chosen, where one was.
    fn follow_threshold(&self, cut: &Tensor, threshold: &Tensor) -> Result<()> {
        let kept = if self.steps == 0 { 0. } else { self.config.threshold_decay };
        let is_one = cut.lt(f64::from(f32::MAX))?;
        let cut = is_one.where_cond(cut, threshold)?;
        self.set(THRESHOLD, &((threshold * kept)? + (cut * (1. - kept))?)?)
    }

    /// Dead latents start anew from rows with large errors; see [`Resampling`](super::Resampling).
    fn resample(&mut self, residual: &Tensor) -> Result<()> {
        let dead = self.dead_now()?;
        let losses = residual.to_dtype(DType::F64)?.sqr()?.sum(1)?.to_vec1::<f64>()?;
        let alive: Vec<u32> =
            (0..self.model.n_latents as u32).filter(|j| dead.binary_search(j).is_err()).collect();
        if dead.is_empty() || alive.is_empty() || losses.iter().sum::<f64>() <= 0. {
            return Ok(());
        }
        let alive = Tensor::new(alive, self.device())?;
        let lengths = self.encoder.get(0)?.index_select(&alive, 0)?.sqr()?.sum(1)?.sqrt()?;
        let length = 0.2 * f64::from(lengths.mean_all()?.to_scalar::<f32>()?);
        let rows = drawn_rows(&losses, dead.len(), self.philox);
        self.philox = self.philox.advanced(dead.len());
        let bias = self.place_of(super::config::BIAS).0;
        let mut idle = self.idle.to_vec1::<i64>()?;
        for (&j, row) in dead.iter().zip(rows) {
            let direction = unit_rows(&residual.narrow(0, row, 1)?.contiguous()?)?;
            let zeros = direction.zeros_like()?;
            let states = [(&self.encoder, (&direction * length)?), (&self.decoder, direction)];
            for (state, w) in states {
                let planes = Tensor::stack(&[&w, &zeros, &zeros], 0)?;
                state.slice_set(&planes, 1, j as usize)?;
            }
            let zeros = Tensor::zeros((4, 1), DType::F32, self.device())?;
            self.others.slice_set(&zeros, 1, bias + j as usize)?;
            if let Some(idle) = idle.get_mut(j as usize) {
                *idle = 0;
            }
        }
        self.idle = Tensor::new(idle, self.device())?;
        self.round()
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

/// The same as a tensor, none where it holds nowhere.
fn listed<T>(all: &[T], of: impl Fn(&T) -> bool, device: &Device) -> Result<Option<Tensor>> {
    match places(all, of) {
        none if none.is_empty() => Ok(None),
        list => Tensor::new(list, device).map(Some),
    }
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
        (self.totals, self.reported, self.rows) = (self.totals.zeros_like()?, self.steps, 0);
        Ok(Metrics {
            steps,
            rows,
            loss: loss / steps as f64,
            fvu: errors / about_mean,
            l0: active / rows as f64,
            dead: self.dead_now()?.len() as f64 / self.model.n_latents as f64,
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
    /// # Errors
    /// When memory is short or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        let of_first = |(_, state): (_, &Tensor)| group.broadcast_(state, 0);
        self.state().into_iter().chain([("idle", &self.idle)]).try_for_each(of_first)?;
        self.round()?;
        self.group = group.clone();
        Ok(self)
    }

    fn model(&self) -> Result<Sae> {
        self.view(Precision::F32)?.to_device(self.device())
    }

    fn device(&self) -> &Device {
        self.encoder.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let counts = [self.steps, self.reported, self.rows].map(|n| n as i64);
        let counts = Tensor::new(&counts, &Device::Cpu)?;
        let mut dead = vec![0u8; self.model.n_latents];
        if let Some(list) = &self.dead {
            list.to_vec1::<u32>()?.into_iter().for_each(|j| dead[j as usize] = 1);
        }
        let dead = Tensor::new(dead, &Device::Cpu)?;
        let more = [("idle", &self.idle), ("totals", &self.totals), ("counts", &counts), ("dead", &dead)];
        let state = self.state().into_iter().chain(more);
        let state = state.map(|(name, t)| (format!("trainer.{name}"), t.clone()));
        let notes = Notes {
            model: self.model.clone(),
            training: self.config.clone(),
            philox: self.philox,
            progress: progress.clone(),
        };
        checkpoint::save(path, NAME, state, &notes, &self.model.preparation)
    }
}

impl MinibatchTrainer for SaeTrainer {
    /// Of a transcoder, refused: see [`step_to`](SaeTrainer::step_to).
    fn step(&mut self, rows: &Tensor, _: Option<&Tensor>) -> Result<()> {
        let batch = check_minibatch(OP, rows, self.config.batch, self.model.n_inputs())?;
        if self.model.n_targets.is_some() {
            candle::bail!("{OP}::step: a transcoder must have targets; give them to step_to")
        }
        let share = self.share(batch);
        let x = self.own(&share, rows)?;
        self.learn(&share, &x, &x)
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        checkpoint.load_preparation(&mut notes.model.preparation, device)?;
        let refused = |e: candle::Error| checkpoint.refused(&e);
        let first = Tensor::ones((notes.model.n_latents, notes.model.n_visible), DType::F32, device)?;
        let model = Sae::tied(notes.model, &first).map_err(refused)?;
        let mut trainer = Self::new(&model, notes.training, notes.philox).map_err(refused)?;
        put_back(OP, trainer.state(), |name| checkpoint.of_trainer(name)).map_err(refused)?;
        let [steps, reported, rows] = checkpoint.counts()?;
        let (idle, totals) = (checkpoint.of_trainer("idle")?, checkpoint.of_trainer("totals")?);
        if idle.dims() != trainer.idle.dims() || idle.dtype() != DType::I64 {
            return Err(checkpoint.refused(&"idle must be that of the trainer"));
        }
        if totals.dims() != [4] || totals.dtype() != DType::F64 {
            return Err(checkpoint.refused(&"totals must be those of the trainer"));
        }
        let dead = checkpoint.of_trainer("dead")?;
        if dead.dims() != trainer.idle.dims() || dead.dtype() != DType::U8 {
            return Err(checkpoint.refused(&"dead must be a flag for each latent"));
        }
        trainer.dead = listed(&dead.to_vec1::<u8>()?, |&flag| flag > 0, device)?;
        trainer.round()?;
        (trainer.idle, trainer.totals) = (idle, totals);
        (trainer.steps, trainer.reported, trainer.rows) = (steps, reported, rows);
        Ok((trainer, notes.progress))
    }
}
