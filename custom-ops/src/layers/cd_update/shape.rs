//! The choice of the form of `kernels/layers/cd_update.cu` for an update.
use crate::core::limits::Limits;

/// Entries of 16 bits that kernels copy at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunk {
    Eight,
    Four,
    /// Rows or arrays begin anywhere: each thread reads what it needs by itself.
    One,
}

impl Chunk {
    /// The largest of which lines are multiples, where arrays of 16-bit numbers (`narrow`) and of
    /// f32 (`wide`) begin on as many, those of f32 on 16 bytes. All are in entries.
    pub(super) fn of(lines: &[usize], narrow: &[usize], wide: &[usize]) -> Self {
        let whole = |n: usize| lines.iter().chain(narrow).all(|at| at.is_multiple_of(n));
        match () {
            () if !wide.iter().all(|at| at.is_multiple_of(4)) => Self::One,
            () if whole(8) => Self::Eight,
            () if whole(4) => Self::Four,
            () => Self::One,
        }
    }
}

/// Of kernels/layers/cd_update.cu: rows of both operands that a stage holds.
const DEPTH: usize = 32;
/// Entries that pad each of these lines.
const PAD: usize = 8;

/// A shape of tile that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub name: &'static str,
    pub tile: (usize, usize),
    stages: usize,
    parts: usize,
}

impl Shape {
    fn new(name: &'static str, tile: (usize, usize), parts: usize) -> Self {
        Self { name, tile, stages: if parts == 1 { 4 } else { 3 }, parts }
    }

    /// The one for an update of `rows × cols` weights: large tiles where there are enough of them
    /// for all multiprocessors and their k-blocks fit into shared memory. Of two parts more
    /// k-blocks are in flight where two blocks of a multiprocessor have room for them.
    pub(super) fn of(limits: Limits, parts: usize, rows: usize, cols: usize, chunk: Chunk) -> Self {
        let large = Self::new("large", (128, 128), parts);
        let small = Self::new("small", (64, 64), parts);
        let deep = Self { name: "deep", stages: 6, ..small };
        match () {
            () if chunk != Chunk::Eight => Self { name: "odd", ..small },
            () if large.tiles(rows, cols) >= limits.multiprocessors
                && large.shared_bytes() <= limits.shared_bytes =>
            {
                large
            }
            () if parts == 2 && 2 * deep.shared_bytes() <= limits.shared_bytes => deep,
            () => small,
        }
    }

    /// The one for the weights of patches, of which each has `rows × cols`, multiples of eight:
    /// tiles of which little lies beyond the matrix, the largest of these, if their k-blocks fit
    /// into shared memory.
    pub(super) fn of_patches(limits: Limits, parts: usize, rows: usize, cols: usize) -> Self {
        let small = Self::new("small", (64, 64), parts);
        let covered = |shape: &Self| shape.tiles(rows, cols) * shape.tile.0 * shape.tile.1;
        let fits = |shape: &Self| {
            shape.shared_bytes() <= limits.shared_bytes && 100 * covered(shape) <= 115 * covered(&small)
        };
        let others = [Self::new("large", (128, 128), parts), Self::new("high", (192, 64), parts)];
        others.into_iter().find(fits).unwrap_or(small)
    }

    pub(super) fn tiles(&self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(self.tile.0) * cols.div_ceil(self.tile.1)
    }

    /// Slices of both operands, 16-bit numbers.
    pub(super) fn shared_bytes(&self) -> usize {
        2 * self.parts * self.stages * DEPTH * (self.tile.0 + self.tile.1 + 2 * PAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn every_gpu_has_the_shared_memory_of_the_form_that_it_gets() {
        for gpu in gpus::ALL {
            for parts in [1, 2] {
                for (rows, cols) in
                    [(4, 12), (64, 64), (1024, 576), (4096, 1024), (16000, 2304), (11008, 4096)]
                {
                    for shape in [
                        Shape::of(gpu, parts, rows, cols, Chunk::Eight),
                        Shape::of(gpu, parts, rows, cols, Chunk::Four),
                        Shape::of_patches(gpu, parts, rows, cols),
                    ] {
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
    fn as_many_entries_are_copied_at_once_as_lines_and_arrays_begin_on() {
        // 25 rows of 100 units: the second minibatch, and the second plane of the first, begin
        // 2,500 entries on.
        assert_eq!(Chunk::of(&[100, 784], &[0, 2500], &[0]), Chunk::Four);
        assert_eq!(Chunk::of(&[104, 784], &[0, 16], &[0]), Chunk::Eight);
        assert_eq!(Chunk::of(&[104, 784], &[0, 4], &[0]), Chunk::Four);
        assert_eq!(Chunk::of(&[104, 784], &[0, 16], &[4]), Chunk::Eight);
        // Any place and any size is for some kernel.
        for (lines, narrow, wide) in
            [([101, 784], [0, 0], 0), ([104, 784], [2, 0], 0), ([104, 784], [0, 8], 2)]
        {
            assert_eq!(Chunk::of(&lines, &narrow, &[wide]), Chunk::One, "{lines:?} {narrow:?} {wide}");
        }
    }

    #[test]
    fn large_tiles_of_two_parts_are_for_gpus_that_can_hold_them() {
        let names = gpus::ALL.map(|gpu| Shape::of(gpu, 2, 16000, 2304, Chunk::Eight).name);
        assert_eq!(names, ["large", "small", "small", "large", "large", "small", "small"]);
    }

    #[test]
    fn many_k_blocks_of_two_parts_are_in_flight_where_there_is_room() {
        let names = gpus::ALL.map(|gpu| Shape::of(gpu, 2, 504, 784, Chunk::Eight).name);
        assert_eq!(names, ["small", "small", "small", "deep", "deep", "small", "small"]);
    }

    #[test]
    fn tiles_of_patches_are_those_that_cover_them() {
        let h200 = gpus::ALL[3];
        let names = [(192, 576), (256, 576), (128, 4096), (512, 2048), (24, 48)]
            .map(|(rows, cols)| Shape::of_patches(h200, 1, rows, cols).name);
        assert_eq!(names, ["high", "large", "large", "large", "small"]);
    }
}
