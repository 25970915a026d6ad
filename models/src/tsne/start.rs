//! Where points begin.
use super::spectral::{SPREAD, spectral_layout, upright};
use super::unique::Unique;
use super::{Affinities, Draw, Start, TsneConfig};
use crate::Philox;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::{contiguous, sqr};
use chandlery_ops::tsne::rows_about_mean;
use nalgebra::{DMatrix, SymmetricEigen};

/// Directions that are searched beside those that are wanted.
const FURTHER: usize = 4;
/// Products with the covariance; each makes the wanted directions stand out by the ratio of the
/// variances.
const ROUNDS: usize = 8;

/// The first layout of the points of `affinities`, f32 `[n, n_dims]`, on their device; `rows` are the
/// prepared rows, where there are any, there or in host memory. Of equal rows that are one point, it begins where the first would.
pub(super) fn start(
    config: &TsneConfig,
    philox: Philox,
    affinities: &Affinities,
    rows: Option<&Tensor>,
    unique: Option<&Unique>,
) -> Result<Tensor> {
    let device = affinities.offsets.device();
    match (config.start, unique) {
        (Start::Spectral, _) => spectral_layout(affinities, config.n_dims, philox),
        (_, None) => of_rows(config, philox, affinities.n(), rows, device),
        (_, Some(unique)) => unique.firsts_of(&of_rows(config, philox, unique.n_rows(), rows, device)?),
    }
}

/// That of `n` rows, by their principal components or at random.
fn of_rows(
    config: &TsneConfig,
    philox: Philox,
    n: usize,
    rows: Option<&Tensor>,
    device: &Device,
) -> Result<Tensor> {
    let random =
        |n_dims: usize| chandlery_ops::core::normal((n, n_dims), device, Draw::Start.of(philox))? * SPREAD;
    let (Start::Pca, Some(rows)) = (config.start, rows) else { return random(config.n_dims) };
    let n_components = config.n_dims.min(rows.dim(1)?);
    let principal = principal(rows, n_components, Draw::Directions.of(philox))?;
    let first = principal.narrow(1, 0, 1)?.to_dtype(DType::F64)?;
    let deviation = (sqr(&first)?.mean_all()?.to_scalar::<f64>()?).sqrt();
    if !(deviation > 0. && deviation.is_finite()) {
        return random(config.n_dims);
    }
    let scaled = (principal * (SPREAD / deviation))?.to_device(device)?;
    match config.n_dims - n_components {
        0 => contiguous(&scaled),
        missing => contiguous(&Tensor::cat(&[scaled, random(missing)?], 1)?),
    }
}

/// The first principal components of the rows in some unit, `[n, n_components]`, by subspace
/// iteration.
fn principal(rows: &Tensor, n_components: usize, philox: Philox) -> Result<Tensor> {
    let width = (n_components + FURTHER).min(rows.dim(1)?);
    // Near 1: what f32 squares and adds up is right whatever the rows' scale is.
    let rows = rows_about_mean(&contiguous(rows)?)?.rows;
    let mut q = orthonormal(&chandlery_ops::core::normal((rows.dim(1)?, width), rows.device(), philox)?)?;
    for _ in 0..ROUNDS {
        q = orthonormal(&rows.t()?.matmul(&rows.matmul(&q)?)?)?;
    }
    let projected = rows.matmul(&q)?;
    let covariance = projected.t()?.matmul(&projected)?.to_dtype(DType::F64)?.flatten_all()?;
    let eigen = SymmetricEigen::new(DMatrix::from_vec(width, width, covariance.to_vec1::<f64>()?));
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
    let turn = DMatrix::from_fn(width, n_components, |i, j| eigen.eigenvectors[(i, order[j])]);
    let directions = upright(host(&q)? * turn);
    rows.matmul(&device(&directions, &rows)?)
}

/// A matrix on the host, in f64.
fn host(t: &Tensor) -> Result<DMatrix<f64>> {
    let (rows, cols) = t.dims2()?;
    let values = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    Ok(DMatrix::from_row_slice(rows, cols, &values))
}

fn device(m: &DMatrix<f64>, like: &Tensor) -> Result<Tensor> {
    let values: Vec<f32> = m.transpose().iter().map(|&x| x as f32).collect();
    Tensor::from_vec(values, m.shape(), like.device())
}

/// An orthonormal basis of the columns.
fn orthonormal(t: &Tensor) -> Result<Tensor> {
    device(&host(t)?.qr().q(), t)
}
