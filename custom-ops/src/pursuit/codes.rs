//! Sparse codes of fixed width, and what they stand for.
use candle::{Device, Result, Tensor};

/// Rows of codes with few entries each: `X ≈ Y` in `Y = X D`, as the pursuits give them.
///
/// Row `i` has `count[i]` entries, in the order in which they were chosen. Entries at and beyond `count` have index 0 and
/// value 0, so that sums over all `s` entries are right without reading `count`.
#[derive(Debug, Clone)]
pub struct SparseCodes {
    /// Atoms, u32 `[m, s]`.
    pub indices: Tensor,
    /// Their coefficients, f32 or f64 `[m, s]`.
    pub values: Tensor,
    /// How many of them, u32 `[m]`.
    pub count: Tensor,
    /// The atoms of the dictionary: every index is below.
    pub n_atoms: usize,
}

impl SparseCodes {
    /// The entries that a row has room for, `s`.
    pub fn width(&self) -> usize {
        self.indices.dims().get(1).copied().unwrap_or(0)
    }

    /// The codes as a matrix `[m, n_atoms]`, mostly zeros.
    ///
    /// # Errors
    /// When the device is out of memory or, on the CPU, an index is not below `n_atoms`; on a GPU such an entry is passed by.
    pub fn to_dense(&self) -> Result<Tensor> {
        let (m, _) = self.indices.dims2()?;
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = self.values.device() {
            return super::cuda::to_dense(self, device);
        }
        let zeros = Tensor::zeros((m, self.n_atoms), self.values.dtype(), self.values.device())?;
        // Padding adds 0 to atom 0.
        zeros.scatter_add(&self.indices, &self.values, 1)
    }

    /// What the codes stand for, `X D`, `[m, p]`; nothing is made dense.
    ///
    /// Cost: `2msp` FLOP.
    ///
    /// # Errors
    /// When `dictionary` is not `[n_atoms, p]` of the type and on the device of the values, or, on the CPU, an index is not below
    /// `n_atoms`.
    pub fn reconstruct(&self, dictionary: &Tensor) -> Result<Tensor> {
        self.combine("SparseCodes::reconstruct", dictionary, None)
    }

    /// What the codes leave of `signals`: `Y − X D`, `[m, p]`.
    ///
    /// Cost: `2msp` FLOP.
    ///
    /// # Errors
    /// When `signals` are not `[m, p]`, or as for [`SparseCodes::reconstruct`].
    pub fn residual(&self, signals: &Tensor, dictionary: &Tensor) -> Result<Tensor> {
        self.combine("SparseCodes::residual", dictionary, Some(signals))
    }

    fn combine(&self, op: &'static str, dictionary: &Tensor, signals: Option<&Tensor>) -> Result<Tensor> {
        let (m, s) = self.indices.dims2()?;
        let p = match dictionary.dims() {
            &[n, p] if n == self.n_atoms => p,
            shape => candle::bail!(
                "{op}: dictionary must be [{}, n_features], the atoms that the codes speak of, got {shape:?}",
                self.n_atoms
            ),
        };
        if self.values.dims() != [m, s] {
            let values = self.values.dims();
            candle::bail!("{op}: values must have the shape of indices [{m}, {s}], got {values:?}")
        }
        let (dtype, device) = (self.values.dtype(), self.values.device());
        let mut operands = vec![("dictionary", dictionary)];
        if let Some(signals) = signals {
            if signals.dims() != [m, p] {
                let got = signals.dims();
                candle::bail!("{op}: signals must be [{m}, {p}] to go with codes and dictionary, got {got:?}")
            }
            operands.push(("signals", signals));
        }
        for (what, operand) in operands {
            if operand.dtype() != dtype {
                candle::bail!("{op}: {what} must be {dtype:?} as the values, got {:?}", operand.dtype())
            }
            crate::draw::same_device(op, what, operand, device)?;
        }
        match device {
            Device::Cpu => super::cpu::combine(op, self, dictionary, signals),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => super::cuda::reconstruct(self, signals, dictionary, device),
            device => candle::bail!("{op}: no code for device {device:?}; move the codes to the CPU"),
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
