//! t-SNE.
use crate::device::device as opened;
use crate::errors::{run, warned};
use crate::model::Model;
use crate::models::AnyModel;
use crate::tensors::{array_like, tensor};
use candle::{DType, Error, Tensor};
use chandlery::tsne::{
    GivenNeighbours, Neighbours, Progress, TransformConfig, TransformTrainer, TsneConfig, TsneTrainer,
};
use chandlery::{FullBatchTrainer, Philox, Trainer};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::path::PathBuf;

type Array<'py> = Bound<'py, PyAny>;

/// Ends a descent whose divergence was no less for a number of iterations.
struct Patience {
    iterations: usize,
    best: Best,
}

/// The least divergence, and the iteration that had it.
type Best = Option<(f64, usize)>;

impl Patience {
    fn is_over(&mut self, seen: &Progress) -> bool {
        match self.best {
            Some((least, at)) if seen.kl >= least => seen.iteration - at > self.iterations,
            _ => {
                self.best = Some((seen.kl, seen.iteration));
                false
            }
        }
    }
}

/// The layout of rows, or of rows of which `neighbours` gives the numbers and distances of the
/// nearest; `config` is JSON. The layout begins at `start`. After every 50 iterations or less
/// `callback` gets iteration, divergence, norm of the gradient. Gives the model, its divergence,
/// the iterations made, and what differs from what was asked for in words.
///
/// A signal or an exception of `callback` writes the file `checkpoint`, with `note`; where it is
/// there and has this note, the run goes on from it.
#[pyfunction]
#[pyo3(signature = (rows, config, seed, *, neighbours=None, start=None, patience=None, callback=None, checkpoint=None, note="", device="cpu"))]
#[expect(clippy::too_many_arguments, reason = "by keyword")]
pub fn tsne(
    py: Python<'_>,
    rows: Option<&Array<'_>>,
    config: &str,
    seed: u64,
    neighbours: Option<(Array<'_>, Array<'_>)>,
    start: Option<&Array<'_>>,
    patience: Option<usize>,
    callback: Option<Py<PyAny>>,
    checkpoint: Option<PathBuf>,
    note: &str,
    device: &str,
) -> PyResult<(Model, f64, usize, Vec<String>)> {
    let (rows, start) = (rows.map(tensor).transpose()?, start.map(tensor).transpose()?);
    let neighbours = neighbours.map(|(i, d)| Ok::<_, PyErr>((tensor(&i)?, tensor(&d)?))).transpose()?;
    let device = opened(device)?;
    run(py, |python| {
        let config: TsneConfig =
            serde_json::from_str(config).map_err(|e| Error::Msg(format!("TsneConfig: {e}")))?;
        let (early, philox) = (config.early_iterations, Philox::new(seed, 0));
        let rows = rows.map(|rows| rows.to_device(&device)).transpose()?;
        let begun = checkpoint.as_ref().filter(|path| path.exists());
        let (mut run, best) = match (&rows, &neighbours, begun) {
            (rows, _, Some(path)) => {
                let (run, progress) = TsneTrainer::restored(path, rows.as_ref(), &device)?;
                let (of, best) = serde_json::from_value::<(String, Best)>(progress).map_err(Error::wrap)?;
                if of != note {
                    candle::bail!("{}", crate::errors::of_another(path))
                }
                (run, best)
            }
            (Some(rows), None, _) => (TsneTrainer::new(config, philox, rows)?, None),
            (None, Some((indices, distances)), _) => {
                let neighbours = given(indices, distances)?.on(&device)?;
                (TsneTrainer::from_neighbours(config, philox, &neighbours)?, None)
            }
            _ => candle::bail!("tsne: either rows or neighbours must be given"),
        };
        if let (Some(start), None) = (&start, begun) {
            run = run.start_at(start)?;
        }
        python.check()?;
        let mut patience = Patience { iterations: patience.unwrap_or(usize::MAX), best };
        run.fit_with(|run, seen| {
            let is_over = seen.iteration > early && patience.is_over(seen);
            let looked = python.check().and_then(|()| match &callback {
                None => Ok(()),
                Some(callback) => {
                    let figures = (seen.iteration, seen.kl, seen.gradient_norm);
                    python.call(|py| callback.call1(py, figures)).map(drop)
                }
            });
            if let (Err(_), Some(path)) = (&looked, &checkpoint) {
                let progress = serde_json::to_value((note, patience.best)).map_err(Error::wrap)?;
                warned(python, run.save(path, &progress));
            }
            looked?;
            Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let kl = run.metrics()?.kl;
        Ok((Model(AnyModel::Embedding(run.model()?)), kl, run.iteration(), run.notes().to_vec()))
    })
}

/// Neighbours as a run takes them.
struct Given(chandlery::tsne::CheckedNeighbours);

impl Given {
    fn on(&self, device: &candle::Device) -> candle::Result<Neighbours> {
        self.0.to_device(device)
    }
}

fn given(indices: &Tensor, distances: &Tensor) -> candle::Result<Given> {
    let (_, k) = indices.dims2()?;
    let indices = indices.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
    let distances = distances.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let given = GivenNeighbours { indices: &indices, distances: &distances, k };
    given.checked().map(Given).map_err(|wrong| Error::Msg(format!("tsne: {wrong}")))
}

/// The places of new rows in the layout of a model, which stays; `config` is JSON.
#[pyfunction]
pub fn tsne_transform<'py>(
    py: Python<'py>,
    model: &Model,
    rows: &Array<'py>,
    config: &str,
) -> PyResult<Array<'py>> {
    let like = rows;
    let rows = tensor(rows)?;
    let places = run(py, |python| {
        let AnyModel::Embedding(embedding) = &model.0 else { return model.0.lacks("layout") };
        let config: TransformConfig =
            serde_json::from_str(config).map_err(|e| Error::Msg(format!("TransformConfig: {e}")))?;
        let mut run = TransformTrainer::new(embedding, config, &rows)?;
        run.fit_with(|_, _| python.check().map(|()| ControlFlow::Continue(())))?;
        run.model()
    })?;
    array_like(like, &places)
}
