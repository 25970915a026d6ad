//! f32 numbers as sums of two f16 ones, with a power of two for each line.
//!
//! ```text
//! split_rows_      y_ij = x_ij factors_j
//! split_columns_   y_ij = x_ji factors_j
//! y_ij ≈ scales_i (parts_0ij + parts_1ij)
//! ```
//!
//! Products of such lines are exact sums of products of f16 numbers, which tensor cores make; see
//! [`product_of_split_`](crate::layers::product_of_split_). The scales of the lines of one operand
//! are the factors of the other where a sum goes over them.
use super::scale::{check_parts, parts_of};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use half::f16;
use rayon::prelude::*;

const ROWS: &str = "split_rows_";
const COLUMNS: &str = "split_columns_";
/// The largest number of a line is scaled to between 2¹⁴ and 2¹⁵, by at most 2¹²⁶.
const EXPONENT: i32 = 14;
const MOST: i32 = 126;

/// The rows of `x`, `[rows, cols]` f32: `x_ij factors_j ≈ scales_i (parts_0ij + parts_1ij)`.
///
/// `parts` is f16 `[2, lines, width]`, each of the two contiguous, with at least as many lines as
/// `x` has rows and at least its width; what is beyond `x` becomes 0. `scales`, `[lines]` f32,
/// becomes a power of two for each line, or 0 where all of a line is 0. `factors`, `[cols]` f32,
/// are powers of two or 0, by default 1. The error is at most 2⁻²³ of a number, or 2⁻³⁹ of the
/// largest of its line. A line with an infinite number gives NaN.
///
/// Cost: 12 bytes a number.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn split_rows_(parts: &Tensor, scales: &Tensor, x: &Tensor, factors: Option<&Tensor>) -> Result<()> {
    run(ROWS, parts, scales, x, factors)
}

/// The columns of `x`, `[rows, cols]` f32: `x_ji factors_j ≈ scales_i (parts_0ij + parts_1ij)`.
///
/// As [`split_rows_`] of the transpose of `x`: at least as many lines as `x` has columns, with
/// `factors` for its rows.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn split_columns_(parts: &Tensor, scales: &Tensor, x: &Tensor, factors: Option<&Tensor>) -> Result<()> {
    run(COLUMNS, parts, scales, x, factors)
}

fn run(
    op: &'static str,
    parts: &Tensor,
    scales: &Tensor,
    x: &Tensor,
    factors: Option<&Tensor>,
) -> Result<()> {
    let &[rows, cols] = x.dims() else { candle::bail!("{op}: x must be a matrix, got shape {:?}", x.dims()) };
    let (own, len) = if op == ROWS { (rows, cols) } else { (cols, rows) };
    let (lines, width) = match *parts.dims() {
        [2, lines, width] if lines >= own && width >= len => (lines, width),
        _ => candle::bail!(
            "{op}: parts must be [2, at least {own}, at least {len}], got shape {:?}",
            parts.dims()
        ),
    };
    check_parts(op, parts, &[lines, width])?;
    expect(op, "x", x, &[DType::F32], &[rows, cols])?;
    expect(op, "scales", scales, &[DType::F32], &[lines])?;
    if let Some(factors) = factors {
        expect(op, "factors", factors, &[DType::F32], &[len])?;
    }
    if [rows, cols, lines, width].iter().any(|&n| i32::try_from(n).is_err()) {
        candle::bail!("{op}: each side must be below 2^31, got x {rows}×{cols} and parts {lines}×{width}")
    }
    let split = Split { op, part: parts.stride()[0], rows, cols, lines, width };
    let io = operands(op).write("parts", parts).write("scales", scales);
    io.read("x", x).maybe("factors", factors).run(&split)
}

struct Split {
    op: &'static str,
    /// Entries to the second part.
    part: usize,
    rows: usize,
    cols: usize,
    lines: usize,
    width: usize,
}

/// `2ᵉ` that brings the largest number of a line to its place, and `2⁻ᵉ`; 0 where it is 0.
fn power_for(largest: f32) -> [f32; 2] {
    if largest == 0. {
        return [0.; 2];
    }
    if largest.is_infinite() {
        return [0., f32::INFINITY];
    }
    // Of numbers below 2⁻¹²⁶ the exponent is not that, but all have the largest power.
    let exponent = (largest.to_bits() >> 23) as i32 - 127;
    let e = (EXPONENT - exponent).min(MOST);
    [e, -e].map(|e| f32::from_bits(((e + 127) as u32) << 23))
}

impl Kernel for Split {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { op, part, rows, cols, lines, width } = self;
        let ([parts, scales], [x, factors]) = io.parts()?;
        let (x, factors) = (x.elements::<f32>()?, factors.maybe::<f32>()?);
        let [high, low] = parts_of(op, parts, part, lines * width)?;
        let (own, len) = if op == ROWS { (rows, cols) } else { (cols, rows) };
        let parts = high.par_chunks_mut(width).zip(low.par_chunks_mut(width));
        parts.zip(scales.elements::<f32>()?).enumerate().for_each(|(i, ((high, low), scale))| {
            let number = |j: usize| match (i < own && j < len, op == ROWS) {
                (false, _) => 0.,
                (_, true) => x[i * cols + j] * factors.map_or(1., |factors| factors[j]),
                (_, false) => x[j * cols + i] * factors.map_or(1., |factors| factors[j]),
            };
            // `f32::max` passes over NaN.
            let [factor, inverse] = power_for((0..len).fold(0., |most: f32, j| most.max(number(j).abs())));
            *scale = inverse;
            for (j, (high, low)) in high.iter_mut().zip(low).enumerate() {
                let y = number(j) * factor;
                *high = f16::from_f32(y);
                *low = f16::from_f32(y - high.to_f32());
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        /// Of the kernels: threads of a block for a row, and of one for so many columns.
        const OF_ROW: u32 = 128;
        const OF_COLUMNS: u32 = 1024;
        const AT_ONCE: usize = 8;
        let &Self { op, part, rows, cols, lines, width } = self;
        let ([parts, scales], [x, factors]) = io.parts()?;
        let (mut parts, mut scales) = (parts.span::<f16>(part + lines * width)?, scales.elements::<f32>()?);
        let (x, factors) = (x.elements::<f32>()?, factors.maybe::<f32>()?);
        let launch = gpu.launch(op, "split_lines", op.trim_end_matches('_'))?;
        let launch = launch.read(&x).maybe(&factors).write(&mut parts).write(&mut scales).num(part);
        let launch = [rows, cols, lines, width].iter().fold(launch, |launch, &n| launch.num(n as i32));
        let launch = match op == ROWS {
            true => launch.blocks(lines, OF_ROW),
            false => launch.blocks(lines.div_ceil(AT_ONCE), OF_COLUMNS),
        };
        // SAFETY: (const float*, const float* or null, half*, float*, size_t, 4 × int): x of rows
        // by cols, factors for the numbers of a line, two parts of `lines` by `width` and as many
        // scales as lines, which `run` checked; blocks have the threads of the kernels, and there
        // are enough for all columns.
        unsafe { launch.go() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn powers_of_two_bring_the_largest_number_to_its_place() {
        for largest in [1f32, 1.5, 2., 3e-30, 1e30, f32::MAX, f32::MIN_POSITIVE * 2e4] {
            let [factor, inverse] = power_for(largest);
            assert!((16384. ..32768.).contains(&(largest * factor)), "{largest} by {factor}");
            assert_eq!(factor * inverse, 1., "{largest}");
        }
        assert_eq!(power_for(0.), [0.; 2]);
        // Below, all the power that f32 has.
        assert_eq!(power_for(1e-42)[0], 2f32.powi(126));
        assert_eq!(power_for(f32::INFINITY), [0., f32::INFINITY]);
    }

    #[test]
    fn lines_of_any_range_keep_the_precision_of_their_largest_number() -> Result<()> {
        let x = Tensor::new(&[[1e-20f32, -3.3e-21, 0.], [7e8, 0.1, -2e4], [0., 0., 0.]], &Cpu)?;
        let factors = Tensor::new(&[1f32, 0.25, 1024.], &Cpu)?;
        for factors in [None, Some(&factors)] {
            for turned in [false, true] {
                let parts = Tensor::ones((2, 4, 8), DType::F16, &Cpu)?;
                let scales = Tensor::ones(4, DType::F32, &Cpu)?;
                match turned {
                    false => split_rows_(&parts, &scales, &x, factors)?,
                    true => split_columns_(&parts, &scales, &x.t()?.contiguous()?, factors)?,
                }
                let scaled = parts.to_dtype(DType::F64)?.sum(0)?;
                let got = scaled.broadcast_mul(&scales.to_dtype(DType::F64)?.unsqueeze(1)?)?;
                let got = got.to_vec2::<f64>()?;
                let want = x.to_dtype(DType::F64)?.to_vec2::<f64>()?;
                let factors = factors.map(Tensor::to_vec1::<f32>).transpose()?;
                for (i, line) in got.iter().enumerate() {
                    let want: Vec<f64> = (0..8)
                        .map(|j| {
                            let x = want.get(i).and_then(|line| line.get(j)).copied().unwrap_or(0.);
                            x * factors.as_ref().and_then(|f| f.get(j)).map_or(1., |&f| f64::from(f))
                        })
                        .collect();
                    let most = want.iter().fold(0f64, |most, x| most.max(x.abs()));
                    for (got, want) in line.iter().zip(&want) {
                        let bound = (want.abs() * 2f64.powi(-23)).max(most * 2f64.powi(-39));
                        assert!((got - want).abs() <= bound, "{got}, want {want} in line {i}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_nan_and_an_infinite_number_are_seen() -> Result<()> {
        let x = Tensor::new(&[[f32::NAN, 2.], [f32::INFINITY, 2.], [1., 2.]], &Cpu)?;
        let (parts, scales) =
            (Tensor::zeros((2, 3, 2), DType::F16, &Cpu)?, Tensor::zeros(3, DType::F32, &Cpu)?);
        split_rows_(&parts, &scales, &x, None)?;
        let sums = parts.to_dtype(DType::F32)?.sum(0)?.broadcast_mul(&scales.unsqueeze(1)?)?;
        let sums = sums.to_vec2::<f32>()?;
        assert!(sums[0][0].is_nan() && sums[0][1] == 2. && sums[1].iter().all(|x| x.is_nan()), "{sums:?}");
        assert_eq!(sums[2], [1., 2.]);
        Ok(())
    }

    #[test]
    fn errors_name_what_is_wrong() -> Result<()> {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Cpu);
        let (parts, scales) = (zeros(&[2, 3, 8], DType::F16)?, zeros(&[3], DType::F32)?);
        let x = zeros(&[3, 5], DType::F32)?;
        let refused = |done: Result<()>, wanted: &str| {
            let message = done.map_or_else(|e| e.to_string(), |()| "no error".to_owned());
            assert!(message.contains(wanted), "{message}, want {wanted}");
        };
        refused(
            split_columns_(&parts, &scales, &x, None),
            "split_columns_: parts must be [2, at least 5, at least 3], got shape [2, 3, 8]",
        );
        let low = zeros(&[2, 3, 8], DType::F32)?;
        refused(split_rows_(&low, &scales, &x, None), "split_rows_: out must be F16");
        refused(
            split_rows_(&parts, &zeros(&[5], DType::F32)?, &x, None),
            "split_rows_: scales must have shape [3]",
        );
        refused(split_rows_(&parts, &scales, &x, Some(&scales)), "split_rows_: factors must have shape [5]");
        refused(split_rows_(&parts, &scales, &x.to_dtype(DType::F64)?, None), "split_rows_: x must be f32");
        Ok(())
    }
}
