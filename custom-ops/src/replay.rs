//! A step that is run many times: as it stands on the CPU, recorded once and replayed on CUDA.
use candle::{Device, Result};

/// Runs before a recording: libraries set up their workspace in the first, the second shows that the step repeats.
const WARM_UP: usize = 2;

/// The step of a training loop and, on CUDA, its recording.
///
/// A step of ten small kernels costs about 100 µs of host time launch by launch and about 5 µs as one CUDA graph. The
/// step is recorded at its third run; a recording repeats the same launches on the same memory, so:
///
/// - the step owns (or shares) every tensor that it uses, and makes no new ones;
/// - what changes from run to run (counters, rates) it reads from tensors on the device;
/// - it neither copies to or from the host nor waits.
pub struct Replay {
    step: Box<dyn Fn() -> Result<()> + Send + Sync>,
    runs: usize,
    #[cfg(feature = "cuda")]
    recorded: Option<crate::cuda::Graph>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    device: Device,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    record: bool,
}

impl Replay {
    /// A step to be recorded on a CUDA device.
    pub fn new(device: &Device, step: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self {
            step: Box::new(step),
            runs: 0,
            #[cfg(feature = "cuda")]
            recorded: None,
            device: device.clone(),
            record: true,
        }
    }

    /// The same for a step that cannot be recorded because it makes tensors: it is launched afresh each time.
    pub fn unrecorded(device: &Device, step: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        let mut replay = Self::new(device, step);
        replay.record = false;
        replay
    }

    /// Runs the step once: queues it on a GPU, does it on the CPU.
    ///
    /// # Errors
    /// What the step returns; on CUDA also when it cannot be recorded.
    pub fn run(&mut self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = &self.device {
            if self.record && self.recorded.is_none() && self.runs >= WARM_UP {
                // SAFETY: the tensors that the step touches belong to it and live as long as `self`; they are
                // used from the device's one stream, as candle does.
                self.recorded = Some(unsafe { crate::cuda::Graph::capture(device, &self.step) }?);
            }
            if let Some(recorded) = &mut self.recorded {
                return recorded.launch();
            }
        }
        self.runs = (self.runs + 1).min(WARM_UP);
        (self.step)()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // A replay may still be running on the memory that the step owns, and what frees that memory
        // is ordered behind it on the same stream; the recording itself must not be destroyed before it ends.
        #[cfg(feature = "cuda")]
        if self.recorded.is_some() {
            // An error here has shown before, or will at the next use of the device.
            let _ = self.device.synchronize();
        }
    }
}
