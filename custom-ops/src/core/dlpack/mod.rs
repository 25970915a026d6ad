//! Tensors of other libraries, by [DLPack](https://dmlc.github.io/dlpack/latest/).
//!
//! DLPack is the memory layout in which libraries of arrays hand tensors to each other: an address,
//! a device, a type, sizes and strides, and a function that gives the tensor back. [`Taken`] is a
//! tensor that another library hands over, [`Lent`] one of ours.
//!
//! candle's storages own their memory and free it themselves, so what is taken is copied once, on
//! the device that it is on; what is lent is the memory of the tensor itself.
//!
//! | | on a GPU |
//! |---|---|
//! | taken | the producer makes [`stream`] wait for its work; one copy on that stream; the host waits for it |
//! | lent | [`Lent::ready_on`] makes the consumer's stream wait for ours |
//! | given back | the GPU is waited for: work of the consumer may still read the memory |
#[cfg(feature = "cuda")]
mod gpu;
mod host;

use candle::{CpuStorage, DType, Device, DeviceLocation, Result, Storage, Tensor};
use std::ffi::c_void;
use std::ptr::NonNull;

const CPU: i32 = 1;
const CUDA: i32 = 2;
/// Page-locked memory of the host, which the CPU reads.
const CUDA_HOST: i32 = 3;
/// Managed memory, which a GPU reads by its address.
const CUDA_MANAGED: i32 = 13;

/// The version of DLPack whose structs are below; those of the same first number are the same.
const VERSION: Version = Version { major: 1, minor: 0 };

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
struct View {
    data: *mut c_void,
    place: Place,
    rank: i32,
    dtype: Type,
    shape: *mut i64,
    /// Null where entries lie one after the other.
    strides: *mut i64,
    offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Plain {
    view: View,
    owner: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: Version,
    owner: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    view: View,
}

/// Which of the two structs of DLPack a tensor is handed over in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `DLManagedTensor`, before version 1.
    Plain,
    /// `DLManagedTensorVersioned`, since version 1.
    Versioned,
}

impl Form {
    /// The name of a Python capsule with such a struct.
    pub const fn capsule(self) -> &'static std::ffi::CStr {
        match self {
            Self::Plain => c"dltensor",
            Self::Versioned => c"dltensor_versioned",
        }
    }

    /// The name of the capsule once the tensor was taken.
    pub const fn used_capsule(self) -> &'static std::ffi::CStr {
        match self {
            Self::Plain => c"used_dltensor",
            Self::Versioned => c"used_dltensor_versioned",
        }
    }
}

/// Entries in the memory of another library.
struct Memory {
    /// Of the first entry.
    address: usize,
    dims: Vec<usize>,
    /// From an entry to the next along each dimension, in entries.
    strides: Vec<isize>,
    dtype: DType,
}

/// From an entry to the next along each dimension where they lie one after the other.
fn steps(dims: &[usize]) -> Vec<isize> {
    let mut step = 1isize;
    let mut steps = vec![1; dims.len()];
    for (of, &n) in steps.iter_mut().zip(dims).rev() {
        *of = step;
        step = step.saturating_mul(n as isize);
    }
    steps
}

impl Memory {
    fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether the entries lie one after the other, the last dimension fastest.
    fn is_contiguous(&self) -> bool {
        let along = self.dims.iter().zip(&self.strides).zip(steps(&self.dims));
        along.into_iter().all(|((&n, &stride), step)| n <= 1 || stride == step)
    }
}

/// A tensor that another library handed over. It is given back when this is dropped.
#[derive(Debug)]
pub struct Taken {
    at: NonNull<c_void>,
    form: Form,
}

// SAFETY: through a reference it is only read.
unsafe impl Sync for Taken {}

impl Taken {
    /// Takes over a tensor.
    ///
    /// # Safety
    /// `at` is a struct of this form that its producer filled, and that nobody else takes or gives
    /// back.
    pub unsafe fn new(at: NonNull<c_void>, form: Form) -> Self {
        Self { at, form }
    }

    fn view(&self) -> Result<View> {
        match self.form {
            // SAFETY: `new` was promised such a struct, and it is given back by `drop` alone.
            Form::Plain => Ok(unsafe { self.at.cast::<Plain>().as_ref() }.view),
            Form::Versioned => {
                let at = self.at.cast::<Versioned>().as_ptr();
                // SAFETY: as above. The version comes first in any version, and the rest is read
                // only where it is the one that is known.
                let version = unsafe { (&raw const (*at).version).read() };
                if version.major != VERSION.major {
                    candle::bail!(
                        "DLPack: the version must be {}, got {}.{}; update the library that makes the tensor",
                        VERSION.major,
                        version.major,
                        version.minor
                    )
                }
                // SAFETY: as above.
                Ok(unsafe { (&raw const (*at).view).read() })
            }
        }
    }

    /// A copy of the tensor on `device`: of one on a GPU on that GPU. The host waits for it.
    ///
    /// The producer was told the [`stream`] of `device`, where it asks for one.
    ///
    /// # Errors
    /// When the tensor is on another GPU or on no device that is known, when its type is none of
    /// u8, u32, i16, i32, i64, bf16, f16, f32, f64, when on a GPU its entries lie neither in rows
    /// nor in columns, or memory is short.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let view = self.view()?;
        let memory = memory_of(&view)?;
        match view.place.kind {
            // SAFETY: the producer says so.
            CPU | CUDA_HOST => unsafe { host::copy(&memory) }?.to_device(device),
            CUDA | CUDA_MANAGED => on_gpu(&memory, view.place.ordinal, device),
            other => {
                candle::bail!("DLPack: a tensor must be on the CPU or an NVIDIA GPU, got device type {other}")
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        match self.form {
            Form::Plain => {
                let at = self.at.cast::<Plain>().as_ptr();
                // SAFETY: `new` was promised a struct that nobody else gives back.
                if let Some(delete) = unsafe { (*at).delete } {
                    // SAFETY: as above.
                    unsafe { delete(at) }
                }
            }
            Form::Versioned => {
                let at = self.at.cast::<Versioned>().as_ptr();
                // SAFETY: as above; the function is in the same place in any version.
                if let Some(delete) = unsafe { (*at).delete } {
                    // SAFETY: as above.
                    unsafe { delete(at) }
                }
            }
        }
    }
}

fn memory_of(view: &View) -> Result<Memory> {
    let rank = usize::try_from(view.rank).unwrap_or(0);
    let list = |at: *mut i64| match rank {
        0 => &[][..],
        // SAFETY: the producer says that there are so many.
        _ => unsafe { std::slice::from_raw_parts(at, rank) },
    };
    let dims = list(view.shape).iter().map(|&n| usize::try_from(n));
    let dims = dims.collect::<std::result::Result<Vec<_>, _>>().map_err(candle::Error::wrap)?;
    let strides = match view.strides.is_null() {
        true => steps(&dims),
        false => list(view.strides).iter().map(|&s| s as isize).collect(),
    };
    let Type { code, bits, lanes } = view.dtype;
    let dtype = match (code, bits, lanes) {
        (0, 16, 1) => DType::I16,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (1, 8, 1) => DType::U8,
        (1, 32, 1) => DType::U32,
        (2, 16, 1) => DType::F16,
        (2, 32, 1) => DType::F32,
        (2, 64, 1) => DType::F64,
        (4, 16, 1) => DType::BF16,
        _ => candle::bail!(
            "DLPack: the type must be u8, u32, i16, i32, i64, bf16, f16, f32 or f64, got code {code} of {bits} bits and {lanes} lanes; convert it first"
        ),
    };
    let address = view.data.expose_provenance() + view.offset as usize;
    Ok(Memory { address, dims, strides, dtype })
}

fn on_gpu(memory: &Memory, ordinal: i32, device: &Device) -> Result<Tensor> {
    let want = device.location();
    if !matches!(want, DeviceLocation::Cuda { gpu_id } if i32::try_from(gpu_id) == Ok(ordinal)) {
        candle::bail!(
            "DLPack: a tensor on GPU {ordinal} must be used on that GPU, got {want:?}; ask for cuda:{ordinal}, or move it there first"
        )
    }
    #[cfg(feature = "cuda")]
    // SAFETY: the producer says so.
    return unsafe { gpu::copy(memory, device) };
    #[cfg(not(feature = "cuda"))]
    {
        let _ = memory;
        candle::bail!("DLPack: this build has no CUDA; build with the feature `cuda`")
    }
}

/// The stream that a producer makes wait for its work on a tensor that goes to `device`, as
/// `__dlpack__` of Python takes it; none for the CPU.
pub fn stream(device: &Device) -> Option<i64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => Some(device.cuda_stream().cu_stream().expose_provenance() as i64),
        _ => None,
    }
}

/// Kind and number of a device as DLPack has them.
///
/// # Errors
/// When the device is neither the CPU nor a GPU of NVIDIA.
pub fn device_of(device: &Device) -> Result<(i32, i32)> {
    match device.location() {
        DeviceLocation::Cpu => Ok((CPU, 0)),
        DeviceLocation::Cuda { gpu_id } => Ok((CUDA, gpu_id as i32)),
        other => candle::bail!("DLPack: a tensor must be on the CPU or an NVIDIA GPU, got {other:?}"),
    }
}

/// Whether DLPack's device of this kind and number is the CPU.
pub fn is_cpu((kind, _): (i32, i32)) -> bool {
    kind == CPU || kind == CUDA_HOST
}

/// The number of the GPU that DLPack's device is, if it is one of NVIDIA.
pub fn gpu_of((kind, ordinal): (i32, i32)) -> Option<usize> {
    matches!(kind, CUDA | CUDA_MANAGED).then(|| usize::try_from(ordinal).ok()).flatten()
}

/// A tensor for another library, which reads and may write its memory.
#[derive(Debug)]
pub struct Lent(Tensor);

impl Lent {
    /// The tensor, or a copy where it has gaps.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(t: &Tensor) -> Result<Self> {
        let t = t.detach().contiguous()?;
        device_of(t.device())?;
        code_of(t.dtype())?;
        Ok(Self(t))
    }

    /// Makes the consumer's `stream` wait until the tensor is written, by the numbers of the array
    /// API standard: none and 1 are the legacy stream, 2 is that of each thread, -1 is none at all.
    /// On the CPU there is nothing to wait for.
    ///
    /// # Errors
    /// When `stream` is 0, or the driver refuses.
    pub fn ready_on(&self, stream: Option<i64>) -> Result<()> {
        match self.0.device() {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => gpu::ready_on(device, stream),
            _ => {
                let _ = stream;
                Ok(())
            }
        }
    }

    /// The struct of this form, which whoever takes it gives back by its function.
    ///
    /// # Errors
    /// When the memory of the tensor is not known.
    pub fn into_raw(self, form: Form) -> Result<NonNull<c_void>> {
        let (kind, ordinal) = device_of(self.0.device())?;
        let address = address(&self.0)?;
        let list = |of: &[usize]| of.iter().map(|&n| n as i64).collect::<Box<[i64]>>();
        let (shape, strides) = (list(self.0.dims()), list(&self.0.stride()[..self.0.rank()]));
        let rank = self.0.rank() as i32;
        let (code, bits) = code_of(self.0.dtype())?;
        let owner = Box::into_raw(Box::new(Owner { t: self.0, shape, strides }));
        // SAFETY: it was just made; the lists stay where they are in their boxes.
        let (shape, strides) = unsafe { ((*owner).shape.as_mut_ptr(), (*owner).strides.as_mut_ptr()) };
        let view = View {
            data: std::ptr::with_exposed_provenance_mut(address),
            place: Place { kind, ordinal },
            rank,
            dtype: Type { code, bits, lanes: 1 },
            shape,
            strides,
            offset: 0,
        };
        let owner = owner.cast();
        let at = match form {
            Form::Plain => Box::into_raw(Box::new(Plain { view, owner, delete: Some(delete_plain) })).cast(),
            Form::Versioned => {
                let delete = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
                let lent = Versioned { version: VERSION, owner, delete, flags: 0, view };
                Box::into_raw(Box::new(lent)).cast()
            }
        };
        // SAFETY: a box is never null.
        Ok(unsafe { NonNull::new_unchecked(at) })
    }
}

/// What lives until a lent tensor is given back.
struct Owner {
    t: Tensor,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = self.t.device() {
            gpu::wait(device);
        }
        let _ = &self.t;
    }
}

unsafe extern "C" fn delete_plain(at: *mut Plain) {
    // SAFETY: DLPack gives back what `into_raw` made, once.
    let lent = unsafe { Box::from_raw(at) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(lent.owner.cast::<Owner>()) });
}

unsafe extern "C" fn delete_versioned(at: *mut Versioned) {
    // SAFETY: DLPack gives back what `into_raw` made, once.
    let lent = unsafe { Box::from_raw(at) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(lent.owner.cast::<Owner>()) });
}

fn code_of(dtype: DType) -> Result<(u8, u8)> {
    Ok(match dtype {
        DType::I16 => (0, 16),
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::U8 => (1, 8),
        DType::U32 => (1, 32),
        DType::F16 => (2, 16),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
        DType::BF16 => (4, 16),
        other => candle::bail!("DLPack: there is no type for {other:?}; convert it first"),
    })
}

/// Where the entries of a contiguous tensor lie.
fn address(t: &Tensor) -> Result<usize> {
    let (storage, layout) = t.storage_and_layout();
    let first = layout.start_offset() * t.dtype().size_in_bytes();
    let start = match &*storage {
        Storage::Cpu(storage) => match storage {
            CpuStorage::U8(all) => all.as_ptr().expose_provenance(),
            CpuStorage::U32(all) => all.as_ptr().expose_provenance(),
            CpuStorage::I16(all) => all.as_ptr().expose_provenance(),
            CpuStorage::I32(all) => all.as_ptr().expose_provenance(),
            CpuStorage::I64(all) => all.as_ptr().expose_provenance(),
            CpuStorage::BF16(all) => all.as_ptr().expose_provenance(),
            CpuStorage::F16(all) => all.as_ptr().expose_provenance(),
            CpuStorage::F32(all) => all.as_ptr().expose_provenance(),
            CpuStorage::F64(all) => all.as_ptr().expose_provenance(),
            _ => candle::bail!("DLPack: there is no type for {:?}; convert it first", t.dtype()),
        },
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => gpu::address(storage)?,
        _ => candle::bail!("DLPack: a tensor must be on the CPU or an NVIDIA GPU"),
    };
    Ok(start + first)
}

#[cfg(test)]
mod tests;
