//! The choice of the form of `kernels/layers/sm_90a/product_tile.cuh` for a product, of tiles of
//! `Shape`; see [`Tile`](super::warpgroup_tile::Tile).
use crate::core::limits::Limits;

/// Most bytes of the ring of k-blocks, and most places in it.
const RING: (usize, usize) = (216 * 1024, 8);
/// Entries of the depth of a k-block of numbers in one part.
pub(super) const DEPTH: usize = 64;
/// For up to so many rows a tile may be of one warpgroup; of more, two share what they read.
const FEW_ROWS: usize = 128;

/// A form: warpgroups of a block, columns of its tile, and blocks that share a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub warpgroups: usize,
    pub columns: usize,
    pub cluster: usize,
}

/// What kernels of one kind were compiled for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Forms {
    /// Tiles of so many warpgroups and columns, of which two warpgroups finish so many entries in a
    /// nanosecond.
    Rows { tiles: &'static [(usize, usize)], finished: f64 },
    /// Those of [`Turned`](super::turned_shape::Turned), for numbers in one part.
    Turned,
}

impl Forms {
    /// Those of `kernels/layers/sm_90a/product_units.cu`, by the parts of both operands and whether
    /// `b` is row-major. In two parts up from numbers, down from states of 0 and 1, which have one.
    pub(super) fn of_units(parts: [usize; 2], transposed: bool) -> Option<Self> {
        let of_two = |tiles| Some(Self::Rows { tiles, finished: 2.7 });
        match (parts, transposed) {
            ([1, 1], _) => Some(Self::Turned),
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
            [2, 2] => Some(Self::Rows { tiles: &[(1, 64), (1, 128), (2, 64), (2, 128)], finished }),
            [1, 1] => Some(Self::Turned),
            _ => None,
        }
    }
}

/// Clusters of so many blocks that run at once.
pub(super) fn at_once(limits: Limits, cluster: usize) -> usize {
    // Clusters lie within groups of 16 multiprocessors, of which some are larger and one may be
    // smaller.
    let clusters = match cluster {
        1 => limits.multiprocessors,
        2 => limits.multiprocessors / 2,
        size => (limits.multiprocessors / 16 * (16 / size)).saturating_sub(1),
    };
    clusters.max(1)
}

/// Shared memory of a block: so many k-blocks in the ring or the tile of sums in their place, and
/// room to begin it on a kilobyte.
pub(super) fn shared_bytes(k_block: usize, k_blocks: usize, tile: usize) -> usize {
    ((RING.0 / k_block).min(RING.1).min(k_blocks) * k_block).max(tile) + 1024
}

/// Lines of `a`, of `m` rows in all, that come for a tile of so many rows: `Room::lines_of_a` of the
/// kernels.
pub(super) fn lines_of_a(rows: usize, m: usize) -> usize {
    rows.min(m.next_multiple_of(8))
}

/// The tile of sums, with four numbers more in each line.
pub(super) fn tile_bytes(rows: usize, columns: usize) -> usize {
    rows * (columns + 4) * 4
}

/// The one that takes the least time, the first of several.
pub(super) fn fastest<T>(tiles: impl Iterator<Item = T>, time: impl Fn(&T) -> f64) -> Option<T> {
    let timed = tiles.map(|tile| (time(&tile), tile));
    timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, tile)| tile)
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
    /// The fastest one of these tiles for a product of `m × k` by `k × n` entries, both in so many
    /// parts, by a model of the GPU; none where the GPU has too little shared memory.
    pub(super) fn of(
        limits: Limits,
        [m, n, k]: [usize; 3],
        parts: [usize; 2],
        (tiles, finished): (&[(usize, usize)], f64),
    ) -> Option<Self> {
        let of_tile = |&(warpgroups, columns): &(usize, usize)| {
            (1..=8).map(move |cluster| Self { warpgroups, columns, cluster })
        };
        let shapes = tiles.iter().flat_map(of_tile);
        // Half a kilobyte is for barriers.
        let fits = |shape: &Self| {
            let k_blocks = k.div_ceil(Self::depth(parts));
            (shape.warpgroups > 1 || m <= FEW_ROWS)
                && shape.cluster <= k_blocks
                && shape.shared_bytes(parts, k) + 512 <= limits.shared_bytes
        };
        fastest(shapes.filter(fits), |shape| shape.nanoseconds(limits, [m, n, k], parts, finished))
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
        let waves = clusters.div_ceil(at_once(limits, self.cluster));
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

    /// Lines of `a`, of `m` rows in all, that come for a tile.
    pub(crate) fn lines_of_a(self, m: usize) -> usize {
        lines_of_a(self.rows(), m)
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(crate) fn grid(self, m: usize, n: usize) -> [usize; 3] {
        [self.cluster * n.div_ceil(self.columns), m.div_ceil(self.rows()), 1]
    }

    /// Entries of the depth of a k-block: fewer of operands that both have two parts.
    pub(crate) fn depth([a_parts, _]: [usize; 2]) -> usize {
        if a_parts == 2 { DEPTH / 2 } else { DEPTH }
    }

    fn k_block_bytes(self, parts: [usize; 2]) -> usize {
        (parts[0] * self.rows() + parts[1] * self.columns) * 2 * Self::depth(parts)
    }

    pub(crate) fn threads(self) -> u32 {
        (128 * self.warpgroups + if self.warpgroups == 1 { 32 } else { 128 }) as u32
    }

    /// Shared memory of a block for sums of `k` terms.
    pub(crate) fn shared_bytes(self, parts: [usize; 2], k: usize) -> usize {
        let k_blocks = k.div_ceil(Self::depth(parts)).div_ceil(self.cluster);
        shared_bytes(self.k_block_bytes(parts), k_blocks, self.tile_bytes())
    }

    fn tile_bytes(self) -> usize {
        tile_bytes(self.rows(), self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn only_capability_9_0_has_them() {
        assert_eq!(
            gpus::ALL.map(|gpu| gpu.has_warpgroup_products()),
            [false, false, false, true, false, false, false]
        );
    }

    #[test]
    fn one_wave_of_blocks_takes_a_large_layer() {
        for (m, n, k, transposed, parts) in
            [(192, 16000, 2304, false, [2, 2]), (192, 2304, 16000, true, [1, 2])]
        {
            let Some(Forms::Rows { tiles, finished }) = Forms::of_units(parts, transposed) else {
                panic!("no forms")
            };
            let shape = Shape::of(gpus::ALL[3], [m, n, k], parts, (tiles, finished));
            let [across, down, _] = shape.unwrap_or_else(|| panic!("none")).grid(m, n);
            assert!((64..=132).contains(&(across * down)), "{shape:?}: {across} x {down} blocks");
        }
    }
}
