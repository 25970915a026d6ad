//! Devices that [`cuda_device`](crate::core::cuda_device) opens. They are never dropped; an unused
//! one is handed out again.
//!
//! Dropping candle's device destroys its cuBLAS handle, which waits for the whole GPU. That wait
//! breaks the recordings of other threads, and cudarc turns the driver's error into a panic.
//! Opening a device takes about 0.2 s, most of it to create the handle.
use super::gpu::Gpu;
use super::recording::alone;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::{CudaContext, result};
use candle::{CudaDevice, Device, Result, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

struct Opened {
    ordinal: usize,
    device: CudaDevice,
    /// Owners of the device's stream when nobody else has the device, nor a tensor on it.
    own: usize,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(vec![]);

/// Where candle's random draws begin on a new device.
const SEED: u64 = 299_792_458;

fn owners(device: &CudaDevice) -> usize {
    Arc::strong_count(&device.cuda_stream())
}

/// See [`n_gpus`](crate::core::n_gpus).
pub(crate) fn n_gpus() -> Result<usize> {
    let n = CudaContext::device_count().w()?;
    Ok(usize::try_from(n).unwrap_or(0))
}

/// See [`keep_current`](crate::core::keep_current).
pub(crate) fn keep_current<T>(work: impl FnOnce() -> T) -> T {
    // An error says that nobody has started the driver: then no context was current.
    let before = result::ctx::get_current();
    let made = work();
    if let Ok(Some(context)) = before {
        // SAFETY: it was current when this began; contexts of GPUs end with the process. The error
        // of a device that is lost has shown before.
        let _ = unsafe { result::ctx::set_current(context) };
    }
    made
}

/// See [`cuda_device`](crate::core::cuda_device).
pub(crate) fn open(ordinal: usize) -> Result<Device> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let spare = opened.iter().find(|one| one.ordinal == ordinal && owners(&one.device) == one.own);
    if let Some(spare) = spare {
        let device = Device::Cuda(spare.device.clone());
        alone(|| {
            device.set_seed(SEED)?;
            first_draw(&device)
        })?;
        return Ok(device);
    }
    let device = alone(|| {
        let device = CudaDevice::new_with_stream(ordinal)?;
        Gpu::of(&device)?;
        first_draw(&Device::Cuda(device.clone()))?;
        Ok::<_, candle::Error>(device)
    })?;
    opened.push(Opened { ordinal, own: owners(&device), device: device.clone() });
    Ok(Device::Cuda(device))
}

/// The first random tensor of candle on a device ends recordings too: it is made here.
fn first_draw(device: &Device) -> Result<()> {
    Tensor::rand(0f32, 1., 2, device).map(drop)
}
