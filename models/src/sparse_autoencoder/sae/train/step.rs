//! The step of a minibatch.
use super::super::config::{DECODER_BIAS, THRESHOLD};
use super::super::divided::Part;
use super::super::loss::Gradients;
use super::super::pass::row_sums;
use super::super::start::{geometric_median, is_due};
use super::super::{Kind, Sae};
use super::{LISTED, SaeTrainer};
use candle::{DType, Result, Tensor};
use chandlery_ops::codes::{CodeWidth, LatentState, latent_step_};
use chandlery_ops::core::{advance_, set_scalars_};
use chandlery_ops::layers::{AdamStep, adam_step_};

impl SaeTrainer {
    /// The step of a minibatch, of which this rank has a part.
    pub(super) fn learn(&mut self, part: &Part, x: &Tensor, targets: &Tensor) -> Result<()> {
        let share = &part.rows;
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
            self.list_dead()?;
        }
        let dead = self.dead.as_ref();
        let (loss, rows) = (&self.config.loss, [x, targets]);
        // A guess that does not fit would be made again by one rank alone.
        let is_alone = share.group().is_single() && part.latents.is_single();
        let mut width = is_alone.then_some(&mut self.width);
        let of =
            |width: Option<&mut CodeWidth>| Gradients::of_part(&sae, loss, moment, part, rows, dead, width);
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
        let active = row_sums(&gradients.fired.to_dtype(DType::F64)?.unsqueeze(0)?)?;
        part.latents.all_reduce_(&active)?;
        let figures = [
            gradients.loss.clone(),
            gradients.squared_error.clone(),
            gradients.spread.clone(),
            active.squeeze(0)?,
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
        let norm = gradients.squares_of_all(sae, self.latents.group())?.sqrt()?.maximum(clip)?;
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
        adam_step_(&self.others, &self.scalars, &self.counter, AdamStep::default(), .., 0, None)
    }
}
