//! cuBLAS: one handle with its own workspace for each stream.
//!
//! candle has one handle per device. Its pointer mode must stay on the host, and recordings would share its workspace. A
//! recording refers to the workspace of the handle that it was recorded with, and is replayed while other threads use the handle
//! of the stream; so each recording owns a handle for as long as it lives. With one handle for both, replays gave wrong results
//! when threads shared a stream.
use super::gpu::{Gpu, State};
use super::recording::{self, alone, is_per_thread};
use candle::Result;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::cublas::sys::{
    cublasHandle_t, cublasPointerMode_t, cublasSetPointerMode_v2, cublasSetWorkspace_v2,
};
use candle::cuda::cudarc::cublas::{result as cublas, result::CublasError};
use candle::cuda::cudarc::driver::{CudaStream, result, sys};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

/// What cuBLAS takes by default: 32 MiB from capability 9.0 on, 4 MiB before.
fn workspace_bytes(built: u32) -> usize {
    if built >= 90 { 32 << 20 } else { 4 << 20 }
}

thread_local! {
    /// Products of this thread so far.
    static PRODUCTS: Cell<usize> = const { Cell::new(0) };
}

/// Products that this thread has asked for so far: more after a step means that the step makes some.
pub(super) fn count() -> usize {
    PRODUCTS.get()
}

/// The handles of a GPU.
#[derive(Default)]
pub(crate) struct Handles {
    of_streams: Vec<Entry>,
    /// Those of recordings that are gone, for the next.
    spare: Vec<Arc<Mutex<Handle>>>,
}

/// A handle for a recording, for as long as it lives. It is never destroyed, which would wait for the GPU beside recordings that go on.
pub(super) struct Lent {
    handle: Arc<Mutex<Handle>>,
    gpu: Arc<State>,
}

impl Lent {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let spare = gpu.state().handles().spare.pop();
        let handle = match spare {
            Some(handle) => handle,
            None => Arc::new(Mutex::new(Handle::new(workspace_bytes(gpu.limits().built))?)),
        };
        Ok(Self { handle, gpu: gpu.state().clone() })
    }

    pub(super) fn handle(&self) -> Arc<Mutex<Handle>> {
        self.handle.clone()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The stream that it is set to goes with its device.
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).leave_stream();
        self.gpu.handles().spare.push(self.handle.clone());
    }
}

impl State {
    fn handles(&self) -> MutexGuard<'_, Handles> {
        // A poisoned lock means that another thread panicked in here; the lists are valid at every point.
        self.products.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Entry {
    of: Weak<CudaStream>,
    /// Where the stream is another one in each thread.
    thread: Option<ThreadId>,
    handle: Arc<Mutex<Handle>>,
}

/// A handle and what it is set to.
pub(crate) struct Handle {
    raw: cublasHandle_t,
    workspace: sys::CUdeviceptr,
    workspace_bytes: usize,
    stream: sys::CUstream,
    mode: cublasPointerMode_t,
}

// SAFETY: a handle may be used from any thread, by one at a time: it stands behind a lock.
unsafe impl Send for Handle {}

fn says(error: CublasError) -> candle::Error {
    candle::Error::Msg(format!("cuda: cuBLAS: {error}"))
}

impl Gpu {
    /// Calls `product` with the handle of the device's stream, set to that stream or to that of a recording and to factors on the
    /// side that `mode` names.
    ///
    /// # Errors
    /// When cuBLAS does not start, or `product` fails.
    pub(crate) fn with_cublas(
        &self,
        mode: cublasPointerMode_t,
        product: impl FnOnce(cublasHandle_t) -> std::result::Result<(), CublasError>,
    ) -> Result<()> {
        let handle = self.cublas()?;
        let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.set(self.target().cu_stream(), mode).map_err(says)?;
        let called = product(handle.raw);
        // The stream of a recording is destroyed when it ends: the handle must not keep it.
        let kept = handle.set(self.stream().cu_stream(), mode);
        called.and(kept).map_err(says)
    }

    fn cublas(&self) -> Result<Arc<Mutex<Handle>>> {
        PRODUCTS.set(PRODUCTS.get() + 1);
        if let Some(handle) = recording::handle() {
            return Ok(handle);
        }
        let stream = self.device_stream();
        let thread = is_per_thread(stream).then(|| std::thread::current().id());
        let mut handles = self.state().handles();
        let found = handles
            .of_streams
            .iter()
            .find(|entry| entry.thread == thread && entry.of.as_ptr() == Arc::as_ptr(stream));
        if let Some(entry) = found {
            return Ok(entry.handle.clone());
        }
        let handle = Arc::new(Mutex::new(Handle::new(workspace_bytes(self.limits().built))?));
        // Within a recording nothing may be destroyed, see `alone`.
        let keep = |entry: &Entry| entry.of.strong_count() > 0 || self.target() != self.stream();
        let (alive, dead) = std::mem::take(&mut handles.of_streams).into_iter().partition(keep);
        handles.of_streams = alive;
        handles.of_streams.push(Entry { of: Arc::downgrade(stream), thread, handle: handle.clone() });
        drop(handles);
        destroy(dead);
        Ok(handle)
    }
}

/// Destroys the handles of devices that are gone. cuBLAS waits for the whole GPU here, which would end recordings.
fn destroy(dead: Vec<Entry>) {
    if !dead.is_empty() {
        alone(|| drop(dead));
    }
}

impl Handle {
    fn new(workspace_bytes: usize) -> Result<Self> {
        let raw = cublas::create_handle().map_err(says)?;
        let mode = cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST;
        let mut handle = Self { raw, workspace: 0, workspace_bytes, stream: std::ptr::null_mut(), mode };
        // SAFETY: the context is current in this thread; `Drop` frees the memory.
        handle.workspace = unsafe { result::malloc_sync(workspace_bytes) }.w()?;
        Ok(handle)
    }

    fn set(
        &mut self,
        stream: sys::CUstream,
        mode: cublasPointerMode_t,
    ) -> std::result::Result<(), CublasError> {
        if self.stream != stream {
            // Until both calls have succeeded the handle may be on either stream.
            self.stream = std::ptr::null_mut();
            // SAFETY: handle, stream and workspace are alive. A new stream takes the workspace away, so that it is set again.
            unsafe {
                cublas::set_stream(self.raw, stream.cast())?;
                cublasSetWorkspace_v2(self.raw, self.workspace as *mut _, self.workspace_bytes).result()?;
            }
            self.stream = stream;
        }
        if self.mode != mode {
            // SAFETY: the handle is alive.
            unsafe { cublasSetPointerMode_v2(self.raw, mode) }.result()?;
            self.mode = mode;
        }
        Ok(())
    }

    /// Keeps no stream.
    fn leave_stream(&mut self) {
        self.stream = std::ptr::null_mut();
        // SAFETY: the handle is alive; the default stream always is. An error would show in the next call.
        let _ = unsafe { cublas::set_stream(self.raw, std::ptr::null_mut()) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle; destroying it waits for its work, and then the workspace is free. The
        // error of a device that is lost has shown before.
        unsafe {
            let _ = cublas::destroy_handle(self.raw);
            if self.workspace != 0 {
                let _ = result::free_sync(self.workspace);
            }
        }
    }
}
