//! A pursuit on the device that its operands are on.
use super::job::{Job, Target};
use super::{SparseCodes, cpu};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, Result};
use std::sync::{Mutex, PoisonError};

impl Job {
    /// The codes, from the device that the operands are on.
    pub(super) fn run(&self) -> Result<SparseCodes> {
        let coding = Coding { job: self, codes: Mutex::new(None) };
        let operands = operands(self.op).read("signals", &self.signals).read("dictionary", &self.dictionary);
        let targets = match &self.target {
            Target::PerSignal(targets) => Some(targets),
            _ => None,
        };
        operands.maybe("mask", self.mask.as_ref()).maybe("error targets", targets).run(&coding)?;
        match coding.codes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(codes) => Ok(codes),
            None => candle::bail!("{}: nothing ran", self.op),
        }
    }
}

/// A job as a kernel: its results are new, and made once the operands are known to be on one
/// device.
struct Coding<'a> {
    job: &'a Job,
    codes: Mutex<Option<SparseCodes>>,
}

impl Coding<'_> {
    fn made(&self, codes: SparseCodes) {
        *self.codes.lock().unwrap_or_else(PoisonError::into_inner) = Some(codes);
    }
}

impl Kernel for Coding<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        self.made(cpu::run(self.job, io)?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.made(super::cuda::run(self.job, gpu, io)?);
        Ok(())
    }
}
