//! Numbers that a device is asked for, and that are read later, when the device has come so far.
use candle::{Result, Tensor};

/// A few u32 of a tensor.
#[derive(Debug, Default)]
pub(crate) struct LateNumbers(Asked);

#[derive(Debug, Default)]
enum Asked {
    #[default]
    Nothing,
    Known(Vec<u32>),
    #[cfg(feature = "cuda")]
    Cuda(candle::cuda::cudarc::driver::PinnedHostSlice<u32>),
}

impl LateNumbers {
    /// Asks for the numbers of a contiguous u32 vector as they are after what is queued by now.
    /// What is queued later is not waited for.
    pub(crate) fn ask(&mut self, numbers: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let (storage, layout) = numbers.storage_and_layout()
            && let candle::Storage::Cuda(storage) = &*storage
        {
            use crate::core::cuda::WrapErr;
            let stream = storage.device.cuda_stream();
            let n = numbers.elem_count();
            let mut memory = match std::mem::take(&mut self.0) {
                Asked::Cuda(memory) if memory.len() == n => memory,
                // SAFETY: left unset; it is read after the copy into it.
                _ => unsafe { stream.context().alloc_pinned_with_flags::<u32>(n, 0) }.w()?,
            };
            let from =
                storage.as_cuda_slice::<u32>()?.slice(layout.start_offset()..layout.start_offset() + n);
            stream.memcpy_dtoh(&from, &mut memory).w()?;
            self.0 = Asked::Cuda(memory);
            return Ok(());
        }
        self.0 = Asked::Known(numbers.to_vec1()?);
        Ok(())
    }

    /// The numbers that were asked for last, none before that. Waits until the device has them.
    pub(crate) fn read(&self) -> Result<Vec<u32>> {
        match &self.0 {
            Asked::Nothing => Ok(vec![]),
            Asked::Known(numbers) => Ok(numbers.clone()),
            #[cfg(feature = "cuda")]
            Asked::Cuda(memory) => {
                use crate::core::cuda::WrapErr;
                Ok(memory.as_slice().w()?.to_vec())
            }
        }
    }
}
