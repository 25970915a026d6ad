//! Which kernel makes an update: a function of the limits of a GPU and of the sizes.
use super::Sizes;
use super::deep::Deep;
use super::pingpong::PingPong;
use super::shape::{Chunk, Shape};
use super::small::Small;
use super::staying::{self, TILE, k_blocks};
use crate::core::limits::Limits;

/// Of kernels/layers/cd_update.cu: threads of a block, and of one of the kernels that take all
/// sizes, each of which steps a weight.
pub(super) const THREADS: u32 = 256;
const ANY_THREADS: u32 = 512;
/// Of kernels/layers/sm_90a/cd_update.cu and patch_step_parts.cu: shared memory where
/// [`staying::K_BLOCKS`] of both phases stay at most.
pub(super) const WARPGROUP_SHARED: usize = 217 * 1024 + 2048;
/// Tiles of a multiprocessor for which they are the faster kernels.
const LEAST_TILES: usize = 6;

/// What is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matrices {
    /// One matrix of f32 weights.
    One,
    /// One of weights in halves.
    Halves,
    /// One of bf16 weights, which are rounded stochastically.
    Rounded,
    /// Those of so many patches, whose windows the products of warpgroups can read or not; see
    /// `PatchGrid::has_boxed_windows`.
    Patches { n: usize, boxed_windows: bool },
}

/// A kernel for an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// `sm_90a/cd_update.cu`, or `patch_step_parts.cu` for patches and states in two parts: the
    /// weights; and a launch for the biases.
    Warpgroups,
    /// `sm_90a/cd_update_pingpong.cu`, and the same launch for the biases.
    PingPong(PingPong),
    /// `sm_90a/cd_update_deep.cu`, and the same launch.
    Deep(Deep),
    /// `sm_90a/cd_update_small.cu`
    Small(Small),
    /// `cd_update.cu`, or `patch_step.cu` for patches.
    Plain(Plain),
}

/// A form of the plain kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plain {
    pub name: &'static str,
    /// For the weights.
    pub blocks: usize,
    pub threads: u32,
    pub shared_bytes: usize,
}

impl Plan {
    /// For matrices of these sizes, of which `chunk` says how many entries are copied at once.
    pub(super) fn of(limits: Limits, sizes: Sizes, chunk: Chunk, matrices: Matrices) -> Self {
        let Sizes { parts, rows, cols, .. } = sizes;
        let (n, boxed_windows) = match matrices {
            Matrices::Patches { n, boxed_windows } => (n, boxed_windows),
            _ => (1, true),
        };
        let most = match (matrices, parts) {
            // Both parts of the side that stays would leave no room for weights beside them.
            (Matrices::One, 2) => 0,
            // Tiles of these are two subtiles wide: more states that stay save more reads of others.
            (Matrices::Halves | Matrices::Rounded, 1) => staying::MOST_K_BLOCKS,
            _ => staying::K_BLOCKS,
        };
        if chunk == Chunk::Eight && boxed_windows && stays(limits, sizes, n, most) {
            return Self::Warpgroups;
        }
        if chunk == Chunk::Eight && !matches!(matrices, Matrices::Patches { .. }) {
            let large = large(limits, sizes, n);
            let in_turns = PingPong::of(limits, sizes, large);
            let deep = Deep::of(limits, sizes, large).filter(|form| {
                let time = form.nanoseconds(limits, sizes);
                in_turns.is_none_or(|in_turns| time < in_turns.nanoseconds())
            });
            if let Some(plan) = deep.map(Self::Deep).or(in_turns.map(Self::PingPong)) {
                return plan;
            }
        }
        let small = Small::of(limits, sizes).filter(|_| (matrices, chunk) == (Matrices::One, Chunk::Eight));
        if let Some(small) = small {
            return Self::Small(small);
        }
        let shape = match (matrices, chunk) {
            (Matrices::Patches { .. }, _) => Shape::of_patches(limits, parts, rows, cols),
            (_, Chunk::One) => {
                let blocks = (rows * cols).div_ceil(ANY_THREADS as usize);
                return Self::Plain(Plain { name: "any", blocks, threads: ANY_THREADS, shared_bytes: 0 });
            }
            _ => Shape::of(limits, parts, rows, cols, chunk),
        };
        let (blocks, shared_bytes) = (n * shape.tiles(rows, cols), shape.shared_bytes());
        Self::Plain(Plain { name: shape.name, blocks, threads: THREADS, shared_bytes })
    }
}

/// Whether the kernels of warpgroups are for an update of `n` matrices of patches: large ones, and
/// states that they can hold.
pub(super) fn warpgroups(limits: Limits, sizes: Sizes, n: usize) -> bool {
    stays(limits, sizes, n, staying::K_BLOCKS)
}

/// Whether `n` matrices are large ones, with at most so many k-blocks of states that stay.
fn stays(limits: Limits, sizes: Sizes, n: usize, most: usize) -> bool {
    large(limits, sizes, n) && k_blocks(sizes.batch) <= most
}

/// Whether `n` matrices have so many tiles that each multiprocessor has several, on capability 9.0.
/// Those of patches follow each other, so that a tile must not go beyond one.
pub(super) fn large(limits: Limits, sizes: Sizes, n: usize) -> bool {
    let Sizes { batch, rows, cols, .. } = sizes;
    limits.has_warpgroup_products()
        && limits.shared_bytes >= WARPGROUP_SHARED + 512
        && rows.is_multiple_of(8)
        && cols.is_multiple_of(8)
        && (n == 1 || rows.is_multiple_of(TILE))
        && n * rows.div_ceil(TILE) * cols.div_ceil(TILE) >= LEAST_TILES * limits.multiprocessors
        && [n * rows, cols, batch].iter().all(|&size| i32::try_from(size).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    fn name(
        limits: Limits,
        [batch, rows, cols]: [usize; 3],
        chunk: Chunk,
        matrices: Matrices,
    ) -> &'static str {
        name_of_parts(1, limits, [batch, rows, cols], chunk, matrices)
    }

    fn name_of_parts(
        parts: usize,
        limits: Limits,
        [batch, rows, cols]: [usize; 3],
        chunk: Chunk,
        matrices: Matrices,
    ) -> &'static str {
        match Plan::of(limits, Sizes { parts, batch, rows, cols }, chunk, matrices) {
            Plan::Warpgroups => "warpgroups",
            Plan::PingPong(_) => "pingpong",
            Plan::Deep(_) => "deep",
            Plan::Small(_) => "sm_90a small",
            Plan::Plain(plain) => plain.name,
        }
    }

    #[test]
    fn an_h200_has_a_kernel_for_each_kind_of_update() {
        let h200 = gpus::ALL[3];
        let of = |sizes, chunk, matrices| name(h200, sizes, chunk, matrices);
        let patches = |n, boxed_windows| Matrices::Patches { n, boxed_windows };
        assert_eq!(of([192, 16000, 2304], Chunk::Eight, Matrices::One), "warpgroups");
        assert_eq!(of([192, 16000, 2304], Chunk::Eight, Matrices::Rounded), "warpgroups");
        assert_eq!(of([193, 16000, 2304], Chunk::Eight, Matrices::One), "pingpong", "rows that do not stay");
        assert_eq!(of([193, 16000, 2304], Chunk::Eight, Matrices::Rounded), "warpgroups");
        assert_eq!(of([256, 16000, 2304], Chunk::Eight, Matrices::Halves), "warpgroups");
        assert_eq!(of([257, 16000, 2304], Chunk::Eight, Matrices::Rounded), "pingpong");
        assert_eq!(of([257, 16000, 2304], Chunk::Eight, Matrices::Halves), "pingpong");
        assert_eq!(of([1024, 16000, 2304], Chunk::Eight, Matrices::One), "pingpong");
        assert_eq!(of([4096, 16000, 2304], Chunk::Eight, Matrices::One), "deep");
        assert_eq!(of([2048, 4096, 4096], Chunk::Eight, Matrices::One), "deep");
        assert_eq!(of([2048, 4096, 2304], Chunk::Eight, Matrices::One), "pingpong", "three waves for two");
        assert_eq!(of([4096, 504, 784], Chunk::Eight, Matrices::One), "deep", "long sums");
        assert_eq!(of([193, 16000, 2304], Chunk::Four, Matrices::One), "odd");
        let of_two = |sizes| name_of_parts(2, h200, sizes, Chunk::Eight, Matrices::One);
        assert_eq!(of_two([192, 16000, 2304]), "pingpong");
        assert_eq!(of_two([4096, 16000, 2304]), "pingpong");
        assert_eq!(of_two([512, 504, 784]), "sm_90a small");
        assert_eq!(of_two([4096, 504, 784]), "deep");
        assert_eq!(of([193, 192, 576], Chunk::Eight, patches(256, true)), "high");
        assert_eq!(of([192, 16000, 2304], Chunk::Four, Matrices::One), "odd");
        assert_eq!(of([128, 504, 784], Chunk::Eight, Matrices::One), "sm_90a small");
        assert_eq!(of([128, 504, 784], Chunk::Eight, Matrices::Rounded), "small");
        assert_eq!(of([128, 504, 784], Chunk::One, Matrices::One), "any");
        assert_eq!(of([192, 192, 576], Chunk::Eight, patches(256, true)), "warpgroups");
        assert_eq!(of([192, 192, 576], Chunk::Eight, patches(256, false)), "high");
        assert_eq!(of([192, 192, 576], Chunk::Eight, patches(4, true)), "high", "few patches");
        assert_eq!(of([192, 192, 576], Chunk::One, patches(4, true)), "high", "lines are checked before");
    }

    #[test]
    fn kernels_of_capability_9_0_are_for_no_other_gpu() {
        for gpu in gpus::ALL.into_iter().filter(|gpu| !gpu.has_warpgroup_products()) {
            for (sizes, matrices) in [
                ([192, 16000, 2304], Matrices::One),
                ([128, 504, 784], Matrices::One),
                ([192, 192, 576], Matrices::Patches { n: 256, boxed_windows: true }),
            ] {
                let got = name(gpu, sizes, Chunk::Eight, matrices);
                assert!(["small", "large", "high"].contains(&got), "{gpu:?}: {got}");
            }
        }
    }
}
