//! A step that runs many times: directly on the CPU; recorded once and replayed on CUDA.
use crate::core::op::apart::{handed_over, together};
use candle::{Device, Result};

/// The step of a training loop and, on CUDA, its recording.
///
/// A step of ten small kernels costs about 100 µs of host time launch by launch, and about 5 µs as
/// one CUDA graph. The step is recorded at its third run. A recording repeats the same launches on
/// the same memory, so a step must follow these rules:
///
/// - it consists of in-place ops of this crate and owns (or shares) every tensor that they use; the
///   recording does not contain candle's own ops;
/// - it reads what changes from run to run (counters, rates) from tensors on the device;
/// - it neither copies to or from the host nor waits for the device.
///
/// **Threads.** Any thread may use the GPU while another records, on its own devices and on clones
/// of one device. A replay logs what it writes and reads, as any op does. During a recording CUDA
/// does not allow any thread to wait for the whole GPU: opening a device with candle's
/// `Device::new_cuda_with_stream`, or making the first random tensor of candle on a device, may
/// then fail with `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and dropping such a device panics. Open
/// devices with [`cuda_device`](crate::core::cuda_device), which waits for recordings to end and
/// avoids these failures. A recording that another thread breaks is made again at the next run.
///
/// candle's `Device::new_cuda` has a stream for each thread: a step on such a device is refused in
/// a second thread, and candle's ops on it are not ordered between threads. A thread that allocates
/// or frees memory on its own stream hangs in the driver when it ends (seen with driver 580.159 and
/// plain CUDA calls). Keep such a device, and all tensors on it, in the main thread, or use
/// [`cuda_device`](crate::core::cuda_device).
pub struct Replay {
    /// Dropped before what the step owns: a recording of collectives must go before their group.
    #[cfg(feature = "cuda")]
    recorder: crate::core::recorder::Recorder,
    step: Box<dyn Fn() -> Result<()> + Send + Sync>,
    device: Device,
    /// On the CPU: whether the step hands over several kernels, as its first run showed.
    has_many: bool,
    #[cfg(feature = "cuda")]
    shared: bool,
    #[cfg(feature = "cuda")]
    record: bool,
}

impl Replay {
    /// A step that is recorded on a CUDA device.
    pub fn new(device: &Device, step: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self {
            step: Box::new(step),
            device: device.clone(),
            has_many: false,
            #[cfg(feature = "cuda")]
            shared: true,
            #[cfg(feature = "cuda")]
            record: true,
            #[cfg(feature = "cuda")]
            recorder: Default::default(),
        }
    }

    /// The same for a step that cannot be recorded because it makes tensors: it is launched op by
    /// op in each run.
    pub fn unrecorded(device: &Device, step: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "nothing is recorded on the CPU"))]
        let mut replay = Self::new(device, step);
        #[cfg(feature = "cuda")]
        {
            replay.record = false;
        }
        replay
    }

    /// Promises that the tensors of the step are used only on this device and its clones, as in a
    /// trainer that hands out copies. Replays then log nothing, which saves about 2 µs of host time
    /// per tensor. Such a tensor must not be copied to another device of the same GPU by
    /// [`Tensor::to_device`](candle::Tensor::to_device): the copy would not wait for the step.
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "nothing is recorded on the CPU"))]
    pub fn unshared(mut self) -> Self {
        #[cfg(feature = "cuda")]
        {
            self.shared = false;
        }
        self
    }

    /// Runs the step once: computes it on the CPU, or queues it on a GPU.
    ///
    /// # Errors
    /// What the step returns; on CUDA also when it cannot be recorded.
    pub fn run(&mut self) -> Result<()> {
        match &self.device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => self.recorder.run(device, self.record, self.shared, &self.step),
            _ if self.has_many => together(&self.step)?,
            _ => {
                let before = handed_over();
                (self.step)()?;
                self.has_many = handed_over() > before + 1;
                Ok(())
            }
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // A replay may still be running on the memory that the step owns.
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = &self.device {
            self.recorder.finish(device);
        }
    }
}
