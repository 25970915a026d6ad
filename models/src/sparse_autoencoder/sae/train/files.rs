//! Where the state of a trainer comes from and goes to: drawn, from a whole one, checkpoints and
//! models, each a piece at a time.
use super::super::config::{DECODER, ENCODER};
use super::super::divided::LatentPart;
use super::super::{Division, SaeConfig, SaeTrainConfig, unit_rows};
use super::{OP, Sae, SaeTrainer, dead_of, logs, place_in};
use crate::checkpoint::{self, Checkpoint, place};
use crate::model::Model;
use crate::pieces::{self, InPieces, Streamed};
use crate::pretrained;
use crate::trainer::Trainer;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::core::{free_memory, normal};
use chandlery_ops::layers::Precision;
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The name of the trainer in its checkpoints.
const NAME: &str = "sae";
/// What is too large to be read at once, and how many planes it has.
const WEIGHTS: [&str; 2] = ["trainer.encoder", "trainer.decoder"];
const PLANES: usize = 3;

#[derive(Serialize, Deserialize)]
struct Notes {
    model: SaeConfig,
    training: SaeTrainConfig,
    #[serde(with = "place")]
    philox: Philox,
    progress: Value,
}

impl SaeTrainer {
    /// A trainer of the model that [`Sae::init`](crate::Model::init) draws at `first`, which takes
    /// part in a group: [`new`](Self::new) and [`in_group`](Trainer::in_group) in one. With
    /// [`Division::Latents`] each rank draws its own latents, and none ever has more.
    ///
    /// # Errors
    /// As these, and when the memory of the device is too small for a rank's part.
    pub fn init(
        model: SaeConfig,
        config: SaeTrainConfig,
        [first, philox]: [Philox; 2],
        group: &Group,
        device: &Device,
    ) -> Result<Self> {
        if group.is_single() || config.division == Division::Rows {
            return Self::new(&Sae::init(model, first, device)?, config, philox)?.in_group(group);
        }
        model.validate()?;
        config.validate(&model)?;
        let latents = LatentPart::of(group, model.n_latents)?;
        expect_room(&model, &config, &latents, device)?;
        let mut trainer = Self::empty(&model, config, philox, latents, device)?;
        let d = model.n_visible;
        let is_unit = trainer.config.loss.unit_atoms;
        let drawn = |rows: std::ops::Range<usize>| {
            unit_rows(&normal((rows.len(), d), device, first.advanced(rows.start * d))?)
        };
        trainer.latents.fill(&trainer.encoder.get(0)?, drawn)?;
        if model.n_targets.is_none() {
            // As of a whole model, whose rows are brought to length 1 once more.
            let again = |rows| if is_unit { unit_rows(&drawn(rows)?) } else { drawn(rows) };
            trainer.latents.fill(&trainer.decoder.get(0)?, again)?;
        }
        for part in trainer.own.parts() {
            trainer.set(part.name, &Tensor::full(part.start as f32, &part.shape[..], device)?)?;
        }
        trainer.round()?;
        Ok(trainer)
    }

    /// The same with this rank's latents alone; all begin with the state of rank 0.
    pub(super) fn with_latents_of(self, group: &Group) -> Result<Self> {
        if !self.latents.group().is_single() {
            return Ok(self);
        }
        let of_first = |(_, state): (_, &Tensor)| group.broadcast_(state, 0);
        self.state().into_iter().chain([("idle", &self.idle)]).try_for_each(of_first)?;
        let latents = LatentPart::of(group, self.model.n_latents)?;
        let mut own = Self::empty(&self.model, self.config.clone(), self.philox, latents, self.device())?;
        for (to, from) in [(&own.encoder, &self.encoder), (&own.decoder, &self.decoder)] {
            to.slice_set(&own.latents.part(from, 1)?, 0, 0)?;
        }
        own.put_others(&self.others)?;
        own.idle = own.latents.part(&self.idle, 0)?;
        (own.counter, own.totals) = (self.counter.clone(), self.totals.clone());
        (own.steps, own.reported, own.rows) = (self.steps, self.reported, self.rows);
        if let Some(dead) = &self.dead {
            let all = dead.own.as_ref().map_or(Ok(vec![]), |t| t.to_vec1::<u32>())?;
            own.dead = dead_of(own.own_of(&all), dead.n, own.device())?;
        }
        own.round()?;
        Ok(own)
    }

    /// Those of a list of latents that this rank has, counted from its first.
    fn own_of(&self, all: &[u32]) -> Vec<u32> {
        let own = self.latents.own();
        let is_own = |j: &&u32| own.contains(&(**j as usize));
        all.iter().filter(is_own).map(|j| j - own.start as u32).collect()
    }

    /// Takes this rank's part of the parameters beside the weights of all latents, `[4, n]`.
    fn put_others(&self, whole: &Tensor) -> Result<()> {
        let own = self.latents.own();
        for part in self.own.parts() {
            let (from, n) = place_in(&self.model, part.name);
            let (to, n_own) = self.place_of(part.name);
            let (from, n) = if part.of_latents { (from + own.start, n_own) } else { (from, n) };
            self.others.slice_set(&whole.narrow(1, from, n)?.contiguous()?, 1, to)?;
        }
        Ok(())
    }

    /// The same of all ranks.
    fn others_of_all(&self) -> Result<Tensor> {
        let parts = self.own.parts().into_iter().map(|part| {
            let (at, n) = self.place_of(part.name);
            let own = self.others.narrow(1, at, n)?.contiguous()?;
            if part.of_latents { self.latents.gathered(&own, 1) } else { Ok(own) }
        });
        Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 1)
    }

    /// The state of all ranks, as checkpoints hold it.
    fn streamed(&self) -> Result<Vec<Streamed<'_>>> {
        let counts = [self.steps, self.reported, self.rows].map(|n| n as i64);
        let mut dead = vec![0u32; self.own.n_latents];
        if let Some(list) = self.dead.as_ref().and_then(|dead| dead.own.as_ref()) {
            for j in list.to_vec1::<u32>()? {
                if let Some(flag) = dead.get_mut(j as usize) {
                    *flag = 1;
                }
            }
        }
        let dead = self.latents.gathered(&Tensor::new(dead, self.device())?, 0)?;
        let small = [
            ("others", self.others_of_all()?),
            ("counter", self.counter.clone()),
            ("idle", self.latents.gathered(&self.idle, 0)?),
            ("totals", self.totals.clone()),
            ("counts", Tensor::new(&counts, &Device::Cpu)?),
            ("dead", dead.to_dtype(DType::U8)?),
        ];
        let mut all: Vec<_> =
            small.into_iter().map(|(name, t)| Streamed::whole(format!("trainer.{name}"), t)).collect();
        for (name, state) in WEIGHTS.into_iter().zip([&self.encoder, &self.decoder]) {
            let shape = [PLANES, self.model.n_latents, state.dim(2)?];
            all.push(Streamed::new(name, &shape, move |give| {
                (0..PLANES).try_for_each(|plane| self.latents.pieces(&state.get(plane)?, &mut *give))
            }));
        }
        let fitted = self.model.preparation.tensors().map_err(candle::Error::wrap)?;
        all.extend(fitted.into_iter().map(|(name, t)| Streamed::whole(name, t)));
        Ok(pieces::in_order(all))
    }

    pub(super) fn write(&self, path: &Path, progress: &Value) -> Result<()> {
        let notes = Notes {
            model: self.model.clone(),
            training: self.config.clone(),
            philox: self.philox,
            progress: progress.clone(),
        };
        checkpoint::save_in_pieces(path, NAME, &self.streamed()?, &notes)
    }

    /// Passes on what the first rank writes.
    pub(super) fn pass_on(&self) -> Result<()> {
        if self.latents.group().is_single() {
            return Ok(());
        }
        self.streamed()?.iter().try_for_each(Streamed::pass_on)
    }

    /// Reads a checkpoint of any number of ranks for one of a group; with [`Division::Latents`] no
    /// more than its part. Does not look whether the file is damaged, as
    /// [`verify`](checkpoint::verify) does.
    ///
    /// # Errors
    /// When the file is no checkpoint of such a trainer, or the memory of the device is too small.
    pub fn read(path: &Path, device: &Device, group: &Group) -> Result<(Self, Value)> {
        let file = InPieces::open(path)?;
        let (checkpoint, mut notes): (_, Notes) = Checkpoint::of_pieces(path, &file, NAME, &WEIGHTS, device)?;
        checkpoint.load_preparation(&mut notes.model.preparation, device)?;
        let refused = |e: candle::Error| checkpoint.refused(&e);
        notes.model.validate().map_err(refused)?;
        let Notes { model, training, philox, progress } = notes;
        let is_divided = !group.is_single() && training.division == Division::Latents;
        let latents = match is_divided {
            true => LatentPart::of(group, model.n_latents)?,
            false => LatentPart::whole(model.n_latents),
        };
        if is_divided {
            expect_room(&model, &training, &latents, device)?;
        }
        let n = model.n_latents;
        let mut trainer = Self::empty(&model, training, philox, latents, device).map_err(refused)?;
        let expect = |name: &str, got: &[usize], want: &[usize]| match got == want {
            true => Ok(()),
            false => {
                Err(checkpoint.refused(&format_args!("{OP}: {name} must have shape {want:?}, got {got:?}")))
            }
        };
        for (name, state) in WEIGHTS.into_iter().zip([&trainer.encoder, &trainer.decoder]) {
            let d = state.dim(2)?;
            expect(name, &file.shape(name)?, &[PLANES, n, d])?;
            for plane in 0..PLANES {
                trainer.latents.fill(&state.get(plane)?, |rows| {
                    file.part(name, (plane * n + rows.start) * d, &[rows.len(), d], device)
                })?;
            }
        }
        let others = checkpoint.of_trainer("others")?;
        let n_others = model.parts().iter().map(|part| part.len()).sum();
        expect("others", others.dims(), &[4, n_others])?;
        trainer.put_others(&others.to_dtype(DType::F32)?)?;
        let counter = checkpoint.of_trainer("counter")?;
        expect("counter", counter.dims(), &[1])?;
        trainer.counter = counter.to_dtype(DType::I64)?;
        let [steps, reported, rows] = checkpoint.counts()?;
        let (idle, totals) = (checkpoint.of_trainer("idle")?, checkpoint.of_trainer("totals")?);
        if idle.dims() != [n] || idle.dtype() != DType::I64 {
            return Err(checkpoint.refused(&"idle must be that of the trainer"));
        }
        if totals.dims() != [4] || totals.dtype() != DType::F64 {
            return Err(checkpoint.refused(&"totals must be those of the trainer"));
        }
        let dead = checkpoint.of_trainer("dead")?;
        if dead.dims() != [n] || dead.dtype() != DType::U8 {
            return Err(checkpoint.refused(&"dead must be a flag for each latent"));
        }
        let dead = super::places(&dead.to_vec1::<u8>()?, |&flag| flag > 0);
        trainer.dead = dead_of(trainer.own_of(&dead), dead.len(), device)?;
        trainer.round()?;
        (trainer.idle, trainer.totals) = (trainer.latents.part(&idle, 0)?, totals);
        (trainer.steps, trainer.reported, trainer.rows) = (steps, reported, rows);
        Ok((trainer, progress))
    }

    /// Writes the folder of the model of a checkpoint, as [`save_pretrained`](Model::save_pretrained)
    /// does, a piece at a time: for models that fit no single device.
    ///
    /// # Errors
    /// When the file is no checkpoint of such a trainer, or the folder is not writable.
    pub fn save_model_of(checkpoint: &Path, folder: &Path) -> Result<()> {
        let file = InPieces::open(checkpoint)?;
        let cpu = &Device::Cpu;
        let (small, mut notes): (_, Notes) = Checkpoint::of_pieces(checkpoint, &file, NAME, &WEIGHTS, cpu)?;
        small.load_preparation(&mut notes.model.preparation, cpu)?;
        let (model, params) = (&notes.model, small.of_trainer("others")?.get(0)?);
        let whole = LatentPart::whole(model.n_latents);
        let mut tensors = vec![];
        let names = [(ENCODER, model.n_visible), (DECODER, model.n_outputs())];
        for (from, (name, d)) in WEIGHTS.into_iter().zip(names) {
            let (file, whole) = (&file, &whole);
            tensors.push(Streamed::new(name, &[model.n_latents, d], move |give| {
                whole.each(d, |rows| give(&file.part(from, rows.start * d, &[rows.len(), d], cpu)?))
            }));
        }
        for part in model.parts() {
            let (at, n) = place_in(model, part.name);
            let t = params.narrow(0, at, n)?.reshape(&part.shape[..])?;
            let t = if logs(&model.kind, part.name) { t.exp()? } else { t };
            tensors.push(Streamed::whole(part.name.to_owned(), t));
        }
        pretrained::save_in_pieces(folder, Sae::TYPE, model, &model.preparation, tensors)
    }
}

/// Bytes that a rank needs in training: parameters, moments and copies of its latents, with the
/// pre-activations of a few rows and what a step gathers.
fn bytes_of(model: &SaeConfig, config: &SaeTrainConfig, latents: &LatentPart) -> u64 {
    let (d, targets) = (model.n_visible as u64, model.n_outputs() as u64);
    let n = latents.own().len() as u64;
    let mut of_value = 4 * PLANES as u64;
    if config.precision == Precision::Bf16 {
        of_value += 2;
    }
    if config.clip.is_some() {
        of_value += 4;
    }
    let rows = super::super::largest::rows_at_a_time(&model.kind, n as usize).min(config.batch) as u64;
    let of_rows = 4 * config.batch as u64 * (3 * d + 4 * targets);
    n * (d + targets) * of_value + n * (4 * rows + 64) + of_rows
}

/// Refuses what does not fit, before anything is made.
fn expect_room(
    model: &SaeConfig,
    config: &SaeTrainConfig,
    latents: &LatentPart,
    device: &Device,
) -> Result<()> {
    let Some(free) = free_memory(device)? else { return Ok(()) };
    // Ranks on the CPU have one memory between them.
    let (world, ranks) = (latents.group().world(), if device.is_cpu() { latents.group().world() } else { 1 });
    let need = bytes_of(model, config, latents).saturating_mul(ranks as u64);
    if need > free {
        let [need, free] = [need, free].map(|bytes| bytes as f64 / 1e9);
        candle::bail!(
            "SaeTrainer: {} latents of {} values over {world} ranks need {need:.1} GB of a device, and {free:.1} GB are free; take more ranks, \
             fewer latents or rows, or f32 or tf32 in place of bf16",
            model.n_latents,
            model.n_visible
        )
    }
    Ok(())
}
