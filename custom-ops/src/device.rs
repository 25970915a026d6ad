//! Devices: how one is opened, and what it calls itself.
use candle::{Device, DeviceLocation, Result};

/// The GPU with this number, on a stream of its own: what the ops of this crate are best used on.
///
/// Any thread may call it at any time, and drop what it gets at any time. candle's own `Device::new_cuda_with_stream` waits for the whole
/// GPU, both when a device is opened and when it is dropped, which CUDA refuses while another thread records a step (see
/// [`Replay`](crate::Replay)): opening then fails with `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and dropping panics.
///
/// A device that nobody has any more, nor a tensor on it, is given out again, with candle's random draws at their beginning; at most as
/// many are kept as were in use at once.
///
/// # Errors
/// When there is no such GPU, the kernels were built for other GPUs, or the build has no CUDA.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    return crate::cuda::open(ordinal);
    #[cfg(not(feature = "cuda"))]
    candle::bail!("cuda_device: this build has no CUDA for GPU {ordinal}; build with the feature `cuda`")
}

/// The name of a device: `NVIDIA H200` for a GPU, as its driver gives it, and `cpu` for the CPU.
///
/// # Errors
/// When the driver does not answer.
pub fn device_name(device: &Device) -> Result<String> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        use candle::cuda::WrapErr;
        return cuda.cuda_stream().context().name().w();
    }
    Ok(match device.location() {
        DeviceLocation::Cpu => "cpu".into(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    })
}
