//! The class `Model`.
use crate::arrays::array;
use crate::device::{device as opened, device_name};
use crate::errors::{Interpreter, of_files, run};
use crate::models::{AnyModel, Drawn, Given, Stored, kind, kind_of, make, with};
use crate::tensors::{Tensor as Held, array_like, tensor};
use candle::{DType, Result, Tensor};
use chandlery::pretrained::model_type;
use chandlery::{Layered, Model as _, Philox};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::path::PathBuf;

/// Rows that are encoded between two looks for Ctrl-C.
const BLOCK: usize = 8192;

/// A model of any family of the library. Arrays go in and out; `config` is the JSON text of its
/// `config.json`.
#[pyclass(frozen, module = "chandlery._chandlery")]
pub struct Model(pub AnyModel);

/// The rows of `f` for all rows, block by block.
fn by_blocks(rows: &Tensor, python: &Interpreter, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let n = rows.dim(0)?;
    if n <= BLOCK {
        return f(rows);
    }
    let block = |first: usize| {
        python.check()?;
        f(&rows.narrow(0, first, BLOCK.min(n - first))?)
    };
    Tensor::cat(&(0..n).step_by(BLOCK).map(block).collect::<Result<Vec<_>>>()?, 0)
}

impl Model {
    /// `f` of the rows, on the device of the model.
    fn mapped<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        f: impl Fn(&AnyModel, &Tensor) -> Result<Tensor> + Send + Sync,
    ) -> PyResult<Bound<'py, PyAny>> {
        let like = rows;
        let rows = tensor(rows)?;
        let made = run(py, |python| {
            let rows = rows.to_device(with!(&self.0, m => m.device()))?;
            by_blocks(&rows, python, |rows| f(&self.0, rows))
        })?;
        array_like(like, &made)
    }
}

#[pymethods]
impl Model {
    /// The model of this configuration with these arrays, by their names in files.
    #[new]
    #[pyo3(signature = (kind, config, tensors, device="cpu", dtype="f32"))]
    fn new(
        py: Python<'_>,
        kind: &str,
        config: &str,
        tensors: HashMap<String, Bound<'_, PyAny>>,
        device: &str,
        dtype: &str,
    ) -> PyResult<Self> {
        let device = opened(device)?;
        let tensors = tensors.iter().map(|(name, t)| Ok((name.clone(), tensor(t)?)));
        let tensors = tensors.collect::<PyResult<HashMap<_, _>>>()?;
        run(py, |_| {
            let dtype: DType = dtype.parse().map_err(candle::Error::wrap)?;
            let on = |(name, t): (String, Tensor)| Ok((name, t.to_device(&device)?));
            let tensors = tensors.into_iter().map(on).collect::<Result<_>>()?;
            make(kind_of(kind)?, Given { config, dtype, tensors, device: &device }).map(Self)
        })
    }

    /// A new model whose weights are drawn.
    #[staticmethod]
    #[pyo3(signature = (kind, config, seed, stream=0, device="cpu"))]
    fn init(
        py: Python<'_>,
        kind: &str,
        config: &str,
        seed: u64,
        stream: u64,
        device: &str,
    ) -> PyResult<Self> {
        let device = opened(device)?;
        let philox = Philox::new(seed, stream);
        run(py, |_| make(kind_of(kind)?, Drawn { config, philox, device: &device }).map(Self))
    }

    /// The model of a folder, or by its id of the Hugging Face hub.
    #[staticmethod]
    #[pyo3(signature = (place, device="cpu"))]
    fn from_pretrained(py: Python<'_>, place: PathBuf, device: &str) -> PyResult<Self> {
        let device = opened(device)?;
        let loaded =
            run(py, |_| make(model_type(&place)?, Stored { place: &place, device: &device }).map(Self));
        match place.join("config.json").exists() {
            true => loaded,
            false => loaded.map_err(|e| of_files(py, &e)),
        }
    }

    /// Writes `config.json` and `model.safetensors` to a folder.
    fn save_pretrained(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        let saved = run(py, |_| with!(&self.0, m => m.save_pretrained(&folder)));
        saved.map_err(|e| of_files(py, &e))
    }

    /// What files call the model.
    #[getter]
    fn kind(&self) -> &'static str {
        with!(&self.0, m => kind(m)).name()
    }

    #[getter]
    fn config(&self, py: Python<'_>) -> PyResult<String> {
        run(py, |_| self.0.config())
    }

    #[getter]
    fn device(&self) -> String {
        with!(&self.0, m => device_name(m.device()))
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        with!(&self.0, m => m.dtype().as_str())
    }

    #[getter]
    fn n_inputs(&self, py: Python<'_>) -> PyResult<usize> {
        run(py, |_| self.0.n_inputs())
    }

    /// Copies of all parameters, and of what was fitted of the preparation.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, t) in run(py, |_| self.0.state())? {
            dict.set_item(name, array(py, &t)?)?;
        }
        Ok(dict)
    }

    /// A parameter where it is.
    fn tensor(&self, py: Python<'_>, name: &str) -> PyResult<Held> {
        run(py, |_| match self.0.state()?.remove(name) {
            Some(t) => Ok(Held(t)),
            None => self.0.lacks(name),
        })
    }

    #[expect(clippy::type_complexity, reason = "what pickle asks for")]
    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (&'static str, String, Bound<'py, PyDict>, String, &'static str))> {
        let (py, this) = (slf.py(), slf.get());
        let arguments = (this.kind(), this.config(py)?, this.tensors(py)?, this.device(), this.dtype());
        Ok((slf.get_type().into_any(), arguments))
    }

    /// Features or codes of raw rows, `[n, n_inputs]`.
    fn encode<'py>(&self, py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.mapped(py, rows, |model, rows| model.encode(rows))
    }

    /// Codes back to prepared rows.
    fn decode<'py>(&self, py: Python<'py>, codes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.mapped(py, codes, |model, codes| model.decode(codes))
    }

    /// What comes back of raw rows as raw rows.
    fn reconstruct<'py>(&self, py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.mapped(py, rows, |model, rows| model.reconstruct(rows))
    }

    /// What all layers of a stack make of raw rows, side by side.
    fn all_features<'py>(&self, py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.mapped(py, rows, |model, rows| match model {
            AnyModel::Dbn(stack) => stack.all_features(rows),
            AnyModel::StackedDae(stack) => stack.all_features(rows),
            other => other.lacks("layers"),
        })
    }

    /// The free energy of values of visible units, `[n, n_visible]`, `[n]` in nats.
    fn free_energy<'py>(&self, py: Python<'py>, v: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.mapped(py, v, |model, v| match model {
            AnyModel::Rbm(rbm) => rbm.free_energy(v),
            other => other.lacks("free energy"),
        })
    }

    /// Visible units drawn given the hidden ones, which are drawn given `v`.
    fn gibbs<'py>(&self, py: Python<'py>, v: &Bound<'py, PyAny>, seed: u64) -> PyResult<Bound<'py, PyAny>> {
        let v = tensor(v)?;
        let drawn = run(py, |_| match &self.0 {
            AnyModel::Rbm(rbm) => {
                let h = rbm.sample_hidden(&v.to_device(rbm.device())?, Philox::new(seed, 0))?;
                rbm.sample_visible(&h, Philox::new(seed, 1))
            }
            other => other.lacks("Gibbs sampling"),
        })?;
        array(py, &drawn)
    }

    /// `n` rows drawn from a deep belief network by `steps` steps of Gibbs sampling.
    fn sample<'py>(&self, py: Python<'py>, n: usize, steps: usize, seed: u64) -> PyResult<Bound<'py, PyAny>> {
        let drawn = run(py, |_| match &self.0 {
            AnyModel::Dbn(dbn) => dbn.sample(n, steps, Philox::new(seed, 0)),
            other => other.lacks("samples"),
        })?;
        array(py, &drawn)
    }
}
