//! Thresholds that are set, and latents that start anew.
use super::super::config::{BIAS, THRESHOLD};
use super::super::start::drawn_rows;
use super::super::unit_rows;
use super::SaeTrainer;
use crate::trainer::Trainer;
use candle::{DType, Result, Tensor};
use chandlery_ops::codes::batch_threshold;

impl SaeTrainer {
    /// Thresholds start where a share of all pre-activations of the first minibatch is above them.
    pub(super) fn start_thresholds(&self, x: &Tensor) -> Result<()> {
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
        let thresholds = Tensor::new(&[least], self.device())?;
        self.set(THRESHOLD, &thresholds.broadcast_as(self.model.n_latents)?)
    }

    /// The threshold of inference follows the least value that was chosen, where one was.
    pub(super) fn follow_threshold(&self, cut: &Tensor, threshold: &Tensor) -> Result<()> {
        let kept = if self.steps == 0 { 0. } else { self.config.threshold_decay };
        let is_one = cut.lt(f64::from(f32::MAX))?;
        let cut = is_one.where_cond(cut, threshold)?;
        self.set(THRESHOLD, &((threshold * kept)? + (cut * (1. - kept))?)?)
    }

    /// Dead latents start anew from rows with large errors; see [`Resampling`](super::super::Resampling).
    pub(super) fn resample(&mut self, residual: &Tensor) -> Result<()> {
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
        let bias = self.place_of(BIAS).0;
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
}
