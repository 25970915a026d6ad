//! Devices: how to open one, and its name.
use candle::{Device, DeviceLocation, Result};

/// Opens the GPU with this number, with a stream of its own. The ops of this crate are best used on such a device.
///
/// Any thread may call this function, and drop the device, at any time. candle's own `Device::new_cuda_with_stream` waits for the
/// whole GPU when a device is opened and when it is dropped. CUDA refuses that wait while another thread records a step (see
/// [`Replay`](crate::Replay)): opening then fails with `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and dropping panics.
///
/// A device that is no longer in use, and has no tensors, is handed out again with candle's random generator reset. At most as
/// many devices are kept as were in use at once.
///
/// # Errors
/// When there is no such GPU, the kernels were built for other GPUs, or the build has no CUDA.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    return crate::cuda::open(ordinal);
    #[cfg(not(feature = "cuda"))]
    candle::bail!("cuda_device: this build has no CUDA for GPU {ordinal}; build with the feature `cuda`")
}

/// The name of a device: for a GPU the name from its driver, such as `NVIDIA H200`; for the CPU `cpu`.
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
