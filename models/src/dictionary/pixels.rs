//! Atoms of prepared rows as patches of pixels, which images can be restored with.
//!
//! ```text
//! x ≈ P⁻¹(a B),   P⁻¹(y) = μ + y W      what a model reads is P of a row of pixels; W is the linear part of the inverse
//! x − μ ≈ a (B W)                       rows of B W, scaled to length 1, are atoms of pixels
//! ```
//!
//! A basis of whitened patches is thus one of pixels: with pixels as signals, white noise on them
//! stays white. Its codes are not those of the whitened patches, whose errors count otherwise.
use super::scaling::or_one;
use candle::{DType, Error, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::arrays::elementwise::{div, sqr, sqrt, sub};

/// Whether a preparation multiplies rows by a number and takes their means out, and nothing else:
/// its atoms are atoms of pixels as they are.
pub fn keeps_directions(preparation: &Preparation) -> bool {
    let scaled = preparation.without_last_row_mean();
    scaled.as_ref().unwrap_or(preparation).as_scale(DType::U8).is_some()
}

/// `B W` with rows of length 1; those of length 0 stay: atoms of pixels, `[n_atoms, n_pixels]` f32,
/// of atoms of prepared rows, `[n_atoms, _]`.
///
/// # Errors
/// When the preparation cannot be inverted, or the atoms do not fit it.
pub fn in_pixels(atoms: &Tensor, preparation: &Preparation) -> Result<Tensor> {
    let inverse = |rows: &Tensor| preparation.inverse(rows).map_err(Error::wrap);
    let nothing = inverse(&atoms.narrow(0, 0, 1)?.zeros_like()?)?;
    let pixels = sub(&inverse(atoms)?, &nothing)?.to_dtype(DType::F64)?;
    let lengths = or_one(&sqrt(&sqr(&pixels)?.sum_keepdim(1)?)?)?;
    div(&pixels, &lengths)?.to_dtype(DType::F32)?.contiguous()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Philox;
    use candle::Device::Cpu;
    use chandlery_datasets::Split;
    use chandlery_datasets::preparation::{StepConfig, WhiteningConfig};
    use chandlery_ops::core::normal;

    #[test]
    fn atoms_of_whitened_rows_come_back_as_the_directions_that_they_stand_for() {
        let drawn = |n: usize, stream: u64| normal((n, 6), &Cpu, Philox::new(1, stream)).unwrap();
        let rows = (drawn(400, 0).matmul(&drawn(6, 1)).unwrap() + 3.).unwrap();
        let split = Split::from_f32(rows.flatten_all().unwrap().to_vec1().unwrap(), 6, None).unwrap();
        let steps = [StepConfig::Whiten(WhiteningConfig::default())];
        let preparation = Preparation::fit(&split, &steps, 0).unwrap();
        // A whitened row as an atom stands for the row less the mean.
        let mean = rows.mean_keepdim(0).unwrap();
        let two = rows.narrow(0, 0, 2).unwrap();
        let got = in_pixels(&preparation.apply(&two).unwrap(), &preparation).unwrap();
        let (got, want) =
            (got.to_vec2::<f32>().unwrap(), two.broadcast_sub(&mean).unwrap().to_vec2().unwrap());
        for (got, want) in got.iter().zip(&want) {
            let length = want.iter().map(|x: &f32| x * x).sum::<f32>().sqrt();
            for (got, want) in got.iter().zip(want) {
                assert!((got - want / length).abs() < 1e-3, "{got} {}", want / length);
            }
        }
        assert!(!keeps_directions(&preparation));
        let pixels = Preparation::of(&[StepConfig::Scale(255.), StepConfig::RowMean]).unwrap();
        assert!(keeps_directions(&pixels) && keeps_directions(&Preparation::default()));
    }
}
