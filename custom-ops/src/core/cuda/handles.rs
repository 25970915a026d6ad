//! Handles of cuBLAS and their workspaces, as they are kept; [`products`](super::products) says
//! why.
use candle::Result;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::cublas::sys::{
    cublasHandle_t, cublasPointerMode_t, cublasSetPointerMode_v2, cublasSetWorkspace_v2,
};
use candle::cuda::cudarc::cublas::{result as cublas, result::CublasError};
use candle::cuda::cudarc::driver::{CudaStream, result, sys};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

/// The handles of a GPU.
#[derive(Default)]
pub(crate) struct Handles {
    pub(super) of_streams: Vec<Entry>,
    /// Those of recordings that are gone, for the next.
    pub(super) spare: Vec<Arc<Mutex<Handle>>>,
    /// Workspaces of recordings. They are never freed, which would wait for the GPU.
    pub(super) workspaces: Lending<Queue, Workspace>,
    /// The same of rooms, and whether any call has asked for one.
    pub(super) rooms: Lending<Queue, Workspace>,
    pub(super) need_rooms: bool,
}

/// Where replays run one after the other: a stream, by its address, and its thread where it is
/// another one in each.
pub(super) type Queue = (usize, Option<ThreadId>);

/// Things that are lent to whoever asks under a name: one to all of a name, and one that nobody has
/// any more to the next name.
pub(super) struct Lending<K, T>(Vec<(K, Arc<T>)>);

impl<K, T> Default for Lending<K, T> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<K: PartialEq, T> Lending<K, T> {
    pub(super) fn lend(&mut self, name: K, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
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

pub(super) struct Entry {
    pub(super) of: Weak<CudaStream>,
    /// Where the stream is another one in each thread.
    pub(super) thread: Option<ThreadId>,
    pub(super) handle: Arc<Mutex<Handle>>,
}

/// A handle and what it is set to.
pub(crate) struct Handle {
    pub(super) raw: cublasHandle_t,
    /// None between recordings.
    pub(super) workspace: Option<Arc<Workspace>>,
    /// For kernels of ours, where one was asked for.
    pub(super) room: Option<Arc<Workspace>>,
    stream: sys::CUstream,
    mode: cublasPointerMode_t,
}

// SAFETY: a handle may be used from any thread, by one at a time: it stands behind a lock.
unsafe impl Send for Handle {}

pub(super) fn says(error: CublasError) -> candle::Error {
    candle::Error::Msg(format!("cuda: cuBLAS: {error}"))
}

impl Handle {
    pub(super) fn new(workspace: Arc<Workspace>) -> Result<Self> {
        let raw = cublas::create_handle().map_err(says)?;
        let mode = cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST;
        Ok(Self { raw, workspace: Some(workspace), room: None, stream: std::ptr::null_mut(), mode })
    }

    pub(super) fn set(
        &mut self,
        stream: sys::CUstream,
        mode: cublasPointerMode_t,
    ) -> std::result::Result<(), CublasError> {
        if self.stream != stream {
            // Until both calls have succeeded the handle may be on either stream.
            self.stream = std::ptr::null_mut();
            let (at, bytes) = self.memory();
            // SAFETY: handle, stream and workspace are alive. A new stream takes the workspace
            // away, so that it is set again.
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

    /// Where its workspace begins, and of how many bytes it is.
    pub(super) fn memory(&self) -> (u64, usize) {
        self.workspace.as_ref().map_or((0, 0), |workspace| (workspace.at, workspace.bytes))
    }

    /// Keeps no stream.
    pub(super) fn leave_stream(&mut self) {
        self.stream = std::ptr::null_mut();
        // SAFETY: the handle is alive; the default stream always is. An error would show in the
        // next call.
        let _ = unsafe { cublas::set_stream(self.raw, std::ptr::null_mut()) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle; destroying it waits for its work, and then the
        // workspace is free, which goes after it. The error of a device that is lost has shown
        // before.
        let _ = unsafe { cublas::destroy_handle(self.raw) };
    }
}

/// Memory for what follows each other on one stream: the products of a handle, or kernels.
pub(super) struct Workspace {
    pub(super) at: sys::CUdeviceptr,
    bytes: usize,
}

impl Workspace {
    pub(super) fn new(bytes: usize) -> Result<Self> {
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
