//! The choice of the form of `kernels/codes/lasso.cu` for a number of atoms.
use crate::core::limits::Limits;

/// Atoms of factors in global memory, and how many blocks of a multiprocessor have one, for the
/// last launches.
const LARGE: [(usize, usize); 2] = [(384, 2), (1024, 1)];

/// Signals of a multiprocessor that count as few: an H200 solves 1000 over 1024 learned atoms
/// sooner in the roomy form, and 2000 later.
const FEW: usize = 10;

/// A form that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// In the kernel's name.
    pub name: &'static str,
    /// Most atoms of the dictionary.
    atoms: usize,
    pub threads: usize,
    /// Blocks of a multiprocessor that its registers are made for.
    blocks: usize,
}

const fn shape(name: &'static str, atoms: usize, threads: usize, blocks: usize) -> Shape {
    Shape { name, atoms, threads, blocks }
}

const F32: [Shape; 4] = [
    shape("f32_512", 512, 128, 8),
    shape("f32_1024", 1024, 128, 4),
    shape("f32_4096", 4096, 512, 1),
    shape("f32_8192", 8192, 512, 1),
];
const F64: [Shape; 4] = [
    shape("f64_512", 512, 128, 4),
    shape("f64_1024", 1024, 256, 2),
    shape("f64_4096", 4096, 512, 1),
    shape("f64_8192", 8192, 512, 1),
];
/// Fewer blocks with more room for each, for supports that outgrow the others.
const ROOMY: [Shape; 2] = [shape("f32_1024_roomy", 1024, 256, 2), shape("f64_1024_roomy", 1024, 256, 1)];

/// One of the launches of a call; each takes the signals whose supports outgrew the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub shape: Shape,
    /// Atoms that a factor holds.
    pub capacity: usize,
    /// Most blocks.
    pub blocks: usize,
    /// Whether factors are in global memory.
    pub is_large: bool,
}

impl Stage {
    /// The launches for `m` signals, `n` atoms and numbers of `bytes` bytes, in order; none above
    /// 8192 atoms.
    pub(super) fn all(limits: Limits, [m, n]: [usize; 2], bytes: usize) -> Option<Vec<Self>> {
        let (forms, roomy) = if bytes == 8 { (F64, ROOMY[1]) } else { (F32, ROOMY[0]) };
        let first = forms.into_iter().find(|shape| n <= shape.atoms)?;
        let near = |shape: Shape| Self {
            shape,
            capacity: shape.capacity(limits, n, bytes),
            blocks: shape.blocks * limits.multiprocessors,
            is_large: false,
        };
        // With few signals the time of one counts, which more threads shorten, and a second launch
        // would begin some of them anew.
        let is_first =
            first.atoms < roomy.atoms || first.threads == roomy.threads || m > FEW * limits.multiprocessors;
        let mut stages = vec![];
        stages.extend((n > roomy.atoms || is_first).then(|| near(first)));
        stages.extend((n <= roomy.atoms).then(|| near(roomy)));
        let shape = stages.last()?.shape;
        stages.extend(LARGE.map(|(atoms, blocks)| Self {
            shape,
            capacity: n.min(atoms).next_multiple_of(4),
            blocks: blocks * limits.multiprocessors,
            is_large: true,
        }));
        // One that holds all atoms, or no more than the one before it, has none after it, or is
        // none.
        stages.dedup_by(|later, before| later.capacity <= before.capacity);
        Some(stages)
    }

    /// Shared memory of a block.
    pub(super) fn shared_bytes(self, bytes: usize) -> usize {
        self.shape.shared_bytes(self.capacity, bytes, self.is_large)
    }
}

impl Shape {
    /// Shared memory of a block for supports of `capacity` atoms: moves and sums of each warp,
    /// those of the products of eight atoms with each other, ten lists of numbers and one of atoms,
    /// and, unless it is `large`, the factor.
    fn shared_bytes(self, capacity: usize, bytes: usize, large: bool) -> usize {
        /// Of eight atoms, each with itself too.
        const PAIRS: usize = 36;
        let warps = self.threads / 32;
        let of_move = (2 * bytes + 4).next_multiple_of(16);
        let of_warps = warps * (2 * of_move + (5 + PAIRS) * bytes + 4);
        let factor = if large { 0 } else { factor_size(capacity) * bytes };
        of_warps + capacity * (10 * bytes + 4) + factor
    }

    /// Atoms whose factor leaves room for as many blocks on a multiprocessor as the registers do,
    /// at most those of `n`.
    fn capacity(self, limits: Limits, n: usize, bytes: usize) -> usize {
        /// What the driver takes of each block, and static shared memory.
        const OF_EACH: usize = 1024 + 256;
        let room = (limits.shared_bytes / self.blocks).saturating_sub(OF_EACH);
        let fits = |atoms: usize| self.shared_bytes(4 * atoms, bytes, false) <= room;
        let most = (1..n.div_ceil(4)).take_while(|&fours| fits(fours + 1)).count() + 1;
        4 * most
    }
}

/// Numbers of a factor and the right-hand side below it: panels of four columns, each from its
/// first row on.
pub(super) fn factor_size(capacity: usize) -> usize {
    let panels = capacity / 4;
    4 * panels * (capacity + 1) - 8 * panels * panels.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn a_factor_has_every_row_of_its_panels() {
        // Rows 0 to 8, the last of them the right-hand side, in panels from rows 0 and 4 on.
        assert_eq!(factor_size(8), 4 * 9 + 4 * 5);
        assert_eq!(factor_size(4), 4 * 5);
    }

    #[test]
    fn every_launch_fits_every_gpu_and_holds_larger_supports_than_the_one_before() {
        for gpu in gpus::ALL {
            for bytes in [4, 8] {
                for (m, n) in [1, 4, 5, 64, 512, 513, 1024, 3000, 4096, 8192]
                    .map(|n| [(1, n), (100_000, n)])
                    .into_iter()
                    .flatten()
                {
                    let Some(stages) = Stage::all(gpu, [m, n], bytes) else {
                        panic!("no form for {n} atoms")
                    };
                    assert!(stages[0].capacity >= n.min(32), "{gpu:?} {n} {stages:?}");
                    assert!(stages.is_sorted_by(|a, b| a.capacity < b.capacity), "{gpu:?} {n} {stages:?}");
                    for stage in stages {
                        assert!(stage.capacity.is_multiple_of(4) && stage.capacity <= n.next_multiple_of(4));
                        assert!(stage.shared_bytes(bytes) <= gpu.shared_bytes, "{gpu:?} {n} {stage:?}");
                    }
                }
                assert_eq!(Stage::all(gpu, [1, 8193], bytes), None);
            }
        }
    }
}
