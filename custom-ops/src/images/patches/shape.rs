//! The choice of the form of `kernels/images/patch_units.cu` for a product.
use super::sizes::PatchDirection;
use crate::core::limits::Limits;
use crate::layers::products::shape::tile_bytes;

/// Rows of the minibatch in a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows(usize);

impl Rows {
    /// The larger tile unless more of it lies beyond the minibatch.
    pub(super) fn of(batch: usize) -> Self {
        let covered = |rows: usize| batch.div_ceil(rows) * rows;
        Self(if covered(192) <= covered(128) { 192 } else { 128 })
    }

    /// Warpgroups that multiply them, 64 each.
    pub(super) fn warpgroups(self) -> usize {
        self.0 / 64
    }
}

/// One of the shapes that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitsShape {
    /// Rows of a tile, and its columns.
    pub rows: usize,
    pub across: usize,
    x_parts: usize,
    w_parts: usize,
    transposed: bool,
}

impl UnitsShape {
    /// The one for `across` columns; none where shared memory is too small.
    pub(super) fn of(
        limits: Limits,
        Rows(rows): Rows,
        across: usize,
        x_parts: usize,
        w_parts: usize,
        direction: PatchDirection,
    ) -> Option<Self> {
        let covered = |width: usize| across.div_ceil(width) * width;
        // Two parts need the registers that broader tiles would take.
        let broad = w_parts == 1 && covered(96) <= covered(64);
        let transposed = direction == PatchDirection::Down;
        let shape = Self { rows, across: if broad { 96 } else { 64 }, x_parts, w_parts, transposed };
        (shape.shared_bytes() <= limits.shared_bytes).then_some(shape)
    }

    /// Warps of 64 rows by 32 columns.
    pub(super) fn threads(self) -> u32 {
        (self.rows / 64 * self.across) as u32
    }

    /// Shared memory of a block.
    pub(super) fn shared_bytes(self) -> usize {
        let stages = if self.w_parts == 2 { 2 } else { 3 };
        tile_bytes([self.rows, self.across], stages, [self.x_parts, self.w_parts], self.transposed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn every_gpu_has_the_shared_memory_of_some_form() {
        for gpu in gpus::ALL {
            for batch in [1, 100, 128, 192, 1000] {
                for across in [8, 64, 96, 192, 1024] {
                    for (x_parts, w_parts, direction) in [
                        (1, 1, PatchDirection::Up),
                        (1, 1, PatchDirection::Down),
                        (2, 2, PatchDirection::Up),
                        (1, 2, PatchDirection::Down),
                    ] {
                        let shape = UnitsShape::of(gpu, Rows::of(batch), across, x_parts, w_parts, direction);
                        assert!(shape.is_some(), "{gpu:?} has no form for {across} columns, {w_parts} parts");
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_cover_a_minibatch_with_little_beyond_it() {
        assert_eq!([100, 128, 192, 193, 384, 512].map(|n| Rows::of(n).0), [128, 128, 192, 128, 192, 128]);
    }
}
