//! The memory of a GPU: what is free, and what its allocator keeps and gives out.
use candle::Result;
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::{CudaContext, result, sys};

/// Lets the device's allocator keep up to half of the memory when all work is done.
///
/// By default it gives every freed block back to the driver at the next synchronisation, and what
/// allocates its results then waits for memory to be mapped again: longer than a small op takes, and
/// some milliseconds for results of gigabytes. Without memory pools there is nothing to keep.
pub(super) fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    let Some(pool) = Pool::of(context)? else { return Ok(()) };
    // Of what is in use and what was freed.
    let share = context.total_mem().w()? as u64 / 2;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    if pool.read(attribute)? < share { pool.write(attribute, share) } else { Ok(()) }
}

/// Bytes that are free on a GPU, with those that its allocator keeps.
pub(crate) fn free_memory(context: &CudaContext) -> Result<u64> {
    use sys::CUmemPool_attribute::{CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT};
    context.bind_to_thread().w()?;
    let free = result::mem_get_info().w()?.0 as u64;
    let Some(pool) = Pool::of(context)? else { return Ok(free) };
    let (reserved, used) =
        (pool.read(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?, pool.read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?);
    Ok(free + reserved.saturating_sub(used))
}

/// What the allocator of a GPU has given out at most at one time since this was made, beyond what
/// was given out then.
pub(crate) struct MostMemory {
    pool: Pool,
    before: u64,
}

impl MostMemory {
    /// None where the driver does not count.
    pub(crate) fn of(context: &CudaContext) -> Result<Option<Self>> {
        use sys::CUmemPool_attribute::{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH};
        let Some(pool) = Pool::of(context)? else { return Ok(None) };
        pool.write(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?; // 0 sets it to what is in use
        let before = pool.read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(Some(Self { pool, before }))
    }

    pub(crate) fn bytes(&self) -> Result<u64> {
        let most = self.pool.read(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        Ok(most.saturating_sub(self.before))
    }
}

/// The memory pool of a device, from which all its tensors come.
struct Pool(sys::CUmemoryPool);

impl Pool {
    /// None where the driver has none.
    fn of(context: &CudaContext) -> Result<Option<Self>> {
        context.bind_to_thread().w()?;
        if !context.has_async_alloc() {
            return Ok(None);
        }
        // SAFETY: the context is that of the device.
        unsafe { result::device::get_default_mem_pool(context.cu_device()) }.w().map(|pool| Some(Self(pool)))
    }

    /// An attribute that counts bytes.
    fn read(&self, attribute: sys::CUmemPool_attribute) -> Result<u64> {
        let mut bytes = 0u64;
        // SAFETY: the pool is the device's own and lives as long as the driver; the attribute is a
        // u64, written through a pointer to one.
        unsafe { sys::cuMemPoolGetAttribute(self.0, attribute, (&raw mut bytes).cast()) }.result().w()?;
        Ok(bytes)
    }

    fn write(&self, attribute: sys::CUmemPool_attribute, mut bytes: u64) -> Result<()> {
        // SAFETY: as in `read`; the driver reads the u64.
        unsafe { sys::cuMemPoolSetAttribute(self.0, attribute, (&raw mut bytes).cast()) }.result().w()
    }
}
