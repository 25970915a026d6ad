//! What launches, products and devices know of the recording of a step: where it goes, what it
//! uses, and who must wait for it. How a step is recorded and replayed stands in
//! [`recorder`](crate::core::recorder).
use super::handles::Handle;
use crate::core::check::address;
use candle::cuda::cudarc::driver::sys::CUresult;
use candle::cuda::cudarc::driver::{CudaStream, DriverError};
use candle::{Result, Tensor};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Shared by recordings; held alone by what would end them.
static RECORDINGS: RwLock<()> = RwLock::new(());

thread_local! {
    /// The recording of this thread.
    static NOW: RefCell<Option<Now>> = const { RefCell::new(None) };
}

/// The recording of a thread.
pub(crate) struct Now {
    /// The stream of the device whose step is recorded.
    device: Arc<CudaStream>,
    /// Where launches go instead.
    target: Arc<CudaStream>,
    /// Storages that the step uses, each once, and whether it writes them.
    pub(crate) used: Vec<(Tensor, bool)>,
    /// Its products, if it makes any.
    handle: Option<Arc<Mutex<Handle>>>,
    /// Whether the driver said that somebody ended the recording.
    pub(crate) broken: bool,
}

/// Runs what would end recordings of other threads when none goes on.
pub(crate) fn alone<T>(f: impl FnOnce() -> T) -> T {
    let _alone = RECORDINGS.write().unwrap_or_else(PoisonError::into_inner);
    f()
}

/// While this is held, nobody does what would end a recording.
pub(crate) fn shared() -> RwLockReadGuard<'static, ()> {
    RECORDINGS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Begins the recording of this thread: launches of `device` go to `target`, products take the
/// handle.
pub(crate) fn begin(device: &Arc<CudaStream>, target: Arc<CudaStream>, handle: Option<Arc<Mutex<Handle>>>) {
    NOW.set(Some(Now { device: device.clone(), target, used: vec![], handle, broken: false }));
}

/// Ends the recording of this thread, if one goes on.
pub(crate) fn end() -> Option<Now> {
    NOW.take()
}

/// Where launches of a device with this stream go while a step is recorded in this thread; none
/// without a recording.
pub(super) fn stream_for(device: &Arc<CudaStream>) -> Result<Option<Arc<CudaStream>>> {
    NOW.with_borrow(|now| match now {
        None => Ok(None),
        Some(now) if now.device == *device => Ok(Some(now.target.clone())),
        Some(_) => {
            candle::bail!("Replay: all ops of a recorded step must be on its device, got one on another")
        }
    })
}

/// The cuBLAS handle of the recording of this thread, if one goes on that makes products.
pub(super) fn handle() -> Option<Arc<Mutex<Handle>>> {
    NOW.with_borrow(|now| now.as_ref().and_then(|now| now.handle.clone()))
}

/// Adds the operands of an op to those of the recording, if one goes on.
pub(crate) fn log<'a>(operands: impl Iterator<Item = (&'a Tensor, bool)>) {
    NOW.with_borrow_mut(|now| {
        let Some(now) = now else { return };
        for (tensor, is_written) in operands {
            match now.used.iter_mut().find(|(used, _)| same_storage(used, tensor)) {
                Some((_, written)) => *written |= is_written,
                None => now.used.push((tensor.clone(), is_written)),
            }
        }
    })
}

fn same_storage(a: &Tensor, b: &Tensor) -> bool {
    address(a) == address(b)
}

/// Notes whether a call failed because somebody ended the recording.
pub(super) fn watch<T>(called: std::result::Result<T, DriverError>) -> std::result::Result<T, DriverError> {
    if matches!(called, Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED))) {
        NOW.with_borrow_mut(|now| now.iter_mut().for_each(|now| now.broken = true));
    }
    called
}

/// Whether a stream is another one in each thread, as that of candle's `Device::new_cuda`.
pub(crate) fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == 2
}
