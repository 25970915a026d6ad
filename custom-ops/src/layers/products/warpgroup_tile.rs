//! The choice of the tile of a product by `kernels/layers/sm_90a/product_tile.cuh`, one of `Turned`.
use super::warpgroup_shape::{at_once, depth, fastest, lines_of_a, shared_bytes, tile_bytes};
use crate::core::limits::Limits;

/// What kernels were compiled for: warpgroups beside each other, of 64 columns each, and below each
/// other; the most rows of a tile, by the registers of its sums and the 256 rows of a copy; and how
/// fast the tensor cores are with it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Form {
    across: usize,
    down: usize,
    most_rows: usize,
    speed: f64,
}

const fn form(across: usize, down: usize, most_rows: usize, speed: f64) -> Form {
    Form { across, down, most_rows, speed }
}

impl Form {
    fn columns(self) -> usize {
        64 * self.across
    }

    /// What the rows of a tile are a multiple of.
    fn step(self) -> usize {
        16 * self.down
    }

    fn warpgroups(self) -> usize {
        self.across * self.down
    }
}

/// The forms for numbers in one part or in two, and what an H200 does in its place with them, for
/// the choice alone: nanoseconds, and bytes and FLOP a nanosecond.
#[derive(Debug, PartialEq)]
struct Kind {
    forms: &'static [Form],
    /// Rows of a tile that are tried, before they are spread evenly.
    rows: &'static [usize],
    /// Copies to a multiprocessor, and to all of them.
    copies: f64,
    all_copies: f64,
    /// Products there, of which a k-block's follow its copies, where each warpgroup takes as long as
    /// with so many rows more; and of a k-block besides.
    products: f64,
    rows_more: usize,
    k_block: f64,
    /// Of a block until its first k-block is there and from its last sum to its end.
    block: f64,
    /// Of a cluster until all its blocks have their sums, each, and then sums of others.
    exchange: f64,
    sums: f64,
    /// Entries that a warpgroup finishes.
    finished: f64,
    /// Bytes of weights from memory.
    memory: f64,
}

/// Fitted to times of 6,000 forms of 149 products, of 8 to 4,096 rows and 504 × 784 to
/// 16384 × 16384, where the form chosen takes 0.5 % more than the fastest in the mean
/// (custom-ops/NOTES.md).
const ONE_PART: Kind = Kind {
    forms: &[form(1, 2, 256, 2.5), form(2, 1, 256, 1.), form(3, 1, 192, 0.89), form(4, 1, 128, 0.89)],
    rows: &[64, 96, 128, 160, 192, 224, 256],
    copies: 306.,
    all_copies: 14_800.,
    products: 11_000.,
    rows_more: 0,
    k_block: 0.,
    block: 1240.,
    exchange: 58.,
    sums: 34.,
    finished: 2.5,
    memory: 4120.,
};

/// Fitted to times of 15,000 forms of 260 products, of 8 to 4,096 rows and 504 × 784 to
/// 16384 × 16384, where it is 1.8 %.
const TWO_PARTS: Kind = Kind {
    forms: &[
        form(1, 2, 256, 2.19),
        form(1, 3, 240, 1.51),
        form(2, 1, 208, 0.853),
        form(2, 2, 192, 0.946),
        form(3, 1, 128, 0.679),
    ],
    rows: &[32, 48, 64, 80, 96, 112, 128, 160, 192, 208, 224, 240, 256],
    copies: 101.,
    all_copies: 11_600.,
    products: 26_600.,
    rows_more: 16,
    k_block: 70.,
    block: 3770.,
    exchange: 201.,
    sums: 52.,
    finished: 1.39,
    memory: 3790.,
};

/// The tile of a product: its form, its rows, how many lie below each other, and blocks that share
/// one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tile {
    form: Form,
    /// Of both operands.
    parts: [usize; 2],
    rows: usize,
    down: usize,
    pub cluster: usize,
}

impl Tile {
    /// The fastest one for a product of `m × k` by `k × n` entries, both in so many parts, by a
    /// model of the GPU; none where the GPU has too little shared memory.
    pub(super) fn of(limits: Limits, [m, n, k]: [usize; 3], parts: [usize; 2]) -> Option<Self> {
        let kind = Self::kind(parts);
        let of_form = |form: &'static Form| {
            let rows = kind.rows.iter().filter(|&&rows| rows <= form.most_rows);
            let mut downs: Vec<usize> = rows.map(|rows| m.div_ceil(*rows)).collect();
            downs.dedup();
            downs.into_iter().flat_map(move |down| {
                let rows = m.div_ceil(down).next_multiple_of(form.step());
                (1..=8).map(move |cluster| Self { form: *form, parts, rows, down, cluster })
            })
        };
        // Clusters that do not all run at once take longer than the model says. Half a kilobyte is
        // for barriers.
        let fits = |tile: &Self| {
            tile.rows <= tile.form.most_rows
                && (tile.cluster == 1 || tile.clusters(n) <= at_once(limits, tile.cluster))
                && tile.cluster <= tile.k_blocks(k)
                && tile.shared_bytes(k) + 512 <= limits.shared_bytes
        };
        let tiles = kind.forms.iter().flat_map(of_form).filter(fits);
        fastest(tiles, |tile| tile.nanoseconds(limits, [m, n, k]))
    }

    fn kind(parts: [usize; 2]) -> &'static Kind {
        if parts[1] == 2 { &TWO_PARTS } else { &ONE_PART }
    }

    pub(super) fn nanoseconds(self, limits: Limits, [m, n, k]: [usize; 3]) -> f64 {
        let kind = Self::kind(self.parts);
        let (clusters, at_once) = (self.clusters(n), at_once(limits, self.cluster));
        let busy = (clusters.min(at_once) * self.cluster) as f64;
        let lines = self.parts[0] * self.lines_of_a(m) + self.parts[1] * self.columns();
        let copied = (2 * self.depth() * lines) as f64 / kind.copies.min(kind.all_copies / busy);
        // The product of both second parts is left out.
        let pairs = self.parts[0] + self.parts[1] - 1;
        let rows = self.rows + self.form.down * kind.rows_more;
        let flop = (2 * self.depth() * rows * self.columns() * pairs) as f64;
        let of_k_block = copied + flop / (kind.products * self.form.speed) + kind.k_block;
        let k_blocks = self.k_blocks(k).div_ceil(self.cluster) as f64;
        let exchange = match self.cluster {
            1 => 0.,
            blocks => kind.exchange * blocks as f64 + self.tile_bytes() as f64 / kind.sums,
        };
        let entries = self.rows * self.columns() / self.cluster / self.form.warpgroups();
        let of_tile = k_blocks * of_k_block + kind.block + exchange + entries as f64 / kind.finished;
        let of_memory = (2 * self.parts[1] * n * k) as f64 / kind.memory;
        // Near the longer one.
        ((clusters.div_ceil(at_once) as f64 * of_tile).powi(4) + of_memory.powi(4)).sqrt().sqrt()
    }

    /// How the kernels for it are called, behind what they compute.
    pub(super) fn name(self) -> String {
        format!("{}x{}", self.form.across, self.form.down)
    }

    pub(super) fn columns(self) -> usize {
        self.form.columns()
    }

    /// Entries of the depth of a k-block.
    pub(super) fn depth(self) -> usize {
        depth(self.parts)
    }

    fn k_blocks(self, k: usize) -> usize {
        k.div_ceil(self.depth())
    }

    /// Lines of `a`, of `m` rows in all, that come for a tile.
    pub(super) fn lines_of_a(self, m: usize) -> usize {
        lines_of_a(self.rows, m)
    }

    /// Tiles of a product with `n` columns.
    fn clusters(self, n: usize) -> usize {
        n.div_ceil(self.columns()) * self.down
    }

    /// Blocks across and down of a product with `n` columns.
    pub(super) fn grid(self, n: usize) -> [usize; 3] {
        [self.cluster * n.div_ceil(self.columns()), self.down, 1]
    }

    pub(super) fn threads(self) -> u32 {
        (128 * self.form.warpgroups() + 128) as u32
    }

    /// Shared memory of a block for sums of `k` terms.
    pub(super) fn shared_bytes(self, k: usize) -> usize {
        let k_block = 2 * self.depth() * (self.parts[0] * self.rows + self.parts[1] * self.columns());
        shared_bytes(k_block, self.k_blocks(k).div_ceil(self.cluster), self.tile_bytes())
    }

    fn tile_bytes(self) -> usize {
        tile_bytes(self.rows, self.columns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    const PARTS: [[usize; 2]; 3] = [[1, 1], [1, 2], [2, 2]];

    fn of([m, n, k]: [usize; 3], parts: [usize; 2]) -> Tile {
        Tile::of(gpus::ALL[3], [m, n, k], parts).unwrap_or_else(|| panic!("none for {m}x{n}x{k}"))
    }

    #[test]
    fn tiles_hold_all_rows_and_few_more_on_a_gpu_that_has_them() {
        for gpu in gpus::ALL.into_iter().filter(Limits::has_warpgroup_products) {
            for m in [1, 8, 20, 100, 192, 193, 256, 257, 1000, 4096] {
                for (n, k) in [(4, 8), (504, 784), (64, 9000), (4096, 2304), (16384, 16384)] {
                    for parts in PARTS {
                        let what = format!("{m}x{n}x{k} of {parts:?}");
                        let tile = Tile::of(gpu, [m, n, k], parts);
                        let tile = tile.unwrap_or_else(|| panic!("none for {what}"));
                        let rows = tile.rows * tile.down;
                        assert!(m <= rows && rows < m + tile.form.step() * tile.down, "{what}: {tile:?}");
                        assert!(tile.rows <= tile.form.most_rows, "{what}: {tile:?}");
                        assert!(tile.cluster <= tile.k_blocks(k), "{what}: a block without a k-block");
                        assert!(tile.shared_bytes(k) + 512 <= gpu.shared_bytes, "{what}: {tile:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_more_than_192_does_not_read_a_large_layer_twice() {
        for (n, k) in [(16000, 2304), (2304, 16000), (16384, 16384)] {
            for parts in PARTS {
                assert_eq!(
                    [192, 193, 208].map(|m| of([m, n, k], parts).down),
                    [1; 3],
                    "{n}x{k} of {parts:?}"
                );
            }
        }
    }

    #[test]
    fn one_wave_of_blocks_takes_a_large_layer() {
        for (m, n, k) in [(192, 16000, 2304), (192, 2304, 16000), (192, 11008, 4096), (193, 4096, 4096)] {
            for parts in PARTS {
                let [across, down, _] = of([m, n, k], parts).grid(n);
                let blocks = across * down;
                assert!((64..=132).contains(&blocks), "{m}x{n}x{k} of {parts:?}: {blocks} blocks");
            }
        }
    }

    #[test]
    fn parity_tests_take_every_form() {
        let names = |sizes: &[[usize; 3]], parts| {
            sizes.iter().map(|&sizes| of(sizes, parts).name()).collect::<Vec<_>>()
        };
        let of_one_part = [[200, 520, 264], [88, 12_808, 1032], [190, 25_000, 72], [250, 12_800, 72]];
        assert_eq!(names(&of_one_part, [1, 1]), ["1x2", "2x1", "3x1", "4x1"]);
        let of_two = [[8, 136, 72], [500, 2056, 72], [200, 12_808, 72], [56, 4328, 72], [8, 25_000, 72]];
        for parts in [[2, 2], [1, 2]] {
            assert_eq!(names(&of_two, parts), ["1x2", "1x3", "2x1", "2x2", "3x1"]);
        }
    }
}
