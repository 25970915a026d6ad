//! The sizes of products with the weights of patches, and the types that they take.
use super::grid::PatchGrid;
use crate::core::check::expect_dtype;
use candle::{DType, Device, Result, Tensor};

/// The name of [`patch_cd_update_`](super::patch_cd_update_) in messages.
pub(super) const STEP: &str = "patch_cd_update_";

/// Which way a product with the weights of patches goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PatchDirection {
    /// From the values of the grid to the hidden units.
    Up,
    /// From the hidden units to the values of the grid.
    Down,
}

/// The sizes of a product or an update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub grid: PatchGrid,
    /// Hidden units of a patch.
    pub hidden: usize,
    pub batch: usize,
}

impl Sizes {
    pub fn n_hidden(&self) -> usize {
        self.grid.n_patches() * self.hidden
    }

    /// Entries of the weights of a patch.
    pub fn of_patch(&self) -> usize {
        self.hidden * self.grid.window_len()
    }

    pub fn n_weights(&self) -> usize {
        self.grid.n_patches() * self.of_patch()
    }

    /// Units that a product reads of a row, and those that it gives.
    pub fn ends(&self, direction: PatchDirection) -> (usize, usize) {
        match direction {
            PatchDirection::Up => (self.grid.n_values(), self.n_hidden()),
            PatchDirection::Down => (self.n_hidden(), self.grid.n_values()),
        }
    }
}

/// Refuses an operand that is not `[parts, ..inner]` of `dtype` with contiguous parts: f32, f64 or
/// bf16 of one, f16 of one or two.
pub(super) fn expect_parts(op: &str, name: &str, t: &Tensor, dtype: DType, inner: &[usize]) -> Result<()> {
    expect_dtype(op, name, t, &[DType::F32, DType::F64, DType::BF16, DType::F16])?;
    let fits = match t.dims().split_first() {
        Some((&parts, of_part)) => of_part == inner && (parts == 1 || parts == 2 && dtype == DType::F16),
        None => false,
    };
    if fits && t.dtype() == dtype && t.get(0)?.is_contiguous() {
        return Ok(());
    }
    candle::bail!(
        "{op}: {name} must be {dtype:?} of shape [parts, ..{inner:?}] with contiguous parts, two only in f16, got {:?} {:?} with strides {:?}",
        t.dtype(),
        t.dims(),
        t.stride()
    )
}

/// Runs code in which `T` is the type of the operands, which [`expect_parts`] checked.
macro_rules! for_number {
    ($dtype:expr, |$t:ident| $run:expr) => {
        for_type!($dtype, [F64: f64, BF16: half::bf16, F16: half::f16; f32], |$t| $run)
    };
}
pub(super) use for_number;

/// The type of sums over numbers of a type.
pub(super) fn sum_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Whether a step of a layer of patches with 16-bit states runs on the tensor cores of `device` in
/// one kernel for each product: on CUDA, if the values at a stride (`stride · depth`), the side of
/// a window (`window · depth`), a line of the grid (`width · depth`) and the hidden units of a
/// patch are multiples of eight.
pub fn patch_steps_fuse(device: &Device, grid: &PatchGrid, hidden: usize) -> bool {
    let lines = [grid.stride * grid.depth, grid.window * grid.depth, grid.width * grid.depth, hidden];
    device.is_cuda() && lines.iter().all(|n| n.is_multiple_of(8))
}
