//! The `--device` option: the CPU, or one GPU by number.
use anyhow::{Context, bail};
use candle::Device;
use chandlery_datasets::count;
use std::fmt;
use std::str::FromStr;

/// Where a program runs: `cpu`, `cuda` (the first GPU) or `cuda:N`.
///
/// The default is `cuda:0` in a build with the feature `cuda`, else `cpu`. If the GPU is missing,
/// [`open`](DeviceChoice::open) returns an error that says what to do; nothing then runs on the CPU
/// instead.
///
/// ```
/// use chandlery_bins::device::DeviceChoice;
///
/// assert_eq!("cuda:1".parse(), Ok(DeviceChoice::Cuda(1)));
/// assert_eq!(DeviceChoice::Cpu.to_string(), "cpu");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The CPU, with the threads of `--threads`.
    Cpu,
    /// The GPU with this number, as the driver counts them (`CUDA_VISIBLE_DEVICES` applies).
    Cuda(usize),
}

impl Default for DeviceChoice {
    fn default() -> Self {
        if cfg!(feature = "cuda") { Self::Cuda(0) } else { Self::Cpu }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ordinal = match text {
            "cpu" => return Ok(Self::Cpu),
            "cuda" => return Ok(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(|n| n.parse().ok()),
        };
        ordinal.map(Self::Cuda).ok_or_else(|| "must be cpu, cuda or cuda:N with N = 0, 1, …".to_owned())
    }
}

impl DeviceChoice {
    /// Opens the device. A GPU gets a stream of its own, so that its work can be recorded as a CUDA
    /// graph.
    ///
    /// # Errors
    /// When a GPU is asked for and the build has no CUDA, or there is no such GPU.
    pub fn open(self) -> anyhow::Result<Device> {
        let Self::Cuda(ordinal) = self else {
            return Ok(Device::Cpu);
        };
        if !cfg!(feature = "cuda") {
            bail!(
                "--device {self}: this build has no CUDA; build it with `cargo run --features cuda …`, or use --device cpu"
            )
        }
        chandlery_ops::core::cuda_device(ordinal).with_context(|| {
            format!("--device {self}: cannot open this GPU; see what `nvidia-smi` lists, or use --device cpu")
        })
    }
}

/// The name of a device for people: `cpu (16 threads)`, `cuda:0 (NVIDIA H200)`.
pub fn describe(device: &Device) -> String {
    match device.location() {
        candle::DeviceLocation::Cpu => {
            format!("cpu ({})", count(rayon::current_num_threads(), "thread"))
        }
        candle::DeviceLocation::Cuda { gpu_id } => match chandlery_ops::core::device_name(device) {
            Ok(name) => format!("cuda:{gpu_id} ({name})"),
            Err(_) => format!("cuda:{gpu_id}"),
        },
        candle::DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for text in ["cpu", "cuda:0", "cuda:7"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
    }

    #[test]
    fn a_device_that_is_none_is_refused() {
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda:0 "] {
            assert_eq!(
                text.parse::<DeviceChoice>(),
                Err("must be cpu, cuda or cuda:N with N = 0, 1, …".to_owned()),
                "{text:?}"
            );
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_in_a_build_without_cuda_says_how_to_build() {
        assert_eq!(
            DeviceChoice::Cuda(1).open().unwrap_err().to_string(),
            "--device cuda:1: this build has no CUDA; build it with `cargo run --features cuda …`, or use --device cpu"
        );
    }
}
