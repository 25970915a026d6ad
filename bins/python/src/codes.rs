//! Functions of arrays: sparse codes, neighbours, principal components.
use crate::arrays::{array, array_of_blocks};
use crate::device::device as opened;
use crate::errors::run;
use crate::tensors::{array_like, is_tensor, tensor};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery::Philox;
use chandlery::dictionary::{Init, init};
use chandlery::sparse_coding::lasso::{Lasso, Status};
use chandlery_datasets::preparation::Pca;
use chandlery_ops::codes::{ErrorTarget, Pursuit, bomp};
use chandlery_ops::tsne::{Metric, knn, knn_of};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most signals that are coded between two looks for Ctrl-C.
const BLOCK: usize = 16_384;
/// Codes of a block on the CPU: memory that is used again and stays in a cache.
const BLOCK_CODES: usize = 1 << 20;

type Array<'py> = Bound<'py, PyAny>;

/// The codes of all `signals` over `dictionary` as an array of the kind of `like`: those of a block
/// of signals and more that `code` is given.
fn by_blocks<'py, const N: usize>(
    py: Python<'py>,
    like: &Array<'py>,
    [signals, dictionary]: [Tensor; 2],
    more: [Option<&Tensor>; N],
    device: &Device,
    code: impl Fn(&Tensor, &Tensor, [Option<Tensor>; N]) -> Result<Tensor> + Sync,
) -> PyResult<Array<'py>> {
    let (m, _) = rows_of("signals", &signals)?;
    let (n, _) = rows_of("dictionary", &dictionary)?;
    let block = if device.is_cpu() { (BLOCK_CODES / n.max(1)).clamp(1, BLOCK) } else { BLOCK };
    let dictionary = run(py, |_| dictionary.to_device(device))?;
    let coded = |first: usize, rows: usize| {
        let part = |t: &Tensor| t.narrow(0, first, rows)?.to_device(device);
        let mut given = [const { None }; N];
        for (given, more) in given.iter_mut().zip(more) {
            *given = more.map(part).transpose()?;
        }
        code(&part(&signals)?, &dictionary, given)
    };
    match (signals.dtype(), is_tensor(like)) {
        (DType::F32, false) => array_of_blocks::<f32>(py, [m, n], block, coded),
        (DType::F64, false) => array_of_blocks::<f64>(py, [m, n], block, coded),
        _ => {
            let codes = run(py, |python| {
                let of = |first: usize| python.check().and_then(|()| coded(first, block.min(m - first)));
                Tensor::cat(&(0..m).step_by(block).map(of).collect::<Result<Vec<_>>>()?, 0)
            })?;
            array_like(like, &codes)
        }
    }
}

/// Rows and columns of an argument.
fn rows_of(name: &str, t: &Tensor) -> PyResult<(usize, usize)> {
    t.dims2().map_err(|_| {
        PyValueError::new_err(format!("{name} must have two dimensions, got shape {:?}", t.dims()))
    })
}

/// Activations `[m, n]` of signals `[m, p]` over a dictionary `[n, p]`:
/// `min_a ½ ‖x − a B‖² + β Σ |a_j|`, from `start` or zeros, to a relative duality gap of `tolerance`;
/// and how many signals ended above it.
#[pyfunction]
#[pyo3(signature = (signals, dictionary, beta, *, nonnegative=false, tolerance=1e-4, max_iterations=1000, start=None, device="cpu"))]
#[expect(clippy::too_many_arguments, reason = "by keyword")]
pub fn lasso<'py>(
    py: Python<'py>,
    signals: &Array<'py>,
    dictionary: &Array<'py>,
    beta: f64,
    nonnegative: bool,
    tolerance: f64,
    max_iterations: usize,
    start: Option<&Array<'py>>,
    device: &str,
) -> PyResult<(Array<'py>, usize)> {
    let like = signals;
    let (signals, dictionary, device) = (tensor(signals)?, tensor(dictionary)?, opened(device)?);
    let start = start.map(tensor).transpose()?;
    let lasso = Lasso { nonnegative, tolerance, max_iterations, ..Lasso::new(beta) };
    let stopped = AtomicUsize::new(0);
    let operands = [signals, dictionary];
    let codes = by_blocks(py, like, operands, [start.as_ref()], &device, |signals, dictionary, [start]| {
        let activations = lasso.solve(signals, dictionary, start.as_ref())?;
        let above = activations.status()?.iter().filter(|&&status| status == Status::Stopped).count();
        stopped.fetch_add(above, Ordering::Relaxed);
        Ok(activations.dense)
    })?;
    Ok((codes, stopped.into_inner()))
}

/// Codes `[m, n]` of signals `[m, p]` over a dictionary `[n, p]` by orthogonal matching pursuit, of
/// at most `n_nonzero` atoms each, or until the residuals have the norms `errors`, `[m]`.
#[pyfunction]
#[pyo3(signature = (signals, dictionary, n_nonzero, *, errors=None, nonnegative=false, device="cpu"))]
pub fn omp<'py>(
    py: Python<'py>,
    signals: &Array<'py>,
    dictionary: &Array<'py>,
    n_nonzero: usize,
    errors: Option<&Array<'py>>,
    nonnegative: bool,
    device: &str,
) -> PyResult<Array<'py>> {
    let like = signals;
    let (signals, dictionary, device) = (tensor(signals)?, tensor(dictionary)?, opened(device)?);
    let errors = errors.map(tensor).transpose()?;
    let operands = [signals, dictionary];
    by_blocks(py, like, operands, [errors.as_ref()], &device, |signals, dictionary, [errors]| {
        let error = errors.map(ErrorTarget::PerSignal);
        let pursuit = Pursuit { error, nonnegative, ..Pursuit::new(n_nonzero) };
        bomp(signals, dictionary, &pursuit)?.to_dense()
    })
}

/// The `k` nearest other rows of each row, or those of `rows` nearest to each of `queries`: their
/// numbers and distances, `[n, k]`.
#[pyfunction]
#[pyo3(signature = (rows, k, metric="euclidean", queries=None, device="cpu"))]
pub fn knn_graph<'py>(
    py: Python<'py>,
    rows: &Array<'py>,
    k: usize,
    metric: &str,
    queries: Option<&Array<'py>>,
    device: &str,
) -> PyResult<(Array<'py>, Array<'py>)> {
    let (rows, queries, device) = (tensor(rows)?, queries.map(tensor).transpose()?, opened(device)?);
    let found = run(py, |_| {
        let metric = metric_of(metric)?;
        let on_device = |t: &Tensor| t.to_dtype(DType::F32)?.to_device(&device);
        match &queries {
            None => knn(&on_device(&rows)?, k, metric),
            Some(queries) => knn_of(&on_device(queries)?, &on_device(&rows)?, k, metric),
        }
    })?;
    Ok((array(py, &found.indices)?, array(py, &found.distances)?))
}

fn metric_of(name: &str) -> Result<Metric> {
    Metric::ALL.into_iter().find(|metric| metric.name() == name).ok_or_else(|| {
        let names = Metric::ALL.map(Metric::name).join(", ");
        Error::Msg(format!("knn_graph: metric must be one of {names}, got {name}"))
    })
}

/// First atoms `[n_atoms, p]` of length 1: distinct rows of `signals`, `[m, p]`, and random
/// directions where these are too few.
#[pyfunction]
pub fn first_atoms<'py>(
    py: Python<'py>,
    signals: &Array<'py>,
    n_atoms: usize,
    seed: u64,
) -> PyResult<Array<'py>> {
    let signals = tensor(signals)?;
    let atoms = run(py, |_| init(&Init::RandomSignals, n_atoms, &signals, Philox::new(seed, 0)))?;
    array(py, &atoms)
}

/// Principal components of rows: their mean, the directions, their variances, and the sum of the
/// variances in all directions.
#[pyfunction]
#[pyo3(signature = (rows, n_components, device="cpu"))]
pub fn pca<'py>(
    py: Python<'py>,
    rows: &Array<'py>,
    n_components: usize,
    device: &str,
) -> PyResult<(Array<'py>, Array<'py>, Array<'py>, f64)> {
    let (rows, device) = (tensor(rows)?, opened(device)?);
    let (pca, total) = run(py, |_| {
        let pca = Pca::fit(&rows.to_device(&device)?, Some(n_components)).map_err(Error::wrap)?;
        let found = pca.variance().sum_all()?.to_scalar::<f64>()?;
        let total = if found > 0. { found / pca.explained().map_err(Error::wrap)? } else { 0. };
        Ok((pca, total))
    })?;
    Ok((array(py, pca.mean())?, array(py, pca.components())?, array(py, pca.variance())?, total))
}

/// Coordinates of rows along directions, `(rows − mean) · directionsᵀ`.
#[pyfunction]
#[pyo3(signature = (rows, mean, directions, device="cpu"))]
pub fn project<'py>(
    py: Python<'py>,
    rows: &Array<'py>,
    mean: &Array<'py>,
    directions: &Array<'py>,
    device: &str,
) -> PyResult<Array<'py>> {
    let like = rows;
    let (rows, mean, directions) = (tensor(rows)?, tensor(mean)?, tensor(directions)?);
    let device = opened(device)?;
    let found = run(py, |_| {
        let on_device = |t: &Tensor| t.to_device(&device);
        on_device(&rows)?.broadcast_sub(&on_device(&mean)?)?.matmul(&on_device(&directions)?.t()?)
    })?;
    array_like(like, &found)
}
