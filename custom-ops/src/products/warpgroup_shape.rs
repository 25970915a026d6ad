//! The choice of the form of `kernels/sm_90a/product_units.cu` for a product.
use crate::limits::Limits;

/// Most bytes of the ring of slices, and most places in it.
const RING: (usize, usize) = (216 * 1024, 8);

/// A form: warpgroups of a block, columns of its tile, and blocks that share a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub warpgroups: usize,
    pub columns: usize,
    pub cluster: usize,
}

/// What an H200 does in its place, for the choice alone, fitted to times of many products: nanoseconds, and bytes and FLOP a nanosecond.
mod speed {
    /// Copies to a multiprocessor, and products there.
    pub const COPIES: f64 = 55.;
    pub const PRODUCTS: f64 = 5500.;
    /// Of a block until its first slice is there and from its last sum to its end.
    pub const BLOCK: f64 = 2500.;
    /// Of a cluster until all have their sums, and then sums of others.
    pub const EXCHANGE: f64 = 500.;
    pub const SUMS: f64 = 20.;
    /// Units that a block makes of sums of two parts; those of one are quick.
    pub const UNITS: f64 = 2.7;
}

impl Shape {
    /// The fastest one for a product of `m × k` by `k × n` entries, both in so many parts, by a model of the GPU; none where the GPU has too
    /// little shared memory.
    pub(super) fn of(limits: Limits, [m, n, k]: [usize; 3], parts: [usize; 2], turned: bool) -> Option<Self> {
        let widths: &[usize] = match (turned, parts) {
            (false, [_, 1]) => &[64, 96, 128, 192],
            (true, [_, 1]) => &[64, 128, 192],
            (false, _) => &[64, 96, 128],
            (true, _) => &[64, 128],
        };
        let shapes = [2, 3].into_iter().flat_map(|warpgroups| {
            let each =
                move |cluster| widths.iter().map(move |&columns| Self { warpgroups, columns, cluster });
            (1..=8).flat_map(each)
        });
        // Half a kilobyte is for barriers.
        let fits = |shape: &Self| {
            let slices = k.div_ceil(Self::depth(parts));
            shape.cluster <= slices && shape.shared_bytes(parts) + 512 <= limits.shared_bytes
        };
        let time = |shape: &Self| shape.nanoseconds(limits, [m, n, k], parts);
        shapes.filter(fits).min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    fn nanoseconds(self, limits: Limits, [m, n, k]: [usize; 3], parts: [usize; 2]) -> f64 {
        let [blocks, down, _] = self.grid(m, n);
        let clusters = blocks / self.cluster * down;
        // Clusters lie within groups of 16 multiprocessors, of which some are larger and one may be smaller.
        let at_once = match self.cluster {
            1 => limits.multiprocessors,
            2 => limits.multiprocessors / 2,
            size => (limits.multiprocessors / 16 * (16 / size)).saturating_sub(1),
        };
        let waves = clusters.div_ceil(at_once.max(1));
        let bytes = self.slice_bytes(parts) as f64;
        // The product of both second parts is left out.
        let flop = (2 * Self::depth(parts) * self.rows() * self.columns * (parts[0] + parts[1] - 1)) as f64;
        let of_slice = (bytes / speed::COPIES).max(flop / speed::PRODUCTS);
        let slices = k.div_ceil(Self::depth(parts)).div_ceil(self.cluster) as f64;
        let exchange = match self.cluster {
            1 => 0.,
            _ => speed::EXCHANGE + self.tile_bytes() as f64 / speed::SUMS,
        };
        let units = match parts {
            [_, 1] => 0.,
            _ => (self.rows() * self.columns / self.cluster) as f64 / speed::UNITS,
        };
        waves as f64 * (slices * of_slice + speed::BLOCK + exchange + units)
    }

    /// Rows of a tile.
    pub(crate) fn rows(self) -> usize {
        64 * self.warpgroups
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(super) fn grid(self, m: usize, n: usize) -> [usize; 3] {
        [self.cluster * n.div_ceil(self.columns), m.div_ceil(self.rows()), 1]
    }

    /// Entries of the depth of a slice: fewer of operands that both have two parts.
    pub(super) fn depth([a_parts, _]: [usize; 2]) -> usize {
        if a_parts == 2 { 32 } else { 64 }
    }

    /// Bytes of a line of a block in shared memory.
    pub(crate) fn line_bytes(parts: [usize; 2]) -> usize {
        2 * Self::depth(parts)
    }

    fn slice_bytes(self, parts: [usize; 2]) -> usize {
        (parts[0] * self.rows() + parts[1] * self.columns) * Self::line_bytes(parts)
    }

    pub(crate) fn threads(self) -> u32 {
        (128 * (self.warpgroups + 1)) as u32
    }

    /// Shared memory of a block: the ring or the tile of sums in its place, and room to begin it on a kilobyte.
    pub(crate) fn shared_bytes(self, parts: [usize; 2]) -> usize {
        let slice = self.slice_bytes(parts);
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
                for (turned, parts) in [(false, [1, 1]), (true, [1, 1]), (false, [2, 2]), (true, [1, 2])] {
                    let shape = Shape::of(gpu, [m, n, k], parts, turned)
                        .unwrap_or_else(|| panic!("none for {m}x{n}x{k}"));
                    assert!(shape.shared_bytes(parts) + 512 <= gpu.shared_bytes, "{shape:?}");
                    let slices = k.div_ceil(Shape::depth(parts));
                    assert!(shape.cluster <= slices, "{shape:?}: a block without a slice");
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
        for (m, n, k, turned, parts) in [
            (192, 16000, 2304, false, [1, 1]),
            (192, 2304, 16000, true, [1, 1]),
            (192, 11008, 4096, false, [1, 1]),
            (192, 16000, 2304, false, [2, 2]),
            (192, 2304, 16000, true, [1, 2]),
        ] {
            let shape = Shape::of(h200, [m, n, k], parts, turned).unwrap_or_else(|| panic!("none"));
            let [across, down, _] = shape.grid(m, n);
            assert!((64..=132).contains(&(across * down)), "{shape:?}: {across} x {down} blocks");
        }
    }
}
