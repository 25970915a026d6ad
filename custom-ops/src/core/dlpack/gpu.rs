//! Copies of what other libraries have in the memory of a GPU, and waits between their streams and
//! ours.
use super::Memory;
use crate::core::cuda::{Gpu, WrapErr, alone};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::{DevicePtr, DevicePtrMut, result, sys};
use candle::{CudaDevice, CudaStorage, DType, Device, Result, Tensor};
use half::{bf16, f16};

const OP: &str = "DLPack";

/// How the entries lie: `height` rows of `width`, each `pitch` after the one before.
#[derive(Debug, Clone, Copy)]
struct Rows {
    height: usize,
    width: usize,
    pitch: usize,
}

/// A copy of the entries on `device`. The host waits for it.
///
/// # Safety
/// They are in the memory of that GPU, and until this returns nobody writes them but what its
/// stream waits for.
pub(super) unsafe fn copy(memory: &Memory, device: &Device) -> Result<Tensor> {
    let dims = memory.dims.as_slice();
    if memory.len() == 0 {
        return Tensor::zeros(dims, memory.dtype, device);
    }
    let of = |height: usize, width: usize, pitch: isize| {
        let pitch = usize::try_from(pitch).ok().filter(|&pitch| pitch >= width)?;
        Some(Rows { height, width, pitch })
    };
    let (to, rows) = match (dims, memory.strides.as_slice()) {
        _ if memory.is_contiguous() => (dims.to_vec(), of(1, memory.len(), memory.len() as isize)),
        (&[n], &[step]) => (dims.to_vec(), of(n, 1, step)),
        (&[n, m], &[pitch, step]) if step == 1 || m == 1 => (dims.to_vec(), of(n, m, pitch)),
        (&[n, m], &[step, pitch]) if step == 1 || n == 1 => (vec![m, n], of(m, n, pitch)),
        _ => (dims.to_vec(), None),
    };
    let Some(rows) = rows else {
        candle::bail!(
            "{OP}: on a GPU entries must lie in rows or in columns, got strides {:?} for shape {dims:?}; make the tensor contiguous",
            memory.strides
        )
    };
    let there = new_tensor(OP, to.as_slice(), memory.dtype, device)?;
    operands(OP).write("the copy", &there).run(&CopyIn {
        address: memory.address as u64,
        rows,
        dtype: memory.dtype,
    })?;
    match to == dims {
        true => Ok(there),
        false => there.t()?.contiguous(),
    }
}

/// Writes a tensor from the memory of another library.
struct CopyIn {
    address: u64,
    rows: Rows,
    dtype: DType,
}

impl Kernel for CopyIn {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        gpu.not_recording(OP)?;
        for_type!(
            self.dtype,
            [U8: u8, U32: u32, I16: i16, I32: i32, I64: i64, BF16: bf16, F16: f16, F64: f64; f32],
            |T| self.copy::<T>(gpu, io)
        )
    }
}

impl CopyIn {
    fn copy<T: CudaDType>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([there], []) = io.parts()?;
        let mut there = there.elements::<T>()?;
        let (to, _write) = there.device_ptr_mut(gpu.stream());
        let Rows { height, width, pitch } = self.rows;
        let bytes = width * size_of::<T>();
        if height == 1 {
            // SAFETY: the tensor has room for all entries, which `copy` was promised are there.
            unsafe { result::memcpy_dtod_async(to, self.address, bytes, gpu.stream().cu_stream()) }.w()?;
        } else {
            let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
            let rows = sys::CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: device,
                srcHost: std::ptr::null(),
                srcDevice: self.address,
                srcArray: std::ptr::null_mut(),
                srcPitch: pitch * size_of::<T>(),
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: device,
                dstHost: std::ptr::null_mut(),
                dstDevice: to,
                dstArray: std::ptr::null_mut(),
                dstPitch: bytes,
                WidthInBytes: bytes,
                Height: height,
            };
            // SAFETY: as above, row by row.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const rows, gpu.stream().cu_stream()) }.result().w()?;
        }
        // The memory may be given back, and written, when this has returned.
        gpu.stream().synchronize().w()
    }
}

/// Where the entries of a storage begin.
pub(super) fn address(storage: &CudaStorage) -> Result<usize> {
    fn of<T: CudaDType>(storage: &CudaStorage) -> Result<usize> {
        let stream = storage.device.cuda_stream();
        let (at, _read) = storage.as_cuda_slice::<T>()?.device_ptr(&stream);
        Ok(at as usize)
    }
    use candle::backend::BackendStorage;
    for_type!(
        storage.dtype(),
        [U8: u8, U32: u32, I16: i16, I32: i32, I64: i64, BF16: bf16, F16: f16, F64: f64; f32],
        |T| of::<T>(storage)
    )
}

/// See [`Lent::ready_on`](super::Lent::ready_on).
pub(super) fn ready_on(device: &CudaDevice, stream: Option<i64>) -> Result<()> {
    let stream = match stream {
        Some(-1) => return Ok(()),
        Some(0) => {
            candle::bail!("{OP}: stream must not be 0, which has two meanings; 1 is the legacy stream")
        }
        Some(stream) => stream,
        None => 1,
    };
    let gpu = Gpu::of(device)?;
    gpu.not_recording(OP)?;
    let written = gpu.stream().record_event(None).w()?;
    let theirs = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: the consumer says that it has this stream; the event was just recorded.
    unsafe {
        result::stream::wait_event(theirs, written.cu_event(), sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
    }
    .w()
}

/// Waits for all work on the GPU, of whatever stream. The error of a device that is lost has shown
/// before.
pub(super) fn wait(device: &CudaDevice) {
    alone(|| {
        let _ = device.cuda_stream().context().synchronize();
    });
}
