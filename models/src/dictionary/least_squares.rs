//! The method of optimal directions: all atoms at once, by least squares.
use super::statistics::Statistics;
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{AtomUses, SparseCodes, StatisticsStep, codes_statistics_};
use nalgebra::{Cholesky, DMatrix, Dyn};

/// How much of the largest `A_jj` is first added to the diagonal where `A` is singular; a hundred
/// times more at each try.
const RIDGE: f64 = 1e-12;

/// The Cholesky factor of a symmetric matrix without negative eigenvalues; a ridge joins a singular
/// one.
///
/// # Errors
/// When a number is not finite; the message names `op` and what the matrix is.
pub(crate) fn cholesky(op: &str, what: &str, matrix: &DMatrix<f64>) -> Result<Cholesky<f64, Dyn>> {
    let largest = matrix.diagonal().max();
    let mut ridge = 0.;
    loop {
        let lifted = matrix + DMatrix::identity(matrix.nrows(), matrix.nrows()) * ridge;
        match Cholesky::new(lifted) {
            Some(factor) => return Ok(factor),
            None if ridge < largest => ridge = if ridge == 0. { RIDGE * largest } else { 100. * ridge },
            None => candle::bail!("{op}: {what} must be finite, got a NaN or infinity"),
        }
    }
}

/// `D = (XᵀX)⁻¹ XᵀY` over the atoms that are used and not among the first `n_fixed`; the others
/// stay. Rows have any length.
///
/// `codes` and `signals` are those of this rank. Solved on the CPU in f64 by a Cholesky factorisation, `n³/3` FLOP; a ridge joins a singular
/// `XᵀX`.
///
/// Source: Engan, Aase and Hakon Husøy, "Method of optimal directions for frame design", ICASSP
/// 1999.
pub(super) fn optimal_directions(
    dictionary: &Tensor,
    codes: &SparseCodes,
    uses: &AtomUses,
    signals: &Tensor,
    n_fixed: usize,
    group: &Group,
) -> Result<Tensor> {
    let (n, p) = dictionary.dims2()?;
    let (dtype, device) = (dictionary.dtype(), dictionary.device());
    let sums = Statistics::none(n, p, dtype, device)?;
    let Statistics { gram: a, signals: b } = &sums;
    codes_statistics_(a, b, codes, uses, signals, StatisticsStep::default())?;
    sums.sum_over(group)?;
    let read = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (a, b, mut d) = (read(a)?, read(b)?, read(dictionary)?);
    let free: Vec<usize> = (n_fixed.min(n)..n).filter(|&j| a[j][j] > 0.).collect();
    if free.is_empty() {
        return Ok(dictionary.clone());
    }
    let gram = DMatrix::from_fn(free.len(), free.len(), |i, k| a[free[i]][free[k]]);
    // What the fixed atoms say is not for the others to say.
    let right = DMatrix::from_fn(free.len(), p, |i, c| {
        let fixed: f64 = (0..n_fixed.min(n)).map(|k| a[free[i]][k] * d[k][c]).sum();
        b[free[i]][c] - fixed
    });
    let factor = cholesky("DictionaryTrainer", "XᵀX of the codes", &gram)?;
    let solved = factor.solve(&right);
    for (i, &j) in free.iter().enumerate() {
        d[j] = solved.row(i).iter().copied().collect();
    }
    Tensor::new(d, device)?.to_dtype(dtype)
}
