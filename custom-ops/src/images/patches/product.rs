//! Up and down: the products of a minibatch with the weights of all patches.
use super::cpu;
use super::grid::PatchGrid;
use super::sizes::{PatchDirection, Sizes, expect_parts, for_number, sum_type};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "patch_product_";

/// Checks `x` `[parts, batch, n]` and `weight` `[parts, n_patches, hidden, window_len]`: of one
/// type, two parts only in f16, each part contiguous.
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
/// `x` is `[parts, batch, n]` and `weight` `[parts, n_patches, hidden, window_len]`: f32, f64 or
/// bf16 of one part, or f16 of one or two parts, whose sum a number is (see
/// [`split_into_`](crate::arrays::split_into_)). `out` is `[batch, n']`, contiguous, f64 for f64
/// operands and f32 otherwise; `n` and `n'` are `n_values` and `n_patches · hidden`, or the other
/// way round. Sums are f32 (f64 for f64).
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
    let sum = sum_type(x.dtype());
    crate::core::check::expect(OP, "out", out, &[sum], &[sizes.batch, sizes.ends(direction).1])?;
    if sizes.batch == 0 {
        return Ok(());
    }
    let op = Product { sizes, direction, factor, dtype: x.dtype() };
    operands(OP).write("out", out).read("x", x).read("weight", weight).run(&op)
}

/// [`patch_product_`] of one part computed with candle's own ops, window by window; returns a new,
/// differentiable tensor. `x` is `[batch, n]` and `weight` `[n_patches, hidden, window_len]`, f32
/// or f64.
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
        for_number!(self.dtype, |T| {
            super::cuda::product::<T>(&self.sizes, self.direction, self.factor, self.dtype.as_str(), gpu, io)
        })
    }
}
