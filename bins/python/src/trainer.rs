//! The class `Trainer`.
use crate::arrays::array;
use crate::device::{device as opened, device_name};
use crate::errors::{Interpreter, caught, of_another, of_files, run, warned};
use crate::model::Model;
use crate::models::{kind, kind_of, with};
use crate::tensors::tensor;
use crate::trainers::{self, Learner, Look};
use candle::{DType, Error, Result};
use chandlery::Philox;
use chandlery::datasets::{Feed, FeedConfig, Split};
use chandlery::rbm::RbmTrainer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long work may go on until its checkpoint is written again.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_secs(60);

/// Learns a model from minibatches of arrays.
#[pyclass(frozen, module = "chandlery._chandlery")]
pub struct Trainer {
    kind: &'static str,
    learner: Mutex<Box<dyn Learner>>,
    /// Of the checkpoint that it was read from.
    progress: Option<Progress>,
}

/// How far a training has come.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Progress {
    /// What is trained on what, in words of the caller.
    note: String,
    /// Epochs that are done, of a stack in the layer under way, and minibatches of the next.
    epoch: usize,
    minibatches: usize,
    /// The seed of the orders of rows.
    shuffle: Option<u64>,
    /// What each epoch measured.
    metrics: Vec<Value>,
    /// Of a loop in Python.
    state: Value,
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

/// What looks at a training do.
struct Looks<'a> {
    python: &'a Interpreter,
    callback: Option<Py<PyAny>>,
    /// Whether the callback gets the model.
    shows_model: bool,
    checkpoint: Option<PathBuf>,
    written: Instant,
    progress: Progress,
}

impl Looks<'_> {
    /// Looks for signals, calls back after an epoch, and writes the checkpoint when it is time, or
    /// when the training is interrupted.
    fn look(&mut self, look: Look<'_>) -> Result<ControlFlow<()>> {
        (self.progress.epoch, self.progress.minibatches) = (look.epoch, look.minibatches);
        self.progress.metrics.extend(look.metrics.clone());
        let next = self.python.check().and_then(|()| self.call_back(&look));
        if let Some(path) = &self.checkpoint
            && (next.is_err() || self.written.elapsed() >= BETWEEN_CHECKPOINTS)
        {
            let progress = serde_json::to_value(&self.progress).map_err(Error::wrap)?;
            let saved = look.state.save(path, &progress);
            self.written = Instant::now();
            match &next {
                Ok(_) => saved?,
                Err(_) => warned(self.python, saved),
            }
        }
        next
    }

    fn call_back(&self, look: &Look<'_>) -> Result<ControlFlow<()>> {
        let (Some(metrics), Some(callback)) = (&look.metrics, &self.callback) else {
            return Ok(ControlFlow::Continue(()));
        };
        let model = self.shows_model.then(|| look.state.model().map(Model)).transpose()?;
        let ends = self.python.call(|py| match model {
            None => callback.call1(py, (metrics.to_string(),))?.bind(py).is_truthy(),
            Some(model) => callback.call1(py, (metrics.to_string(), model))?.bind(py).is_truthy(),
        })?;
        Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
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
        let kind = with!(&model.0, m => kind(m)).name();
        Ok(Self { kind, learner: Mutex::new(learner), progress: None })
    }

    /// Trains `epochs` on the rows, of a stack a number for each layer, in minibatches of `batch`
    /// rows; in an order of each epoch drawn by `shuffle`, or in that of the rows. After each epoch
    /// `callback` gets its metrics as JSON, with `shows_model` also the model, and ends the
    /// training by returning true.
    ///
    /// A signal or an exception of `callback` writes the file `checkpoint`, with `note`, as does a
    /// look a minute after the last time; the trainer that `load` makes of it goes on.
    #[pyo3(signature = (rows, epochs, batch, shuffle=None, callback=None, *, shows_model=false, checkpoint=None, note=""))]
    #[expect(clippy::too_many_arguments, reason = "by keyword")]
    fn fit(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        epochs: Vec<usize>,
        batch: usize,
        shuffle: Option<u64>,
        callback: Option<Py<PyAny>>,
        shows_model: bool,
        checkpoint: Option<PathBuf>,
        note: &str,
    ) -> PyResult<()> {
        let mut learner = self.learner()?;
        let (learner, rows) = (&mut **learner, tensor(rows)?);
        let begun = Progress { note: note.to_owned(), shuffle, ..Progress::default() };
        let progress = self.progress.clone().unwrap_or(begun);
        run(py, |python| {
            let rows = if rows.dtype() == DType::U8 { rows } else { rows.to_dtype(DType::F32)? };
            let order =
                progress.shuffle.map_or(FeedConfig::in_order(batch), |seed| FeedConfig::new(batch, seed));
            let device = learner.device();
            let feed = match rows.device().is_cpu() {
                true => Split::from_tensors(&rows, None).and_then(|split| Feed::new(&split, device, order)),
                false => Feed::resident(&rows.to_device(device)?, order),
            };
            let done = (progress.epoch, progress.minibatches);
            let written = Instant::now();
            let mut looks = Looks { python, callback, shows_model, checkpoint, written, progress };
            learner.fit(&mut feed.map_err(Error::wrap)?, &epochs, done, &mut |look| looks.look(look))
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
        caught(|| learner.state().model().map(Model))
    }

    /// The hidden units of the persistent chains of an RBM, `[batch, n_hidden]`.
    fn chains<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let learner = self.learner()?;
        let chains = caught(|| match learner.any().downcast_ref::<RbmTrainer>() {
            Some(trainer) => trainer.chains(),
            None => candle::bail!("chandlery: the trainer of a {} has no chains", self.kind),
        })?;
        array(py, &chains)
    }

    /// Writes everything that the rest of the training depends on but the rows to a file; of a
    /// training in steps of the caller with a note and its state, JSON.
    #[pyo3(signature = (path, note=None, state="null"))]
    fn save(&self, py: Python<'_>, path: PathBuf, note: Option<String>, state: &str) -> PyResult<()> {
        let learner = self.learner()?;
        let saved = caught(|| {
            let progress = match note {
                None => Value::Null,
                Some(note) => {
                    let state = serde_json::from_str(state).map_err(Error::wrap)?;
                    serde_json::to_value(Progress { note, state, ..Progress::default() })
                        .map_err(Error::wrap)?
                }
            };
            learner.state().save(&path, &progress)
        });
        saved.map_err(|e| of_files(py, &e))
    }

    /// The trainer of a model of this kind that was written to a file, which must have this note.
    #[staticmethod]
    #[pyo3(signature = (kind, path, device="cpu", note=None))]
    fn load(py: Python<'_>, kind: &str, path: PathBuf, device: &str, note: Option<&str>) -> PyResult<Self> {
        let device = opened(device)?;
        run(py, |_| {
            let kind = kind_of(kind)?;
            let (learner, progress) = trainers::load(kind, &path, &device)?;
            let progress: Option<Progress> = serde_json::from_value(progress).map_err(Error::wrap)?;
            if note.is_some_and(|note| progress.as_ref().is_none_or(|progress| progress.note != note)) {
                candle::bail!("{}", of_another(&path))
            }
            Ok(Self { kind: kind.name(), learner: Mutex::new(learner), progress })
        })
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(device_name(self.learner()?.device()))
    }

    /// Of a trainer that was read from a checkpoint: how far it had come, as JSON.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<Option<String>> {
        run(py, |_| self.progress.as_ref().map(serde_json::to_string).transpose().map_err(Error::wrap))
    }
}
