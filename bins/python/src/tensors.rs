//! The class `Tensor`: an array on a device, which goes to other libraries and comes from them by
//! DLPack.
use crate::arrays::{array, from_numpy};
use crate::device::{device as opened, device_name};
use crate::errors::{caught, run};
use candle::{DType, Device, Result, Tensor as Inner};
use chandlery_ops::arrays::{all_finite, gather_rows};
use chandlery_ops::core::dlpack::{Form, Lent, Taken, device_of, gpu_of, is_cpu, stream};
use pyo3::exceptions::{PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PySlice};
use std::ffi::c_int;

/// An array on a device. It has what our Python code uses of NumPy's.
#[pyclass(frozen, sequence, module = "chandlery._chandlery")]
pub struct Tensor(pub Inner);

/// The tensor of a NumPy array or a `Tensor`, on its own device.
///
/// # Errors
/// `TypeError` for what is no such array.
pub fn tensor(array: &Bound<'_, PyAny>) -> PyResult<Inner> {
    match array.cast::<Tensor>() {
        Ok(held) => Ok(held.get().0.clone()),
        Err(_) => from_numpy(array),
    }
}

/// Whether this is a `Tensor`, not NumPy's array.
pub fn is_tensor(array: &Bound<'_, PyAny>) -> bool {
    array.is_instance_of::<Tensor>()
}

/// The tensor as an array of the kind of `like`: a `Tensor` where that is one, else NumPy's.
///
/// # Errors
/// When memory is short.
pub fn array_like<'py>(like: &Bound<'py, PyAny>, t: &Inner) -> PyResult<Bound<'py, PyAny>> {
    match like.cast::<Tensor>() {
        Ok(_) => Ok(Bound::new(like.py(), Tensor(t.clone()))?.into_any()),
        Err(_) => array(like.py(), t),
    }
}

/// A copy on `device` of what has the methods of DLPack.
fn taken(object: &Bound<'_, PyAny>, device: &Device) -> PyResult<Inner> {
    let py = object.py();
    let place: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    // Who gives the memory waits for nothing where it is the host's.
    let stream = if is_cpu(place) { None } else { stream(device) };
    if let (Some(ordinal), None) = (gpu_of(place), stream) {
        return Err(PyValueError::new_err(format!(
            "device: the array is on cuda:{ordinal}, got {}; ask for that device, or move the array first",
            device_name(device)
        )));
    }
    let asked = |max_version: Option<(u32, u32)>| {
        let by_name = PyDict::new(py);
        by_name.set_item("stream", stream)?;
        if max_version.is_some() {
            by_name.set_item("max_version", max_version)?;
        }
        object.call_method("__dlpack__", (), Some(&by_name))
    };
    // Libraries older than version 1 do not know the argument.
    let capsule = asked(Some((1, 0))).or_else(|e| match e.is_instance_of::<PyTypeError>(py) {
        true => asked(None),
        false => Err(e),
    })?;
    let capsule = capsule.cast::<PyCapsule>()?;
    let forms = [Form::Versioned, Form::Plain];
    let Some(form) = forms.into_iter().find(|form| capsule.is_valid_checked(Some(form.capsule()))) else {
        return Err(PyTypeError::new_err("chandlery: __dlpack__ must give a capsule with a tensor"));
    };
    let at = capsule.pointer_checked(Some(form.capsule()))?;
    // SAFETY: a capsule, and a name that lives forever; from here on it does not give back what it
    // holds.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), form.used_capsule().as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a capsule of this name holds such a struct, and the new name says that it is taken.
    let taken = unsafe { Taken::new(at, form) };
    run(py, |_| taken.to_tensor(device))
}

/// Gives back what nobody took.
unsafe extern "C" fn untaken(capsule: *mut ffi::PyObject) {
    for form in [Form::Plain, Form::Versioned] {
        // SAFETY: Python calls this with the capsule, once; of that name it is as we made it.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, form.capsule().as_ptr()) != c_int::from(true) {
                continue;
            }
            let at = ffi::PyCapsule_GetPointer(capsule, form.capsule().as_ptr());
            drop(std::ptr::NonNull::new(at).map(|at| Taken::new(at, form)));
        }
    }
}

/// The name that NumPy has for a type.
fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::U8 => "uint8",
        DType::U32 => "uint32",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        other => other.as_str(),
    }
}

#[pymethods]
impl Tensor {
    /// A copy on `device` of an array of NumPy or of another library that has DLPack; on a GPU it
    /// is made there. Refuses NaN and infinities. bfloat16 becomes float32.
    #[new]
    #[pyo3(signature = (array, device="cpu"))]
    fn new(array: &Bound<'_, PyAny>, device: &str) -> PyResult<Self> {
        let device = opened(device)?;
        let t = match array.cast::<numpy::PyUntypedArray>() {
            Err(_) if array.hasattr("__dlpack__")? => taken(array, &device)?,
            _ => tensor(array)?,
        };
        let t = run(array.py(), |_| {
            let t = t.to_device(&device)?;
            let t = if t.dtype() == DType::BF16 { t.to_dtype(DType::F32)? } else { t };
            match all_finite(&t.contiguous()?)? {
                true => Ok(t),
                false => candle::bail!("Input contains NaN or infinity."),
            }
        })?;
        Ok(Self(t))
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.0.dims().to_vec()
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?.call_method1("dtype", (numpy_name(self.0.dtype()),))
    }

    #[getter]
    fn device(&self) -> String {
        device_name(self.0.device())
    }

    fn __len__(&self) -> usize {
        self.0.dims().first().copied().unwrap_or(0)
    }

    /// Some rows: a slice of them, or those of a NumPy array of their numbers.
    fn __getitem__(&self, rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        let n = self.__len__();
        if let Ok(slice) = rows.cast::<PySlice>() {
            let range = slice.indices(n as isize)?;
            if range.step != 1 {
                return Err(PyIndexError::new_err(format!(
                    "Tensor: a slice must have step 1, got {}",
                    range.step
                )));
            }
            return caught(|| self.0.narrow(0, range.start as usize, range.slicelength)).map(Self);
        }
        let rows = from_numpy(rows)?;
        run_of(|| {
            let rows = rows.to_dtype(DType::U32)?.to_vec1::<u32>()?;
            gather_rows(&self.0.contiguous()?, &rows)
        })
    }

    /// The same values in another type; they are not copied where it is the same.
    #[pyo3(signature = (dtype, copy=true))]
    fn astype(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>, copy: bool) -> PyResult<Self> {
        let _ = copy;
        let name = py.import("numpy")?.call_method1("dtype", (dtype,))?.getattr("name")?;
        let name = name.extract::<String>()?;
        let types = [DType::F64, DType::F32, DType::F16, DType::U8, DType::U32, DType::I64];
        let Some(to) = types.into_iter().find(|&to| numpy_name(to) == name) else {
            return Err(PyTypeError::new_err(format!("Tensor: there is no type {name}")));
        };
        caught(|| self.0.to_dtype(to)).map(Self)
    }

    /// The rows without their means, or without given ones, in float32; and these.
    #[pyo3(signature = (means=None))]
    fn centred<'py>(
        &self,
        py: Python<'py>,
        means: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Self, Bound<'py, PyAny>)> {
        let means = means.map(tensor).transpose()?;
        let (rows, means) = run(py, |_| {
            let rows = self.0.to_dtype(DType::F64)?;
            let means = match means {
                Some(means) => means.to_dtype(DType::F64)?.to_device(rows.device())?,
                None => rows.mean(0)?,
            };
            Ok((rows.broadcast_sub(&means)?.to_dtype(DType::F32)?, means))
        })?;
        Ok((Self(rows), array(py, &means)?))
    }

    /// Positive parts and sizes of negative parts side by side.
    fn split_sign(&self) -> PyResult<Self> {
        run_of(|| Inner::cat(&[self.0.relu()?, self.0.neg()?.relu()?], 1))
    }

    /// A copy as a NumPy array.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, &self.0)
    }

    /// Kind and number of the device, as DLPack has them.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        caught(|| device_of(self.0.device()))
    }

    /// A capsule with the tensor, whose memory it shares unless `copy`, for a consumer that works
    /// on `stream`; see the array API standard.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let own = self.__dlpack_device__()?;
        let goes = dl_device.is_some_and(|device| device != own);
        if goes && (copy == Some(false) || !dl_device.is_some_and(is_cpu)) {
            return Err(PyBufferError::new_err(format!(
                "Tensor: dl_device must be {own:?}, or the CPU for a copy, got {dl_device:?}"
            )));
        }
        let lent = run(py, |_| {
            let t = if goes { self.0.to_device(&Device::Cpu)? } else { self.0.clone() };
            let lent = Lent::new(&if copy == Some(true) && !goes { t.copy()? } else { t })?;
            lent.ready_on(stream)?;
            Ok(lent)
        })?;
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let form = if versioned { Form::Versioned } else { Form::Plain };
        let at = caught(|| lent.into_raw(form))?;
        // SAFETY: the struct that its name says, which whoever takes it gives back, or `untaken`.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, at, form.capsule(), Some(untaken)) }
    }
}

/// What `work` makes; its error as Python's exception.
fn run_of(work: impl FnOnce() -> Result<Inner>) -> PyResult<Tensor> {
    caught(work).map(Tensor)
}
