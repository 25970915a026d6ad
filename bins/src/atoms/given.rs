//! A dictionary that the command line names: a model, or a file of atoms.
//!
//! A model is a folder or a repository of the hub; a file is `.npy`, `.csv`, or `.safetensors` with
//! the atoms as `dictionary` or as its only matrix, `[n_atoms, n_features]`. A file says nothing of
//! how signals are coded: orthogonal matching pursuit to [`NONZERO`] atoms, as in training by
//! default, without taking means out.
use crate::arrays::Format;
use crate::program::{model_type, other_model};
use crate::report::is_stdout;
use anyhow::{Context, Result, anyhow, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::dictionary::pixels::{in_pixels, keeps_directions};
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::io::load_tensors;
use chandlery::pretrained::ModelType;
use chandlery::sparse_coding::SparseCoding;
use chandlery::{LoadOptions, Model};
use chandlery_datasets::{DataOptions, ImageShape};
use std::collections::HashMap;
use std::path::Path;

/// Atoms of a code where only atoms are given, or all of them where there are fewer.
const NONZERO: usize = 10;

/// The name that atoms go by in a `.safetensors` file.
const DICTIONARY: &str = "dictionary";

/// Loads the dictionary of this name onto `device`. Atoms of a file are scaled to length 1; those
/// of a model stay as they are.
///
/// # Errors
/// When it is neither, cannot be read, is another model, or an atom is zero or not finite.
pub fn given(name: &str, device: &Device) -> Result<Dictionary> {
    if is_file(name) {
        return of_file(Path::new(name), device);
    }
    let model = model_type(name)?;
    if model != ModelType::Dictionary {
        return Err(anyhow!(other_model(model, "a dictionary")).context(name.to_owned()));
    }
    Ok(Dictionary::from_pretrained(name, &LoadOptions::on(device))?)
}

/// Loads the atoms of this name onto `device`, for signals in pixels: of a dictionary, of a model
/// of sparse coding, or of a file.
///
/// # Errors
/// As [`given`], and when what a model reads cannot be turned back into pixels.
pub fn atoms_of(name: &str, device: &Device) -> Result<Dictionary> {
    let (preparation, atoms, of_model) = if !is_file(name) && model_type(name)? == ModelType::SparseCoding {
        let model = SparseCoding::from_pretrained(name, &LoadOptions::on(device))?;
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

/// Whether a name is that of a file of atoms, which says nothing of how rows become signals.
pub fn is_file(name: &str) -> bool {
    let path = Path::new(name);
    !is_stdout(path) && Format::of(path).is_ok() && !path.is_dir()
}

/// The same for the value of an option, which errors name.
///
/// # Errors
/// As [`given`].
pub fn given_by(flag: &str, name: &str, device: &Device) -> Result<Dictionary> {
    given(name, device).with_context(|| format!("{flag} {name}"))
}

/// The atoms of a file as a dictionary.
fn of_file(path: &Path, device: &Device) -> Result<Dictionary> {
    let at = path.display();
    let atoms = match Format::of(path)? {
        Format::Npy | Format::Csv => {
            let dataset = chandlery_datasets::open(&at.to_string(), &DataOptions::default())?;
            dataset.train.to_tensor(&Device::Cpu)?
        }
        Format::Safetensors => {
            let (tensors, _) = load_tensors(path, &Device::Cpu)?;
            matrix_of(tensors).with_context(|| at.to_string())?
        }
    };
    let atoms = unit(&atoms).with_context(|| at.to_string())?.to_device(device)?;
    let (n_atoms, n_features) = atoms.dims2()?;
    let side = n_features.isqrt();
    let config = DictionaryConfig {
        // Images are coded by square grey patches, which is what such atoms can be.
        image: (side > 1 && side * side == n_features).then_some(ImageShape::grey(side, side)),
        ..DictionaryConfig::new(n_atoms, n_features, NONZERO.min(n_atoms))
    };
    Dictionary::from_tensor(config, atoms).with_context(|| at.to_string())
}

/// The tensor of atoms among those of a file.
fn matrix_of(mut tensors: HashMap<String, Tensor>) -> Result<Tensor> {
    if let Some(atoms) = tensors.remove(DICTIONARY) {
        ensure!(atoms.rank() == 2, "`{DICTIONARY}` must be [n_atoms, n_features], got {:?}", atoms.dims());
        return Ok(atoms);
    }
    let mut names: Vec<String> = tensors.keys().cloned().collect();
    names.sort();
    let mut matrices = tensors.into_values().filter(|tensor| tensor.rank() == 2);
    match (matrices.next(), matrices.next()) {
        (Some(only), None) => Ok(only),
        _ => bail!(
            "must hold a tensor `{DICTIONARY}`, or one matrix alone, [n_atoms, n_features]; it holds: {}",
            names.join(", ")
        ),
    }
}

/// Rows of length 1, f32 on the CPU, by lengths in f64.
fn unit(atoms: &Tensor) -> Result<Tensor> {
    let atoms = atoms.to_dtype(DType::F64)?;
    let (n_atoms, n_features) = atoms.dims2()?;
    ensure!(
        n_atoms > 0 && n_features > 0,
        "must hold at least one atom of one value, got {:?}",
        atoms.dims()
    );
    let mut values = atoms.flatten_all()?.to_vec1::<f64>()?;
    for (row, atom) in values.chunks_mut(n_features).enumerate() {
        if let Some(value) = atom.iter().find(|x| !x.is_finite()) {
            bail!("row {row} (counted from 0) must be finite numbers, got {value}; leave it out")
        }
        // In units of the largest value, so that no square is too large or too small.
        let largest = atom.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        ensure!(
            largest > 0.,
            "row {row} (counted from 0) must not be zero, which has no direction; leave it out"
        );
        atom.iter_mut().for_each(|x| *x /= largest);
        let length = atom.iter().map(|x| x * x).sum::<f64>().sqrt();
        atom.iter_mut().for_each(|x| *x /= length);
    }
    Ok(Tensor::from_vec(values, (n_atoms, n_features), &Device::Cpu)?.to_dtype(DType::F32)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn rows_come_to_length_one_whatever_their_unit() {
        for power in [-1000, -500, 0, 500, 1000] {
            let unit_of_file = 2f64.powi(power);
            let rows =
                Tensor::new(&[[3. * unit_of_file, -4. * unit_of_file], [0., unit_of_file]], &Cpu).unwrap();
            assert_eq!(unit(&rows).unwrap().to_vec2::<f32>().unwrap(), [[0.6, -0.8], [0., 1.]], "2^{power}");
        }
        for (value, text) in [
            (0., "row 1 (counted from 0) must not be zero, which has no direction; leave it out"),
            (f64::NAN, "row 1 (counted from 0) must be finite numbers, got NaN; leave it out"),
            (f64::NEG_INFINITY, "row 1 (counted from 0) must be finite numbers, got -inf; leave it out"),
        ] {
            let rows = Tensor::new(&[[3., 4.], [0., value], [1., 1.]], &Cpu).unwrap();
            assert_eq!(unit(&rows).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn atoms_are_the_tensor_of_that_name_or_the_only_matrix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let eye = Tensor::eye(3, DType::F64, &Cpu).unwrap();
        let other = Tensor::ones((2, 5), DType::F32, &Cpu).unwrap();
        let bias = Tensor::ones(3, DType::F32, &Cpu).unwrap();
        let load = |tensors: &[(&str, &Tensor)]| {
            let tensors: HashMap<_, _> = tensors.iter().map(|(name, t)| (*name, (*t).clone())).collect();
            candle::safetensors::save(&tensors, &path).unwrap();
            given(&path.display().to_string(), &Cpu).map_err(|e| format!("{e:#}"))
        };
        let named = load(&[("dictionary", &eye), ("a", &other), ("bias", &bias)]).unwrap();
        assert_eq!((named.atoms().dims(), named.config().n_nonzero), (&[3, 3][..], 3));
        assert_eq!(load(&[("a", &other), ("bias", &bias)]).unwrap().atoms().dims(), [2, 5]);
        let names = "must hold a tensor `dictionary`, or one matrix alone, [n_atoms, n_features]; it holds:";
        let name = path.display();
        let err = load(&[("b", &eye), ("a", &other), ("bias", &bias)]).unwrap_err();
        assert_eq!(err, format!("{name}: {names} a, b, bias"));
        assert_eq!(load(&[("bias", &bias)]).unwrap_err(), format!("{name}: {names} bias"));
        let err = load(&[("dictionary", &bias)]).unwrap_err();
        assert_eq!(err, format!("{name}: `dictionary` must be [n_atoms, n_features], got [3]"));
    }
}
