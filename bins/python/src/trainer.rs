//! The class `Trainer`.
use crate::arrays::{device as opened, device_name, tensor};
use crate::errors::{Interpreter, caught, run};
use crate::model::Model;
use crate::models::{kind, kind_of, with};
use crate::trainers::{self, Learner};
use candle::{DType, Error, Result};
use chandlery::Philox;
use chandlery::datasets::{Feed, FeedConfig, Split};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// Learns a model from minibatches of arrays.
#[pyclass(frozen, module = "chandlery._chandlery")]
pub struct Trainer {
    kind: &'static str,
    learner: Mutex<Box<dyn Learner>>,
}

impl Trainer {
    /// The learner, unless another thread uses it: to wait for that one with the interpreter's lock
    /// could take forever.
    fn learner(&self) -> PyResult<MutexGuard<'_, Box<dyn Learner>>> {
        self.learner.try_lock().map_err(|_| {
            PyRuntimeError::new_err("Trainer: another thread uses this trainer, or it has failed")
        })
    }
}

#[pymethods]
impl Trainer {
    /// Begins with a copy of `model`; `config` is JSON, of a stack a list for its layers.
    #[new]
    #[pyo3(signature = (model, config, seed, stream=1))]
    fn new(py: Python<'_>, model: &Model, config: &str, seed: u64, stream: u64) -> PyResult<Self> {
        let philox = Philox::new(seed, stream);
        let learner = run(py, |_| trainers::trainer(&model.0, config, philox))?;
        Ok(Self { kind: with!(&model.0, m => kind(m)).name(), learner: Mutex::new(learner) })
    }

    /// Trains `epochs` on the rows, of a stack a number for each layer, in minibatches of `batch`
    /// rows; in an order of each epoch drawn by `shuffle`, or in that of the rows. After each epoch
    /// `callback` gets its metrics as JSON and ends the training by returning true.
    #[pyo3(signature = (rows, epochs, batch, shuffle=None, callback=None))]
    fn fit(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        epochs: Vec<usize>,
        batch: usize,
        shuffle: Option<u64>,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let mut learner = self.learner()?;
        let (learner, rows) = (&mut **learner, tensor(rows)?);
        run(py, |python| {
            let rows = if rows.dtype() == DType::U8 { rows } else { rows.to_dtype(DType::F32)? };
            let split = Split::from_tensors(&rows, None).map_err(Error::wrap)?;
            let order = shuffle.map_or(FeedConfig::in_order(batch), |seed| FeedConfig::new(batch, seed));
            let mut feed = Feed::new(&split, learner.device(), order).map_err(Error::wrap)?;
            learner.fit(&mut feed, &epochs, &mut |metrics| seen(python, metrics, callback.as_ref()))
        })
    }

    /// One step on the rows of a minibatch; its metrics as JSON.
    fn step(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<String> {
        let mut learner = self.learner()?;
        let (learner, rows) = (&mut **learner, tensor(rows)?);
        run(py, |_| Ok(learner.step(&rows.to_device(learner.device())?)?.to_string()))
    }

    /// A copy of the model as trained so far.
    fn model(&self) -> PyResult<Model> {
        let learner = self.learner()?;
        caught(|| learner.model().map(Model))
    }

    /// Writes everything that the rest of the training depends on but the rows to a file.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        let learner = self.learner()?;
        caught(|| learner.save(&path))
    }

    /// The trainer of a model of this kind that `save` wrote.
    #[staticmethod]
    #[pyo3(signature = (kind, path, device="cpu"))]
    fn load(py: Python<'_>, kind: &str, path: PathBuf, device: &str) -> PyResult<Self> {
        let device = opened(device)?;
        let (kind, learner) = run(py, |_| {
            let kind = kind_of(kind)?;
            Ok((kind, trainers::load(kind, &path, &device)?))
        })?;
        Ok(Self { kind: kind.name(), learner: Mutex::new(learner) })
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(device_name(self.learner()?.device()))
    }
}

/// Looks for signals, and calls back after an epoch.
fn seen(
    python: &Interpreter,
    metrics: Option<serde_json::Value>,
    callback: Option<&Py<PyAny>>,
) -> Result<ControlFlow<()>> {
    python.check()?;
    let (Some(metrics), Some(callback)) = (metrics, callback) else { return Ok(ControlFlow::Continue(())) };
    let ends = python.call(|py| callback.call1(py, (metrics.to_string(),))?.bind(py).is_truthy())?;
    Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
}
