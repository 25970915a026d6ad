//! Devices: how one is opened, and what it calls itself.
use candle::{Device, DeviceLocation, Result};

/// The GPU with this number, on a stream of its own: what the ops of this crate are best used on.
///
/// Any thread may call it at any time. candle's own `Device::new_cuda_with_stream` waits for the whole GPU, which CUDA refuses while
/// another thread records a step (see [`Replay`](crate::Replay)): the caller then gets `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`. So
/// does the first random tensor of candle on a device; here it is made once, so that later ones are safe.
///
/// # Errors
/// When there is no such GPU, the kernels were built for other GPUs, or the build has no CUDA.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    return crate::cuda::alone(|| {
        let device = Device::new_cuda_with_stream(ordinal)?;
        if let Device::Cuda(device) = &device {
            crate::cuda::Gpu::of(device)?;
        }
        candle::Tensor::rand(0f32, 1., 2, &device)?;
        Ok(device)
    });
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
