//! cuBLAS: one handle with its own workspace for each stream.
//!
//! candle has one handle per device. Its pointer mode must stay on the host, and recordings would share its workspace. A
//! recording refers to the workspace of the handle that it was recorded with, and is replayed while other threads use the handle
//! of the stream; so each recording owns a handle for as long as it lives. With one handle for both, replays gave wrong results
//! when threads shared a stream. All recordings whose replays one stream orders share a workspace, since one at a time uses it.
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
    /// Workspaces of recordings. They are never freed, which would wait for the GPU.
    workspaces: Lending<Queue, Workspace>,
}

/// Where replays run one after the other: a stream, by its address, and its thread where it is another one in each.
type Queue = (usize, Option<ThreadId>);

/// Things that are lent to whoever asks under a name: one to all of a name, and one that nobody has any more to the next name.
struct Lending<K, T>(Vec<(K, Arc<T>)>);

impl<K, T> Default for Lending<K, T> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<K: PartialEq, T> Lending<K, T> {
    fn lend(&mut self, name: K, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if let Some((_, thing)) = self.0.iter().find(|(of, _)| *of == name) {
            return Ok(thing.clone());
        }
        if let Some((of, thing)) = self.0.iter_mut().find(|(_, thing)| Arc::strong_count(thing) == 1) {
            *of = name;
            return Ok(thing.clone());
        }
        let thing = Arc::new(make()?);
        self.0.push((name, thing.clone()));
        Ok(thing)
    }
}

/// A handle for a recording, for as long as it lives. It is never destroyed, which would wait for the GPU beside recordings that go on.
pub(super) struct Lent {
    handle: Arc<Mutex<Handle>>,
    gpu: Arc<State>,
}

impl Lent {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let stream = gpu.device_stream();
        let queue = (Arc::as_ptr(stream).addr(), is_per_thread(stream).then(|| std::thread::current().id()));
        let mut handles = gpu.state().handles();
        let workspace =
            handles.workspaces.lend(queue, || Workspace::new(workspace_bytes(gpu.limits().built)))?;
        let spare = handles.spare.pop();
        drop(handles);
        let handle = match spare {
            Some(handle) => {
                handle.lock().unwrap_or_else(PoisonError::into_inner).workspace = Some(workspace);
                handle
            }
            None => Arc::new(Mutex::new(Handle::new(workspace)?)),
        };
        Ok(Self { handle, gpu: gpu.state().clone() })
    }

    pub(super) fn handle(&self) -> Arc<Mutex<Handle>> {
        self.handle.clone()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The stream that it is set to goes with its device. Whoever holds this has waited for the replays, so that the workspace is free.
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.leave_stream();
        handle.workspace = None;
        drop(handle);
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
    /// None between recordings.
    workspace: Option<Arc<Workspace>>,
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
        let workspace = Workspace::new(workspace_bytes(self.limits().built))?;
        let handle = Arc::new(Mutex::new(Handle::new(Arc::new(workspace))?));
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
    fn new(workspace: Arc<Workspace>) -> Result<Self> {
        let raw = cublas::create_handle().map_err(says)?;
        let mode = cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST;
        Ok(Self { raw, workspace: Some(workspace), stream: std::ptr::null_mut(), mode })
    }

    fn set(
        &mut self,
        stream: sys::CUstream,
        mode: cublasPointerMode_t,
    ) -> std::result::Result<(), CublasError> {
        if self.stream != stream {
            // Until both calls have succeeded the handle may be on either stream.
            self.stream = std::ptr::null_mut();
            let (at, bytes) =
                self.workspace.as_ref().map_or((0, 0), |workspace| (workspace.at, workspace.bytes));
            // SAFETY: handle, stream and workspace are alive. A new stream takes the workspace away, so that it is set again.
            unsafe {
                cublas::set_stream(self.raw, stream.cast())?;
                cublasSetWorkspace_v2(self.raw, at as *mut _, bytes).result()?;
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
        // SAFETY: nobody else has the handle; destroying it waits for its work, and then the workspace is free, which goes after it. The
        // error of a device that is lost has shown before.
        let _ = unsafe { cublas::destroy_handle(self.raw) };
    }
}

/// Memory for the products of a handle.
struct Workspace {
    at: sys::CUdeviceptr,
    bytes: usize,
}

impl Workspace {
    fn new(bytes: usize) -> Result<Self> {
        // SAFETY: the context is current in this thread; `Drop` frees the memory.
        let at = unsafe { result::malloc_sync(bytes) }.w()?;
        Ok(Self { at, bytes })
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: no handle has it any more. The error of a device that is lost has shown before.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_is_lent_to_all_of_a_name_and_goes_to_another_when_nobody_has_it() {
        let mut lending = Lending::default();
        let mut made = 0;
        let mut lend = |name: u32| {
            let thing = lending.lend(name, || {
                made += 1;
                Ok(made)
            });
            thing.unwrap()
        };
        let (a, again, b) = (lend(1), lend(1), lend(2));
        assert_eq!((*a, *again, *b), (1, 1, 2));
        drop(a);
        assert_eq!(*lend(3), 3, "one of name 1 is still there");
        drop(again);
        assert_eq!(*lend(4), 1, "nobody has it");
        drop(b);
        assert_eq!(*lend(2), 2, "it has the name still");
    }
}
