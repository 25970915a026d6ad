//! Words in host memory that kernels write, see [`Flags`](super::Flags).
use candle::Result;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::{result, sys};

/// Words of each call.
pub(super) const LEN: usize = 8;

/// Page-locked memory of `u32` as the host and as kernels see it; never freed.
pub(super) struct Words {
    host: *mut u32,
    pub(super) device: u64,
}

// SAFETY: memory of the process, which one owner at a time uses.
unsafe impl Send for Words {}

impl Words {
    pub(super) fn new() -> Result<Self> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current in this thread, see `Gpu::of`.
        let host = unsafe { result::malloc_host(LEN * size_of::<u32>(), flags) }.w()?;
        let mut device = 0;
        // SAFETY: the memory was just made to be seen by the GPU; the address is written through a
        // pointer to one.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0).result() }.w()?;
        Ok(Self { host: host.cast(), device })
    }

    pub(super) fn clear(&self) {
        // SAFETY: LEN words, page-aligned; no kernel that knows them is queued.
        (0..LEN).for_each(|i| unsafe { self.host.add(i).write_volatile(0) });
    }

    pub(super) fn read(&self) -> [u32; LEN] {
        // SAFETY: as above, and set before.
        std::array::from_fn(|i| unsafe { self.host.add(i).read_volatile() })
    }
}
