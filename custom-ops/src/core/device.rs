//! Devices: how to open one, its name, and its free memory.
use candle::{Device, DeviceLocation, Result};

/// Opens the GPU with this number, with a stream of its own. The ops of this crate are best used on
/// such a device.
///
/// Any thread may call this function, and drop the device, at any time. candle's own
/// `Device::new_cuda_with_stream` waits for the whole GPU when a device is opened and when it is
/// dropped. CUDA refuses that wait while another thread records a step (see
/// [`Replay`](crate::core::Replay)): opening then fails with
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and dropping panics.
///
/// A device that is no longer in use, and has no tensors, is handed out again with candle's random
/// generator reset. At most as many devices are kept as were in use at once.
///
/// # Errors
/// When there is no such GPU, the kernels were built for other GPUs, or the build has no CUDA.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    return crate::core::cuda::open(ordinal);
    #[cfg(not(feature = "cuda"))]
    candle::bail!("cuda_device: this build has no CUDA for GPU {ordinal}; build with the feature `cuda`")
}

/// Runs `work`, and then makes the GPU current in this thread that was so before: candle makes its
/// own current, and libraries such as PyTorch go by what they find. Nothing without the feature
/// `cuda`.
pub fn keep_current<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(feature = "cuda")]
    return crate::core::cuda::keep_current(work);
    #[cfg(not(feature = "cuda"))]
    work()
}

/// How many GPUs this process sees (`CUDA_VISIBLE_DEVICES` applies); none without the feature `cuda`.
///
/// # Errors
/// When the driver is missing or does not answer.
pub fn n_gpus() -> Result<usize> {
    #[cfg(feature = "cuda")]
    return crate::core::cuda::n_gpus();
    #[cfg(not(feature = "cuda"))]
    Ok(0)
}

/// The name of a device: for a GPU the name from its driver, such as `NVIDIA H200`; for the CPU
/// `cpu`.
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

/// Bytes of memory that are free on a device: of a GPU with those that its allocator keeps for
/// later use; of the CPU what the system can give without swapping. None where the system does not
/// say.
///
/// # Errors
/// When the driver does not answer.
pub fn free_memory(device: &Device) -> Result<Option<u64>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            crate::core::cuda::free_memory(crate::core::cuda::Gpu::of(cuda)?.context()).map(Some)
        }
        Device::Cpu => Ok(std::fs::read_to_string("/proc/meminfo").ok().and_then(|info| available(&info))),
        _ => Ok(None),
    }
}

/// Runs `work`, and says how many bytes of a device its tensors and the memory of its ops take at
/// most at one time, beyond what is in use before. What other threads take on the same GPU counts
/// too. None on a CPU, and where the driver does not count.
///
/// # Errors
/// When the driver does not answer.
pub fn most_memory<R>(device: &Device, work: impl FnOnce() -> R) -> Result<(R, Option<u64>)> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        let memory = crate::core::cuda::MostMemory::of(crate::core::cuda::Gpu::of(cuda)?.context())?;
        let result = work();
        let bytes = memory.map(|memory| memory.bytes()).transpose()?;
        return Ok((result, bytes));
    }
    let _ = device;
    Ok((work(), None))
}

/// Of Linux's `/proc/meminfo`.
fn available(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_that_of_the_line_of_its_name() {
        let info = "MemTotal:       16384 kB\nMemFree:  12 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(info), Some(2 << 20));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        assert_eq!(available("MemAvailable: much\n"), None);
    }

    #[test]
    fn a_cpu_does_not_count_the_memory_of_its_work() -> Result<()> {
        let (sum, bytes) = most_memory(&Device::Cpu, || 1 + 1)?;
        assert_eq!((sum, bytes), (2, None));
        Ok(())
    }

    #[test]
    fn a_cpu_on_linux_says_what_is_free() -> Result<()> {
        if cfg!(target_os = "linux") {
            assert!(free_memory(&Device::Cpu)?.is_some_and(|bytes| bytes > 1 << 20));
        }
        Ok(())
    }
}
