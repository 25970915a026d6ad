//! Uploads of chunks of rows to a device, with two chunks in flight.
//!
//! ```text
//! host          fill 0 │ fill 1 │        fill 2 │        fill 3 │
//! copy stream          │ copy 0 │ copy 1        │ copy 2        │ copy 3
//! the device's         │        │ use 0         │ use 1         │ use 2
//! ```
//!
//! Each chunk is sent before it is used: call [`ChunkUpload::send`] for the next chunk, then
//! [`ChunkUpload::receive`] for the current one. On CUDA the host fills page-locked memory, a
//! separate stream copies it, and the device's stream waits for a chunk only when it is received.
use candle::{DType, Device, Result, Tensor, WithDType};
use half::{bf16, f16};
use std::collections::VecDeque;

/// Chunks that may be sent and not yet received.
const IN_FLIGHT: usize = 2;
/// Chunks that a device keeps: those, and the one that was received last.
#[cfg(feature = "cuda")]
const CHUNKS: usize = IN_FLIGHT + 1;

/// Sends chunks of rows to a device while it computes on the previous chunk.
///
/// Memory: on CUDA two chunks of page-locked host memory and three on the device; on the CPU the
/// chunks themselves.
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
    /// Allocates memory for chunks of up to `max_rows` rows of `n_features` entries, u8, f32, bf16
    /// or f16.
    ///
    /// # Errors
    /// When a size is 0, the type is another, or memory is short.
    pub fn new(device: &Device, dtype: DType, max_rows: usize, n_features: usize) -> Result<Self> {
        if max_rows == 0 || n_features == 0 {
            candle::bail!(
                "ChunkUpload: max_rows and n_features must be at least 1, got {max_rows} and {n_features}"
            )
        }
        if !matches!(dtype, DType::U8 | DType::F32 | DType::BF16 | DType::F16) {
            candle::bail!("ChunkUpload: rows must be u8, f32, bf16 or f16, got {dtype:?}")
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

    /// Starts sending `n_rows` rows. `fill` writes all `n_rows · n_features` entries as bytes,
    /// native endian.
    ///
    /// Returns when `fill` returns, without waiting for the copy. At most two chunks may be sent
    /// and not yet received. The chunk received before the last one is overwritten.
    ///
    /// # Errors
    /// When `n_rows` is out of range, two chunks are waiting, `fill` fails or the copy cannot
    /// start.
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
                let chunk = for_type!(self.dtype, [U8: u8, BF16: bf16, F16: f16; f32], |T| {
                    let mut rows = vec![T::default(); n];
                    fill(bytes_of(&mut rows))?;
                    Tensor::from_vec(rows, shape, &Device::Cpu)?
                });
                sent.push_back(chunk);
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Way::Cuda(upload) => upload.send(n_rows, n * self.dtype.size_in_bytes(), fill),
        }
    }

    /// The oldest chunk sent and not yet received, `[n_rows, n_features]` of the stored type.
    ///
    /// On CUDA the device's stream waits for the copy; the host does not. The chunk does not change
    /// until the second [`send`](Self::send) after this call. All its uses must be queued before
    /// the next `receive`: the copy that overwrites it waits only for those.
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

fn bytes_of<T: WithDType>(x: &mut [T]) -> &mut [u8] {
    let len = std::mem::size_of_val(x);
    // SAFETY: the same memory for the same lifetime; bytes need no alignment, and any of them are
    // numbers of candle's types, which have no padding.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), len) }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{CHUNKS, IN_FLIGHT};
    use crate::core::cuda::{Gpu, WrapErr};
    use crate::core::op::{Io, Kernel, operands};
    use candle::cuda::cudarc::driver::{CudaEvent, CudaStream, DevicePtrMut, PinnedHostSlice, result};
    use candle::cuda::{CudaDType, CudaDevice};
    use candle::{CpuStorage, CudaStorage, DType, Device, Result, Tensor};
    use half::{bf16, f16};
    use std::sync::Arc;

    const OP: &str = "ChunkUpload::send";

    pub(super) struct Upload {
        compute: Arc<CudaStream>,
        copy: Arc<CudaStream>,
        /// Chunk `i` is filled in `staging[i % IN_FLIGHT]` and goes to `chunks[i % CHUNKS]`.
        staging: [Staging; IN_FLIGHT],
        chunks: [Chunk; CHUNKS],
        /// Chunks sent and received since the beginning.
        sent: usize,
        received: usize,
    }

    struct Staging {
        memory: PinnedHostSlice<u8>,
        /// After the last copy out of it.
        copied: Option<Arc<CudaEvent>>,
    }

    struct Chunk {
        rows: Tensor,
        n_rows: usize,
        /// After the last copy into it.
        copied: Option<Arc<CudaEvent>>,
        /// After its last use.
        used: CudaEvent,
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
            let copy = Gpu::of(cuda)?.new_stream()?;
            let bytes = max_rows * n_features * dtype.size_in_bytes();
            let staging = || -> Result<Staging> {
                // SAFETY: left unset; `send` fills what it copies before it copies it.
                let memory = unsafe { compute.context().alloc_pinned_with_flags::<u8>(bytes, 0) }.w()?;
                Ok(Staging { memory, copied: None })
            };
            let chunk = || -> Result<Chunk> {
                let rows = Tensor::zeros((max_rows, n_features), dtype, device)?;
                // Its zeros must be there before the first copy.
                Ok(Chunk { rows, n_rows: 0, copied: None, used: compute.record_event(None).w()? })
            };
            let (staging, chunks) = ([staging()?, staging()?], [chunk()?, chunk()?, chunk()?]);
            Ok(Self { compute, copy, staging, chunks, sent: 0, received: 0 })
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
            let staging = &mut self.staging[self.sent % IN_FLIGHT];
            if let Some(copied) = &staging.copied {
                // The staging memory may still be on its way.
                copied.synchronize().w()?;
            }
            fill(&mut staging.memory.as_mut_slice().w()?[..n_bytes])?;
            let chunk = &mut self.chunks[self.sent % CHUNKS];
            self.copy.wait(&chunk.used).w()?;
            let source = &staging.memory.as_slice().w()?[..n_bytes];
            let copy = CopyIn { source, stream: &self.copy, dtype: chunk.rows.dtype() };
            operands(OP).write("chunk", &chunk.rows).run(&copy)?;
            let copied = Arc::new(self.copy.record_event(None).w()?);
            (staging.copied, chunk.copied) = (Some(copied.clone()), Some(copied));
            chunk.n_rows = n_rows;
            self.sent += 1;
            Ok(())
        }

        pub(super) fn receive(&mut self) -> Result<Option<Tensor>> {
            if self.waiting() == 0 {
                return Ok(None);
            }
            // All uses of the chunk received last are queued. The next ones may go on while a copy
            // overwrites it.
            let used = self.compute.record_event(None).w()?;
            self.chunks[(self.received + CHUNKS - 1) % CHUNKS].used = used;
            let chunk = &self.chunks[self.received % CHUNKS];
            if let Some(copied) = &chunk.copied {
                self.compute.wait(copied).w()?;
            }
            self.received += 1;
            chunk.rows.narrow(0, 0, chunk.n_rows).map(Some)
        }
    }

    impl Drop for Upload {
        fn drop(&mut self) {
            // The page-locked memory must outlive the copies out of it. An error here has shown
            // before.
            let _ = self.copy.synchronize();
        }
    }

    /// Copies bytes over the head of a tensor, on a stream of its own.
    struct CopyIn<'a> {
        source: &'a [u8],
        stream: &'a CudaStream,
        dtype: DType,
    }

    impl Kernel for CopyIn<'_> {
        fn cpu(&self, _: Io<'_, CpuStorage>) -> Result<()> {
            candle::bail!("{OP}: the chunk must be on the GPU")
        }

        fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
            gpu.not_recording(OP)?;
            for_type!(self.dtype, [U8: u8, BF16: bf16, F16: f16; f32], |T| self.copy::<T>(io))
        }
    }

    impl CopyIn<'_> {
        fn copy<T: CudaDType>(&self, io: Io<'_, CudaStorage>) -> Result<()> {
            let ([chunk], []) = io.parts()?;
            let mut chunk = chunk.elements::<T>()?;
            let (to, _write) = chunk.device_ptr_mut(self.stream);
            // SAFETY: `to` is the start of a chunk of at least so many bytes (its full size was
            // allocated in `new`), the source is page-locked and not written again before the event
            // after this copy.
            unsafe { result::memcpy_htod_async(to, self.source, self.stream.cu_stream()) }.w()
        }
    }
}
