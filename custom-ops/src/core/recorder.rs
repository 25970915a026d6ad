//! A step of many launches, recorded once as a CUDA graph and replayed with one call.
//!
//! Other threads may use the GPU at the same time, also through clones of the same device. A
//! recording therefore uses its own stream, so it does not contain what others launch on the
//! device's stream, and it changes no setting that others share.
//!
//! Three calls break every recording on a GPU, in whichever thread they are made: waiting for the
//! whole GPU, which opening the first stream of a device does; dropping a device (`cublasDestroy`);
//! and the first random tensor of candle on a device. They were found by trying each driver call
//! during a recording. [`alone`](recording::alone) keeps the calls of this crate from overlapping a
//! recording. If a call of other code breaks a recording, it ends as [`Recorded::Broken`], the step
//! runs launch by launch, and the next step is recorded again.
use super::cuda::recording::{self, is_per_thread};
use super::cuda::{Gpu, Handle, Lent, State, products_so_far};
use super::op::{Io, Kernel, operands};
use candle::cuda::cudarc::driver::sys::{self, CUresult};
use candle::cuda::cudarc::driver::{
    CudaEvent, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop, result,
};
use candle::cuda::{CudaDevice, CudaStorageSlice, WrapErr};
use candle::{CudaStorage, Result, Tensor};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// What became of a recording.
enum Recorded {
    Graph(Graph),
    /// A call of another thread ended it, or the step does what cannot be recorded, which then has
    /// an error of its own.
    Broken(Option<candle::Error>),
}

/// A recording that goes on. However it ends, by an error or a panic too, the driver ends it and
/// the thread launches as before.
struct Capture {
    /// Lent by the GPU's state and given back, never destroyed: the driver crashes (580.159) when
    /// one thread destroys the stream of a recording while another waits for the whole GPU.
    stream: Arc<CudaStream>,
    gpu: Arc<State>,
}

impl Capture {
    fn begin(gpu: &Gpu, handle: Option<Arc<Mutex<Handle>>>) -> Result<Self> {
        let spare = gpu.state().captures().pop();
        let stream = spare.map_or_else(|| gpu.new_stream(), Ok)?;
        let capture = Self { stream, gpu: gpu.state().clone() };
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        capture.stream.begin_capture(mode).w()?;
        recording::begin(gpu.device_stream(), capture.stream.clone(), handle);
        Ok(capture)
    }

    /// Ends the capture; the graph may be null.
    fn end(&self) -> std::result::Result<sys::CUgraph, DriverError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive, and the graph is written through a pointer to one. The
        // driver is asked itself: cudarc looks for older errors first, and would return with the
        // capture still open.
        unsafe { sys::cuStreamEndCapture(self.stream.cu_stream(), &raw mut graph) }.result()?;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Only where the step panicked is there still a recording: it is thrown away.
        if recording::end().is_some()
            && let Ok(graph) = self.end()
            && !graph.is_null()
        {
            // SAFETY: the graph was just handed out and nobody else knows it.
            let _ = unsafe { result::graph::destroy(graph) };
        }
        self.gpu.captures().push(self.stream.clone());
    }
}

/// Records what `step` launches, without running it.
///
/// `products` says whether the step makes products by cuBLAS, `shared` whether its replays log what
/// they write and read.
fn record(
    device: &CudaDevice,
    products: bool,
    shared: bool,
    step: impl FnOnce() -> Result<()>,
) -> Result<Recorded> {
    let gpu = Gpu::of(device)?;
    gpu.not_recording("Replay")?;
    let lent = products.then(|| Lent::new(&gpu)).transpose()?;
    let _shared = recording::shared();
    let capture = Capture::begin(&gpu, lent.as_ref().map(Lent::handle))?;
    let done = step();
    let Some(now) = recording::end() else {
        candle::bail!("Replay: the recording was ended within the step")
    };
    let ended = capture.end();
    let broken =
        now.broken || matches!(ended, Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
    let graph = ended.unwrap_or(std::ptr::null_mut());
    let exec = match (&done, broken, graph.is_null()) {
        (Ok(()), false, false) => {
            // SAFETY: the graph was just recorded.
            Some(unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) })
        }
        _ => None,
    };
    if !graph.is_null() {
        // SAFETY: what was instantiated of it stands by itself, and nobody else knows the graph.
        let _ = unsafe { result::graph::destroy(graph) };
    }
    match (done, exec) {
        (done, _) if broken => Ok(Recorded::Broken(done.err())),
        (Err(error), _) => Err(error),
        (Ok(()), None) => {
            ended.w()?;
            candle::bail!("Replay: the step launched nothing")
        }
        (Ok(()), Some(exec)) => Ok(Recorded::Graph(Graph {
            exec: exec.w()?,
            gpu: gpu.state().clone(),
            device: device.clone(),
            shared,
            used: now.used,
            _products: lent,
        })),
    }
}

/// A recorded step: launches on memory that its tensors keep in place.
struct Graph {
    exec: sys::CUgraphExec,
    gpu: Arc<State>,
    device: CudaDevice,
    /// What the recording uses, which must stay where it is, and whether it writes it.
    used: Vec<(Tensor, bool)>,
    /// Whether streams of other devices may use that too.
    shared: bool,
    /// The handle that its products keep, if it makes any.
    _products: Option<Lent>,
}

// SAFETY: a graph may move between threads; it must not be used by two at once, and `launch` takes
// `&mut self`.
unsafe impl Send for Graph {}
// SAFETY: nothing can be done with a shared reference.
unsafe impl Sync for Graph {}

impl Graph {
    /// Queues one replay on the device's stream, which logs what it writes and reads. Returns at
    /// once.
    fn launch(&mut self) -> Result<()> {
        let stream = self.device.cuda_stream();
        if !self.shared || !stream.context().is_managing_stream_synchronization() {
            Gpu::of(&self.device)?.not_recording("Replay")?;
            return launch(self.exec, &stream);
        }
        let all = self.used.iter().fold(operands("Replay"), |all, (tensor, is_written)| match is_written {
            true => all.write("a tensor of the step", tensor),
            false => all.read("a tensor of the step", tensor),
        });
        all.run(&Replayed { exec: self.exec })
    }
}

fn launch(exec: sys::CUgraphExec, stream: &CudaStream) -> Result<()> {
    // SAFETY: the graph is alive and its memory too, by `Graph::used`; replays of it are ordered by
    // the stream.
    unsafe { result::graph::launch(exec, stream.cu_stream()) }.w()
}

struct Replayed {
    exec: sys::CUgraphExec,
}

// SAFETY: the handle is only used by `Kernel::cuda`, in the thread of the `Graph` that lends it for
// the call.
unsafe impl Sync for Replayed {}

impl Kernel for Replayed {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        gpu.not_recording("Replay")?;
        let (written, read) = io.storages()?;
        let stream = gpu.stream();
        let _written: Vec<_> =
            written.into_iter().map(|storage| use_to_write(storage, stream)).collect::<Result<_>>()?;
        let _read: Vec<_> =
            read.into_iter().map(|storage| use_to_read(storage, stream)).collect::<Result<_>>()?;
        launch(self.exec, stream)
    }
}

/// Applies an expression to the memory of a storage, whatever its type.
macro_rules! with_memory {
    ($slice:expr, $memory:ident => $use:expr) => {
        match $slice {
            CudaStorageSlice::U8($memory) => $use,
            CudaStorageSlice::U32($memory) => $use,
            CudaStorageSlice::I16($memory) => $use,
            CudaStorageSlice::I64($memory) => $use,
            CudaStorageSlice::BF16($memory) => $use,
            CudaStorageSlice::F16($memory) => $use,
            CudaStorageSlice::F32($memory) => $use,
            CudaStorageSlice::F64($memory) => $use,
            _ => candle::bail!("Replay: there is no code for a type of the step"),
        }
    };
}

/// Lets the stream wait for other uses of the memory; when what is returned is dropped, others wait
/// for the stream.
fn use_to_write<'a>(storage: &'a mut CudaStorage, stream: &'a CudaStream) -> Result<SyncOnDrop<'a>> {
    Ok(with_memory!(&mut storage.slice, memory => memory.device_ptr_mut(stream).1))
}

fn use_to_read<'a>(storage: &'a CudaStorage, stream: &'a CudaStream) -> Result<SyncOnDrop<'a>> {
    Ok(with_memory!(&storage.slice, memory => memory.device_ptr(stream).1))
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The recording must not be destroyed while it runs. An error here has shown before, or
        // will at the next use.
        let _ = self.gpu.context.bind_to_thread();
        // SAFETY: no replay is queued any more: `Recorder` waits before it lets go.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

/// Runs before a recording: libraries set up their workspace in the first, the second shows that
/// the step repeats.
const WARM_UP: usize = 2;
/// Recordings in a row that may be broken by other threads before the step itself is taken to be at
/// fault.
const MOST_BROKEN: usize = 100;

/// Runs a step on a GPU: launch by launch at first, then as a recording.
#[derive(Default)]
pub(crate) struct Recorder {
    runs: usize,
    /// Whether the step makes products by cuBLAS, as its last run showed.
    products: bool,
    broken: usize,
    graph: Option<Graph>,
    /// On a device with a stream for each thread: where the runs of its thread ended, so that
    /// whoever drops it can wait for them.
    last: Option<(ThreadId, CudaEvent)>,
}

impl Recorder {
    pub(crate) fn run(
        &mut self,
        device: &CudaDevice,
        record_it: bool,
        shared: bool,
        step: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let stream = device.cuda_stream();
        let per_thread = is_per_thread(&stream);
        if per_thread {
            self.stay_in_thread()?;
        }
        let done = self.run_here(device, record_it, shared, step);
        if per_thread {
            let event = match self.last.take() {
                Some((_, event)) => event,
                None => State::of(stream.context())?.context.new_event(None).w()?,
            };
            // SAFETY: event and stream are alive, and of one context: that of the GPU.
            unsafe { result::event::record(event.cu_event(), stream.cu_stream()) }.w()?;
            self.last = Some((std::thread::current().id(), event));
        }
        done
    }

    fn run_here(
        &mut self,
        device: &CudaDevice,
        record_it: bool,
        shared: bool,
        step: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        if record_it && self.graph.is_none() && self.runs >= WARM_UP {
            match record(device, self.products, shared, step)? {
                Recorded::Graph(graph) => self.graph = Some(graph),
                Recorded::Broken(error) => {
                    self.broken += 1;
                    if let Some(error) = error
                        && self.broken > MOST_BROKEN
                    {
                        return Err(error);
                    }
                }
            }
        }
        match &mut self.graph {
            Some(graph) => graph.launch(),
            None => {
                self.runs = (self.runs + 1).min(WARM_UP);
                let before = products_so_far();
                let done = step();
                self.products = products_so_far() > before;
                done
            }
        }
    }

    /// Where a device has a stream for each thread, nothing orders the runs of a step in one thread
    /// and in another.
    fn stay_in_thread(&self) -> Result<()> {
        match &self.last {
            Some((thread, _)) if *thread != std::thread::current().id() => candle::bail!(
                "Replay: candle's Device::new_cuda has a stream for each thread, and this step ran in another thread before; \
                 open the device by chandlery_ops::core::cuda_device"
            ),
            _ => Ok(()),
        }
    }

    /// Waits until the memory of the step is used no more.
    pub(crate) fn finish(&mut self, device: &CudaDevice) {
        // An error here has shown before, or will at the next use of the device.
        let stream = device.cuda_stream();
        match &self.last {
            Some((_, event)) => drop(event.synchronize()),
            None if self.graph.is_some() && !is_per_thread(&stream) => drop(stream.synchronize()),
            None => {}
        }
        self.graph = None;
    }
}
