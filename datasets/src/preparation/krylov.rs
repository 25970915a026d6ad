//! The largest eigenvalues of a covariance by products with it alone.
//!
//! ```text
//! K_m = span{V, C V, C² V, …}        V a random block of directions, a row each
//! T = Q C Qᵀ,  T z = θ z             Q an orthonormal basis of K_m
//! x = zᵀ Q,  r = ‖C x − θ x‖         a direction, and by how much it is none: |θ − λ| ≤ r for an eigenvalue λ, and ≤ r²/gap
//! ```
//!
//! When the basis is full, the best directions are kept and the rest is dropped (thick restart). A
//! block that adds nothing to the basis is filled with random directions, so that an eigenvalue
//! that comes often is found as often.
//!
//! Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues", 1977; Wu and
//! Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix
//! Anal. Appl. 22, 2000. Departure: products with the basis are kept, so that T needs no
//! recurrence.
use crate::{Error, Result};
use candle::{D, DType, Device, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use nalgebra::{DMatrix, SymmetricEigen};

/// Directions that are multiplied at once.
pub(super) const BLOCK: usize = 16;
/// Products after which the directions are looked at, which costs the cube of their number.
const LOOK: usize = 4;
/// Products after which directions are refused. Noise alone, of which all variances are near one
/// another, takes some 100.
const MOST_PRODUCTS: usize = 1000;
/// The Philox stream of the first directions.
const STREAM: u64 = 0x6b72_796c; // "kryl"

/// Whether so few eigenvalues of a matrix are found faster so than all of them.
pub(super) fn is_faster(n_features: usize, n_components: usize) -> bool {
    n_features > 256 && n_components.saturating_mul(6) <= n_features
}

/// The `k` largest eigenvalues of a positive semidefinite matrix of `d` rows, descending, and their
/// eigenvectors `[k, d]`, f64 on the CPU; `product` gives `X C` of `X`, `[b, d]` f64 with `b` at
/// most [`BLOCK`]. A direction is one when its residual is at most `tolerance` of the largest
/// eigenvalue.
pub(super) fn leading(
    d: usize,
    k: usize,
    tolerance: f64,
    mut product: impl FnMut(&Tensor) -> Result<Tensor>,
) -> Result<(Vec<f64>, Tensor)> {
    let width = BLOCK.min(d);
    let most = (2 * k + 8 * width).min(d);
    let mut random = Randoms(0);
    let none = Tensor::zeros((0, d), DType::F64, &Device::Cpu)?;
    let (mut basis, mut products) = (none.clone(), none.clone());
    let mut block = orthonormal(&random.directions(width, d)?, &none, &mut random)?;
    for round in 1..=MOST_PRODUCTS {
        let next = product(&block)?;
        basis = Tensor::cat(&[&basis, &block], 0)?;
        products = Tensor::cat(&[&products, &next], 0)?;
        let m = basis.dim(0)?;
        let width = width.min(d - m);
        let is_full = m + width > most || m == d;
        if is_full || round % LOOK == 0 {
            let projected = basis.matmul(&products.t()?)?;
            let projected = ((&projected + projected.t()?)? * 0.5)?;
            let (values, vectors) = symmetric_eigen(m, projected.flatten_all()?.to_vec1()?)?;
            let vectors = Tensor::from_vec(vectors, (m, m), &Device::Cpu)?;
            if m >= k {
                let best = vectors.narrow(0, 0, k)?.contiguous()?;
                let directions = best.matmul(&basis)?;
                let scales = Tensor::from_slice(&values[..k], (k, 1), &Device::Cpu)?;
                let residual = (best.matmul(&products)? - directions.broadcast_mul(&scales)?)?;
                let largest = residual.sqr()?.sum(D::Minus1)?.max(0)?.to_scalar::<f64>()?.sqrt();
                tracing::debug!(round, largest, "residual");
                // Of the whole space nothing is missing.
                if largest <= tolerance * values[0].abs() || m == d {
                    return Ok((values[..k].to_vec(), directions));
                }
            }
            block = orthonormal(&next.narrow(0, 0, width)?, &basis, &mut random)?;
            if is_full {
                let best = vectors.narrow(0, 0, (k + width).min(m))?.contiguous()?;
                (basis, products) = (best.matmul(&basis)?, best.matmul(&products)?);
            }
        } else {
            block = orthonormal(&next.narrow(0, 0, width)?, &basis, &mut random)?;
        }
    }
    Err(Error::Argument(format!(
        "Pca: {k} directions of {d} features were not found in {MOST_PRODUCTS} products; ask for fewer"
    )))
}

/// Random directions, no two alike.
struct Randoms(u64);

impl Randoms {
    fn directions(&mut self, n: usize, d: usize) -> Result<Tensor> {
        self.0 += 1;
        let numbers = uniform((n, d), &Device::Cpu, Philox::new(self.0, STREAM))?;
        Ok((numbers.to_dtype(DType::F64)? - 0.5)?)
    }
}

/// As many orthonormal rows, orthogonal to those of `basis`, which span what those of `block` add
/// to it; and random ones beyond that.
fn orthonormal(block: &Tensor, basis: &Tensor, random: &mut Randoms) -> Result<Tensor> {
    let (n, d) = block.dims2()?;
    let mut rows: Vec<Vec<f64>> = away(block, basis)?.to_vec2()?;
    // Twice is enough (Kahan and Parlett) where little is left of a row; what is left of less is
    // rounding.
    let before: Vec<f64> = block.sqr()?.sum(D::Minus1)?.to_vec1()?;
    let mut done: Vec<Vec<f64>> = Vec::with_capacity(n);
    for (row, before) in rows.iter_mut().zip(before) {
        let mut size = before.sqrt();
        for attempt in 0.. {
            if attempt > 0 {
                let fresh = away(&random.directions(1, d)?, basis)?;
                *row = fresh.flatten_all()?.to_vec1()?;
                size = 1.;
            }
            for _ in 0..2 {
                for other in &done {
                    let along = dot(row, other);
                    row.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
                }
            }
            let norm = dot(row, row).sqrt();
            if norm > 1e-10 * size && norm.is_finite() {
                row.iter_mut().for_each(|x| *x /= norm);
                break;
            }
            if attempt == 8 {
                return Err(Error::Argument(
                    "Pca: a product with the covariance is not finite; scale the rows to about 1".to_owned(),
                ));
            }
        }
        done.push(std::mem::take(row));
    }
    let flat = Tensor::from_vec(done.concat(), (n, d), &Device::Cpu)?;
    // Normalised rows lose what rounding left of the basis.
    away(&flat, basis)
}

/// Rows without what lies along the orthonormal rows of `basis`.
fn away(rows: &Tensor, basis: &Tensor) -> Result<Tensor> {
    let mut rows = rows.clone();
    if basis.dim(0)? > 0 {
        for _ in 0..2 {
            let along = rows.matmul(&basis.t()?)?;
            rows = (rows - along.matmul(basis)?)?;
        }
    }
    Ok(rows)
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// All eigenvalues of a symmetric matrix of `n` rows, descending, and its eigenvectors, one after
/// the other.
pub(super) fn symmetric_eigen(n: usize, matrix: Vec<f64>) -> Result<(Vec<f64>, Vec<f64>)> {
    let matrix = DMatrix::from_vec(n, n, matrix);
    // Two or three sweeps an eigenvalue are usual.
    let max_sweeps = 100 * n;
    let eigen = SymmetricEigen::try_new(matrix, f64::EPSILON, max_sweeps).ok_or_else(|| {
        Error::Argument(format!(
            "Pca: eigenvectors of a {n}x{n} covariance were not found in {max_sweeps} sweeps; scale the rows to about 1"
        ))
    })?;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
    let values = order.iter().map(|&j| eigen.eigenvalues[j]).collect();
    let vectors =
        order.iter().flat_map(|&j| eigen.eigenvectors.column(j).iter().copied().collect::<Vec<_>>());
    Ok((values, vectors.collect()))
}
