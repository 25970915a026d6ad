//! Scratch memory for the duration of a call, cut from one allocation.
use super::gpu::Gpu;
use candle::Result;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Parts begin on so many bytes, as allocations do.
const ALIGN: usize = 256;

/// The layout of a scratch buffer: add its parts, then [`alloc`](Self::alloc).
#[derive(Debug, Default)]
pub(crate) struct ScratchLayout {
    bytes: usize,
}

/// A part of a scratch buffer, `len` entries of type `T`.
#[derive(Debug)]
pub(crate) struct Part<T> {
    start: usize,
    len: usize,
    entries: PhantomData<fn() -> T>,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Part<T> {}

impl ScratchLayout {
    /// Room for `len` entries.
    pub(crate) fn part<T>(&mut self, len: usize) -> Part<T> {
        let start = self.bytes;
        self.bytes += (len * size_of::<T>()).next_multiple_of(ALIGN);
        Part { start, len, entries: PhantomData }
    }

    /// One allocation for all parts, unset.
    ///
    /// # Errors
    /// When memory is short, or a step is being recorded.
    pub(crate) fn alloc(self, op: &'static str, gpu: &Gpu) -> Result<Scratch> {
        gpu.not_recording(op)?;
        // SAFETY: the stream of the device, which outlives the call that this memory is for.
        let stream = unsafe { gpu.state().context.wrap_borrowed_stream(gpu.stream().cu_stream()) };
        // In the view of the context that logs no uses, which saves two events and what is asked of
        // them at each launch: all uses, and the end, are in the order of one stream. SAFETY: left
        // unset; a kernel writes each part before another reads it.
        let memory = unsafe { stream.alloc::<u8>(self.bytes.max(1)) }.w()?;
        Ok(Scratch { memory })
    }

    /// The same, of zeros.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub(crate) fn alloc_zeros(self, op: &'static str, gpu: &Gpu) -> Result<Scratch> {
        let mut scratch = self.alloc(op, gpu)?;
        let stream = scratch.memory.stream().clone();
        stream.memset_zeros(&mut scratch.memory).w()?;
        Ok(scratch)
    }
}

/// Memory on the device for the length of a call. It is freed in the order of the device's stream.
pub(crate) struct Scratch {
    memory: CudaSlice<u8>,
}

impl<T> Part<T> {
    fn bytes(self) -> Range<usize> {
        self.start..self.start + self.len * size_of::<T>()
    }
}

impl Scratch {
    /// The whole buffer, whose parts are told apart by [`address`](Self::address).
    pub(crate) fn all(&mut self) -> CudaViewMut<'_, u8> {
        self.memory.as_view_mut()
    }

    /// A part as bytes, to read.
    pub(crate) fn view<T>(&self, part: Part<T>) -> CudaView<'_, u8> {
        self.memory.slice(part.bytes())
    }

    /// A part as bytes, to write.
    pub(crate) fn view_mut<T>(&mut self, part: Part<T>) -> CudaViewMut<'_, u8> {
        self.memory.slice_mut(part.bytes())
    }
}

impl<T> Part<T> {
    /// Where the part begins in a buffer that begins at `base`.
    pub(crate) fn address(self, base: u64) -> u64 {
        base + self.start as u64
    }
}
