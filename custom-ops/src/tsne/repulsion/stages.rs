//! How long each stage of a call takes.
use super::Repulsion;
use candle::{Result, Tensor};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

/// The stages that have ended, and when the last of them did.
#[derive(Debug)]
pub(super) struct Stages {
    begin: Instant,
    seconds: Vec<(&'static str, f64)>,
}

impl Repulsion {
    /// As [`repulsion_`](Self::repulsion_), and the seconds of its stages in their order. It waits
    /// for the device after each, so that on a GPU they are more than `repulsion_` takes.
    ///
    /// | method | stages |
    /// |---|---|
    /// | exact | `pairs` |
    /// | tree | `sorting` (of a GPU: [`arrange`](Self::arrange), which is not of the call), `tree and summary`, `traversal` |
    /// | grid | `sorting`, `spreading`, `FFT`, `interpolation` |
    ///
    /// # Errors
    /// As [`repulsion_`](Self::repulsion_), and when a step is being recorded.
    pub fn repulsion_stages_(
        &self,
        forces: &Tensor,
        total: &Tensor,
        layout: &Tensor,
    ) -> Result<Vec<(&'static str, f64)>> {
        crate::core::op::not_recording(super::OP, &self.device)?;
        self.device.synchronize()?;
        *self.stages() = Some(Stages { begin: Instant::now(), seconds: vec![] });
        let done = self.repulsion_(forces, total, layout);
        let stages = self.stages().take();
        done?;
        Ok(stages.map(|stages| stages.seconds).unwrap_or_default())
    }

    /// A panic elsewhere leaves nothing that the next call would not overwrite.
    fn stages(&self) -> MutexGuard<'_, Option<Stages>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end of a stage on the CPU, where someone asked for that.
    pub(super) fn ended(&self, stage: &'static str) {
        if let Some(stages) = &mut *self.stages() {
            let now = Instant::now();
            stages.seconds.push((stage, (now - stages.begin).as_secs_f64()));
            stages.begin = now;
        }
    }

    /// The same on a GPU, which is waited for.
    #[cfg(feature = "cuda")]
    pub(super) fn ended_on_gpu(&self, stage: &'static str) -> Result<()> {
        if self.stages().is_some() {
            self.device.synchronize()?;
            self.ended(stage);
        }
        Ok(())
    }
}
