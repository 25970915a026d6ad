//! Up and down: the products of a minibatch with the weights of all patches.
use super::grid::PatchGrid;
use super::{cpu, gradient};
use crate::core::check::expect_dtype;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "patch_product_";

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

/// Refuses an operand that is not `[parts, ..inner]` of `dtype` with contiguous parts: f32, f64 or bf16 of one, f16 of one or two.
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

/// Checks `x` `[parts, batch, n]` and `weight` `[parts, n_patches, hidden, window_len]`: of one type, two parts only in f16, each part
/// contiguous.
pub(super) fn sizes_of(
    op: &str,
    x: &Tensor,
    weight: &Tensor,
    grid: &PatchGrid,
    direction: PatchDirection,
) -> Result<Sizes> {
    grid.validate(op)?;
    let (n_patches, window_len) = (grid.n_patches(), grid.window_len());
    let hidden = match *weight.dims() {
        [1 | 2, patches, hidden, len] if (patches, len) == (n_patches, window_len) && hidden > 0 => hidden,
        _ => candle::bail!(
            "{op}: weight must have shape [parts, {n_patches}, hidden, {window_len}], got {:?}",
            weight.dims()
        ),
    };
    let batch = match *x.dims() {
        [1 | 2, batch, _] => batch,
        _ => candle::bail!("{op}: x must have shape [parts, batch, n_units], got {:?}", x.dims()),
    };
    let sizes = Sizes { grid: *grid, hidden, batch };
    let (from, _) = sizes.ends(direction);
    expect_parts(op, "x", x, x.dtype(), &[batch, from])?;
    expect_parts(op, "weight", weight, x.dtype(), &[n_patches, hidden, window_len])?;
    Ok(sizes)
}

/// `out ← factor · x W`, up or down.
///
/// `x` is `[parts, batch, n]` and `weight` `[parts, n_patches, hidden, window_len]`: f32, f64 or bf16 of one part, or f16 of one or two
/// parts, whose sum a number is (see [`split_into_`](crate::arrays::split_into_)). `out` is `[batch, n']`, contiguous, f64 for f64 operands and
/// f32 otherwise; `n` and `n'` are `n_values` and `n_patches · hidden`, or the other way round. Sums are f32 (f64 for f64).
///
/// Cost: `2 · batch · n_patches · hidden · window_len` FLOP.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn patch_product_(
    out: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    grid: &PatchGrid,
    direction: PatchDirection,
    factor: f32,
) -> Result<()> {
    let sizes = sizes_of(OP, x, weight, grid, direction)?;
    let sum = gradient::sum_type(x.dtype());
    crate::core::check::expect(OP, "out", out, &[sum], &[sizes.batch, sizes.ends(direction).1])?;
    if sizes.batch == 0 {
        return Ok(());
    }
    let op = Product { sizes, direction, factor, dtype: x.dtype() };
    operands(OP).write("out", out).read("x", x).read("weight", weight).run(&op)
}

/// [`patch_product_`] of one part computed with candle's own ops, window by window; returns a new, differentiable tensor. `x` is
/// `[batch, n]` and `weight` `[n_patches, hidden, window_len]`, f32 or f64.
///
/// # Errors
/// When shapes do not fit.
pub fn patch_product_reference(
    x: &Tensor,
    weight: &Tensor,
    grid: &PatchGrid,
    direction: PatchDirection,
) -> Result<Tensor> {
    let (n_patches, hidden, window_len) = weight.dims3()?;
    let places = |patch: usize| {
        let places: Vec<u32> = (0..window_len).map(|i| grid.place(patch, i) as u32).collect();
        Tensor::from_vec(places, window_len, x.device())
    };
    match direction {
        PatchDirection::Up => {
            let of_patch =
                |p: usize| x.index_select(&places(p)?, 1)?.matmul(&weight.get(p)?.t()?.contiguous()?);
            Tensor::cat(&(0..n_patches).map(of_patch).collect::<Result<Vec<_>>>()?, 1)
        }
        PatchDirection::Down => {
            let mut out = Tensor::zeros((x.dim(0)?, grid.n_values()), x.dtype(), x.device())?;
            for p in 0..n_patches {
                let h = x.narrow(1, p * hidden, hidden)?.contiguous()?;
                out = out.index_add(&places(p)?, &h.matmul(&weight.get(p)?)?, 1)?;
            }
            Ok(out)
        }
    }
}

pub(super) struct Product {
    pub sizes: Sizes,
    pub direction: PatchDirection,
    pub factor: f32,
    pub dtype: DType,
}

impl Product {
    fn run_cpu<T: cpu::Number>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x, weight]) = io.parts()?;
        let (x, weight) = (cpu::Parts::<T>::of(&x)?, cpu::Parts::of(&weight)?);
        let out = out.elements::<T::Sum>()?;
        match self.direction {
            PatchDirection::Up => cpu::up(out, x, weight, &self.sizes, self.factor),
            PatchDirection::Down => cpu::down(out, x, weight, &self.sizes, self.factor),
        }
        Ok(())
    }
}

impl Kernel for Product {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_number!(self.dtype, |T| self.run_cpu::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_number!(self.dtype, |T| super::cuda::product::<T>(self, self.dtype.as_str(), gpu, io))
    }
}
