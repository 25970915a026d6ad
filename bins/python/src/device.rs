//! Devices by their names.
use crate::errors::caught;
use candle::{Device, DeviceLocation};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// GPUs that were opened: all of a process have one stream of a GPU, so that arrays go from one to
/// the next without a copy.
static OPENED: Mutex<Vec<(usize, Device)>> = Mutex::new(vec![]);

/// The device of a name: `cpu`, `cuda` or `cuda:N`.
///
/// # Errors
/// `ValueError` for another name, `RuntimeError` where there is no such GPU.
pub fn device(name: &str) -> PyResult<Device> {
    let ordinal = match name {
        "cpu" => return Ok(Device::Cpu),
        "cuda" => Some(0),
        other => other.strip_prefix("cuda:").and_then(|n| n.parse().ok()),
    };
    let Some(ordinal) = ordinal else {
        return Err(PyValueError::new_err(format!("device: must be cpu, cuda or cuda:N, got {name}")));
    };
    if !cfg!(feature = "cuda") {
        return Err(PyRuntimeError::new_err(format!(
            "device: this build has no CUDA, got {name}; build it with `maturin build --features cuda`, or use cpu"
        )));
    }
    // A poisoned lock means that opening a device panicked; the list is valid at every point.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = opened.iter().find(|(of, _)| *of == ordinal) {
        return Ok(device.clone());
    }
    let device = caught(|| chandlery_ops::core::keep_current(|| chandlery_ops::core::cuda_device(ordinal)))
        .map_err(|e| {
        let said = Python::attach(|py| e.value(py).to_string());
        PyRuntimeError::new_err(format!("device: {name}: {said}; see `nvidia-smi`"))
    })?;
    opened.push((ordinal, device.clone()));
    Ok(device)
}

/// The name of a device as [`device`] takes it.
pub fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        _ => "cpu".to_owned(),
    }
}
