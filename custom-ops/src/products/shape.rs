//! The choice of the form of `kernels/product.cuh` for a product.
use crate::limits::Limits;

/// Of kernels/product.cuh.
const DEPTH: usize = 32;
const PAD: usize = 8;
/// Terms above which a sum is worth sharing among eight blocks though they do not all run at once.
const LONG: usize = 4096;

/// One of the shapes that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "launches are on a GPU"))]
pub(super) struct Shape {
    /// Groups of 64 rows of a tile, its columns, and the blocks of its cluster.
    pub wm: usize,
    pub tn: usize,
    pub cluster: usize,
    stages: usize,
}

/// Whether every product of numbers in two parts has a form on this GPU.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "launches are on a GPU"))]
pub(super) fn fuse(limits: Limits) -> bool {
    limits.has_clusters() && ALL.iter().all(|shape| shape.shared_bytes(2, false) <= limits.shared_bytes)
}

const fn shape(wm: usize, tn: usize, cluster: usize, stages: usize) -> Shape {
    Shape { wm, tn, cluster, stages }
}

/// All of them: for short sums of many tiles, for fewer tiles, and for few.
const ALL: [Shape; 5] =
    [shape(3, 128, 1, 3), shape(3, 64, 2, 4), shape(2, 64, 2, 4), shape(3, 64, 8, 4), shape(2, 64, 8, 4)];

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "launches are on a GPU"))]
impl Shape {
    /// The one for a product of `m × k` by `k × n`.
    pub(super) fn of(limits: Limits, m: usize, n: usize, k: usize) -> Self {
        // Blocks that run at about the same time.
        let at_once = limits.multiprocessors * 12 / 11;
        let rows = |wm: usize| m.div_ceil(64 * wm) * 64 * wm;
        let wm = if rows(3) <= rows(2) { 3 } else { 2 };
        let tiles = n.div_ceil(64) * m.div_ceil(64 * wm);
        match () {
            // Long sums are shared among eight blocks though these do not all run at once.
            () if 8 * tiles <= at_once || k > LONG && tiles <= at_once => shape(wm, 64, 8, 4),
            () if 2 * tiles <= at_once => shape(wm, 64, 2, 4),
            () => shape(3, 128, 1, 3),
        }
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(super) fn grid(self, m: usize, n: usize) -> [usize; 2] {
        [self.cluster * n.div_ceil(self.tn), m.div_ceil(64 * self.wm)]
    }

    pub(super) fn threads(self) -> u32 {
        (self.wm * self.tn) as u32
    }

    /// Slices of both operands in 16-bit numbers, or the tile of sums in f32, which takes their place.
    pub(super) fn shared_bytes(self, a_parts: usize, turned: bool) -> usize {
        let tm = 64 * self.wm;
        let a = tm * (DEPTH + PAD);
        let b = if turned { DEPTH * (self.tn + PAD) } else { self.tn * (DEPTH + PAD) };
        let slices = self.stages * (a_parts * a + 2 * b) * 2;
        slices.max(tm * (self.tn + 4) * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::gpus;

    #[test]
    fn a_gpu_that_fuses_has_the_shared_memory_of_every_form() {
        for gpu in gpus::ALL.into_iter().filter(|&gpu| fuse(gpu)) {
            for (m, n, k) in
                [(192, 1024, 576), (100, 500, 784), (192, 16000, 2304), (20, 64, 9000), (1, 4, 4)]
            {
                for (a_parts, turned) in [(2, false), (1, true)] {
                    let shape = Shape::of(gpu, m, n, k);
                    assert!(ALL.contains(&shape), "{shape:?} was not compiled");
                    assert!(shape.shared_bytes(a_parts, turned) <= gpu.shared_bytes, "{gpu:?}, {shape:?}");
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
