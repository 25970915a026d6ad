//! The choice of the form of `kernels/layers/sm_90a/product_tile.cuh` for a product.
use crate::core::limits::Limits;

/// Most bytes of the ring of k-blocks, and most places in it.
const RING: (usize, usize) = (216 * 1024, 8);
/// For up to so many rows a tile may be of one warpgroup; of more, two share what they read.
const FEW_ROWS: usize = 128;

/// A form: warpgroups of a block, columns of its tile, and blocks that share a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub warpgroups: usize,
    pub columns: usize,
    pub cluster: usize,
}

/// What kernels of one kind were compiled for, and how fast they finish a tile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forms {
    /// Warpgroups and columns.
    tiles: &'static [(usize, usize)],
    /// Entries that two warpgroups finish in a nanosecond; 0 where that takes no time.
    finished: f64,
}

/// Of numbers in one part, which the hardware's functions finish.
const ONE_PART: Forms = Forms {
    tiles: &[(2, 64), (2, 128), (2, 192), (2, 256), (3, 64), (3, 128), (3, 192), (4, 128)],
    finished: 0.,
};

impl Forms {
    /// Those of `kernels/layers/sm_90a/product_units.cu`, by the parts of both operands and whether
    /// `b` is row-major. In two parts up from numbers, down from states of 0 and 1, which have one.
    pub(super) fn of_units(parts: [usize; 2], transposed: bool) -> Option<Self> {
        let of_two = |tiles| Some(Self { tiles, finished: 2.7 });
        match (parts, transposed) {
            ([1, 1], false) => Some(Self {
                tiles: &[
                    (2, 64),
                    (2, 96),
                    (2, 128),
                    (2, 192),
                    (2, 256),
                    (3, 64),
                    (3, 96),
                    (3, 128),
                    (3, 192),
                    (4, 128),
                ],
                ..ONE_PART
            }),
            ([1, 1], true) => Some(ONE_PART),
            ([2, 2], false) => {
                of_two(&[(1, 64), (1, 96), (1, 128), (2, 64), (2, 96), (2, 128), (3, 64), (3, 96), (3, 128)])
            }
            ([1, 2], true) => of_two(&[(2, 64), (2, 128), (3, 64), (3, 128)]),
            _ => None,
        }
    }

    /// Those of `kernels/layers/sm_90a/product_errors.cu` for errors.
    pub(super) fn of_errors(parts: [usize; 2], transposed: bool) -> Option<Self> {
        Self::of_later(parts, 1.2).filter(|_| transposed)
    }

    /// Those there for deltas.
    pub(super) fn of_deltas(parts: [usize; 2], transposed: bool) -> Option<Self> {
        Self::of_later(parts, 2.7).filter(|_| !transposed)
    }

    /// Those of the later products of an autoencoder; `finished` is that of two parts.
    fn of_later(parts: [usize; 2], finished: f64) -> Option<Self> {
        match parts {
            [2, 2] => Some(Self { tiles: &[(1, 64), (1, 128), (2, 64), (2, 128)], finished }),
            [1, 1] => Some(ONE_PART),
            _ => None,
        }
    }
}

/// What an H200 does in its place, for the choice alone, fitted to times of many products:
/// nanoseconds, and bytes and FLOP a nanosecond.
mod speed {
    /// Copies to a multiprocessor, and products there.
    pub const COPIES: f64 = 55.;
    pub const PRODUCTS: f64 = 5500.;
    /// Of a block until its first k-block is there and from its last sum to its end.
    pub const BLOCK: f64 = 2500.;
    /// Of a cluster until all have their sums, and then sums of others.
    pub const EXCHANGE: f64 = 500.;
    pub const SUMS: f64 = 20.;
}

impl Shape {
    /// The fastest one for a product of `m × k` by `k × n` entries, both in so many parts, by a
    /// model of the GPU; none where the GPU has too little shared memory.
    pub(super) fn of(limits: Limits, [m, n, k]: [usize; 3], parts: [usize; 2], forms: Forms) -> Option<Self> {
        let of_tile = |&(warpgroups, columns): &(usize, usize)| {
            (1..=8).map(move |cluster| Self { warpgroups, columns, cluster })
        };
        let shapes = forms.tiles.iter().flat_map(of_tile);
        // Half a kilobyte is for barriers.
        let fits = |shape: &Self| {
            let k_blocks = k.div_ceil(Self::depth(parts));
            (shape.warpgroups > 1 || m <= FEW_ROWS)
                && shape.cluster <= k_blocks
                && shape.shared_bytes(parts, k) + 512 <= limits.shared_bytes
        };
        let time = |shape: &Self| shape.nanoseconds(limits, [m, n, k], parts, forms.finished);
        shapes.filter(fits).min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    /// What a product takes, of which two warpgroups finish so many entries in a nanosecond; none where
    /// that is 0.
    pub(crate) fn nanoseconds(
        self,
        limits: Limits,
        [m, n, k]: [usize; 3],
        parts: [usize; 2],
        finished: f64,
    ) -> f64 {
        let [blocks, down, _] = self.grid(m, n);
        let clusters = blocks / self.cluster * down;
        // Clusters lie within groups of 16 multiprocessors, of which some are larger and one may be
        // smaller.
        let at_once = match self.cluster {
            1 => limits.multiprocessors,
            2 => limits.multiprocessors / 2,
            size => (limits.multiprocessors / 16 * (16 / size)).saturating_sub(1),
        };
        let waves = clusters.div_ceil(at_once.max(1));
        let of_k_block = self.of_k_block(m, parts);
        let k_blocks = k.div_ceil(Self::depth(parts)).div_ceil(self.cluster) as f64;
        let exchange = match self.cluster {
            1 => 0.,
            _ => speed::EXCHANGE + self.tile_bytes() as f64 / speed::SUMS,
        };
        let entries = (self.rows() * self.columns / self.cluster) as f64;
        let finish = match finished {
            0. => 0.,
            // One warpgroup has half as many threads for it; a third one helps no more.
            each if self.warpgroups == 1 => 2. * entries / each,
            each => entries / each,
        };
        waves as f64 * (k_blocks * of_k_block + speed::BLOCK + exchange + finish)
    }

    /// What a k-block takes, of nanoseconds.
    pub(crate) fn of_k_block(self, m: usize, parts: [usize; 2]) -> f64 {
        let lines = parts[0] * self.lines_of_a(m) + parts[1] * self.columns;
        let bytes = (lines * 2 * Self::depth(parts)) as f64;
        // The product of both second parts is left out.
        let flop = (2 * Self::depth(parts) * self.rows() * self.columns * (parts[0] + parts[1] - 1)) as f64;
        (bytes / speed::COPIES).max(flop / speed::PRODUCTS)
    }

    /// Rows of a tile.
    pub(crate) fn rows(self) -> usize {
        64 * self.warpgroups
    }

    /// Lines of `a`, of `m` rows in all, that come for a tile: `lines_of_a` of the kernels.
    pub(crate) fn lines_of_a(self, m: usize) -> usize {
        self.rows().min(m.next_multiple_of(8))
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(crate) fn grid(self, m: usize, n: usize) -> [usize; 3] {
        [self.cluster * n.div_ceil(self.columns), m.div_ceil(self.rows()), 1]
    }

    /// Entries of the depth of a k-block: fewer of operands that both have two parts.
    pub(crate) fn depth([a_parts, _]: [usize; 2]) -> usize {
        if a_parts == 2 { 32 } else { 64 }
    }

    fn k_block_bytes(self, parts: [usize; 2]) -> usize {
        (parts[0] * self.rows() + parts[1] * self.columns) * 2 * Self::depth(parts)
    }

    pub(crate) fn threads(self) -> u32 {
        (128 * self.warpgroups + if self.warpgroups == 1 { 32 } else { 128 }) as u32
    }

    /// Shared memory of a block for sums of `k` terms: the k-blocks in the ring or the tile of sums
    /// in their place, and room to begin it on a kilobyte.
    pub(crate) fn shared_bytes(self, parts: [usize; 2], k: usize) -> usize {
        let k_block = self.k_block_bytes(parts);
        let k_blocks = k.div_ceil(Self::depth(parts)).div_ceil(self.cluster);
        ((RING.0 / k_block).min(RING.1).min(k_blocks) * k_block).max(self.tile_bytes()) + 1024
    }

    /// The tile of sums, with four numbers more in each line.
    fn tile_bytes(self) -> usize {
        self.rows() * (self.columns + 4) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    /// Kinds of products: of units, of errors, of deltas.
    fn kinds() -> [(Option<Forms>, [usize; 2], bool); 8] {
        let units = |parts, transposed| (Forms::of_units(parts, transposed), parts, transposed);
        [
            units([1, 1], false),
            units([1, 1], true),
            units([2, 2], false),
            units([1, 2], true),
            (Forms::of_errors([2, 2], true), [2, 2], true),
            (Forms::of_deltas([2, 2], false), [2, 2], false),
            (Forms::of_errors([1, 1], true), [1, 1], true),
            (Forms::of_deltas([1, 1], false), [1, 1], false),
        ]
    }

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
                for (forms, parts, transposed) in kinds() {
                    let shape = forms
                        .and_then(|forms| Shape::of(gpu, [m, n, k], parts, forms))
                        .unwrap_or_else(|| panic!("none for {m}x{n}x{k}"));
                    assert!(shape.shared_bytes(parts, k) + 512 <= gpu.shared_bytes, "{shape:?}");
                    let k_blocks = k.div_ceil(Shape::depth(parts));
                    assert!(shape.cluster <= k_blocks, "{shape:?}: a block without a k_block");
                    assert!(!transposed || shape.columns.is_multiple_of(64), "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn products_down_that_parity_tests_take_broad_tiles_in_clusters() {
        let of = |n, parts| {
            let forms = Forms::of_units(parts, true)?;
            Shape::of(gpus::ALL[3], [100, n, 2048], parts, forms)
                .map(|shape| (shape.columns, shape.cluster > 1))
        };
        assert_eq!(of(2560, [1, 1]), Some((128, true)));
        assert_eq!(of(2560, [1, 2]), Some((128, true)));
        assert_eq!(of(5056, [1, 1]), Some((192, true)));
    }

    #[test]
    fn products_that_parity_tests_take_tiles_of_256_rows_and_of_256_columns() {
        for (forms, parts, transposed) in kinds() {
            if parts == [1, 1] {
                let of = |[m, n, k]: [usize; 3]| Shape::of(gpus::ALL[3], [m, n, k], parts, forms?);
                let of = |sizes| {
                    of(sizes).map(|Shape { warpgroups, columns, cluster }| (warpgroups, columns, cluster))
                };
                assert_eq!(of([200, 16_640, 136]), Some((4, 128, 1)), "{transposed}");
                assert_eq!(of([250, 12_800, 72]), Some((2, 256, 1)), "{transposed}");
                assert_eq!(of([193, 4328, 2056]), Some((4, 128, 3)), "{transposed}");
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
    fn a_row_more_than_192_does_not_read_a_large_layer_twice() {
        for transposed in [false, true] {
            let tiles_down = |m| {
                let forms = Forms::of_units([1, 1], transposed)?;
                Shape::of(gpus::ALL[3], [m, 16384, 16384], [1, 1], forms).map(|shape| shape.grid(m, 16384)[1])
            };
            assert_eq!([192, 193, 240].map(tiles_down), [Some(1); 3], "{transposed}");
        }
    }

    #[test]
    fn one_wave_of_blocks_takes_a_large_layer() {
        let h200 = gpus::ALL[3];
        for (m, n, k, transposed, parts) in [
            (192, 16000, 2304, false, [1, 1]),
            (192, 2304, 16000, true, [1, 1]),
            (192, 11008, 4096, false, [1, 1]),
            (192, 16000, 2304, false, [2, 2]),
            (192, 2304, 16000, true, [1, 2]),
        ] {
            let forms = Forms::of_units(parts, transposed).unwrap_or_else(|| panic!("no forms"));
            let shape = Shape::of(h200, [m, n, k], parts, forms).unwrap_or_else(|| panic!("none"));
            let [across, down, _] = shape.grid(m, n);
            assert!((64..=132).contains(&(across * down)), "{shape:?}: {across} x {down} blocks");
        }
    }
}
