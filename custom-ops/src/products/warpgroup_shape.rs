//! The choice of the form of `kernels/sm_90a/product_units.cu` for a product.
use crate::limits::Limits;

/// Bytes of a line of a block in shared memory.
const BLOCK_LINE: usize = 128;
/// Bytes of the ring of slices, about, and most places in it.
const RING: (usize, usize) = (200 * 1024, 8);

/// A form: warpgroups of a block, columns of its tile, and blocks that share a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub warpgroups: usize,
    pub columns: usize,
    pub cluster: usize,
}

/// What an H200 does in its place, for the choice alone, fitted to times of 16 products: nanoseconds, and bytes a nanosecond.
mod speed {
    /// Copies to a multiprocessor.
    pub const COPIES: f64 = 55.;
    /// Of a block until its first slice is there and from its last sum to its end.
    pub const BLOCK: f64 = 2500.;
    /// Of a cluster until all have their sums, and then sums of others.
    pub const EXCHANGE: f64 = 500.;
    pub const SUMS: f64 = 20.;
}

impl Shape {
    /// Entries of the depth of a slice.
    pub(super) const DEPTH: usize = 64;

    /// The fastest one for a product of `m × k` by `k × n` entries by a model of the GPU; none where the GPU has too little shared memory.
    pub(super) fn of(limits: Limits, m: usize, n: usize, k: usize, turned: bool) -> Option<Self> {
        let widths: &[usize] = if turned { &[64, 128, 192] } else { &[64, 96, 128, 192] };
        let slices = k.div_ceil(Self::DEPTH);
        let shapes = [2, 3].into_iter().flat_map(|warpgroups| {
            let each =
                move |cluster| widths.iter().map(move |&columns| Self { warpgroups, columns, cluster });
            (1..=8).flat_map(each)
        });
        // Half a kilobyte is for barriers.
        let fits =
            |shape: &Self| shape.cluster <= slices && shape.shared_bytes() + 512 <= limits.shared_bytes;
        let time = |shape: &Self| shape.nanoseconds(limits, m, n, slices);
        shapes.filter(fits).min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    fn nanoseconds(self, limits: Limits, m: usize, n: usize, slices: usize) -> f64 {
        let [blocks, down, _] = self.grid(m, n);
        let clusters = blocks / self.cluster * down;
        // Clusters lie within groups of 16 multiprocessors, of which the last may be larger.
        let at_once = match self.cluster {
            1 => limits.multiprocessors,
            size => limits.multiprocessors / 16 * (16 / size),
        };
        let waves = clusters.div_ceil(at_once.max(1));
        let bytes = ((self.rows() + self.columns) * BLOCK_LINE) as f64;
        let of_slices = slices.div_ceil(self.cluster) as f64 * bytes / speed::COPIES;
        let exchange = match self.cluster {
            1 => 0.,
            _ => speed::EXCHANGE + self.tile_bytes() as f64 / speed::SUMS,
        };
        waves as f64 * (of_slices + speed::BLOCK + exchange)
    }

    /// Rows of a tile.
    pub(super) fn rows(self) -> usize {
        64 * self.warpgroups
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(super) fn grid(self, m: usize, n: usize) -> [usize; 3] {
        [self.cluster * n.div_ceil(self.columns), m.div_ceil(self.rows()), 1]
    }

    pub(super) fn threads(self) -> u32 {
        (128 * (self.warpgroups + 1)) as u32
    }

    /// Shared memory of a block: the ring or the tile of sums in its place, and room to begin it on a kilobyte.
    pub(super) fn shared_bytes(self) -> usize {
        let slice = (self.rows() + self.columns) * BLOCK_LINE;
        ((RING.0 / slice).min(RING.1) * slice).max(self.tile_bytes()) + 1024
    }

    /// The tile of sums, with four numbers more in each line.
    fn tile_bytes(self) -> usize {
        self.rows() * (self.columns + 4) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::gpus;

    #[test]
    fn a_form_is_there_for_every_product_on_a_gpu_that_has_them() {
        for gpu in gpus::ALL.into_iter().filter(Limits::has_warpgroup_products) {
            for (m, n, k) in [
                (192, 1024, 576),
                (100, 500, 784),
                (192, 16000, 2304),
                (20, 64, 9000),
                (1, 4, 8),
                (1000, 784, 500),
            ] {
                for turned in [false, true] {
                    let shape =
                        Shape::of(gpu, m, n, k, turned).unwrap_or_else(|| panic!("none for {m}x{n}x{k}"));
                    assert!(shape.shared_bytes() + 512 <= gpu.shared_bytes, "{shape:?}");
                    assert!(shape.cluster <= k.div_ceil(Shape::DEPTH), "{shape:?}: a block without a slice");
                    assert!(!turned || shape.columns.is_multiple_of(64), "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn only_capability_9_0_has_them() {
        assert_eq!(
            gpus::ALL.map(|gpu| gpu.has_warpgroup_products()),
            [false, false, false, true, false, false, false]
        );
    }

    #[test]
    fn one_wave_of_blocks_takes_a_large_layer() {
        let h200 = gpus::ALL[3];
        for (m, n, k, turned) in
            [(192, 16000, 2304, false), (192, 2304, 16000, true), (192, 11008, 4096, false)]
        {
            let shape = Shape::of(h200, m, n, k, turned).unwrap_or_else(|| panic!("none"));
            let [across, down, _] = shape.grid(m, n);
            assert!((64..=132).contains(&(across * down)), "{shape:?}: {across} x {down} blocks");
        }
    }
}
