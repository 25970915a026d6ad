//! A GPU: its limits, its kernels, and the stream that receives launches.
use super::fatbins;
use super::recording;
use crate::core::limits::{Limits, code_for};
use candle::Result;
use candle::cuda::cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUfunction_attribute};
use candle::cuda::cudarc::driver::{CudaContext, CudaStream, result};
use candle::cuda::{CudaDevice, WrapErr};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Where an op launches: a GPU, and the stream of the device that its operands are on.
pub(crate) struct Gpu {
    state: Arc<State>,
    device: CudaDevice,
    /// The device's stream, whose order all uses of its memory follow.
    stream: Arc<CudaStream>,
    /// Where launches go instead while a step is recorded.
    recording: Option<Arc<CudaStream>>,
}

/// What is kept of a GPU for the life of the process.
pub(crate) struct State {
    /// The GPU's primary context, which is that of all devices on it. Event tracking is off in this
    /// view of it: launches of a recording go to streams of this context and log nothing, and so
    /// does scratch memory.
    pub(crate) context: Arc<CudaContext>,
    pub(super) limits: Limits,
    kernels: RwLock<HashMap<&'static str, HashMap<Box<str>, Loaded>>>,
    modules: Mutex<HashMap<&'static str, Module>>,
    pub(super) products: Mutex<super::handles::Handles>,
    /// The words of `Flags` that no call has.
    pub(super) flags: Mutex<Vec<super::words::Words>>,
    /// See [`captures`](Self::captures).
    captures: Mutex<Vec<Arc<CudaStream>>>,
}

/// A kernel that is loaded, and how many bytes its blocks may share beside those that its code
/// declares.
#[derive(Clone, Copy)]
pub(super) struct Loaded {
    pub(super) function: sys::CUfunction,
    pub(super) shared_bytes: usize,
}

// SAFETY: the handle of a function of a module that is never unloaded; the driver takes it from any
// thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; nothing is changed through it after it was loaded.
unsafe impl Sync for Loaded {}

struct Module(sys::CUmodule);
// SAFETY: the handle of a module that is never unloaded; the driver takes it from any thread.
unsafe impl Send for Module {}

static GPUS: RwLock<Vec<(usize, Arc<State>)>> = RwLock::new(vec![]);

impl Gpu {
    /// The GPU of `device`, made current in this thread.
    ///
    /// # Errors
    /// When the kernels were built for other GPUs, or a step of another device is being recorded in
    /// this thread.
    pub(crate) fn of(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let state = State::of(stream.context())?;
        state.context.bind_to_thread().w()?;
        let recording = recording::stream_for(&stream)?;
        Ok(Self { state, device: device.clone(), stream, recording })
    }

    pub(crate) fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The GPU's context.
    pub(crate) fn context(&self) -> &CudaContext {
        &self.state.context
    }

    pub(crate) fn limits(&self) -> Limits {
        self.state.limits
    }

    /// The device's stream: uses of memory are logged on it.
    pub(crate) fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Where work goes now: the device's stream, or that of a recording.
    pub(crate) fn target(&self) -> &CudaStream {
        self.recording.as_ref().unwrap_or(&self.stream)
    }

    pub(crate) fn device_stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// A stream beside the device's, that nobody else launches on.
    ///
    /// cudarc waits for the whole GPU at the first stream of a context that tracks events; ours
    /// does not, see [`alone`](super::recording::alone).
    pub(crate) fn new_stream(&self) -> Result<Arc<CudaStream>> {
        self.state.context.new_stream().w()
    }

    /// Refuses an op that makes new memory or waits while a step is recorded.
    pub(crate) fn not_recording(&self, op: &str) -> Result<()> {
        match self.recording {
            None => Ok(()),
            Some(_) => candle::bail!(
                "{op}: cannot be part of a recorded step: it makes new tensors or waits for the device"
            ),
        }
    }

    /// The kernel `name` of `kernels/FILE.cu`, looked up in the driver once.
    pub(super) fn kernel(&self, file: &'static str, name: &str) -> Result<Loaded> {
        let kernels = self.state.kernels.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(&loaded) = kernels.get(file).and_then(|file| file.get(name)) {
            return Ok(loaded);
        }
        drop(kernels);
        let loaded = self.state.load(file, name)?;
        let mut kernels = self.state.kernels.write().unwrap_or_else(PoisonError::into_inner);
        kernels.entry(file).or_default().insert(name.into(), loaded);
        Ok(loaded)
    }
}

impl State {
    /// What is kept of the GPU that `context` is on.
    pub(crate) fn of(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        let ordinal = context.ordinal();
        let find = |gpus: &[(usize, Arc<Self>)]| {
            gpus.iter().find(|(of, _)| *of == ordinal).map(|(_, state)| state.clone())
        };
        if let Some(state) = find(&GPUS.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(state);
        }
        let mut gpus = GPUS.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = find(&gpus) {
            return Ok(state);
        }
        let state = Arc::new(Self::new(ordinal)?);
        gpus.push((ordinal, state.clone()));
        Ok(state)
    }

    fn new(ordinal: usize) -> Result<Self> {
        let context = CudaContext::new(ordinal).w()?;
        // SAFETY: no memory is made through this view of the context but scratch, which one stream
        // uses: there is nothing to track.
        unsafe { context.disable_event_tracking() };
        let ask = |attribute| Ok::<_, candle::Error>(context.attribute(attribute).w()?.max(0) as usize);
        let (major, minor) = context.compute_capability().w()?;
        let capability = (10 * major + minor).max(0) as u32;
        let Some(built) = code_for(fatbins::CAPABILITIES, capability) else {
            candle::bail!(
                "cuda: this GPU has capability {capability} and the kernels are built for {}; rebuild with CUDA_COMPUTE_CAP={capability}",
                fatbins::CAPABILITIES.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
            )
        };
        let limits = Limits {
            built,
            capability,
            shared_bytes: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
        };
        super::memory::keep_freed_memory(&context)?;
        Ok(Self {
            context,
            limits,
            kernels: RwLock::default(),
            modules: Mutex::default(),
            products: Mutex::default(),
            flags: Mutex::default(),
            captures: Mutex::default(),
        })
    }

    /// Streams of recordings that are over, for the next.
    pub(crate) fn captures(&self) -> MutexGuard<'_, Vec<Arc<CudaStream>>> {
        // A poisoned lock means that another thread panicked in here; the list is valid at every
        // point.
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, file: &'static str, name: &str) -> Result<Loaded> {
        self.context.bind_to_thread().w()?;
        // A poisoned lock means that another thread panicked in here; the map is valid at every
        // point.
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match modules.get(file) {
            Some(module) => module.0,
            None => {
                let module = load_module(file)?;
                modules.insert(file, Module(module));
                module
            }
        };
        let symbol =
            CString::new(name).map_err(|_| candle::Error::Msg(format!("cuda: no kernel {name:?}")))?;
        // SAFETY: the module is loaded in this context and never unloaded.
        let function = unsafe { result::module::get_function(module, symbol) }
            .map_err(|e| candle::Error::Msg(format!("cuda: {file}.cu has no kernel {name}: {e}")))?;
        // SAFETY: the function was just found.
        let declared = unsafe {
            result::function::get_function_attribute(
                function,
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
        }
        .w()?;
        let shared_bytes = self.limits.shared_bytes.saturating_sub(declared.max(0) as usize);
        // SAFETY: as above. The most that a block may have is asked for once, so that no launch has
        // to.
        unsafe {
            result::function::set_function_attribute(
                function,
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared_bytes as i32,
            )
        }
        .w()?;
        Ok(Loaded { function, shared_bytes })
    }
}

fn load_module(file: &str) -> Result<sys::CUmodule> {
    let Some((_, image)) = fatbins::FATBINS.iter().find(|(name, _)| *name == file) else {
        candle::bail!("cuda: there is no kernel file {file}.cu")
    };
    // In memory of its own: the driver reads the image as words, and bytes of the program may lie
    // anywhere.
    let image = image.to_vec();
    // SAFETY: a whole image as nvcc wrote it; the driver copies what it keeps.
    unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(|e| {
        candle::Error::Msg(format!("cuda: the kernels of {file}.cu do not load on this GPU: {e}"))
    })
}
