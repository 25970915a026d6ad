//! The choice of the form of `kernels/layers/product.cuh` for a product.
use crate::core::limits::Limits;

/// Of kernels/layers/product.cuh.
const DEPTH: usize = 32;
const PAD: usize = 8;
/// Terms above which a sum is worth sharing among eight blocks though they do not all run at once.
const LONG: usize = 4096;

/// One of the shapes that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows of a tile, its columns, and the blocks of its cluster.
    pub tm: usize,
    pub tn: usize,
    pub cluster: usize,
    stages: usize,
}

/// Whether every product of numbers in two parts has a form on this GPU.
pub(super) fn fuse(limits: Limits) -> bool {
    limits.has_clusters() && ALL.iter().all(|shape| shape.shared_bytes(2, false) <= limits.shared_bytes)
}

const fn shape(tm: usize, tn: usize, cluster: usize, stages: usize) -> Shape {
    Shape { tm, tn, cluster, stages }
}

/// All of them, from sums that few tiles share to many tiles.
const ALL: [Shape; 8] = [
    shape(64, 64, 8, 4),
    shape(128, 64, 8, 3),
    shape(192, 64, 8, 2),
    shape(128, 64, 4, 3),
    shape(192, 64, 4, 2),
    shape(128, 64, 2, 4),
    shape(192, 64, 2, 4),
    shape(192, 128, 1, 3),
];

impl Shape {
    /// The one for a product of `m × k` by `k × n`: the largest cluster with which all blocks run
    /// at once.
    pub(super) fn of(limits: Limits, m: usize, n: usize, k: usize) -> Self {
        // Blocks that run at about the same time.
        let at_once = limits.multiprocessors * 12 / 11;
        let rows = |tm: usize| m.div_ceil(tm) * tm;
        let tm = if rows(192) <= rows(128) { 192 } else { 128 };
        let stages = if tm == 192 { 2 } else { 3 };
        let tiles = |tm: usize| n.div_ceil(64) * m.div_ceil(tm);
        match () {
            () if 8 * tiles(64) <= at_once => shape(64, 64, 8, 4),
            // Long sums are shared among eight blocks though these do not all run at once.
            () if 8 * tiles(tm) <= at_once || k > LONG && tiles(tm) <= at_once => shape(tm, 64, 8, stages),
            () if 4 * tiles(tm) <= at_once => shape(tm, 64, 4, stages),
            () if 2 * tiles(tm) <= at_once => shape(tm, 64, 2, 4),
            () => shape(192, 128, 1, 3),
        }
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(super) fn grid(self, m: usize, n: usize) -> [usize; 2] {
        [self.cluster * n.div_ceil(self.tn), m.div_ceil(self.tm)]
    }

    pub(super) fn threads(self) -> u32 {
        (self.tm.div_ceil(64).max(2) * self.tn) as u32
    }

    /// Shared memory of a block; `b` has two parts.
    pub(super) fn shared_bytes(self, a_parts: usize, transposed: bool) -> usize {
        tile_bytes([self.tm, self.tn], self.stages, [a_parts, 2], transposed)
    }
}

/// Shared memory of a block of kernels/layers/product.cuh with tiles of `tm` by `tn`: k-blocks of
/// both operands in 16-bit numbers of so many parts, or the tile of sums in f32, which takes their
/// place.
pub(crate) fn tile_bytes(
    [tm, tn]: [usize; 2],
    stages: usize,
    [a_parts, b_parts]: [usize; 2],
    transposed: bool,
) -> usize {
    let a = tm * (DEPTH + PAD);
    let b = if transposed { DEPTH * (tn + PAD) } else { tn * (DEPTH + PAD) };
    let k_blocks = stages * (a_parts * a + b_parts * b) * 2;
    k_blocks.max(tm * (tn + 4) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn a_gpu_that_fuses_has_the_shared_memory_of_every_form() {
        for gpu in gpus::ALL.into_iter().filter(|&gpu| fuse(gpu)) {
            for (m, n, k) in [
                (192, 1024, 576),
                (100, 500, 784),
                (192, 16000, 2304),
                (512, 500, 784),
                (20, 64, 9000),
                (1, 4, 4),
            ] {
                for (a_parts, transposed) in [(2, false), (1, true)] {
                    let shape = Shape::of(gpu, m, n, k);
                    assert!(ALL.contains(&shape), "{shape:?} was not compiled");
                    assert!(
                        shape.shared_bytes(a_parts, transposed) <= gpu.shared_bytes,
                        "{gpu:?}, {shape:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn two_parts_fuse_on_data_centre_gpus_from_hopper_on() {
        // 8.0, 8.6 and 8.9 have no clusters; 12.0 has 99 KiB, too little for the tiles.
        assert_eq!(gpus::ALL.map(fuse), [false, false, false, true, true, false, false]);
    }
}
