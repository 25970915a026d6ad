//! What a device calls itself.
use candle::{Device, DeviceLocation, Result};

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
