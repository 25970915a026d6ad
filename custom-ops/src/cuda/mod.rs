//! What every op needs on CUDA: kernels by name, raw operands, ordering.
//!
//! The only module that knows how candle keeps device memory. Ops ask it for a [`function`] and for
//! operands as views of the elements that their layout names.
mod graph;

pub use graph::Graph;

use candle::cuda::cudarc::driver::sys::CUfunction_attribute;
use candle::cuda::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, CudaView, CudaViewMut, LaunchArgs,
    LaunchConfig,
};
use candle::cuda::cudarc::nvrtc::Ptx;
use candle::cuda::{CudaDType, CudaDevice, CudaStorage, WrapErr};
use candle::{Layout, Result, Storage, StorageRef, Tensor};
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

    /// Sets an attribute of the kernel, such as how much shared memory a launch may ask for.
    pub(crate) fn set_attribute(&self, attribute: CUfunction_attribute, value: i32) -> Result<()> {
        self.function.set_attribute(attribute, value).w()
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

/// A 1-D launch with one thread for each of `n` work items, at most `max_blocks` blocks of 256.
///
/// Only for kernels that stride over the grid.
pub(crate) fn linear_launch(n: usize, max_blocks: u32) -> LaunchConfig {
    const THREADS: u32 = 256;
    let blocks = n.div_ceil(THREADS as usize).clamp(1, max_blocks as usize);
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
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
