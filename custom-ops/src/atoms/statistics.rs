//! The statistics of sparse codes that a least-squares dictionary is made of.
use super::{BLOCK, check_codes, check_matrix, slice_mut, weighted_sum};
use crate::host::Operand;
use crate::{AtomUses, SparseCodes};
use candle::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor, WithDType};
use rayon::prelude::*;

const GRAM: &str = "codes_gram_";
const SIGNALS: &str = "codes_signals_";

/// `a ← βa + XᵀX`, `[n_atoms, n_atoms]`, from the lists of the signals that use each atom.
///
/// `a` is contiguous, f32 or f64 as the codes are; with `beta` 0 what it held is not looked at. Long lists are summed a few
/// hundred entries at a time, so that none is lost in the sum of those before. Cost: `2s` FLOP a use.
///
/// # Errors
/// When shapes, types or devices do not fit; on a GPU, when a row of `a` does not fit into shared memory (n above 25,000 in f64).
pub fn codes_gram_(a: &Tensor, beta: f64, codes: &SparseCodes, uses: &AtomUses) -> Result<()> {
    check_codes(GRAM, codes, a)?;
    check_matrix(GRAM, "a", a, [codes.n_atoms; 2], &codes.values)?;
    uses.check(GRAM, codes)?;
    let codes = contiguous(codes)?;
    a.inplace_op1(&Statistics::new(GRAM, &codes, uses, None, beta)?)
}

/// `b ← βb + XᵀY`, `[n_atoms, n_features]`, from the lists of the signals that use each atom.
///
/// `b` and `signals`, `[n_samples, n_features]`, are contiguous, f32 or f64 as the codes are; with `beta` 0 what `b` held is not
/// looked at. Cost: `2p` FLOP a use.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn codes_signals_(
    b: &Tensor,
    beta: f64,
    codes: &SparseCodes,
    uses: &AtomUses,
    signals: &Tensor,
) -> Result<()> {
    let (m, _) = check_codes(SIGNALS, codes, b)?;
    let p = match signals.dims() {
        &[_, p] if p > 0 => p,
        shape => candle::bail!("{SIGNALS}: signals must be [{m}, n_features], got shape {shape:?}"),
    };
    check_matrix(SIGNALS, "signals", signals, [m, p], &codes.values)?;
    check_matrix(SIGNALS, "b", b, [codes.n_atoms, p], &codes.values)?;
    uses.check(SIGNALS, codes)?;
    let codes = contiguous(codes)?;
    b.inplace_op1(&Statistics::new(SIGNALS, &codes, uses, Some(signals), beta)?)
}

fn contiguous(codes: &SparseCodes) -> Result<SparseCodes> {
    Ok(SparseCodes {
        indices: codes.indices.contiguous()?,
        values: codes.values.contiguous()?,
        count: codes.count.contiguous()?,
        n_atoms: codes.n_atoms,
    })
}

/// One of the two; operands were checked.
pub(super) struct Statistics<'a> {
    pub op: &'static str,
    pub codes: &'a SparseCodes,
    pub offsets: Tensor,
    pub entries: Tensor,
    /// For `XᵀY`.
    pub signals: Option<&'a Tensor>,
    pub beta: f64,
}

impl<'a> Statistics<'a> {
    fn new(
        op: &'static str,
        codes: &'a SparseCodes,
        uses: &AtomUses,
        signals: Option<&'a Tensor>,
        beta: f64,
    ) -> Result<Self> {
        if !beta.is_finite() {
            candle::bail!("{op}: beta must be finite, got {beta}")
        }
        Ok(Self { op, codes, offsets: uses.offsets()?, entries: uses.entries()?, signals, beta })
    }
}

impl InplaceOp1 for Statistics<'_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, sums: &mut CpuStorage, layout: &Layout) -> Result<()> {
        match self.codes.values.dtype() {
            DType::F32 => self.cpu::<f32>(slice_mut(sums, layout, self.op)?),
            _ => self.cpu::<f64>(slice_mut(sums, layout, self.op)?),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, sums: &mut candle::CudaStorage, layout: &Layout) -> Result<()> {
        match self.codes.values.dtype() {
            DType::F32 => self.cuda::<f32>("f32", sums, layout),
            _ => self.cuda::<f64>("f64", sums, layout),
        }
    }
}

impl Statistics<'_> {
    fn cpu<T: WithDType>(&self, sums: &mut [T]) -> Result<()> {
        let (op, s) = (self.op, self.codes.width());
        let operands =
            [&self.offsets, &self.entries, &self.codes.indices, &self.codes.values, &self.codes.count]
                .map(Operand::new);
        let [offsets, entries, indices, values, count] = &operands;
        let (offsets, entries) = (offsets.elements::<u32>(op)?, entries.elements::<u32>(op)?);
        let (indices, values) = (indices.elements::<u32>(op)?, values.elements::<T>(op)?);
        let count = count.elements::<u32>(op)?;
        let signals = self.signals.map(Operand::new);
        let signals = signals.as_ref().map(|signals| signals.elements::<T>(op)).transpose()?;
        let beta = T::from_f64(self.beta);
        sums.par_chunks_mut(sums.len() / self.codes.n_atoms).enumerate().with_max_len(16).for_each(
            |(j, row)| {
                match self.beta == 0. {
                    true => row.fill(T::zero()),
                    false => row.iter_mut().for_each(|sum| *sum *= beta),
                }
                let list = &entries[offsets[j] as usize..offsets[j + 1] as usize];
                let Some(signals) = signals else {
                    let add = |list: &[u32], sums: &mut [T]| {
                        for &e in list {
                            let (x, code) = (values[e as usize], e as usize / s * s);
                            let used = code..code + (count[code / s] as usize).min(s);
                            for (&atom, &other) in indices[used.clone()].iter().zip(&values[used]) {
                                sums[atom as usize] += x * other;
                            }
                        }
                    };
                    if list.len() <= BLOCK {
                        return add(list, row);
                    }
                    let mut sum = vec![T::zero(); row.len()];
                    for list in list.chunks(BLOCK) {
                        add(list, &mut sum);
                        for (row, sum) in row.iter_mut().zip(&mut sum) {
                            *row += std::mem::replace(sum, T::zero());
                        }
                    }
                    return;
                };
                let mut sum = vec![T::zero(); row.len()];
                let rows: Vec<u32> = list.iter().map(|&e| e / s as u32).collect();
                let x: Vec<T> = list.iter().map(|&e| values[e as usize]).collect();
                weighted_sum(signals, &rows, &x, &mut sum);
                row.iter_mut().zip(sum).for_each(|(row, sum)| *row += sum);
            },
        );
        Ok(())
    }
}
