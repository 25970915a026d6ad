//! NCCL, opened at run time: a program needs it only where there is more than one rank.
//!
//! The dozen symbols below are all that is taken of it. A communicator belongs to a device and gets
//! its collectives on the stream of that device, or on that of a recording.
use super::processes::Processes;
use super::{Group, Means, What};
use crate::core::cuda::{Gpu, alone};
use crate::core::op::Io;
use candle::cuda::cudarc::driver::result::{self, memcpy_dtod_async};
use candle::cuda::cudarc::driver::sys::CUevent_wait_flags;
use candle::cuda::cudarc::driver::{CudaEvent, CudaStream, DevicePtr, DevicePtrMut};
use candle::cuda::{CudaDType, WrapErr};
use candle::{CudaStorage, DType, Device, Result, WithDType};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes of an `ncclUniqueId`.
pub(super) const ID_BYTES: usize = 128;

/// Names of the library, in the order in which they are tried.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The oldest version that is taken, as NCCL counts: 2.18.
const OLDEST: c_int = 21_800;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([c_char; ID_BYTES]);

type Comm = *mut c_void;
type Stream = *mut c_void;
type Status = c_int;

/// `ncclSum`.
const SUM: c_int = 0;

/// The functions of `nccl.h` that are called, by its signatures.
struct Nccl {
    get_unique_id: unsafe extern "C" fn(*mut Id) -> Status,
    init_rank: unsafe extern "C" fn(*mut Comm, c_int, Id, c_int) -> Status,
    destroy: unsafe extern "C" fn(Comm) -> Status,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status,
    reduce_scatter:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Status,
    broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    /// It stays open as long as the process.
    _library: Library,
}

impl Nccl {
    /// The library of the process.
    fn get() -> Result<&'static Self> {
        static OPENED: OnceLock<std::result::Result<Nccl, String>> = OnceLock::new();
        OPENED.get_or_init(Self::open).as_ref().map_err(|why| candle::Error::Msg(why.clone()))
    }

    fn open() -> std::result::Result<Self, String> {
        let mut why = String::new();
        let found = NAMES.iter().find_map(|name| {
            // SAFETY: NCCL has no code that runs when it is opened but that of its C++ statics.
            unsafe { Library::new(*name) }.map_err(|err| why = err.to_string()).ok()
        });
        let Some(library) = found else {
            return Err(format!(
                "NCCL is needed for more than one GPU, and {} cannot be opened ({why}); install NCCL 2.18 or later (libnccl2, or nvidia-nccl of pip) and let LD_LIBRARY_PATH name its folder",
                NAMES[0]
            ));
        };
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type is that of the function in nccl.h, unchanged since version 2.18.
                *unsafe { library.get($name) }
                    .map_err(|err| format!("NCCL: {err}; install NCCL 2.18 or later"))?
            };
        }
        let get_version: unsafe extern "C" fn(*mut c_int) -> Status = symbol!(b"ncclGetVersion\0");
        let mut version = 0;
        // SAFETY: it writes the number.
        let status = unsafe { get_version(&raw mut version) };
        if status != 0 || version < OLDEST {
            return Err(format!(
                "NCCL must be 2.18 or later, got version code {version}; install a later one"
            ));
        }
        Ok(Self {
            get_unique_id: symbol!(b"ncclGetUniqueId\0"),
            init_rank: symbol!(b"ncclCommInitRank\0"),
            destroy: symbol!(b"ncclCommDestroy\0"),
            group_start: symbol!(b"ncclGroupStart\0"),
            group_end: symbol!(b"ncclGroupEnd\0"),
            all_reduce: symbol!(b"ncclAllReduce\0"),
            reduce_scatter: symbol!(b"ncclReduceScatter\0"),
            all_gather: symbol!(b"ncclAllGather\0"),
            broadcast: symbol!(b"ncclBroadcast\0"),
            error_string: symbol!(b"ncclGetErrorString\0"),
            _library: library,
        })
    }

    fn check(&self, what: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it returns a text that is never freed.
        let words = unsafe { CStr::from_ptr((self.error_string)(status)) };
        candle::bail!("{what}: NCCL says: {}", words.to_string_lossy())
    }
}

/// The number of a type in nccl.h.
fn number_of(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::U32 => 3,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => candle::bail!("NCCL: {dtype:?} is not exchanged"),
    })
}

/// A rank's end of the connection to the others.
#[derive(Debug)]
pub(super) struct Communicator {
    raw: Mutex<Raw>,
    device: Device,
    /// Whether the other ranks are of this process, too.
    is_local: bool,
    side: Side,
}

/// The stream of collectives that go on beside others.
#[derive(Debug)]
struct Side {
    stream: Arc<CudaStream>,
    /// Where the rank's own work was, and where the side was.
    marks: [CudaEvent; 2],
}

impl Side {
    fn new(gpu: &Gpu) -> Result<Self> {
        let mark = || gpu.state().context.new_event(None).w();
        Ok(Self { stream: gpu.new_stream()?, marks: [mark()?, mark()?] })
    }

    /// What `to` gets from here on follows what `from` has; by `mark`, which is recorded anew.
    fn follow(to: &CudaStream, from: &CudaStream, mark: &CudaEvent) -> Result<()> {
        // SAFETY: event and streams are alive and of one context, that of the GPU. cudarc's own calls
        // compare the views of it, which differ where events are tracked.
        unsafe {
            result::event::record(mark.cu_event(), from.cu_stream()).w()?;
            let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(to.cu_stream(), mark.cu_event(), flags).w()
        }
    }
}

impl Communicator {
    /// Within [`alone`], since it makes a stream.
    fn new(raw: Comm, device: &Device, is_local: bool) -> Result<Self> {
        let side = Side::new(&gpu_of(device)?)?;
        Ok(Self { raw: Mutex::new(Raw(raw)), device: device.clone(), is_local, side })
    }

    /// The stream of the side, which follows the rank's own work.
    fn beside(&self, gpu: &Gpu) -> Result<&CudaStream> {
        Side::follow(&self.side.stream, gpu.target(), &self.side.marks[0])?;
        Ok(&self.side.stream)
    }

    /// The rank's own work follows the side.
    pub(super) fn join(&self) -> Result<()> {
        Side::follow(gpu_of(&self.device)?.target(), &self.side.stream, &self.side.marks[1])
    }
}

#[derive(Debug)]
struct Raw(Comm);
// SAFETY: NCCL takes a communicator from any thread, one at a time: the mutex around it.
unsafe impl Send for Raw {}

pub(super) fn new_id() -> Result<[u8; ID_BYTES]> {
    let nccl = Nccl::get()?;
    let mut id = Id([0; ID_BYTES]);
    // SAFETY: it writes the id.
    nccl.check("GroupId", unsafe { (nccl.get_unique_id)(&raw mut id) })?;
    Ok(id.0.map(c_char::cast_unsigned))
}

/// The GPU behind a device, current in this thread.
fn gpu_of(device: &Device) -> Result<Gpu> {
    match device {
        Device::Cuda(device) => Gpu::of(device),
        other => candle::bail!("Group: every device must be a GPU, got {:?}", other.location()),
    }
}

/// One for each GPU, for threads of this process.
pub(super) fn of_one_process(devices: &[Device]) -> Result<Vec<Communicator>> {
    for (i, device) in devices.iter().enumerate() {
        gpu_of(device)?;
        if devices.iter().take(i).any(|other| other.location() == device.location()) {
            candle::bail!("Group::on_gpus: {:?} must be there once", device.location())
        }
    }
    let (nccl, id) = (Nccl::get()?, new_id()?);
    let world = devices.len();
    // What NCCL allocates would end recordings of other threads.
    alone(|| {
        let mut raw: Vec<Comm> = vec![std::ptr::null_mut(); world];
        // SAFETY: calls within a group return at once, and the communicators are there after its end.
        nccl.check("Group::on_gpus", unsafe { (nccl.group_start)() })?;
        let mut started = Ok(());
        for (rank, (comm, device)) in raw.iter_mut().zip(devices).enumerate() {
            started = started.and_then(|()| {
                gpu_of(device)?;
                nccl.check("Group::on_gpus", init_rank(nccl, comm, world, &id, rank))
            });
        }
        // SAFETY: the end of what was started.
        let ended = nccl.check("Group::on_gpus", unsafe { (nccl.group_end)() });
        started.and(ended)?;
        raw.into_iter().zip(devices).map(|(raw, device)| Communicator::new(raw, device, true)).collect()
    })
}

/// Of a process, whose device must be its own: rank 0 makes the id and all get it.
pub(super) fn of_processes(processes: &Processes, device: &Device) -> Result<Communicator> {
    const CALL: &str = "Group::of_processes";
    let gpu = gpu_of(device)?;
    let (rank, world) = (processes.rank(), processes.world());
    let own = format!("{:?}", gpu.stream().context().uuid().w()?.bytes).into_bytes();
    let all = processes.exchange(own.clone())?;
    if let Some(other) = all.iter().position(|of| *of == own).filter(|&other| other < rank) {
        candle::bail!(
            "{CALL}: each rank must have a GPU of its own, and ranks {other} and {rank} have the same; start at most one process for each GPU"
        )
    }
    if let Some(other) = all.iter().position(|of| of.starts_with(b"the device")) {
        candle::bail!("{CALL}: rank {rank} has a GPU, and rank {other} has none")
    }
    let nccl = Nccl::get()?;
    let made = if rank == 0 { new_id()?.to_vec() } else { Vec::new() };
    let ids = processes.exchange(made)?;
    let Some(Ok(id)) = ids.first().map(|id| <[u8; ID_BYTES]>::try_from(id.as_slice())) else {
        candle::bail!("{CALL}: rank 0 has sent no id")
    };
    alone(|| {
        gpu_of(device)?;
        let mut raw = std::ptr::null_mut();
        nccl.check(CALL, init_rank(nccl, &mut raw, world, &id, rank))?;
        Communicator::new(raw, device, false)
    })
}

fn init_rank(nccl: &Nccl, comm: &mut Comm, world: usize, id: &[u8; ID_BYTES], rank: usize) -> Status {
    let id = Id(id.map(u8::cast_signed));
    // SAFETY: the device is current in this thread; the communicator is written before NCCL says that
    // it is ready.
    unsafe { (nccl.init_rank)(comm, world as c_int, id, rank as c_int) }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // To end it, NCCL waits for the processes of other ranks, which may be gone. It ends with this
        // process.
        if !self.is_local {
            return;
        }
        let raw = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner).0;
        if let (Ok(nccl), Ok(gpu)) = (Nccl::get(), gpu_of(&self.device)) {
            // What is queued must be done; a graph that holds collectives is gone by now, since it
            // owns a seat.
            let _ = gpu.stream().synchronize();
            // SAFETY: made by NCCL, and destroyed once.
            alone(|| unsafe { (nccl.destroy)(raw) });
        }
    }
}

/// Queues a collective on the rank's own device.
pub(super) fn run<T: WithDType + CudaDType>(
    group: &Group,
    what: What,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()> {
    let op = io.op;
    let Means::Nccl(seat) = &group.means else {
        if group.is_single() {
            return copied::<T>(gpu, io);
        }
        candle::bail!("{op}: a group of threads must have tensors on the CPU, got some on a GPU")
    };
    if !matches!((&seat.device, gpu.device()), (Device::Cuda(own), of) if own.id() == of.id()) {
        candle::bail!(
            "{op}: tensors must be on the device of rank {}, {:?}",
            group.rank,
            seat.device.location()
        )
    }
    let (nccl, number) = (Nccl::get()?, number_of(T::DTYPE)?);
    let target = if let What::AllReduce { beside: true } = what { seat.beside(gpu)? } else { gpu.target() };
    let stream: Stream = target.cu_stream().cast();
    let raw = seat.raw.lock().unwrap_or_else(PoisonError::into_inner);
    let status = match what {
        What::AllReduce { .. } | What::Broadcast { .. } => {
            let ([x], []) = io.parts()?;
            let mut x = x.elements::<T>()?;
            let n = x.len();
            let (at, _used) = x.device_ptr_mut(gpu.stream());
            let at = at as *mut c_void;
            match what {
                What::Broadcast { root } => {
                    // SAFETY: n numbers of the type at the address, which stay borrowed until the call
                    // is queued; in place is allowed.
                    unsafe { (nccl.broadcast)(at, at, n, number, root as c_int, raw.0, stream) }
                }
                // SAFETY: as above.
                _ => unsafe { (nccl.all_reduce)(at, at, n, number, SUM, raw.0, stream) },
            }
        }
        What::ReduceScatter | What::AllGather => {
            let ([out], [x]) = io.parts()?;
            let (mut out, x) = (out.elements::<T>()?, x.elements::<T>()?);
            let n = out.len().min(x.len());
            let (to, _written) = out.device_ptr_mut(gpu.stream());
            let (from, _read) = x.device_ptr(gpu.stream());
            let (to, from) = (to as *mut c_void, from as *const c_void);
            match what {
                // SAFETY: n numbers of the type in the smaller of the two, and n for each rank in the
                // other, which was checked; both stay borrowed until the call is queued.
                What::ReduceScatter => unsafe {
                    (nccl.reduce_scatter)(from, to, n, number, SUM, raw.0, stream)
                },
                // SAFETY: as above.
                _ => unsafe { (nccl.all_gather)(from, to, n, number, raw.0, stream) },
            }
        }
    };
    nccl.check(op, status)
}

/// What reduce-scatter and all-gather come to for one rank.
fn copied<T: WithDType + CudaDType>(gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    let ([out], [x]) = io.parts()?;
    let (mut out, x) = (out.elements::<T>()?, x.elements::<T>()?);
    let bytes = size_of::<T>() * out.len().min(x.len());
    let (to, _written) = out.device_ptr_mut(gpu.stream());
    let (from, _read) = x.device_ptr(gpu.stream());
    // SAFETY: both have so many bytes, and stay borrowed until the copy is queued.
    unsafe { memcpy_dtod_async(to, from, bytes, gpu.target().cu_stream()) }.w()
}
