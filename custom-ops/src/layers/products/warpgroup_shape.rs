//! Tiles of `Shape` of `kernels/layers/sm_90a/product_tile.cuh`, which updates and patches have, and
//! what they share with those of products, [`Tile`](super::warpgroup_tile::Tile).
use crate::core::limits::Limits;

/// Most bytes of the ring of k-blocks, and most places in it.
const RING: (usize, usize) = (216 * 1024, 8);
/// Entries of the depth of a k-block of numbers in one part.
const DEPTH: usize = 64;

/// A form: warpgroups of a block, columns of its tile, and blocks that share a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub warpgroups: usize,
    pub columns: usize,
    pub cluster: usize,
}

/// Entries of the depth of a k-block: fewer of operands that both have two parts.
pub(crate) fn depth([a_parts, _]: [usize; 2]) -> usize {
    if a_parts == 2 { DEPTH / 2 } else { DEPTH }
}

/// Clusters of so many blocks that run at once.
pub(super) fn at_once(limits: Limits, cluster: usize) -> usize {
    // Clusters lie within groups of 16 multiprocessors, of which some are larger and one may be
    // as small as 12.
    let clusters = match cluster {
        1 => limits.multiprocessors,
        2 => limits.multiprocessors / 2,
        size => (limits.multiprocessors / 16).saturating_sub(1) * (16 / size) + 12 / size,
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
pub(crate) fn fastest<T>(tiles: impl Iterator<Item = T>, time: impl Fn(&T) -> f64) -> Option<T> {
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
    /// What a product of numbers in so many parts takes, whose entries a block finishes so many of in a
    /// nanosecond.
    pub(crate) fn nanoseconds(
        self,
        limits: Limits,
        parts: usize,
        [m, n, k]: [usize; 3],
        finished: f64,
    ) -> f64 {
        let [blocks, down, _] = self.grid(m, n);
        let clusters = blocks / self.cluster * down;
        let waves = clusters.div_ceil(at_once(limits, self.cluster));
        let k_blocks = k.div_ceil(depth([parts; 2])).div_ceil(self.cluster) as f64;
        let exchange = match self.cluster {
            1 => 0.,
            _ => speed::EXCHANGE + self.tile_bytes() as f64 / speed::SUMS,
        };
        let finish = (self.rows() * self.columns / self.cluster) as f64 / finished;
        waves as f64 * (k_blocks * self.of_k_block(m, parts) + speed::BLOCK + exchange + finish)
    }

    /// What a k-block takes, of nanoseconds: of two parts it has half the depth.
    pub(crate) fn of_k_block(self, m: usize, parts: usize) -> f64 {
        let bytes = ((self.lines_of_a(m) + self.columns) * 2 * DEPTH) as f64;
        let pairs = 2 * parts - 1;
        let flop = (2 * pairs * depth([parts; 2]) * self.rows() * self.columns) as f64;
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

    pub(crate) fn k_block_bytes(self, parts: [usize; 2]) -> usize {
        (parts[0] * self.rows() + parts[1] * self.columns) * 2 * depth(parts)
    }

    pub(crate) fn threads(self) -> u32 {
        (128 * self.warpgroups + if self.warpgroups == 1 { 32 } else { 128 }) as u32
    }

    /// Shared memory of a block for sums of `k` terms.
    pub(crate) fn shared_bytes(self, parts: [usize; 2], k: usize) -> usize {
        let k_blocks = k.div_ceil(depth(parts)).div_ceil(self.cluster);
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
    fn clusters_lie_within_groups_of_multiprocessors() {
        // As times of products on an H200 show.
        let clusters = [1, 2, 3, 4, 5, 6, 7, 8].map(|blocks| at_once(gpus::ALL[3], blocks));
        assert_eq!(clusters, [132, 66, 39, 31, 23, 16, 15, 15]);
    }
}
