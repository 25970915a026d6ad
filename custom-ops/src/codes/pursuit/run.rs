//! A pursuit on the device that its operands are on.
use super::job::{Job, Target};
use super::{SparseCodes, cpu};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, Result};
use std::sync::{Mutex, PoisonError};

impl Job {
    /// The codes, from the device that the operands are on.
    pub(super) fn run(&self) -> Result<SparseCodes> {
        self.run_by(Form::Fast)
    }

    /// The same by the printed form, on the CPU.
    pub(super) fn run_as_printed(&self) -> Result<SparseCodes> {
        self.run_by(Form::Cholesky)
    }

    fn run_by(&self, form: Form) -> Result<SparseCodes> {
        let coding = Coding { job: self, form, codes: Mutex::new(None) };
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

/// How correlations and coefficients follow from the chosen atoms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The inverse Cholesky form, with vectors and on GPUs.
    Fast,
    /// Algorithm 1 of Irofti 2016.
    Cholesky,
}

/// A job as a kernel: its results are new, and made once the operands are known to be on one
/// device.
struct Coding<'a> {
    job: &'a Job,
    form: Form,
    codes: Mutex<Option<SparseCodes>>,
}

impl Coding<'_> {
    fn made(&self, codes: SparseCodes) {
        *self.codes.lock().unwrap_or_else(PoisonError::into_inner) = Some(codes);
    }
}

impl Kernel for Coding<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        self.made(match self.form {
            Form::Fast => cpu::run(self.job, io)?,
            Form::Cholesky => cpu::cholesky::run(self.job, io)?,
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        if self.form == Form::Cholesky {
            candle::bail!("{}: operands must be on the CPU, got a GPU; move them or use bomp", self.job.op)
        }
        self.made(super::cuda::run(self.job, gpu, io)?);
        Ok(())
    }
}
