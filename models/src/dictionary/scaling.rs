//! Scaling of signals: training gives the same bits in any unit that differs by a power of two.
use crate::share::joined_;
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::elementwise::{abs, add, div, equal, mul, sqr, sqrt};
use chandlery_ops::codes::{SparseCodes, row_squares};

/// Lengths `2^-16..=2^16` of the longest signal whose squares, and sums of many of those, an f32
/// holds with room to spare: none is scaled.
const EASY: f64 = 65_536.;

/// Rows times powers of two, which is exact, such that the largest number of each is in `[1, 2)` or
/// near: no square leaves the range of its type. Rows of zeros stay, as do rows with a number that
/// is not finite.
pub(super) fn level(rows: &Tensor) -> Result<Tensor> {
    if rows.elem_count() == 0 {
        return Ok(rows.clone());
    }
    let largest = abs(rows)?.max_keepdim(1)?.to_dtype(DType::F64)?;
    let scales: Vec<f64> =
        largest.flatten_all()?.to_vec1::<f64>()?.into_iter().map(|x| power(x, rows.dtype())).collect();
    if scales.iter().all(|&scale| scale == 1.) {
        return Ok(rows.clone());
    }
    let scales = Tensor::from_vec(scales, largest.shape(), rows.device())?.to_dtype(rows.dtype())?;
    mul(rows, &scales)
}

/// Rows of length 1; a row of zeros stays.
pub(super) fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    let rows = level(rows)?;
    div(&rows, &or_one(&sqrt(&sqr(&rows)?.sum_keepdim(1)?)?)?)
}

/// Lengths, and 1 in place of those of 0.
pub(super) fn or_one(lengths: &Tensor) -> Result<Tensor> {
    add(lengths, &equal(lengths, &lengths.zeros_like()?)?)
}

/// A power of two that takes a length to about 1; 1 for 0 and what is not finite.
fn power(length: f64, dtype: DType) -> f64 {
    if length == 0. || !length.is_finite() {
        return 1.;
    }
    // As far as the type has such powers, which is far enough for squares of what is left.
    let most = if dtype == DType::F64 { 1000. } else { 120. };
    (-length.log2().floor()).clamp(-most, most).exp2()
}

/// The length of the longest signal, from the largest square of one. Where that overflowed, or came
/// to 0, the largest number of the signals says about as much. `signals` are this rank's, `square` is
/// of those of all ranks, as the answer is.
pub(super) fn longest(group: &Group, signals: &Tensor, square: f64) -> Result<f64> {
    if square > 0. && square.is_finite() {
        return Ok(square.sqrt());
    }
    largest(group, &abs(signals)?.flatten_all()?.to_dtype(DType::F64)?)
}

/// The largest square of a signal of all ranks.
pub(super) fn largest_square(group: &Group, signals: &Tensor) -> Result<f64> {
    largest(group, &row_squares(signals)?)
}

/// The largest number of all ranks, each of which has some, f64 `[n]`; 0 where there are none.
fn largest(group: &Group, numbers: &Tensor) -> Result<f64> {
    let own = match numbers.elem_count() {
        0 => Tensor::zeros(1, DType::F64, numbers.device())?,
        _ => numbers.max_keepdim(0)?,
    };
    joined_(group, &own, 0..1)?;
    own.get(0)?.to_scalar()
}

/// What signals are multiplied by before their squares are summed, when the longest has this
/// length: a power of two, 1 for lengths from `2^-16` to `2^16`.
pub(super) fn scale_of(longest: f64, dtype: DType) -> f64 {
    if (1. / EASY..=EASY).contains(&longest) { 1. } else { power(longest, dtype) }
}

/// Whether signals of this length, times `scale`, are too long to join sums of signals of that
/// scale.
pub(super) fn outgrows(longest: f64, scale: f64) -> bool {
    longest * scale > EASY
}

/// The largest square of signals that do not outgrow `scale`.
pub(super) fn most_square(scale: f64) -> f64 {
    (EASY / scale).powi(2).min(f64::MAX)
}

/// A tensor in another unit.
pub(super) fn scaled(x: &Tensor, scale: f64) -> Result<Tensor> {
    if scale == 1. { Ok(x.clone()) } else { x * scale }
}

/// The codes of signals in another unit.
pub(super) fn scaled_codes(codes: &SparseCodes, scale: f64) -> Result<SparseCodes> {
    Ok(SparseCodes { values: scaled(&codes.values, scale)?, ..codes.clone() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn rows_of_any_unit_come_to_length_one_by_the_same_bits() {
        let rows = Tensor::new(&[[3f32, 4., 0.1], [-1., 0.3, 7.]], &Cpu).unwrap();
        let want = unit_rows(&rows).unwrap().to_vec2::<f32>().unwrap();
        for power in [-120, -100, -64, 64, 100, 124] {
            let other = (&rows * 2f64.powi(power)).unwrap();
            assert_eq!(unit_rows(&other).unwrap().to_vec2::<f32>().unwrap(), want, "2^{power}");
        }
        let rows = rows.to_dtype(DType::F64).unwrap();
        let want = unit_rows(&rows).unwrap().to_vec2::<f64>().unwrap();
        for power in [-1010, -600, 600, 1010] {
            let other = (&rows * 2f64.powi(power)).unwrap();
            assert_eq!(unit_rows(&other).unwrap().to_vec2::<f64>().unwrap(), want, "2^{power}");
        }
        let zeros = Tensor::zeros((2, 3), DType::F32, &Cpu).unwrap();
        assert_eq!(unit_rows(&zeros).unwrap().to_vec2::<f32>().unwrap(), [[0.; 3]; 2]);
    }

    #[test]
    fn lengths_that_are_easy_are_left_and_others_come_near_one() {
        for (longest, want) in [(3., 1.), (2040., 1.), (1e-4, 1.), (0., 1.), (f64::INFINITY, 1.)] {
            assert_eq!(scale_of(longest, DType::F32), want, "{longest}");
        }
        for longest in [1e-18, 1e-30, 1e18, 3e38] {
            let scale = scale_of(longest, DType::F32);
            assert!((1. ..512.).contains(&(longest * scale)), "{longest} {scale}");
            assert_eq!(scale.log2().fract(), 0.);
        }
        let huge = Tensor::new(&[[1e200f64, -3e200]], &Cpu).unwrap();
        let square = largest_square(&Group::single(), &huge).unwrap();
        assert_eq!(longest(&Group::single(), &huge, square).unwrap(), 3e200);
    }
}
