//! The gradient of the weights of all patches.
use super::cpu;
use super::grid::PatchGrid;
use super::sizes::{Sizes, expect_parts, for_number, sum_type};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use crate::layers::gemm::Factors;
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "patch_gradient_";

/// `out ← alpha · G + beta · out`, where `G_p = h_pᵀ v_p` over all rows: a matrix for each patch,
/// the sum over rows of its hidden units times the values in its window.
///
/// `hidden` is `[parts, rows, n_patches · hidden]` and `visible` `[parts, rows, n_values]`, types
/// as for [`patch_product_`](super::patch_product_); `out` is `[n_patches, hidden, window_len]`,
/// contiguous, f64 for f64 operands and f32 otherwise. The factors of [`Factors::Tensor`] are for
/// f32 results.
///
/// Cost: `2 · rows · n_patches · hidden · window_len` FLOP.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn patch_gradient_(
    out: &Tensor,
    hidden: &Tensor,
    visible: &Tensor,
    grid: &PatchGrid,
    factors: Factors<'_>,
) -> Result<()> {
    grid.validate(OP)?;
    let (n_patches, window_len) = (grid.n_patches(), grid.window_len());
    let per_patch = match *out.dims() {
        [patches, hidden, len] if (patches, len) == (n_patches, window_len) && hidden > 0 => hidden,
        _ => candle::bail!(
            "{OP}: out must have shape [{n_patches}, hidden, {window_len}], got {:?}",
            out.dims()
        ),
    };
    expect(OP, "out", out, &[sum_type(hidden.dtype())], out.dims())?;
    let rows = match *hidden.dims() {
        [1 | 2, rows, _] => rows,
        _ => candle::bail!("{OP}: hidden must have shape [parts, rows, n_hidden], got {:?}", hidden.dims()),
    };
    let sizes = Sizes { grid: *grid, hidden: per_patch, batch: rows };
    expect_parts(OP, "hidden", hidden, hidden.dtype(), &[rows, sizes.n_hidden()])?;
    expect_parts(OP, "visible", visible, hidden.dtype(), &[rows, grid.n_values()])?;
    let parts = [hidden, visible].map(|t| t.dims()[0]);
    if parts[0] != parts[1] {
        candle::bail!("{OP}: visible must have as many parts as hidden, {}, got {}", parts[0], parts[1])
    }
    let (factors, tensor) = match factors {
        Factors::Host { alpha, beta } => (Some((alpha, beta)), None),
        Factors::Tensor(tensor) => {
            let n = tensor.elem_count().max(2);
            expect(OP, "factors", tensor, &[DType::F32], &[n])?;
            if out.dtype() != DType::F32 {
                candle::bail!("{OP}: factors on the device are for f32 results, got {:?}", out.dtype())
            }
            (None, Some(tensor))
        }
    };
    let op = Gradient { sizes, factors, dtype: hidden.dtype() };
    let io = operands(OP).write("out", out).read("hidden", hidden).read("visible", visible);
    io.maybe("factors", tensor).run(&op)
}

/// The gradient `G`, `[n_patches, hidden, window_len]`, of one part computed with candle's own ops;
/// `hidden` is `[rows, n_hidden]` and `visible` `[rows, n_values]`, f32 or f64.
///
/// # Errors
/// When shapes do not fit.
pub fn patch_gradient_reference(hidden: &Tensor, visible: &Tensor, grid: &PatchGrid) -> Result<Tensor> {
    let per_patch = hidden.dim(1)? / grid.n_patches();
    let of_patch = |p: usize| {
        let places: Vec<u32> = (0..grid.window_len()).map(|i| grid.place(p, i) as u32).collect();
        let places = Tensor::from_vec(places, grid.window_len(), visible.device())?;
        let h = hidden.narrow(1, p * per_patch, per_patch)?.contiguous()?;
        h.t()?.contiguous()?.matmul(&visible.index_select(&places, 1)?)
    };
    Tensor::stack(&(0..grid.n_patches()).map(of_patch).collect::<Result<Vec<_>>>()?, 0)
}

struct Gradient {
    sizes: Sizes,
    /// `alpha` and `beta`; none where they are on the device.
    factors: Option<(f64, f64)>,
    dtype: DType,
}

impl Gradient {
    fn run_cpu<T: cpu::Number>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [hidden, visible, factors]) = io.parts()?;
        let (hidden, visible) = (cpu::Parts::<T>::of(&hidden)?, cpu::Parts::of(&visible)?);
        let (alpha, beta) = match (self.factors, factors.maybe::<f32>()?) {
            (Some(factors), _) => factors,
            (None, Some(&[alpha, beta, ..])) => (alpha.into(), beta.into()),
            (None, _) => candle::bail!("{OP}: factors must have 2 entries"),
        };
        let out = out.elements::<T::Sum>()?;
        cpu::gradient(out, hidden, visible, &self.sizes, (alpha, beta));
        Ok(())
    }
}

impl Kernel for Gradient {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_number!(self.dtype, |T| self.run_cpu::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_number!(self.dtype, |T| {
            super::cuda::gradient::<T>(&self.sizes, self.factors, self.dtype.as_str(), gpu, io)
        })
    }
}
