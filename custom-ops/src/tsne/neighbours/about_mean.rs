//! Rows as products bound their distances: about the mean of all, near 1.
use super::cpu::column_means;
use crate::core::check::matrix;
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "rows_about_mean";

/// Rows less a point near their mean, times a power of two.
#[derive(Debug, Clone)]
pub struct RowsAboutMean {
    /// `y_i = s (x_i − m)`, each number rounded once to f32: `[n, width]`, columns beyond those of
    /// `x` are 0. The largest magnitude is about 1 where rows differ and s fits f32.
    pub rows: Tensor,
    /// `|y_i|² / 2`, f64 `[n]`.
    pub halves: Tensor,
    /// `s`
    pub scale: f64,
}

/// Contiguous f32 rows, `[n, n_features]`, about their mean, so that products of them tell their
/// distances.
///
/// Cost: reads the rows four times. On a GPU rows are padded to a multiple of 8 features.
///
/// # Errors
/// When `rows` is not such a matrix, or a step is being recorded. Entries that are not finite are
/// not looked for.
pub fn rows_about_mean(rows: &Tensor) -> Result<RowsAboutMean> {
    let ((n, d), device) = (matrix(OP, "rows", "[n, n_features]", rows, &[DType::F32])?, rows.device());
    not_recording(OP, device)?;
    if n == 0 || d == 0 {
        let halves = Tensor::zeros(n, DType::F64, device)?;
        return Ok(RowsAboutMean { rows: rows.clone(), halves, scale: 1. });
    }
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        let (rows, halves, scale) = super::cuda::about_mean(rows)?;
        return Ok(RowsAboutMean { rows, halves, scale });
    }
    let new = |shape: &[usize], dtype| new_tensor(OP, shape, dtype, device);
    let (about, halves) = (new(&[n, d], DType::F32)?, new(&[n], DType::F64)?);
    let scale = new(&[1], DType::F64)?;
    let io = operands(OP).write("about", &about).write("halves", &halves).write("scale", &scale);
    io.read("rows", rows).run(&AboutMean { d })?;
    Ok(RowsAboutMean { rows: about, halves, scale: scale.get(0)?.to_scalar()? })
}

struct AboutMean {
    d: usize,
}

impl Kernel for AboutMean {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([about, halves, scale], [rows]) = io.parts()?;
        let (about, halves) = (about.elements::<f32>()?, halves.elements::<f64>()?);
        let (scale, rows, d) = (scale.elements::<f64>()?, rows.elements::<f32>()?, self.d);
        let mean = column_means(rows, d);
        let apart =
            |row: &[f32]| row.iter().zip(&mean).map(|(&x, m)| (f64::from(x) - m).abs()).fold(0., f64::max);
        let largest = rows.par_chunks(d).map(apart).reduce(|| 0., f64::max);
        let s = if largest > 0. { (-largest.log2().ceil()).exp2() } else { 1. };
        let of_rows = about.par_chunks_mut(d).zip(halves.par_iter_mut()).zip(rows.par_chunks(d));
        of_rows.for_each(|((about, half), row)| {
            let mut sum = 0.;
            for ((y, &x), m) in about.iter_mut().zip(row).zip(&mean) {
                *y = ((f64::from(x) - m) * s) as f32;
                sum += f64::from(*y) * f64::from(*y);
            }
            *half = 0.5 * sum;
        });
        scale.fill(s);
        Ok(())
    }
}
