//! A launch, built from its arguments one by one.
use super::gpu::{Gpu, Loaded};
use super::recording;
use crate::core::philox::Philox;
use candle::Result;
use candle::cuda::cudarc::driver::{
    CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop, sys,
};
use candle::cuda::{CudaDType, WrapErr};
use std::ffi::c_void;

/// Threads of a block where every thread takes elements of its own.
const THREADS: u32 = 256;

/// A kernel, its arguments in order, and how many blocks run it.
///
/// Arguments that are read or written are logged as such on the device's stream when the launch is
/// queued, so that other streams, and whoever frees the memory, wait for it.
pub(crate) struct Launch<'a> {
    op: &'static str,
    gpu: &'a Gpu,
    kernel: Loaded,
    /// The bytes of all arguments, each from a multiple of eight on, and where each begins.
    words: Vec<u64>,
    starts: Vec<usize>,
    uses: Vec<SyncOnDrop<'a>>,
    grid: (u32, u32, u32),
    threads: (u32, u32, u32),
    shared: usize,
    cooperative: bool,
    /// Blocks of a cluster, 1 without clusters.
    cluster: u32,
    overlapped: bool,
    /// The first argument that was refused.
    refused: Option<candle::Error>,
}

impl Gpu {
    /// A launch of the kernel `name` of `kernels/FILE.cu`, of one block of one thread so far.
    ///
    /// # Errors
    /// When there is no such kernel.
    pub(crate) fn launch(&self, op: &'static str, file: &'static str, name: &str) -> Result<Launch<'_>> {
        Ok(Launch {
            op,
            gpu: self,
            kernel: self.kernel(file, name)?,
            words: Vec::with_capacity(48),
            starts: Vec::with_capacity(16),
            uses: Vec::with_capacity(8),
            grid: (1, 1, 1),
            threads: (1, 1, 1),
            shared: 0,
            cooperative: false,
            cluster: 1,
            overlapped: false,
            refused: None,
        })
    }
}

/// Where memory begins that kernels reach through a struct of addresses, which a launch takes by
/// [`num`](Launch::num).
///
/// Its use is logged on the device's stream when this is dropped: it must live until the launches
/// are queued.
#[must_use = "the use of the memory is logged when this is dropped"]
pub(crate) struct Address<'a> {
    pub at: u64,
    _used: SyncOnDrop<'a>,
}

impl Gpu {
    /// The address of what kernels write.
    pub(crate) fn to_write<'a, T: CudaDType>(&'a self, view: &'a mut CudaViewMut<'_, T>) -> Address<'a> {
        let (at, _used) = view.device_ptr_mut(self.stream());
        Address { at, _used }
    }

    /// The address of what kernels read.
    pub(crate) fn to_read<'a, T: CudaDType>(&'a self, view: &'a CudaView<'_, T>) -> Address<'a> {
        let (at, _used) = view.device_ptr(self.stream());
        Address { at, _used }
    }
}

impl<'a> Launch<'a> {
    /// A pointer to what the kernel writes.
    pub(crate) fn write<T: CudaDType>(mut self, view: &'a mut CudaViewMut<'_, T>) -> Self {
        let Address { at, _used } = self.gpu.to_write(view);
        self.uses.push(_used);
        self.num(at)
    }

    /// A pointer to what the kernel reads.
    pub(crate) fn read<T: CudaDType>(mut self, view: &'a CudaView<'_, T>) -> Self {
        let Address { at, _used } = self.gpu.to_read(view);
        self.uses.push(_used);
        self.num(at)
    }

    /// A pointer to what the kernel reads, null where there is nothing.
    pub(crate) fn maybe<T: CudaDType>(self, view: &'a Option<CudaView<'_, T>>) -> Self {
        match view {
            Some(view) => self.read(view),
            None => self.num(0u64),
        }
    }

    /// A pointer to what the kernel writes, null where there is nothing.
    pub(crate) fn maybe_write<T: CudaDType>(self, view: &'a mut Option<CudaViewMut<'_, T>>) -> Self {
        match view {
            Some(view) => self.write(view),
            None => self.num(0u64),
        }
    }

    /// A number, or a struct of numbers, as the kernel takes it.
    pub(crate) fn num<T: DeviceRepr + Copy>(mut self, value: T) -> Self {
        let start = self.words.len();
        self.starts.push(start);
        self.words.resize(start + size_of::<T>().div_ceil(8), 0);
        let to = self.words[start..].as_mut_ptr().cast::<T>();
        // SAFETY: the words after `start` were just made and are at least as many bytes as a T,
        // which need not be aligned.
        unsafe { to.write_unaligned(value) };
        self
    }

    /// The arguments that `add` adds, each of 8 bytes, as the members of one struct.
    pub(crate) fn record(self, add: impl FnOnce(Self) -> Self) -> Self {
        let (start, before) = (self.words.len(), self.starts.len());
        let mut launch = add(self);
        launch.starts.truncate(before);
        launch.starts.push(start);
        launch
    }

    /// A size that the kernel takes as `unsigned`.
    pub(crate) fn count(mut self, n: usize) -> Self {
        let n = self.whole(n);
        self.num(n)
    }

    /// Seed, stream, offset and counter: the last four arguments of a kernel that draws.
    pub(crate) fn draws(self, philox: Philox, counter: &'a Option<CudaView<'_, i64>>) -> Self {
        self.num(philox.seed).num(philox.stream).num(philox.offset).maybe(counter)
    }

    /// A thread for each of `n` work items in blocks of 256, at most 4096 of them: for kernels that
    /// stride over the grid.
    pub(crate) fn linear(self, n: usize) -> Self {
        self.blocks(n.div_ceil(THREADS as usize).clamp(1, 4096), THREADS)
    }

    /// So many blocks of so many threads.
    pub(crate) fn blocks(mut self, blocks: usize, threads: u32) -> Self {
        self.grid = (self.whole(blocks), 1, 1);
        self.threads = (threads, 1, 1);
        self
    }

    /// Blocks in rows, columns and layers (`blockIdx.x`, `.y`, `.z`), each of `threads`.
    pub(crate) fn grid(mut self, grid: [usize; 3], threads: (u32, u32, u32)) -> Self {
        self.grid = (self.whole(grid[0]), self.whole(grid[1]), self.whole(grid[2]));
        self.threads = threads;
        self
    }

    /// Bytes that the threads of a block share beside those that the kernel's code declares.
    pub(crate) fn shared(mut self, bytes: usize) -> Self {
        if bytes > self.kernel.shared_bytes {
            self.refuse(format!(
                "a block needs {bytes} bytes of shared memory, and blocks of this GPU have {}; use smaller sizes, or the CPU",
                self.kernel.shared_bytes
            ));
        }
        self.shared = bytes;
        self
    }

    /// All blocks run at the same time, so that they may wait for each other.
    pub(crate) fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// Blocks in clusters of so many, which see each other's shared memory, a divisor of the number
    /// of blocks. Of capability 9.0 on
    /// ([`Limits::has_clusters`](crate::core::limits::Limits::has_clusters)).
    pub(crate) fn clusters_of(mut self, blocks: u32) -> Self {
        self.cluster = blocks;
        self
    }

    /// How many clusters of this launch run at the same time on an idle GPU.
    ///
    /// # Errors
    /// When the shared memory was refused, or the driver does not know.
    pub(crate) fn clusters_at_once(mut self) -> Result<usize> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        let mut attributes = self.attributes();
        let config = self.config(&mut attributes);
        let mut clusters = 0;
        // SAFETY: the function is loaded in the current context, and the configuration and its
        // attributes outlive the call.
        let asked = unsafe {
            sys::cuOccupancyMaxActiveClusters(&raw mut clusters, self.kernel.function, &raw const config)
        };
        asked.result().w()?;
        Ok(clusters.max(0) as usize)
    }

    /// May begin while the launch before it still runs: for kernels that wait for it themselves, by
    /// `wait_for_previous` of kernels/core/order.cuh. Saves about a microsecond of a chain of small
    /// kernels for each. Below capability 9.0 it changes nothing.
    pub(crate) fn overlapped(mut self) -> Self {
        self.overlapped = self.gpu.limits().built >= 90;
        self
    }

    fn whole(&mut self, n: usize) -> u32 {
        u32::try_from(n).unwrap_or_else(|_| {
            self.refuse(format!("a size must be below 2^32, got {n}"));
            0
        })
    }

    fn refuse(&mut self, why: String) {
        let op = self.op;
        self.refused.get_or_insert_with(|| candle::Error::Msg(format!("{op}: {why}")));
    }

    /// Queues the launch; returns at once.
    ///
    /// # Errors
    /// When a size or the shared memory was refused, or the driver refuses the launch.
    ///
    /// # Safety
    /// The arguments are of the kernel's types in its order, each array holds what the kernel
    /// reaches with these numbers, and the kernel writes only what was named by
    /// [`write`](Self::write) or has an [`Address`] that is alive.
    pub(crate) unsafe fn go(mut self) -> Result<()> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        if self.grid.0 == 0 || self.grid.1 == 0 || self.grid.2 == 0 {
            return Ok(());
        }
        let words = self.words.as_mut_ptr();
        let mut arguments: Vec<*mut c_void> = Vec::with_capacity(self.starts.len());
        // SAFETY: every start lies within `words`, or at its end where the argument has no bytes.
        arguments.extend(self.starts.iter().map(|&start| unsafe { words.add(start) }.cast::<c_void>()));
        let mut attributes = self.attributes();
        let config = self.config(&mut attributes);
        // SAFETY: the function is loaded in the context that `Gpu::of` made current, the
        // configuration with its attributes and the arguments are alive until the driver has copied
        // them, and the rest is the caller's.
        let launched = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.kernel.function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result();
        recording::watch(launched).w()
        // `uses` is dropped here: the device's stream logs what was read and written.
    }

    /// What the launch asks for beside its size.
    fn attributes(&self) -> Vec<sys::CUlaunchAttribute> {
        use sys::CUlaunchAttributeID as Id;
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: Default::default(), value };
        let mut attributes = Vec::with_capacity(2);
        if self.cooperative {
            let value = sys::CUlaunchAttributeValue { cooperative: 1 };
            attributes.push(attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value));
        } else if self.overlapped {
            let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            attributes.push(attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value));
        }
        if self.cluster > 1 {
            let size = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: self.cluster, y: 1, z: 1 };
            let value = sys::CUlaunchAttributeValue { clusterDim: size };
            attributes.push(attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value));
        }
        attributes
    }

    /// The launch as the driver takes it; it points to `attributes`.
    fn config(&self, attributes: &mut [sys::CUlaunchAttribute]) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.grid.0,
            gridDimY: self.grid.1,
            gridDimZ: self.grid.2,
            blockDimX: self.threads.0,
            blockDimY: self.threads.1,
            blockDimZ: self.threads.2,
            sharedMemBytes: self.shared as u32, // below the limit, which is an i32
            hStream: self.gpu.target().cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        }
    }
}
