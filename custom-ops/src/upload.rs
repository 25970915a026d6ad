//! Chunks of rows on their way to a device, two in flight.
//!
//! ```text
//! host          fill 0 │ fill 1 │        fill 2 │        fill 3 │
//! copy stream          │ copy 0 │ copy 1        │ copy 2        │ copy 3
//! the device's         │        │ use 0         │ use 1         │ use 2
//! ```
//!
//! A chunk is sent ahead of its use: [`ChunkUpload::send`] the next one, then [`ChunkUpload::receive`] the one that is due. On
//! CUDA the host fills page-locked memory, a stream of its own copies, and the device's stream waits for a chunk only
//! when it is received.
use candle::{DType, Device, Result, Tensor};
use std::collections::VecDeque;

/// Chunks that may be sent and not yet received.
const IN_FLIGHT: usize = 2;

/// Sends chunks of rows to a device while it computes on the chunk before.
///
/// Memory: on CUDA two chunks of page-locked host memory and two on the device; on the CPU the chunks
/// themselves.
pub struct ChunkUpload {
    dtype: DType,
    max_rows: usize,
    n_features: usize,
    way: Way,
}

impl std::fmt::Debug for ChunkUpload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dtype, max_rows, n_features, .. } = self;
        write!(f, "ChunkUpload({max_rows} rows of {n_features} {dtype:?}, {} waiting)", self.waiting())
    }
}

enum Way {
    Cpu {
        sent: VecDeque<Tensor>,
    },
    #[cfg(feature = "cuda")]
    Cuda(cuda::Upload),
}

impl ChunkUpload {
    /// Makes room for chunks of up to `max_rows` rows of `n_features` entries, u8 or f32.
    ///
    /// # Errors
    /// When a size is 0, the type is another, or memory is short.
    pub fn new(device: &Device, dtype: DType, max_rows: usize, n_features: usize) -> Result<Self> {
        if max_rows == 0 || n_features == 0 {
            candle::bail!(
                "ChunkUpload: max_rows and n_features must be at least 1, got {max_rows} and {n_features}"
            )
        }
        if !matches!(dtype, DType::U8 | DType::F32) {
            candle::bail!("ChunkUpload: rows must be u8 or f32, got {dtype:?}")
        }
        let way = match device {
            Device::Cpu => Way::Cpu { sent: VecDeque::with_capacity(IN_FLIGHT) },
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Way::Cuda(cuda::Upload::new(device, cuda, dtype, max_rows, n_features)?),
            other => candle::bail!(
                "ChunkUpload: the device must be the CPU or a CUDA device, got {:?}",
                other.location()
            ),
        };
        Ok(Self { dtype, max_rows, n_features, way })
    }

    /// Starts sending `n_rows` rows. `fill` writes all `n_rows · n_features` entries as bytes, native endian.
    ///
    /// Returns when `fill` has, without waiting for the copy. At most two chunks may be sent and not received; and the
    /// chunk received before last is overwritten, so it must be used up (its uses queued) by now.
    ///
    /// # Errors
    /// When `n_rows` is out of range, two chunks are waiting, `fill` fails or the copy cannot start.
    pub fn send(&mut self, n_rows: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        if n_rows == 0 || n_rows > self.max_rows {
            candle::bail!("ChunkUpload::send: n_rows must be 1 to {}, got {n_rows}", self.max_rows)
        }
        if self.waiting() == IN_FLIGHT {
            candle::bail!("ChunkUpload::send: {IN_FLIGHT} chunks are waiting; receive one first")
        }
        let shape = (n_rows, self.n_features);
        let n = n_rows * self.n_features;
        match &mut self.way {
            Way::Cpu { sent } => {
                let chunk = match self.dtype {
                    DType::U8 => {
                        let mut rows = vec![0u8; n];
                        fill(&mut rows)?;
                        Tensor::from_vec(rows, shape, &Device::Cpu)?
                    }
                    _ => {
                        let mut rows = vec![0f32; n];
                        fill(bytes_of(&mut rows))?;
                        Tensor::from_vec(rows, shape, &Device::Cpu)?
                    }
                };
                sent.push_back(chunk);
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Way::Cuda(upload) => upload.send(n_rows, n * self.dtype.size_in_bytes(), fill),
        }
    }

    /// The oldest chunk sent and not yet received, `[n_rows, n_features]` of the stored type.
    ///
    /// On CUDA the device's stream waits for its copy from here on, the host does not. The chunk stays as it is until the
    /// second [`send`](Self::send) from now.
    ///
    /// # Errors
    /// When nothing was sent, or the copy failed.
    pub fn receive(&mut self) -> Result<Tensor> {
        let received = match &mut self.way {
            Way::Cpu { sent } => sent.pop_front(),
            #[cfg(feature = "cuda")]
            Way::Cuda(upload) => upload.receive()?,
        };
        received.ok_or_else(|| candle::Error::Msg("ChunkUpload::receive: no chunk was sent".into()))
    }

    /// Chunks sent and not yet received, 0 to 2.
    pub fn waiting(&self) -> usize {
        match &self.way {
            Way::Cpu { sent } => sent.len(),
            #[cfg(feature = "cuda")]
            Way::Cuda(upload) => upload.waiting(),
        }
    }
}

fn bytes_of(x: &mut [f32]) -> &mut [u8] {
    let len = std::mem::size_of_val(x);
    // SAFETY: the same memory for the same lifetime; bytes need no alignment and any four of them are an f32.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), len) }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::IN_FLIGHT;
    use candle::cuda::cudarc::driver::{CudaEvent, CudaStream, DevicePtrMut, PinnedHostSlice, result};
    use candle::cuda::{CudaDevice, CudaStorage, WrapErr};
    use candle::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Tensor};
    use std::cell::RefCell;
    use std::sync::Arc;

    pub(super) struct Upload {
        compute: Arc<CudaStream>,
        copy: Arc<CudaStream>,
        slots: [Slot; IN_FLIGHT],
        /// Chunks sent and received since the beginning; chunk `i` uses slot `i % IN_FLIGHT`.
        sent: usize,
        received: usize,
    }

    struct Slot {
        staging: RefCell<PinnedHostSlice<u8>>,
        chunk: Tensor,
        n_rows: usize,
        /// Recorded on the copy stream after the last copy out of `staging`.
        copied: Option<CudaEvent>,
    }

    impl Upload {
        pub(super) fn new(
            device: &Device,
            cuda: &CudaDevice,
            dtype: DType,
            max_rows: usize,
            n_features: usize,
        ) -> Result<Self> {
            let compute = cuda.cuda_stream();
            let copy = compute.context().new_stream().w()?;
            let slot = || -> Result<Slot> {
                let bytes = max_rows * n_features * dtype.size_in_bytes();
                // SAFETY: left unset; `send` fills what it copies before it copies it.
                let staging = unsafe { compute.context().alloc_pinned_with_flags::<u8>(bytes, 0) }.w()?;
                let chunk = Tensor::zeros((max_rows, n_features), dtype, device)?;
                Ok(Slot { staging: RefCell::new(staging), chunk, n_rows: 0, copied: None })
            };
            let slots = [slot()?, slot()?];
            Ok(Self { compute, copy, slots, sent: 0, received: 0 })
        }

        pub(super) fn waiting(&self) -> usize {
            self.sent - self.received
        }

        pub(super) fn send(
            &mut self,
            n_rows: usize,
            n_bytes: usize,
            fill: &mut dyn FnMut(&mut [u8]) -> Result<()>,
        ) -> Result<()> {
            let slot = &mut self.slots[self.sent % IN_FLIGHT];
            if let Some(copied) = &slot.copied {
                // The staging memory may still be on its way.
                copied.synchronize().w()?;
            }
            fill(&mut slot.staging.borrow_mut().as_mut_slice().w()?[..n_bytes])?;
            // What is queued so far may still read the chunk that this copy overwrites.
            self.copy.join(&self.compute).w()?;
            slot.chunk.inplace_op1(&CopyIn { staging: &slot.staging, n_bytes, stream: &self.copy })?;
            slot.copied = Some(self.copy.record_event(None).w()?);
            slot.n_rows = n_rows;
            self.sent += 1;
            Ok(())
        }

        pub(super) fn receive(&mut self) -> Result<Option<Tensor>> {
            if self.waiting() == 0 {
                return Ok(None);
            }
            let slot = &self.slots[self.received % IN_FLIGHT];
            if let Some(copied) = &slot.copied {
                self.compute.wait(copied).w()?;
            }
            self.received += 1;
            slot.chunk.narrow(0, 0, slot.n_rows).map(Some)
        }
    }

    impl Drop for Upload {
        fn drop(&mut self) {
            // The page-locked memory must outlive the copies out of it. An error here has shown before.
            let _ = self.copy.synchronize();
        }
    }

    /// Copies the head of the staging memory over the head of a tensor, on a stream of its own.
    struct CopyIn<'a> {
        staging: &'a RefCell<PinnedHostSlice<u8>>,
        n_bytes: usize,
        stream: &'a Arc<CudaStream>,
    }

    impl InplaceOp1 for CopyIn<'_> {
        fn name(&self) -> &'static str {
            "ChunkUpload::send"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            candle::bail!("ChunkUpload::send: the chunk must be on the GPU")
        }

        fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
            use candle::backend::BackendStorage;
            let stream = self.stream;
            let staging = self.staging.borrow();
            let source = &staging.as_slice().w()?[..self.n_bytes];
            let copy = |to: u64| {
                // SAFETY: `to` is the start of a chunk of at least n_bytes (its full size was allocated in `new`), the
                // source is page-locked and not written again before the event after this copy.
                unsafe { result::memcpy_htod_async(to, source, stream.cu_stream()) }.w()
            };
            match storage.dtype() {
                DType::U8 => {
                    let mut chunk = crate::cuda::view_mut::<u8>(storage, layout, "ChunkUpload::send")?;
                    let (to, _write) = chunk.device_ptr_mut(stream);
                    copy(to)
                }
                DType::F32 => {
                    let mut chunk = crate::cuda::view_mut::<f32>(storage, layout, "ChunkUpload::send")?;
                    let (to, _write) = chunk.device_ptr_mut(stream);
                    copy(to)
                }
                other => candle::bail!("ChunkUpload::send: rows must be u8 or f32, got {other:?}"),
            }
        }
    }
}
