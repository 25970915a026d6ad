//! The few numbers of a training step that live on the device: rates and the counter of random draws.
use candle::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor};

/// At most this many numbers in one [`set_scalars_`].
const MAX_SCALARS: usize = 8;

/// `scalars[i] ← values[i]`, without reading host memory after the call returns.
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
    scalars.inplace_op1(&SetScalars { at, n })
}

/// `counter ← counter + by`; `counter` is an i64 tensor of one entry.
///
/// As the last op of a recorded step it makes each replay draw other random numbers.
///
/// # Errors
/// When `counter` has another type or size.
pub fn advance_(counter: &Tensor, by: i64) -> Result<()> {
    if counter.dtype() != DType::I64 || counter.elem_count() != 1 {
        candle::bail!("advance_: counter must be one i64, got {:?} {:?}", counter.dtype(), counter.dims())
    }
    counter.inplace_op1(&Advance { by })
}

struct SetScalars {
    at: [f32; MAX_SCALARS],
    n: usize,
}

impl InplaceOp1 for SetScalars {
    fn name(&self) -> &'static str {
        "set_scalars_"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(out) = storage else { candle::bail!("set_scalars_: scalars must be f32") };
        out[layout.start_offset()..][..self.n].copy_from_slice(&self.at[..self.n]);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle::CudaStorage, layout: &Layout) -> Result<()> {
        use crate::cuda::{PushKernelArg, WrapErr, block_launch, function, view_mut};
        use candle::backend::BackendStorage;
        use candle::cuda::cudarc::driver::DeviceRepr;

        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Values([f32; MAX_SCALARS]);
        // SAFETY: eight floats, the same layout as `Values` of kernels/scalars.cu.
        unsafe impl DeviceRepr for Values {}

        let device = storage.device().clone();
        let mut out = view_mut::<f32>(storage, layout, "set_scalars_")?;
        let function = function(&device, "scalars", "set_scalars_f32")?;
        let (values, n) = (Values(self.at), self.n as u32);
        let mut launch = function.builder();
        launch.arg(&mut out).arg(&values).arg(&n);
        // SAFETY: (float*, Values, unsigned); out holds n floats, checked by `set_scalars_`.
        unsafe { launch.launch(block_launch(1, MAX_SCALARS as u32)) }.w()?;
        Ok(())
    }
}

struct Advance {
    by: i64,
}

impl InplaceOp1 for Advance {
    fn name(&self) -> &'static str {
        "advance_"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::I64(counter) = storage else { candle::bail!("advance_: counter must be i64") };
        let counter = &mut counter[layout.start_offset()];
        *counter = counter.wrapping_add(self.by);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle::CudaStorage, layout: &Layout) -> Result<()> {
        use crate::cuda::{PushKernelArg, WrapErr, block_launch, function, view_mut};
        use candle::backend::BackendStorage;

        let device = storage.device().clone();
        let mut counter = view_mut::<i64>(storage, layout, "advance_")?;
        let function = function(&device, "scalars", "advance_i64")?;
        let mut launch = function.builder();
        launch.arg(&mut counter).arg(&self.by);
        // SAFETY: (long long*, long long); counter holds one entry, checked by `advance_`.
        unsafe { launch.launch(block_launch(1, 1)) }.w()?;
        Ok(())
    }
}
