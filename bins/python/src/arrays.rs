//! NumPy arrays as tensors, and back.
use crate::errors::{exception, run};
use candle::{DType, Device, Result, Shape, Storage, Tensor, WithDType};
use half::f16;
use numpy::{Element, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The values of a NumPy array of any strides, f64, f32, f16, u8, u32 or i64, copied once.
///
/// # Errors
/// `TypeError` for what is no such array.
pub fn from_numpy(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let untyped = array.cast::<PyUntypedArray>().map_err(|_| {
        let got = array.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("chandlery: arrays must be NumPy arrays, got {got}"))
    })?;
    let aligned = match array.getattr("flags")?.getattr("aligned")?.is_truthy()? {
        true => array.clone(),
        false => array.call_method0("copy")?,
    };
    let copies = [copied::<f64>, copied::<f32>, copied::<f16>, copied::<u8>, copied::<u32>, copied::<i64>];
    copies.into_iter().find_map(|copied| copied(&aligned)).unwrap_or_else(|| {
        let dtype = untyped.dtype();
        Err(PyTypeError::new_err(format!(
            "chandlery: arrays must be float64, float32, float16 or uint8 in the byte order of this machine, got {dtype}"
        )))
    })
}

fn copied<T: Element + WithDType>(array: &Bound<'_, PyAny>) -> Option<PyResult<Tensor>> {
    let array = array.cast::<PyArrayDyn<T>>().ok()?;
    Some(array.try_readonly().map_err(|e| PyValueError::new_err(e.to_string())).and_then(|array| {
        let view = array.as_array();
        let values = view.as_slice().map_or_else(|| view.iter().copied().collect(), <[T]>::to_vec);
        Tensor::from_vec(values, Shape::from(view.shape()), &Device::Cpu).map_err(|e| exception(&e))
    }))
}

/// The tensor as a NumPy array of its type and shape; of bf16 one of f32.
///
/// # Errors
/// When memory is short.
pub fn array<'py>(py: Python<'py>, t: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    match t.dtype() {
        DType::F64 => typed::<f64>(py, t),
        DType::F32 => typed::<f32>(py, t),
        DType::F16 => typed::<f16>(py, t),
        DType::U8 => typed::<u8>(py, t),
        DType::U32 => typed::<u32>(py, t),
        DType::I64 => typed::<i64>(py, t),
        _ => typed::<f32>(py, &t.to_dtype(DType::F32).map_err(|e| exception(&e))?),
    }
}

fn typed<'py, T: Element + WithDType>(py: Python<'py>, t: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let values = t.flatten_all().and_then(|t| t.to_vec1::<T>()).map_err(|e| exception(&e))?;
    Ok(PyArray1::from_vec(py, values).reshape(t.dims())?.into_any())
}

/// A NumPy array `[m, n]` of what `rows` gives of `block` rows from `first` on, or of those that
/// are left; looks for Ctrl-C between blocks. Only one block is in memory twice.
///
/// # Errors
/// Those of `rows`, or a signal's exception.
pub fn array_of_blocks<'py, T: Element + WithDType>(
    py: Python<'py>,
    [m, n]: [usize; 2],
    block: usize,
    rows: impl Fn(usize, usize) -> Result<Tensor> + Sync,
) -> PyResult<Bound<'py, PyAny>> {
    let array = PyArray2::<T>::zeros(py, [m, n], false);
    let mut written = array.readwrite();
    let written = written.as_slice_mut().map_err(|e| PyValueError::new_err(e.to_string()))?;
    run(py, |python| {
        for (first, to) in (0..m).step_by(block).zip(written.chunks_mut((block * n).max(1))) {
            python.check()?;
            let part = rows(first, block.min(m - first))?.to_device(&Device::Cpu)?.contiguous()?;
            let (storage, layout) = part.storage_and_layout();
            let Storage::Cpu(storage) = &*storage else { candle::bail!("an array must be on the CPU") };
            to.copy_from_slice(&storage.as_slice::<T>()?[layout.start_offset()..][..to.len()]);
        }
        Ok(())
    })?;
    Ok(array.into_any())
}
