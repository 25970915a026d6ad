//! The atoms of a model as patches of pixels, which images are restored with.
//!
//! ```text
//! x ≈ P⁻¹(a B),   P⁻¹(y) = μ + y W      what a model reads is P of a row of pixels; W is the linear part of the inverse
//! x − μ ≈ a (B W)                       rows of B W, scaled to length 1, are atoms of pixels
//! ```
//!
//! A basis of whitened patches is thus one of pixels: with pixels as signals, white noise on them stays white. Its codes are not those of the
//! whitened patches, whose errors count otherwise.
use super::given::{given, is_file};
use crate::program::model_type;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::pretrained::ModelType;
use chandlery::sparse_coding::SparseCoding;
use chandlery_datasets::Preparation;

/// Loads the atoms of this name onto `device`, for signals in pixels: of a dictionary, of a model of sparse coding, or of a file.
///
/// # Errors
/// As [`given`], and when what a model reads cannot be turned back into pixels.
pub fn atoms_of(name: &str, device: &Device) -> Result<Dictionary> {
    let (preparation, atoms, of_model) = if !is_file(name) && model_type(name)? == ModelType::SparseCoding {
        let model = SparseCoding::from_pretrained(name, device)?;
        (model.config().preparation.clone(), model.basis().clone(), None)
    } else {
        let dictionary = given(name, device)?;
        (dictionary.config().preparation.clone(), dictionary.atoms().clone(), Some(dictionary))
    };
    if let Some(dictionary) = of_model.filter(|_| keeps_directions(&preparation)) {
        return Ok(dictionary);
    }
    let atoms = in_pixels(&atoms, &preparation).with_context(|| name.to_owned())?;
    let (n_atoms, n_features) = atoms.dims2()?;
    Ok(Dictionary::from_tensor(DictionaryConfig::new(n_atoms, n_features, n_atoms), atoms)?)
}

/// Whether a preparation multiplies rows by a number and takes their means out, and nothing else.
pub fn keeps_directions(preparation: &Preparation) -> bool {
    let scaled = preparation.without_last_row_mean();
    scaled.as_ref().unwrap_or(preparation).as_scale(DType::U8).is_some()
}

/// `B W` with rows of length 1; those of length 0 stay.
fn in_pixels(atoms: &Tensor, preparation: &Preparation) -> Result<Tensor> {
    let nothing = preparation.inverse(&atoms.narrow(0, 0, 1)?.zeros_like()?)?;
    let pixels = preparation.inverse(atoms)?.broadcast_sub(&nothing)?.to_dtype(DType::F64)?;
    let lengths = pixels.sqr()?.sum_keepdim(1)?.sqrt()?;
    let lengths = (lengths.clone() + lengths.eq(0.)?.to_dtype(DType::F64)?)?;
    Ok(pixels.broadcast_div(&lengths)?.to_dtype(DType::F32)?.contiguous()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;
    use chandlery::Philox;
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
