//! Sparse codes as dense ones, and their products with a dictionary.
use super::codes::{Codes, SparseCodes};
use super::cpu;
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Device, Result, Tensor};

impl SparseCodes {
    /// The codes as a matrix `[m, n_atoms]`, mostly zeros.
    ///
    /// # Errors
    /// When the device is out of memory or, on the CPU, an index is not below `n_atoms`; a GPU
    /// ignores such an entry.
    pub fn to_dense(&self) -> Result<Tensor> {
        let (op, n) = ("SparseCodes::to_dense", self.n_atoms);
        let (indices, values, codes) = self.parts(op)?;
        let dense = room((codes.m, n), &values)?;
        if dense.elem_count() > 0 {
            let io =
                operands(op).write("the result", &dense).read("indices", &indices).read("values", &values);
            io.run(&ToDense { codes, dtype: values.dtype() })?;
        }
        Ok(dense)
    }

    /// The signals that the codes represent, `X D`, `[m, p]`, without dense codes.
    ///
    /// Cost: `2msp` FLOP.
    ///
    /// # Errors
    /// When `dictionary` is not `[n_atoms, p]` of the type and on the device of the values, or, on
    /// the CPU, an index is not below `n_atoms`.
    pub fn reconstruct(&self, dictionary: &Tensor) -> Result<Tensor> {
        self.combine("SparseCodes::reconstruct", dictionary, None)
    }

    /// The residual of `signals`: `Y − X D`, `[m, p]`.
    ///
    /// Cost: `2msp` FLOP.
    ///
    /// # Errors
    /// When `signals` are not `[m, p]`, or as for [`SparseCodes::reconstruct`].
    pub fn residual(&self, signals: &Tensor, dictionary: &Tensor) -> Result<Tensor> {
        self.combine("SparseCodes::residual", dictionary, Some(signals))
    }

    fn combine(&self, op: &'static str, dictionary: &Tensor, signals: Option<&Tensor>) -> Result<Tensor> {
        let (indices, values, codes) = self.parts(op)?;
        let &[_, p] = dictionary.dims() else {
            candle::bail!("{op}: dictionary must be [n_atoms, n_features], got shape {:?}", dictionary.dims())
        };
        let dtype = values.dtype();
        let dictionary = dictionary.contiguous()?;
        expect(op, "dictionary", &dictionary, &[dtype], &[self.n_atoms, p])?;
        let signals = signals.map(Tensor::contiguous).transpose()?;
        if let Some(signals) = &signals {
            expect(op, "signals", signals, &[dtype], &[codes.m, p])?;
        }
        let out = room((codes.m, p), &values)?;
        if out.elem_count() > 0 {
            let io = operands(op).write("the result", &out).read("indices", &indices).read("values", &values);
            let io = io.read("dictionary", &dictionary).maybe("signals", signals.as_ref());
            io.run(&AddRows { codes, p, dtype })?;
        }
        Ok(out)
    }
}

/// Where an op writes: zeros on the CPU, unset on a GPU, where the kernels write every entry.
fn room(shape: (usize, usize), like: &Tensor) -> Result<Tensor> {
    match like.device() {
        // SAFETY: `to_dense` and `add_rows` of src/codes/pursuit/cuda/codes.rs write every entry.
        device @ Device::Cuda(_) if shape.0 * shape.1 > 0 => unsafe {
            Tensor::empty(shape, like.dtype(), device)
        },
        device => Tensor::zeros(shape, like.dtype(), device),
    }
}

struct ToDense {
    codes: Codes,
    dtype: DType,
}

impl Kernel for ToDense {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| cpu::to_dense::<T>(self.codes, io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| super::cuda::to_dense::<T>(self.codes, gpu, io))
    }
}

struct AddRows {
    codes: Codes,
    p: usize,
    dtype: DType,
}

impl Kernel for AddRows {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| cpu::add_rows::<T>(self.codes, self.p, io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| super::cuda::add_rows::<T>(self.codes, self.p, gpu, io))
    }
}
