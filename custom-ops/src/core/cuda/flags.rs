//! A few words in host memory that kernels write and the host reads, without a copy.
use super::gpu::{Gpu, State};
use super::words::{LEN, Words};
use candle::Result;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::CudaStream;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Page-locked host memory of `u32` that kernels write by its address: all 0 until they do.
///
/// A write crosses the bus to the host: for what is seldom said, such as what was refused. Clearing
/// the words and reading them takes no call of the driver; between calls they are kept.
pub(crate) struct Flags {
    /// Taken by the end.
    words: Option<Words>,
    state: Arc<State>,
    /// The device's, on which the kernels are queued.
    stream: Arc<CudaStream>,
}

fn free(state: &State) -> MutexGuard<'_, Vec<Words>> {
    // A poisoned lock means that another thread panicked in here; the list is valid at every point.
    state.flags.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// Flags for a call, which ends with [`Flags::wait`].
    ///
    /// # Errors
    /// When page-locked memory is short.
    pub(crate) fn flags(&self) -> Result<Flags> {
        let state = self.state().clone();
        let last = free(&state).pop();
        let words = match last {
            Some(words) => words,
            None => Words::new()?,
        };
        words.clear();
        Ok(Flags { words: Some(words), state, stream: self.device_stream().clone() })
    }
}

impl Flags {
    /// Where kernels write.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ref().map_or(0, |words| words.device)
    }

    /// Waits for all that is queued on the device's stream and returns what it wrote.
    ///
    /// # Errors
    /// When a kernel failed.
    pub(crate) fn wait(mut self) -> Result<[u32; LEN]> {
        self.stream.synchronize().w()?;
        let Some(words) = self.words.take() else { return Ok([0; LEN]) };
        let said = words.read();
        free(&self.state).push(words);
        Ok(said)
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        // A call that failed on its way may have kernels queued that write. Where the wait fails
        // too, the words stay theirs.
        if let Some(words) = self.words.take()
            && self.stream.synchronize().is_ok()
        {
            free(&self.state).push(words);
        }
    }
}
