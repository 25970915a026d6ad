//! What every op needs on CUDA: kernels by name, raw operands, ordering.
//!
//! The only module that knows how candle keeps device memory. Ops ask it for a [`function`] and for
//! operands as views of the elements that their layout names.
mod graph;

pub use graph::Graph;

pub(crate) use candle::cuda::WrapErr;
pub(crate) use candle::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};

use crate::philox::Philox;
use candle::cuda::cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle::cuda::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr,
    LaunchArgs, result, sys,
};
use candle::cuda::cudarc::nvrtc::Ptx;
use candle::cuda::{CudaDType, CudaDevice, CudaStorage};
use candle::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, StorageRef, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

mod fatbins {
    include!(concat!(env!("OUT_DIR"), "/fatbins.rs"));
}

/// A kernel and the stream that its device computes on.
pub(crate) struct Function {
    function: CudaFunction,
    stream: Arc<CudaStream>,
}

impl Function {
    /// Starts a launch on the device's stream; add arguments, then launch.
    pub(crate) fn builder(&self) -> LaunchArgs<'_> {
        self.stream.launch_builder(&self.function)
    }

    /// Lets blocks of the kernel share so many bytes, beside at most 8 KiB that its code declares. What every kernel may have
    /// is not asked for: that would be a call of the driver in each launch.
    pub(crate) fn share(&self, op: &'static str, bytes: usize) -> Result<()> {
        const WITHOUT_ASKING: usize = (48 - 8) * 1024;
        if bytes <= WITHOUT_ASKING {
            return Ok(());
        }
        let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.function.set_attribute(attribute, count(op, bytes)? as i32).w()
    }

    /// A launch of `grid` blocks of `threads` that share `bytes` each, which the kernel may ask for from now on.
    pub(crate) fn launch_with_shared(
        &self,
        op: &'static str,
        grid: (usize, usize),
        threads: u32,
        bytes: usize,
    ) -> Result<LaunchConfig> {
        self.share(op, bytes)?;
        let shared_mem_bytes = count(op, bytes)?;
        let grid_dim = (count(op, grid.0)?, count(op, grid.1)?, 1);
        Ok(LaunchConfig { grid_dim, block_dim: (threads, 1, 1), shared_mem_bytes })
    }
}

/// Arguments of a launch that are made of others.
pub(crate) trait PushKernelArgs<'a> {
    /// A pointer to the elements of the view, null where there is none.
    fn arg_or_null<T>(&mut self, view: &'a Option<CudaView<'a, T>>) -> &mut Self;

    /// Seed, stream, offset and counter: the last four arguments of a kernel that draws.
    fn draws(&mut self, philox: &'a Philox, counter: &'a Option<CudaView<'a, i64>>) -> &mut Self;
}

impl<'a> PushKernelArgs<'a> for LaunchArgs<'a> {
    fn arg_or_null<T>(&mut self, view: &'a Option<CudaView<'a, T>>) -> &mut Self {
        match view {
            Some(view) => self.arg(view),
            None => self.arg(&0u64),
        }
    }

    fn draws(&mut self, philox: &'a Philox, counter: &'a Option<CudaView<'a, i64>>) -> &mut Self {
        self.arg(&philox.seed).arg(&philox.stream).arg(&philox.offset).arg_or_null(counter)
    }
}

/// A module is loaded once in a context; the key is the context's address and the kernel file's name.
type Modules = HashMap<(usize, &'static str), Arc<CudaModule>>;
static MODULES: Mutex<Option<Modules>> = Mutex::new(None);

/// The kernel `name` of `kernels/MODULE.cu`.
///
/// # Errors
/// When the machine code does not load on this device: it was built for another GPU.
pub(crate) fn function(device: &CudaDevice, module: &'static str, name: &str) -> Result<Function> {
    let stream = device.cuda_stream();
    let context = stream.context();
    // A poisoned lock means that another thread panicked in here; the map is valid at every point.
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let modules = modules.get_or_insert_default();
    let loaded = match modules.entry((Arc::as_ptr(context) as usize, module)) {
        Entry::Occupied(loaded) => loaded.into_mut(),
        Entry::Vacant(place) => place.insert(load(context, module)?),
    };
    let function = loaded.load_function(name).w()?;
    Ok(Function { function, stream })
}

fn load(context: &Arc<CudaContext>, module: &str) -> Result<Arc<CudaModule>> {
    let Some((_, image)) = fatbins::FATBINS.iter().find(|(file, _)| *file == module) else {
        candle::bail!("cuda: there is no kernel file {module}.cu")
    };
    context.load_module(Ptx::from_binary(image.to_vec())).map_err(|e| {
        let (major, minor) = context.compute_capability().unwrap_or((0, 0));
        candle::Error::Msg(format!(
            "cuda: the kernels of {module}.cu do not load on this GPU (capability {major}.{minor}): {e}; \
             rebuild with CUDA_COMPUTE_CAP={major}{minor}"
        ))
    })
}

/// Whether the kernels were built for clusters of blocks (capability 9.0 and above) and this device has them.
pub(crate) fn has_clusters(device: &CudaDevice) -> bool {
    let built = fatbins::CAPABILITY >= 90;
    built && device.cuda_stream().context().compute_capability().is_ok_and(|(major, _)| major >= 9)
}

/// Lets the device's allocator keep up to a sixteenth of the memory when all work is done, once for a device.
///
/// By default it gives every freed block back to the driver at the next synchronisation, and an op that allocates its results
/// then waits for memory to be mapped again: longer than the op itself takes where it is small.
pub(crate) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    static DONE: Mutex<Vec<usize>> = Mutex::new(vec![]);
    let stream = device.cuda_stream();
    let context = stream.context();
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if done.contains(&context.ordinal()) {
        return Ok(());
    }
    let share = context.total_mem().w()? as u64 / 16;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut kept = 0u64;
    // SAFETY: the pool is the device's own and lives as long as the driver; the attribute is a u64, read and written
    // through a pointer to one.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device()).w()?;
        sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut kept).cast()).result().w()?;
        if kept < share {
            kept = share;
            sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast()).result().w()?;
        }
    }
    done.push(context.ordinal());
    Ok(())
}

/// Device memory as a tensor of `shape` on the device of `like`; nothing is copied.
///
/// # Errors
/// When the memory does not hold as many entries as the shape.
pub(crate) fn own<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    memory: CudaSlice<T>,
    shape: impl Into<Shape>,
    like: &Tensor,
) -> Result<Tensor> {
    let shape = shape.into();
    if memory.len() != shape.elem_count() {
        candle::bail!("cuda: {shape:?} must have {} entries", memory.len())
    }
    let storage = CudaStorage::wrap_cuda_slice(memory, device.clone());
    like.apply_op1_no_bwd(&Owned { storage: Mutex::new(Some(storage)), shape })
}

/// Hands out a storage that was made elsewhere: candle makes tensors of results of ops only.
struct Owned {
    storage: Mutex<Option<CudaStorage>>,
    shape: Shape,
}

impl CustomOp1 for Owned {
    fn name(&self) -> &'static str {
        "own"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("own: the memory is on a GPU")
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.storage.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(storage) => Ok((storage, self.shape.clone())),
            None => candle::bail!("own: the memory was handed out before"),
        }
    }
}

/// A 1-D launch with one thread for each of `n` work items, at most `max_blocks` blocks of 256.
///
/// Only for kernels that stride over the grid.
pub(crate) fn linear_launch(n: usize, max_blocks: u32) -> LaunchConfig {
    const THREADS: u32 = 256;
    let blocks = n.div_ceil(THREADS as usize).clamp(1, max_blocks as usize);
    block_launch(blocks as u32, THREADS)
}

/// A 1-D launch of `blocks` of `threads`.
pub(crate) fn block_launch(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// The elements that a contiguous layout covers, to read.
pub(crate) fn view<'a, T: CudaDType>(
    storage: &'a CudaStorage,
    layout: &Layout,
    op: &'static str,
) -> Result<CudaView<'a, T>> {
    let (start, end) = contiguous(layout, op)?;
    Ok(storage.as_cuda_slice::<T>()?.slice(start..end))
}

/// The elements that a contiguous layout covers, to write.
pub(crate) fn view_mut<'a, T: CudaDType>(
    storage: &'a mut CudaStorage,
    layout: &Layout,
    op: &'static str,
) -> Result<CudaViewMut<'a, T>> {
    let (start, end) = contiguous(layout, op)?;
    let slice: &mut CudaSlice<T> = storage.as_cuda_slice_mut::<T>()?;
    Ok(slice.slice_mut(start..end))
}

/// The parts of an operand `[parts, ..]`, to read: from the first to the end of the last, each of `n` contiguous elements.
pub(crate) fn parts_view<'a, T: CudaDType>(
    storage: &'a CudaStorage,
    layout: &Layout,
    n: usize,
    op: &'static str,
) -> Result<CudaView<'a, T>> {
    let start = layout.start_offset();
    let end = start + layout.dims()[0].saturating_sub(1) * layout.stride()[0] + n;
    let slice = storage.as_cuda_slice::<T>()?;
    if slice.len() < end {
        candle::bail!("{op}: an operand ends at {end} of {} entries", slice.len())
    }
    Ok(slice.slice(start..end))
}

fn contiguous(layout: &Layout, op: &'static str) -> Result<(usize, usize)> {
    layout.contiguous_offsets().ok_or(candle::Error::RequiresContiguous { op })
}

/// A size that a kernel takes as `unsigned`.
pub(crate) fn count(op: &'static str, n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| candle::Error::Msg(format!("{op}: a size must be below 2^32, got {n}")))
}

/// A tensor that an op keeps beside the operands candle hands over, read-locked while this lives.
///
/// It must not share storage with the op's destination, whose lock is already held for writing.
pub(crate) struct Operand<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(crate) fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    /// The elements of the tensor, which must be contiguous and on a GPU.
    pub(crate) fn view<T: CudaDType>(&self, op: &'static str) -> Result<CudaView<'_, T>> {
        match &*self.storage {
            Storage::Cuda(storage) => view(storage, self.layout, op),
            _ => candle::bail!("{op}: every operand must be on the GPU"),
        }
    }
}

/// The elements of an operand that may be missing.
pub(crate) fn optional_view<'a, T: CudaDType>(
    operand: &'a Option<Operand<'_>>,
    op: &'static str,
) -> Result<Option<CudaView<'a, T>>> {
    operand.as_ref().map(|operand| operand.view(op)).transpose()
}
