//! cuBLAS: one handle with its own workspace for each stream.
//!
//! candle has one handle per device. Its pointer mode must stay on the host, and recordings would
//! share its workspace. A recording refers to the workspace of the handle that it was recorded
//! with, and is replayed while other threads use the handle of the stream; so each recording owns a
//! handle for as long as it lives. With one handle for both, replays gave wrong results when
//! threads shared a stream. All recordings whose replays one stream orders share a workspace, since
//! one at a time uses it.
use super::gpu::{Gpu, State};
use super::handles::{Entry, Handle, Handles, Workspace, says};
use super::recording::{self, alone, is_per_thread};
use crate::core::limits::Limits;
use candle::Result;
use candle::cuda::cudarc::cublas::result::CublasError;
use candle::cuda::cudarc::cublas::sys::{cublasHandle_t, cublasPointerMode_t};
use candle::cuda::cudarc::cublaslt::sys::cublasLtHandle_t;
use candle::cuda::cudarc::driver::sys::CUstream;
use std::cell::Cell;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What cuBLAS takes by default: 32 MiB from capability 9.0 on, 4 MiB before.
fn workspace_bytes(built: u32) -> usize {
    if built >= 90 { 32 << 20 } else { 4 << 20 }
}

thread_local! {
    /// Products of this thread so far.
    static PRODUCTS: Cell<usize> = const { Cell::new(0) };
}

/// Products that this thread has asked for so far: more after a step means that the step makes
/// some.
pub(crate) fn products_so_far() -> usize {
    PRODUCTS.get()
}

/// A handle for a recording, for as long as it lives. It is never destroyed, which would wait for
/// the GPU beside recordings that go on.
pub(crate) struct Lent {
    handle: Arc<Mutex<Handle>>,
    gpu: Arc<State>,
}

impl Lent {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let stream = gpu.device_stream();
        let queue = (Arc::as_ptr(stream).addr(), is_per_thread(stream).then(|| std::thread::current().id()));
        let mut handles = gpu.state().handles();
        let workspace =
            handles.workspaces.lend(queue, || Workspace::new(workspace_bytes(gpu.limits().built)))?;
        let room = handles.need_rooms.then(|| handles.rooms.lend(queue, || Workspace::new(Limits::ROOM)));
        let room = room.transpose()?;
        let spare = handles.spare.pop();
        drop(handles);
        let handle = match spare {
            Some(handle) => {
                handle.lock().unwrap_or_else(PoisonError::into_inner).workspace = Some(workspace);
                handle
            }
            None => Arc::new(Mutex::new(Handle::new(workspace)?)),
        };
        handle.lock().unwrap_or_else(PoisonError::into_inner).room = room;
        Ok(Self { handle, gpu: gpu.state().clone() })
    }

    pub(crate) fn handle(&self) -> Arc<Mutex<Handle>> {
        self.handle.clone()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The stream that it is set to goes with its device. Whoever holds this has waited for the
        // replays, so that the workspace is free.
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.leave_stream();
        (handle.workspace, handle.room) = (None, None);
        drop(handle);
        self.gpu.handles().spare.push(self.handle.clone());
    }
}

impl State {
    fn handles(&self) -> MutexGuard<'_, Handles> {
        // A poisoned lock means that another thread panicked in here; the lists are valid at every
        // point.
        self.products.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gpu {
    /// Calls `product` with the handle of the device's stream, set to that stream or to that of a
    /// recording and to factors on the side that `mode` names.
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

    /// Calls `product` with a handle of cuBLASLt, a workspace, and the stream that both are for now:
    /// the device's, or that of a recording.
    ///
    /// # Errors
    /// When cuBLAS does not start, or `product` fails.
    pub(crate) fn with_cublas_lt<E: Display>(
        &self,
        product: impl FnOnce(cublasLtHandle_t, (u64, usize), CUstream) -> std::result::Result<(), E>,
    ) -> Result<()> {
        let handle = self.cublas()?;
        let handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        // A handle of cuBLAS is one of cuBLASLt as well. Its workspace serves one stream, on which
        // products of both follow each other.
        product(handle.raw.cast(), handle.memory(), self.target().cu_stream())
            .map_err(|e| candle::Error::Msg(format!("cuda: cuBLASLt: {e}")))
    }

    /// Calls `launches` with the address of [`Limits::ROOM`] bytes, unset, for what the kernels of one
    /// call hand on to each other; they may be recorded. It is made at the first call and stays with
    /// the stream.
    ///
    /// # Errors
    /// When memory is short, or `launches` fails.
    pub(crate) fn with_room(&self, op: &str, launches: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let handle = self.cublas()?;
        let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        let room = match &handle.room {
            Some(room) => room.clone(),
            None => {
                self.not_recording(op)?;
                let room = Arc::new(Workspace::new(Limits::ROOM)?);
                handle.room = Some(room.clone());
                self.state().handles().need_rooms = true;
                room
            }
        };
        // While the handle is held, nobody else launches what uses the room.
        launches(room.at)
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

/// Destroys the handles of devices that are gone. cuBLAS waits for the whole GPU here, which would
/// end recordings.
fn destroy(dead: Vec<Entry>) {
    if !dead.is_empty() {
        alone(|| drop(dead));
    }
}
