//! Sparse codes of fixed width: conversion to dense codes, and products with a dictionary.
use super::cpu;
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Device, Result, Tensor};

/// Sparse codes with few entries per row, as the pursuits return them: the `X` of `Y ≈ X D`.
///
/// Row `i` has `count[i]` entries, in the order in which they were chosen. Entries at and beyond `count` have index 0 and value
/// 0, so that sums over all `s` entries are correct without `count`.
#[derive(Debug, Clone)]
pub struct SparseCodes {
    /// Atoms, u32 `[m, s]`.
    pub indices: Tensor,
    /// Their coefficients, f32 or f64 `[m, s]`.
    pub values: Tensor,
    /// Number of entries of each row, u32 `[m]`.
    pub count: Tensor,
    /// Number of atoms of the dictionary; every index is below it.
    pub n_atoms: usize,
}

impl SparseCodes {
    /// The most entries of a row, `s`.
    pub fn width(&self) -> usize {
        self.indices.dims().get(1).copied().unwrap_or(0)
    }

    /// The codes as a matrix `[m, n_atoms]`, mostly zeros.
    ///
    /// # Errors
    /// When the device is out of memory or, on the CPU, an index is not below `n_atoms`; a GPU ignores such an entry.
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
    /// When `dictionary` is not `[n_atoms, p]` of the type and on the device of the values, or, on the CPU, an index is not below
    /// `n_atoms`.
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

    /// Contiguous indices and values, and their sizes.
    fn parts(&self, op: &'static str) -> Result<(Tensor, Tensor, Codes)> {
        let (indices, values) = (self.indices.contiguous()?, self.values.contiguous()?);
        let (m, s) = matrix(op, "indices", "[n_samples, n_nonzero]", &indices, &[DType::U32])?;
        expect(op, "values", &values, &[DType::F32, DType::F64], &[m, s])?;
        Ok((indices, values, Codes { op, m, n: self.n_atoms, s }))
    }
}

/// The codes as a matrix: [`SparseCodes::to_dense`].
impl TryFrom<&SparseCodes> for Tensor {
    type Error = candle::Error;

    fn try_from(codes: &SparseCodes) -> Result<Self> {
        codes.to_dense()
    }
}

/// The entries of a matrix, `[m, n_atoms]` f32 or f64, that are not 0, those of a row in the order of atoms; as wide as the row that has most,
/// at least 1.
impl TryFrom<&Tensor> for SparseCodes {
    type Error = candle::Error;

    fn try_from(dense: &Tensor) -> Result<Self> {
        let types = [DType::F32, DType::F64];
        let (m, n_atoms) = matrix("SparseCodes::try_from", "codes", "[n_samples, n_atoms]", dense, &types)?;
        // Values keep their bits on the way to f64 and back.
        let rows = dense.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let entries =
            |row: &[f64]| (0u32..).zip(row.to_vec()).filter(|(_, x)| *x != 0.).collect::<Vec<(u32, f64)>>();
        let rows: Vec<Vec<(u32, f64)>> = rows.iter().map(|row| entries(row)).collect();
        let count: Vec<u32> = rows.iter().map(|row| row.len() as u32).collect();
        let s = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let filled =
            rows.into_iter().flat_map(|row| row.into_iter().chain(std::iter::repeat((0, 0.))).take(s));
        let (indices, values): (Vec<u32>, Vec<f64>) = filled.unzip();
        let device = dense.device();
        Ok(Self {
            indices: Tensor::from_vec(indices, (m, s), device)?,
            values: Tensor::from_vec(values, (m, s), device)?.to_dtype(dense.dtype())?,
            count: Tensor::from_vec(count, m, device)?,
            n_atoms,
        })
    }
}

/// Where an op writes: zeros on the CPU, unset on a GPU, where the kernels write every entry.
fn room(shape: (usize, usize), like: &Tensor) -> Result<Tensor> {
    match like.device() {
        // SAFETY: `to_dense` and `add_rows` of src/pursuit/cuda/codes.rs write every entry.
        device @ Device::Cuda(_) if shape.0 * shape.1 > 0 => unsafe {
            Tensor::empty(shape, like.dtype(), device)
        },
        device => Tensor::zeros(shape, like.dtype(), device),
    }
}

/// The sizes of codes: `[m, s]`, of `n` atoms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codes {
    pub op: &'static str,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "the CPU goes by the rows that it gets"))]
    pub m: usize,
    pub n: usize,
    pub s: usize,
}

impl Codes {
    /// Refuses an index that names no atom.
    pub(super) fn check(self, indices: &[u32]) -> Result<()> {
        let Self { op, n, .. } = self;
        match indices.iter().find(|&&i| i as usize >= n) {
            Some(bad) => candle::bail!("{op}: indices must be below {n}, the number of atoms, got {bad}"),
            None => Ok(()),
        }
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

/// Builds codes row by row on the CPU.
pub(super) struct Rows<T> {
    s: usize,
    indices: Vec<u32>,
    values: Vec<T>,
    count: Vec<u32>,
}

impl<T: candle::WithDType> Rows<T> {
    pub(super) fn new(m: usize, s: usize) -> Self {
        Self {
            s,
            indices: Vec::with_capacity(m * s),
            values: Vec::with_capacity(m * s),
            count: Vec::with_capacity(m),
        }
    }

    /// Adds the row of a signal: at most `s` atoms with their coefficients.
    pub(super) fn push(&mut self, entries: &[(usize, f64)]) {
        self.indices.extend(entries.iter().map(|&(atom, _)| atom as u32));
        self.values.extend(entries.iter().map(|&(_, x)| T::from_f64(x)));
        self.count.push(entries.len() as u32);
        let end = self.count.len() * self.s;
        self.indices.resize(end, 0);
        self.values.resize(end, T::zero());
    }

    pub(super) fn finish(self, n_atoms: usize) -> Result<SparseCodes> {
        let (m, cpu) = (self.count.len(), &candle::Device::Cpu);
        Ok(SparseCodes {
            indices: Tensor::from_vec(self.indices, (m, self.s), cpu)?,
            values: Tensor::from_vec(self.values, (m, self.s), cpu)?,
            count: Tensor::from_vec(self.count, m, cpu)?,
            n_atoms,
        })
    }
}
