//! The signals that use each atom: sparse codes, sorted by atom.
use super::check_codes;
use crate::arrays::sort_by_key::{Sort, SortedKeys};
use crate::codes::SparseCodes;
use candle::{Result, Tensor};

const OP: &str = "AtomUses::of";

/// For each atom, the places in the codes where its index occurs, in ascending order.
///
/// Place `i · s + k` is entry `k` of signal `i`. Atom `j` has
/// `entries[offsets[j]..offsets[j + 1]]`. The stable counting sort of
/// [`sort_by_key`](crate::arrays::sort_by_key()) makes the lists on the codes' device; the same
/// codes give the same lists on every device.
#[derive(Debug, Clone)]
pub struct AtomUses {
    pub(super) offsets: Tensor,
    pub(super) entries: Tensor,
    pub(super) n_atoms: usize,
    n_samples: usize,
    width: usize,
}

impl AtomUses {
    /// Sorts the entries of `codes` by atom.
    ///
    /// Cost: one [`sort_by_key`](crate::arrays::sort_by_key()) of `m · s` keys below `n_atoms`.
    ///
    /// # Errors
    /// When the tensors of `codes` do not fit each other, there are 2³² entries or more, a step is
    /// being recorded, or, on the CPU, an index is not below `n_atoms` (a GPU skips such entries).
    pub fn of(codes: &SparseCodes) -> Result<Self> {
        let (codes, [n_samples, width]) = check_codes(OP, codes, codes.values.dtype())?;
        let n_atoms = codes.n_atoms;
        let keys = codes.indices.flatten_all()?;
        let sort = Sort { op: OP, n_keys: n_atoms, rows: Some((&codes.count, width)) };
        let SortedKeys { offsets, order } = sort.run(&keys)?;
        Ok(Self { offsets, entries: order, n_atoms, n_samples, width })
    }

    /// Start of each atom's list, and the end of the last list, u32 `[n_atoms + 1]`.
    pub fn offsets(&self) -> &Tensor {
        &self.offsets
    }

    /// The lists, one after the other, u32 `[n_samples · width]`; entries beyond the last list are
    /// 0.
    pub fn entries(&self) -> &Tensor {
        &self.entries
    }

    /// The number of signals that use each atom, read back from the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn counts(&self) -> Result<Vec<u32>> {
        let offsets = self.offsets.to_vec1::<u32>()?;
        Ok(offsets.windows(2).map(|o| o[1] - o[0]).collect())
    }

    /// That the lists are those of codes of this shape.
    pub(in crate::codes) fn check(&self, op: &str, codes: &SparseCodes) -> Result<()> {
        if codes.indices.dims() != [self.n_samples, self.width] || codes.n_atoms != self.n_atoms {
            candle::bail!(
                "{op}: uses must be those of the codes, of shape [{}, {}] over {} atoms, got codes {:?} over {}",
                self.n_samples,
                self.width,
                self.n_atoms,
                codes.indices.dims(),
                codes.n_atoms
            )
        }
        Ok(())
    }
}
