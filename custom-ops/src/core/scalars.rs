//! The scalars of a training step that are stored on the device: rates, the counter of random
//! draws, the largest label seen.
use crate::core::check::{expect, expect_layout};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};

/// At most this many numbers in one [`set_scalars_`].
const MAX_SCALARS: usize = 8;

/// `scalars[i] ← values[i]`. Host memory is not read after the call returns.
///
/// `scalars` is a contiguous f32 tensor of exactly `values.len()` entries, 1 to 8 of them.
///
/// # Errors
/// When lengths or the type differ.
pub fn set_scalars_(scalars: &Tensor, values: &[f32]) -> Result<()> {
    let n = values.len();
    if n == 0 || n > MAX_SCALARS || scalars.elem_count() != n {
        candle::bail!(
            "set_scalars_: values must be 1 to {MAX_SCALARS} and as many as entries, got {n} for shape {:?}",
            scalars.dims()
        )
    }
    if scalars.dtype() != DType::F32 || !scalars.is_contiguous() {
        candle::bail!("set_scalars_: scalars must be contiguous f32, got {:?}", scalars.dtype())
    }
    let mut at = [0.; MAX_SCALARS];
    at[..n].copy_from_slice(values);
    operands("set_scalars_").write("scalars", scalars).run(&SetScalars { at, n })
}

/// `counter ← counter + by`; `counter` is an i64 tensor of one entry.
///
/// As the last op of a recorded step, it gives each replay new random draws.
///
/// # Errors
/// When `counter` has another type or size.
pub fn advance_(counter: &Tensor, by: i64) -> Result<()> {
    if counter.dtype() != DType::I64 || counter.elem_count() != 1 {
        candle::bail!("advance_: counter must be one i64, got {:?} {:?}", counter.dtype(), counter.dims())
    }
    operands("advance_").write("counter", counter).run(&Advance { by })
}

/// `largest ← max(largest, x)`; `largest` is a u32 tensor of one entry, `x` contiguous u32.
///
/// So a step notes which labels it was given without a wait, and whoever reads `largest` later
/// refuses those that are no classes.
///
/// # Errors
/// When types, layouts or devices do not fit.
pub fn raise_to_largest_(largest: &Tensor, x: &Tensor) -> Result<()> {
    const OP: &str = "raise_to_largest_";
    expect(OP, "largest", largest, &[DType::U32], &[1])?;
    expect_layout(OP, "x", x, &[DType::U32])?;
    operands(OP).write("largest", largest).read("x", x).run(&RaiseToLargest)
}

struct SetScalars {
    at: [f32; MAX_SCALARS],
    n: usize,
}

impl Kernel for SetScalars {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], []) = io.parts()?;
        out.elements()?.copy_from_slice(&self.at[..self.n]);
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        /// `Values` of kernels/core/scalars.cu.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Values([f32; MAX_SCALARS]);
        // SAFETY: eight floats, the same layout as the kernel's struct.
        unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Values {}

        let ([out], []) = io.parts()?;
        let mut out = out.elements::<f32>()?;
        let launch = gpu.launch("set_scalars_", "scalars", "set_scalars_f32")?.write(&mut out);
        // SAFETY: (float*, Values, unsigned); out holds n floats, checked by `set_scalars_`.
        unsafe { launch.num(Values(self.at)).count(self.n).blocks(1, MAX_SCALARS as u32).go() }
    }
}

struct RaiseToLargest;

impl Kernel for RaiseToLargest {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([largest], [x]) = io.parts()?;
        let x = x.elements::<u32>()?.iter().copied().max();
        largest
            .elements::<u32>()?
            .iter_mut()
            .for_each(|largest| *largest = x.map_or(*largest, |x| x.max(*largest)));
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([largest], [x]) = io.parts()?;
        let (mut largest, x) = (largest.elements::<u32>()?, x.elements::<u32>()?);
        let n = x.len();
        let launch = gpu.launch("raise_to_largest_", "scalars", "raise_to_largest_u32")?;
        // SAFETY: (unsigned*, const unsigned*, size_t); x holds n numbers and `largest` one,
        // checked by the op; whole warps of any grid.
        unsafe { launch.write(&mut largest).read(&x).num(n).linear(n).go() }
    }
}

struct Advance {
    by: i64,
}

impl Kernel for Advance {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([counter], []) = io.parts()?;
        counter.elements::<i64>()?.iter_mut().for_each(|counter| *counter = counter.wrapping_add(self.by));
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([counter], []) = io.parts()?;
        advance_on(gpu, &mut counter.elements::<i64>()?, self.by)
    }
}

/// [`advance_`] as the last launch of another op, which checked that `counter` has one entry.
#[cfg(feature = "cuda")]
pub(crate) fn advance_on(
    gpu: &crate::core::cuda::Gpu,
    counter: &mut candle::cuda::cudarc::driver::CudaViewMut<'_, i64>,
    by: i64,
) -> Result<()> {
    let launch = gpu.launch("advance_", "scalars", "advance_i64")?.write(counter).num(by);
    // SAFETY: (long long*, long long); the callers checked that counter holds one entry.
    unsafe { launch.blocks(1, 1).go() }
}
