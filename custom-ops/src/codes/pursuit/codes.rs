//! Sparse codes of fixed width.
use crate::core::check::{expect, matrix};
use candle::{DType, Result, Tensor};

/// Sparse codes with few entries per row, as the pursuits return them: the `X` of `Y ≈ X D`.
///
/// Row `i` has `count[i]` entries, in the order in which they were chosen. Entries at and beyond
/// `count` have index 0 and value 0, so that sums over all `s` entries are correct without `count`.
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

    /// Codes of several blocks of rows over the same atoms, one below the other, as wide as the
    /// widest.
    ///
    /// # Errors
    /// When there are none, or they are over different numbers of atoms, of different types or on
    /// different devices.
    pub fn stacked(blocks: &[Self]) -> Result<Self> {
        let Some(first) = blocks.first() else {
            candle::bail!("SparseCodes::stacked: there must be at least one block of codes, got none")
        };
        if let [only] = blocks {
            return Ok(only.clone());
        }
        let n_atoms = first.n_atoms;
        if let Some(other) = blocks.iter().find(|block| block.n_atoms != n_atoms) {
            candle::bail!("SparseCodes::stacked: all must be over {n_atoms} atoms, got {}", other.n_atoms)
        }
        let of = |part: fn(&Self) -> &Tensor| blocks.iter().map(part).collect::<Vec<_>>();
        Ok(Self {
            indices: stacked_entries(&of(|block| &block.indices))?,
            values: stacked_entries(&of(|block| &block.values))?,
            count: Tensor::cat(&of(|block| &block.count), 0)?,
            n_atoms,
        })
    }

    /// 1 for entries that are there, 0 beyond the count of a row: u8 `[m, s]`.
    ///
    /// # Errors
    /// When memory is short.
    pub fn mask(&self) -> Result<Tensor> {
        let at = Tensor::arange(0u32, self.width() as u32, self.count.device())?.unsqueeze(0)?;
        at.broadcast_lt(&self.count.unsqueeze(1)?)
    }

    /// Contiguous indices and values, and their sizes.
    pub(super) fn parts(&self, op: &'static str) -> Result<(Tensor, Tensor, Codes)> {
        let (indices, values) = (self.indices.contiguous()?, self.values.contiguous()?);
        let (m, s) = matrix(op, "indices", "[n_samples, n_nonzero]", &indices, &[DType::U32])?;
        expect(op, "values", &values, &[DType::F32, DType::F64], &[m, s])?;
        Ok((indices, values, Codes { op, m, n: self.n_atoms, s }))
    }
}

/// Matrices one below the other, as wide as the widest, with 0 beyond the others: what goes with
/// the entries of [`SparseCodes::stacked`].
///
/// # Errors
/// When one is no matrix, or types or devices differ.
pub fn stacked_entries(blocks: &[&Tensor]) -> Result<Tensor> {
    let widths = blocks.iter().map(|block| Ok(block.dims2()?.1)).collect::<Result<Vec<_>>>()?;
    let widest = widths.iter().copied().max().unwrap_or(0);
    let padded = blocks.iter().zip(widths).map(|(block, width)| block.pad_with_zeros(1, 0, widest - width));
    Tensor::cat(&padded.collect::<Result<Vec<_>>>()?, 0)
}

/// The codes as a matrix: [`SparseCodes::to_dense`].
impl TryFrom<&SparseCodes> for Tensor {
    type Error = candle::Error;

    fn try_from(codes: &SparseCodes) -> Result<Self> {
        codes.to_dense()
    }
}

/// The entries of a matrix, `[m, n_atoms]` f32 or f64, that are not 0, those of a row in the order
/// of atoms; as wide as the row that has most, at least 1.
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

/// The sizes of codes: `[m, s]`, of `n` atoms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codes {
    pub op: &'static str,
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
