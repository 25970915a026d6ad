//! The choice of the form of `kernels/contrast_step.cu` for an update.
use crate::limits::Limits;

/// Of kernels/contrast_step.cu: rows of both operands that a stage holds.
const DEPTH: usize = 32;
/// Entries that pad each of these lines.
const PAD: usize = 8;

/// A shape of tile that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "launches are on a GPU"))]
pub(super) struct Shape {
    pub name: &'static str,
    pub tile: usize,
    stages: usize,
    parts: usize,
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "launches are on a GPU"))]
impl Shape {
    /// The one for an update of `rows × cols` weights: large tiles where there are enough of them for all multiprocessors and
    /// their slices fit into shared memory.
    pub(super) fn of(limits: Limits, parts: usize, rows: usize, cols: usize) -> Self {
        let stages = if parts == 1 { 4 } else { 3 };
        let large = Self { name: "large", tile: 128, stages, parts };
        let small = Self { name: "small", tile: 64, ..large };
        match () {
            () if !(rows.is_multiple_of(8) && cols.is_multiple_of(8)) => Self { name: "odd", ..small },
            () if large.tiles(rows, cols) >= limits.multiprocessors
                && large.shared_bytes() <= limits.shared_bytes =>
            {
                large
            }
            () => small,
        }
    }

    /// The one for the weights of patches, of which each has `rows × cols`, multiples of eight: large tiles where little of them lies beyond
    /// the matrix and their slices fit into shared memory.
    pub(super) fn of_patches(limits: Limits, parts: usize, rows: usize, cols: usize) -> Self {
        let stages = if parts == 1 { 4 } else { 3 };
        let large = Self { name: "large", tile: 128, stages, parts };
        let small = Self { name: "small", tile: 64, ..large };
        let covered = |shape: &Self| shape.tiles(rows, cols) * shape.tile * shape.tile;
        let fits = large.shared_bytes() <= limits.shared_bytes;
        if fits && 10 * covered(&large) <= 11 * covered(&small) { large } else { small }
    }

    pub(super) fn tiles(&self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(self.tile) * cols.div_ceil(self.tile)
    }

    /// Slices of both operands, 16-bit numbers.
    pub(super) fn shared_bytes(&self) -> usize {
        2 * self.parts * self.stages * DEPTH * (self.tile + PAD) * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::gpus;

    #[test]
    fn every_gpu_has_the_shared_memory_of_the_form_that_it_gets() {
        for gpu in gpus::ALL {
            for parts in [1, 2] {
                for (rows, cols) in
                    [(4, 12), (64, 64), (1024, 576), (4096, 1024), (16000, 2304), (11008, 4096)]
                {
                    for shape in
                        [Shape::of(gpu, parts, rows, cols), Shape::of_patches(gpu, parts, rows, cols)]
                    {
                        let asked = shape.shared_bytes();
                        assert!(
                            asked <= gpu.shared_bytes,
                            "{gpu:?} has too little for {shape:?}: {asked} bytes"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn large_tiles_of_two_parts_are_for_gpus_that_can_hold_them() {
        let names = gpus::ALL.map(|gpu| Shape::of(gpu, 2, 16000, 2304).name);
        assert_eq!(names, ["large", "small", "small", "large", "large", "small", "small"]);
    }
}
