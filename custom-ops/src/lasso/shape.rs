//! The choice of the form of `kernels/lasso.cu` for a number of atoms.
use crate::limits::Limits;

/// Factors in global memory: how many atoms they hold, and how many blocks of a multiprocessor have one, for the launch after the first
/// and for the last one.
const LARGE: [(usize, usize); 2] = [(384, 4), (1024, 1)];

/// A form that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Most atoms of the dictionary, in the kernel's name.
    pub atoms: usize,
    pub threads: usize,
    /// Blocks of a multiprocessor that its registers are made for.
    blocks: usize,
}

const fn shape(atoms: usize, threads: usize, blocks: usize) -> Shape {
    Shape { atoms, threads, blocks }
}

const F32: [Shape; 4] = [shape(512, 128, 8), shape(1024, 128, 5), shape(4096, 512, 1), shape(8192, 512, 1)];
const F64: [Shape; 4] = [shape(512, 128, 4), shape(1024, 256, 2), shape(4096, 512, 1), shape(8192, 512, 1)];

impl Shape {
    /// The one for `n` atoms and numbers of `bytes` bytes; none above 8192.
    pub(super) fn of(n: usize, bytes: usize) -> Option<Self> {
        let all = if bytes == 8 { F64 } else { F32 };
        all.into_iter().find(|shape| n <= shape.atoms)
    }

    /// Shared memory of a block for supports of `capacity` atoms: moves and sums of each warp, four lists of numbers and one of atoms,
    /// and, unless it is `large`, the factor.
    pub(super) fn shared_bytes(self, capacity: usize, bytes: usize, large: bool) -> usize {
        let warps = self.threads / 32;
        let of_move = (2 * bytes + 4).next_multiple_of(16);
        let of_warps = warps * (2 * of_move + 5 * bytes + 4);
        let factor = if large { 0 } else { factor_size(capacity) * bytes };
        of_warps + capacity * (4 * bytes + 4) + factor
    }

    /// Atoms whose factor leaves room for as many blocks on a multiprocessor as the registers do, at most those of `n`.
    pub(super) fn capacity(self, limits: Limits, n: usize, bytes: usize) -> usize {
        /// What the driver takes of each block, and static shared memory.
        const OF_EACH: usize = 1024 + 64;
        let room = (limits.shared_bytes / self.blocks).saturating_sub(OF_EACH);
        let fits = |atoms: usize| self.shared_bytes(4 * atoms, bytes, false) <= room;
        let most = (1..n.div_ceil(4)).take_while(|&fours| fits(fours + 1)).count() + 1;
        4 * most
    }

    /// Atoms of factors in global memory and the number of blocks, for each launch after the first.
    pub(super) fn large(limits: Limits, n: usize) -> [(usize, usize); 2] {
        LARGE.map(|(atoms, blocks)| (n.min(atoms).next_multiple_of(4), blocks * limits.multiprocessors))
    }

    /// Blocks that run at about the same time on the whole GPU.
    pub(super) fn at_once(self, limits: Limits) -> usize {
        self.blocks * limits.multiprocessors
    }
}

/// Numbers of a factor and the right-hand side below it: panels of four columns, each from its first row on.
pub(super) fn factor_size(capacity: usize) -> usize {
    let panels = capacity / 4;
    4 * panels * (capacity + 1) - 8 * panels * panels.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::gpus;

    #[test]
    fn a_factor_has_every_row_of_its_panels() {
        // Rows 0 to 8, the last of them the right-hand side, in panels from rows 0 and 4 on.
        assert_eq!(factor_size(8), 4 * 9 + 4 * 5);
        assert_eq!(factor_size(4), 4 * 5);
    }

    #[test]
    fn every_form_fits_every_gpu_and_holds_supports_of_some_size() {
        for gpu in gpus::ALL {
            for bytes in [4, 8] {
                for n in [1, 4, 5, 64, 512, 513, 1024, 3000, 4096, 8192] {
                    let Some(shape) = Shape::of(n, bytes) else { panic!("no form for {n} atoms") };
                    let capacity = shape.capacity(gpu, n, bytes);
                    assert!(capacity.is_multiple_of(4) && capacity >= n.min(32), "{gpu:?} {n} {capacity}");
                    assert!(capacity <= n.next_multiple_of(4));
                    assert!(shape.shared_bytes(capacity, bytes, false) <= gpu.shared_bytes);
                    for (large, _) in Shape::large(gpu, n) {
                        assert!(shape.shared_bytes(large, bytes, true) <= gpu.shared_bytes);
                    }
                }
                assert_eq!(Shape::of(8193, bytes), None);
            }
        }
    }
}
