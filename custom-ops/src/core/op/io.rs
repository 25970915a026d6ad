//! What a kernel gets: the storages of its operands, with the range or the layout of each.
use candle::{CpuStorage, DType, Layout, Result, WithDType};
use std::any::Any;

/// The operands of a kernel, in the order of the call.
pub(crate) struct Io<'a, S> {
    pub(crate) op: &'static str,
    pub(super) written: Vec<Out<'a, S>>,
    pub(super) read: Vec<In<'a, S>>,
}

impl<'a, S> Io<'a, S> {
    /// Operands whose storages the caller holds: those of a function with gradients, which candle
    /// lends.
    pub(crate) fn new(
        op: &'static str,
        written: Vec<(&'a mut S, &'a Layout)>,
        read: Vec<(&'static str, &'a S, &'a Layout)>,
    ) -> Self {
        let written = written.into_iter().map(|(storage, layout)| Out { op, storage, layout }).collect();
        let read =
            read.into_iter().map(|(name, storage, layout)| In { op, name, found: Some((storage, layout)) });
        Self { op, written, read: read.collect() }
    }

    /// Entries of the largest operand.
    pub(super) fn most_entries(&self) -> usize {
        let written = self.written.iter().map(|out| out.layout);
        let read = self.read.iter().filter_map(|read| Some(read.found?.1));
        written.chain(read).map(|layout| layout.shape().elem_count()).max().unwrap_or(0)
    }

    /// What is written and what is read, each by itself.
    ///
    /// # Errors
    /// When the kernel takes other numbers of operands than the call has.
    #[expect(clippy::type_complexity, reason = "two arrays, to be taken apart at once")]
    pub(crate) fn parts<const W: usize, const R: usize>(self) -> Result<([Out<'a, S>; W], [In<'a, S>; R])> {
        let Self { op, written, read } = self;
        let (w, r) = (written.len(), read.len());
        match (written.try_into(), read.try_into()) {
            (Ok(written), Ok(read)) => Ok((written, read)),
            _ => {
                candle::bail!("{op}: the kernel takes {W} operands to write and {R} to read, got {w} and {r}")
            }
        }
    }
}

#[cfg(feature = "cuda")]
impl<'a, S> Io<'a, S> {
    /// The storages that are written and those that are read.
    pub(crate) fn storages(self) -> Result<(Vec<&'a mut S>, Vec<&'a S>)> {
        let written = self.written.into_iter().map(|out| out.storage).collect();
        let read = self.read.iter().map(|read| Ok(read.here()?.0)).collect::<Result<_>>()?;
        Ok((written, read))
    }
}

/// An operand that is written.
pub(crate) struct Out<'a, S> {
    pub(super) op: &'static str,
    pub(super) storage: &'a mut S,
    pub(super) layout: &'a Layout,
}

impl<'a, S> Out<'a, S> {
    pub(crate) fn layout(&self) -> &'a Layout {
        self.layout
    }
}

/// An operand that is read, if there is one.
#[derive(Clone, Copy)]
pub(crate) struct In<'a, S> {
    pub(super) op: &'static str,
    pub(super) name: &'static str,
    pub(super) found: Option<(&'a S, &'a Layout)>,
}

impl<'a, S> In<'a, S> {
    fn here(&self) -> Result<(&'a S, &'a Layout)> {
        match self.found {
            Some(found) => Ok(found),
            None => candle::bail!("{}: {} is missing", self.op, self.name),
        }
    }

    pub(crate) fn layout(&self) -> Result<&'a Layout> {
        Ok(self.here()?.1)
    }
}

/// The entries that a contiguous layout covers.
fn contiguous(op: &'static str, layout: &Layout) -> Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => Err(candle::Error::RequiresContiguous { op }),
    }
}

impl<'a> Out<'a, CpuStorage> {
    /// The entries of a contiguous operand.
    pub(crate) fn elements<T: WithDType>(self) -> Result<&'a mut [T]> {
        let range = contiguous(self.op, self.layout)?;
        Ok(&mut self.all()?[range])
    }

    /// All entries of the storage, for an operand with strides: see [`layout`](Self::layout).
    pub(crate) fn all<T: WithDType>(self) -> Result<&'a mut [T]> {
        let dtype = dtype_of(self.storage);
        let vector: &mut dyn Any = match self.storage {
            CpuStorage::U8(all) => all,
            CpuStorage::U32(all) => all,
            CpuStorage::I16(all) => all,
            CpuStorage::I64(all) => all,
            CpuStorage::BF16(all) => all,
            CpuStorage::F16(all) => all,
            CpuStorage::F32(all) => all,
            CpuStorage::F64(all) => all,
            _ => candle::bail!("{}: there is no code for {dtype:?}", self.op),
        };
        match vector.downcast_mut::<Vec<T>>() {
            Some(all) => Ok(all),
            None => candle::bail!("{}: an operand must be {:?}, got {dtype:?}", self.op, T::DTYPE),
        }
    }
}

impl<'a> In<'a, CpuStorage> {
    /// The entries of a contiguous operand.
    pub(crate) fn elements<T: WithDType>(&self) -> Result<&'a [T]> {
        let (storage, layout) = self.here()?;
        Ok(&storage.as_slice::<T>()?[contiguous(self.op, layout)?])
    }

    /// The same, none where there is no operand.
    pub(crate) fn maybe<T: WithDType>(&self) -> Result<Option<&'a [T]>> {
        self.found.map(|_| self.elements()).transpose()
    }

    /// All entries of the storage, for an operand with strides: see [`layout`](Self::layout).
    pub(crate) fn all<T: WithDType>(&self) -> Result<&'a [T]> {
        self.here()?.0.as_slice::<T>()
    }
}

fn dtype_of(storage: &CpuStorage) -> DType {
    use candle::backend::BackendStorage;
    storage.dtype()
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use super::{In, Out, contiguous};
    use candle::cuda::CudaDType;
    use candle::cuda::cudarc::driver::{CudaView, CudaViewMut};
    use candle::{CudaStorage, Result};
    use std::ops::Range;

    fn within(op: &str, range: Range<usize>, len: usize) -> Result<Range<usize>> {
        if range.start > range.end || range.end > len {
            candle::bail!("{op}: an operand reaches from {} to {} of {len} entries", range.start, range.end)
        }
        Ok(range)
    }

    impl<'a> Out<'a, CudaStorage> {
        /// The entries of a contiguous operand.
        pub(crate) fn elements<T: CudaDType>(self) -> Result<CudaViewMut<'a, T>> {
            let range = contiguous(self.op, self.layout)?;
            self.slice(range)
        }

        /// `len` entries from the first one on, for an operand with strides.
        pub(crate) fn span<T: CudaDType>(self, len: usize) -> Result<CudaViewMut<'a, T>> {
            let start = self.layout.start_offset();
            self.slice(start..start + len)
        }

        fn slice<T: CudaDType>(self, range: Range<usize>) -> Result<CudaViewMut<'a, T>> {
            let slice = self.storage.as_cuda_slice_mut::<T>()?;
            let range = within(self.op, range, slice.len())?;
            Ok(slice.slice_mut(range))
        }
    }

    impl<'a> In<'a, CudaStorage> {
        /// The entries of a contiguous operand.
        pub(crate) fn elements<T: CudaDType>(&self) -> Result<CudaView<'a, T>> {
            let (_, layout) = self.here()?;
            self.slice(contiguous(self.op, layout)?)
        }

        /// The same, none where there is no operand.
        pub(crate) fn maybe<T: CudaDType>(&self) -> Result<Option<CudaView<'a, T>>> {
            self.found.map(|_| self.elements()).transpose()
        }

        /// `len` entries from the first one on, for an operand with strides.
        pub(crate) fn span<T: CudaDType>(&self, len: usize) -> Result<CudaView<'a, T>> {
            let start = self.layout()?.start_offset();
            self.slice(start..start + len)
        }

        /// The same, none where there is no operand.
        pub(crate) fn maybe_span<T: CudaDType>(&self, len: usize) -> Result<Option<CudaView<'a, T>>> {
            self.found.map(|_| self.span(len)).transpose()
        }

        fn slice<T: CudaDType>(&self, range: Range<usize>) -> Result<CudaView<'a, T>> {
            let slice = self.here()?.0.as_cuda_slice::<T>()?;
            let range = within(self.op, range, slice.len())?;
            Ok(slice.slice(range))
        }
    }
}
