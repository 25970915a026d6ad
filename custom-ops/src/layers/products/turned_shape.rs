//! The choice of a tile of `Turned` of `kernels/layers/sm_90a/product_tile.cuh`, for a product of
//! numbers in one part.
use super::warpgroup_shape::{DEPTH, at_once, fastest, lines_of_a, shared_bytes, tile_bytes};
use crate::core::limits::Limits;

/// What kernels were compiled for: columns and warpgroups of a tile, its most rows, and what these
/// are a multiple of; and how fast the tensor cores are with it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Form {
    columns: usize,
    warpgroups: usize,
    most_rows: usize,
    step: usize,
    speed: f64,
}

const FORMS: [Form; 4] = [
    Form { columns: 64, warpgroups: 2, most_rows: 256, step: 32, speed: 2.5 },
    Form { columns: 128, warpgroups: 2, most_rows: 256, step: 16, speed: 1. },
    Form { columns: 192, warpgroups: 3, most_rows: 192, step: 16, speed: 0.89 },
    Form { columns: 256, warpgroups: 4, most_rows: 128, step: 16, speed: 0.89 },
];
/// Rows of a tile that are tried, before they are spread evenly.
const ROWS: [usize; 7] = [64, 96, 128, 160, 192, 224, 256];

/// What an H200 does in its place, for the choice alone: nanoseconds, and bytes and FLOP a
/// nanosecond. Fitted to times of 6,000 forms of 149 products, of 8 to 4,096 rows and 504 × 784 to
/// 16384 × 16384, where the form chosen takes 0.5 % more than the fastest in the mean
/// (custom-ops/NOTES.md).
mod speed {
    /// Copies to a multiprocessor, and to all of them.
    pub const COPIES: f64 = 306.;
    pub const ALL_COPIES: f64 = 14_800.;
    /// Products there, of which a k-block's follow its copies.
    pub const PRODUCTS: f64 = 11_000.;
    /// Of a block until its first k-block is there and from its last sum to its end.
    pub const BLOCK: f64 = 1240.;
    /// Of a cluster until all its blocks have their sums, each, and then sums of others.
    pub const EXCHANGE: f64 = 58.;
    pub const SUMS: f64 = 34.;
    /// Entries that a warpgroup finishes.
    pub const FINISHED: f64 = 2.5;
    /// Bytes of weights from memory.
    pub const MEMORY: f64 = 4120.;
}

/// The tile of a product: its form, its rows, how many lie below each other, and blocks that share
/// one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turned {
    form: Form,
    pub rows: usize,
    down: usize,
    pub cluster: usize,
}

impl Turned {
    /// The fastest one for a product of `m × k` by `k × n` entries, by a model of the GPU; none
    /// where the GPU has too little shared memory.
    pub(super) fn of(limits: Limits, [m, n, k]: [usize; 3]) -> Option<Self> {
        let of_form = |form: &'static Form| {
            let mut downs: Vec<usize> =
                ROWS.iter().filter(|&&rows| rows <= form.most_rows).map(|rows| m.div_ceil(*rows)).collect();
            downs.dedup();
            downs.into_iter().flat_map(move |down| {
                let rows = m.div_ceil(down).next_multiple_of(form.step);
                (1..=8).map(move |cluster| Self { form: *form, rows, down, cluster })
            })
        };
        // Half a kilobyte is for barriers.
        let fits = |tile: &Self| {
            tile.cluster <= k.div_ceil(DEPTH) && tile.shared_bytes(k) + 512 <= limits.shared_bytes
        };
        let tiles = FORMS.iter().flat_map(of_form).filter(fits);
        fastest(tiles, |tile| tile.nanoseconds(limits, [m, n, k]))
    }

    fn nanoseconds(self, limits: Limits, [m, n, k]: [usize; 3]) -> f64 {
        let [blocks, down, _] = self.grid(n);
        let at_once = at_once(limits, self.cluster);
        let clusters = blocks / self.cluster * down;
        let busy = (clusters.min(at_once) * self.cluster) as f64;
        let copies = speed::COPIES.min(speed::ALL_COPIES / busy);
        let bytes = (2 * DEPTH * (self.lines_of_a(m) + self.columns())) as f64;
        let flop = (2 * DEPTH * self.rows * self.columns()) as f64;
        let of_k_block = bytes / copies + flop / (speed::PRODUCTS * self.form.speed);
        let k_blocks = k.div_ceil(DEPTH).div_ceil(self.cluster) as f64;
        let exchange = match self.cluster {
            1 => 0.,
            blocks => speed::EXCHANGE * blocks as f64 + self.tile_bytes() as f64 / speed::SUMS,
        };
        let finish =
            (self.rows * self.columns() / self.cluster / self.form.warpgroups) as f64 / speed::FINISHED;
        let of_tile = k_blocks * of_k_block + speed::BLOCK + exchange + finish;
        let of_memory = (2 * n * k) as f64 / speed::MEMORY;
        // Near the longer one.
        ((clusters.div_ceil(at_once) as f64 * of_tile).powi(4) + of_memory.powi(4)).sqrt().sqrt()
    }

    pub(super) fn columns(self) -> usize {
        self.form.columns
    }

    /// Lines of `a`, of `m` rows in all, that come for a tile.
    pub(super) fn lines_of_a(self, m: usize) -> usize {
        lines_of_a(self.rows, m)
    }

    /// Blocks across and down of a product with `n` columns.
    pub(super) fn grid(self, n: usize) -> [usize; 3] {
        [self.cluster * n.div_ceil(self.columns()), self.down, 1]
    }

    pub(super) fn threads(self) -> u32 {
        (128 * self.form.warpgroups + 128) as u32
    }

    pub(super) fn shared_bytes(self, k: usize) -> usize {
        let k_block = 2 * DEPTH * (self.rows + self.columns());
        shared_bytes(k_block, k.div_ceil(DEPTH).div_ceil(self.cluster), self.tile_bytes())
    }

    fn tile_bytes(self) -> usize {
        tile_bytes(self.rows, self.columns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    fn of([m, n, k]: [usize; 3]) -> Turned {
        Turned::of(gpus::ALL[3], [m, n, k]).unwrap_or_else(|| panic!("none for {m}x{n}x{k}"))
    }

    #[test]
    fn tiles_hold_all_rows_and_few_more() {
        for m in [1, 8, 100, 192, 193, 256, 257, 1000, 4096] {
            for (n, k) in [(4, 8), (504, 784), (4096, 2304), (16384, 16384)] {
                let tile = of([m, n, k]);
                let rows = tile.rows * tile.down;
                assert!(m <= rows && rows < m + tile.form.step * tile.down, "{m}x{n}x{k}: {tile:?}");
                assert!(tile.rows <= tile.form.most_rows, "{m}x{n}x{k}: {tile:?}");
                assert!(tile.cluster <= k.div_ceil(DEPTH), "{m}x{n}x{k}: a block without a k-block");
            }
        }
    }

    #[test]
    fn a_row_more_than_192_does_not_read_a_large_layer_twice() {
        for (n, k) in [(16000, 2304), (2304, 16000), (16384, 16384)] {
            assert_eq!([192, 193, 240].map(|m| of([m, n, k]).down), [1; 3], "{n}x{k}");
        }
    }

    #[test]
    fn one_wave_of_blocks_takes_a_large_layer() {
        for (m, n, k) in [(192, 16000, 2304), (192, 2304, 16000), (192, 11008, 4096), (193, 4096, 4096)] {
            let [across, down, _] = of([m, n, k]).grid(n);
            assert!((64..=132).contains(&(across * down)), "{m}x{n}x{k}: {across} x {down} blocks");
        }
    }

    #[test]
    fn parity_tests_take_every_form() {
        let forms = [[200, 520, 264], [88, 12_808, 1032], [190, 25_000, 72], [250, 12_800, 72]]
            .map(|sizes| of(sizes).columns());
        assert_eq!(forms, [64, 128, 192, 256]);
    }
}
