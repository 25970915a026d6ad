//! A sequence of launches recorded once and replayed with one call.
use candle::Result;
use candle::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda::cudarc::driver::{CudaContext, CudaGraph};
use candle::cuda::{CudaDevice, WrapErr};
use std::sync::Arc;

/// A recorded CUDA graph: what `record` launched, replayed by [`Graph::launch`].
///
/// A step of 10 small kernels costs about 100 µs of host time when launched one by one and about 5 µs
/// as a graph. Everything that changes between replays (counters, rates) must live in device memory.
pub struct Graph {
    graph: CudaGraph,
    context: Arc<CudaContext>,
}

// SAFETY: a CUDA graph may move between threads; it must not be used by two at once, and `launch`
// takes `&mut self`.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `record` launches on the device's stream, without running it.
    ///
    /// `record` must have run once before in the ordinary way (libraries allocate their workspace at first use),
    /// must not allocate, copy from or to the host, or synchronise, and the tensors it uses
    /// must outlive the graph: they are recorded by address.
    ///
    /// # Errors
    /// When `record` fails, or does what cannot be recorded.
    ///
    /// # Safety
    /// The caller keeps every tensor that `record` touches alive, at its place, until the graph is
    /// dropped, and uses them from this device's stream only.
    pub unsafe fn capture(device: &CudaDevice, record: impl FnOnce() -> Result<()>) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context().clone();
        let _untracked = Untracked::new(context.clone());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
        let recorded = record();
        // The capture is ended whether or not it succeeded, or the stream would stay unusable.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        recorded?;
        match graph.w()? {
            Some(graph) => Ok(Self { graph, context }),
            None => candle::bail!("Graph::capture: nothing was launched"),
        }
    }

    /// Queues one replay on the device's stream. Returns at once.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub fn launch(&mut self) -> Result<()> {
        self.context.bind_to_thread().w()?;
        self.graph.launch().w()
    }
}

/// While it lives, uses of device memory are not recorded as events: a captured stream cannot wait for
/// an event recorded outside the capture.
struct Untracked {
    context: Arc<CudaContext>,
    was_tracking: bool,
}

impl Untracked {
    fn new(context: Arc<CudaContext>) -> Self {
        let was_tracking = context.is_event_tracking();
        // SAFETY: for the length of a capture only; everything captured runs on one stream, which
        // orders it, and `Graph::capture` demands that the tensors are used from that stream only.
        unsafe { context.disable_event_tracking() };
        Self { context, was_tracking }
    }
}

impl Drop for Untracked {
    fn drop(&mut self) {
        if self.was_tracking {
            // SAFETY: restores the state that `new` found.
            unsafe { self.context.enable_event_tracking() };
        }
    }
}
