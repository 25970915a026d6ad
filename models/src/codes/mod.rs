//! Files of sparse codes: `.safetensors` or `.npz`.
//!
//! | array     | shape          | what                                                              |
//! |-----------|----------------|-------------------------------------------------------------------|
//! | `indices` | `[m, s]` u32   | atoms of each row, 0 beyond its count                             |
//! | `values`  | `[m, s]` f32   | their coefficients, 0 beyond its count                            |
//! | `count`   | `[m]` u32      | how many                                                          |
//! | `mean`    | `[m]` f32      | what was subtracted from the values of the row, 0 where nothing was |
//! | `dictionary` | `[2]` u32   | a fingerprint of the atoms, so that `decode` notices another dictionary |
//!
//! so that row `i` is `mean[i] + Σ_k values[i, k] · dictionary[indices[i, k]]`. The header of a
//! `.safetensors` file also holds, as text, `n_atoms`, `n_features`, `unit`, and for patches of
//! images `side`, `step` and `images`: a JSON list of `{name, height, width}`, in the order of the
//! rows. A `.npz` file has no place for these.
//!
//! [`csr`] writes the same codes as a sparse matrix of scipy.
pub mod csr;

use crate::dictionary::Dictionary;
use crate::io::{load_tensors, save_tensors};
use candle::{DType, Device, Error, Result, Tensor, bail};
use chandlery_datasets::whole::WholeFile;
use chandlery_ops::codes::SparseCodes;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// The arrays of a file.
const ARRAYS: [&str; 5] = ["indices", "values", "count", "mean", "dictionary"];

/// A format of codes, told by the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// NumPy's archive of arrays, without notes.
    Npz,
    /// With notes in its header.
    Safetensors,
}

impl Format {
    /// The format of a file by its name.
    ///
    /// # Errors
    /// When the extension is neither.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => Ok(Self::Npz),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => bail!("{}: the name must end in .npz or .safetensors", path.display()),
        }
    }
}

/// An image that was coded patch by patch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodedImage {
    /// Its name, as its source has it.
    pub name: String,
    /// In pixels.
    pub height: usize,
    /// In pixels.
    pub width: usize,
}

/// Where patches were cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Height and width of a patch.
    pub side: usize,
    /// Pixels from patch to patch.
    pub step: usize,
    /// In the order of the rows.
    pub images: Vec<CodedImage>,
}

/// Metadata in the header of a file of codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notes {
    /// Atoms of the dictionary.
    pub n_atoms: usize,
    /// Values of a signal.
    pub n_features: usize,
    /// Of the rows' values.
    pub unit: String,
    /// None for rows that are no patches.
    pub cut: Option<Cut>,
}

impl Notes {
    fn to_header(&self) -> Result<HashMap<String, String>> {
        let mut header = HashMap::from([
            ("n_atoms", self.n_atoms.to_string()),
            ("n_features", self.n_features.to_string()),
            ("unit", self.unit.clone()),
        ]);
        if let Some(Cut { side, step, images }) = &self.cut {
            header.insert("side", side.to_string());
            header.insert("step", step.to_string());
            header.insert("images", serde_json::to_string(images).map_err(Error::wrap)?);
        }
        Ok(header.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// None where the header has none of it: the file is of another hand.
    fn from_header(header: &HashMap<String, String>) -> Result<Option<Self>> {
        if !header.contains_key("n_atoms") {
            return Ok(None);
        }
        let text = |name: &str| {
            let lacking = || Error::Msg(format!("its header must have `{name}`; encode again"));
            header.get(name).ok_or_else(lacking)
        };
        let number = |name: &str| -> Result<usize> {
            let text = text(name)?;
            text.parse()
                .map_err(|_| Error::Msg(format!("`{name}` of its header must be a number, got {text}")))
        };
        let cut = match header.get("images") {
            None => None,
            Some(images) => Some(Cut {
                side: number("side")?,
                step: number("step")?,
                images: serde_json::from_str(images)
                    .map_err(|err| Error::Msg(format!("`images` of its header cannot be read: {err}")))?,
            }),
        };
        Ok(Some(Self {
            n_atoms: number("n_atoms")?,
            n_features: number("n_features")?,
            unit: text("unit")?.clone(),
            cut,
        }))
    }
}

/// A number that tells dictionaries apart: FNV-1a over the bits of the atoms in f32, 64 bits.
///
/// # Errors
/// When the atoms cannot be copied to the host.
pub fn fingerprint(atoms: &Tensor) -> Result<u64> {
    let values = atoms.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    Ok(values.iter().flat_map(|x| x.to_bits().to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step))
}

/// The content of a file of codes, on the CPU.
#[derive(Debug)]
pub struct CodesFile {
    /// The [fingerprint] of the dictionary; none in files of another hand.
    pub dictionary: Option<u64>,
    /// `[m, s]`.
    pub codes: SparseCodes,
    /// `[m]` f32.
    pub mean: Tensor,
    /// None in a `.npz` file and in one of another hand.
    pub notes: Option<Notes>,
}

impl CodesFile {
    /// Writes the file beside its name and renames it over it.
    ///
    /// # Errors
    /// When the extension is neither, or the disk refuses.
    pub fn write(&self, path: &Path) -> Result<()> {
        let Self { dictionary, codes, mean, notes } = self;
        let mut tensors = vec![
            ("indices", codes.indices.clone()),
            ("values", codes.values.to_dtype(DType::F32)?),
            ("count", codes.count.clone()),
            ("mean", mean.clone()),
        ];
        if let Some(print) = dictionary {
            let halves = [(print >> 32) as u32, *print as u32];
            tensors.push(("dictionary", Tensor::new(&halves, &Device::Cpu)?));
        }
        let header = notes.as_ref().map(Notes::to_header).transpose()?;
        match Format::of(path)? {
            Format::Npz => {
                let file = WholeFile::create(path)?;
                Tensor::write_npz(&tensors, file.beside())
                    .map_err(|err| Error::Msg(format!("{}: cannot write: {err}", path.display())))?;
                Ok(file.finish()?)
            }
            Format::Safetensors => {
                let tensors = tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
                save_tensors(path, tensors, header.unwrap_or_default())
            }
        }
    }

    /// Reads a file that [`write`](Self::write) wrote for this dictionary, or one of another hand.
    ///
    /// # Errors
    /// When it is missing or cannot be read, lacks an array, or its shapes and indices do not fit
    /// each other and the dictionary.
    pub fn read(path: &Path, dictionary: &Dictionary) -> Result<Self> {
        Self::read_unnamed(path, dictionary).map_err(|err| match err.to_string() {
            // Errors of reading have it already.
            text if text.contains(&path.display().to_string()) => err,
            text => Error::Msg(format!("{}: {text}", path.display())),
        })
    }

    fn read_unnamed(path: &Path, dictionary: &Dictionary) -> Result<Self> {
        let n_atoms = dictionary.config().n_atoms;
        let (mut tensors, notes): (HashMap<String, Tensor>, _) = match Format::of(path)? {
            Format::Npz => (chandlery_datasets::read_npz(path, &ARRAYS).map_err(Error::wrap)?, None),
            Format::Safetensors => {
                let (tensors, header) = load_tensors(path, &Device::Cpu)?;
                (tensors, Notes::from_header(&header)?)
            }
        };
        if let Some(notes) = &notes {
            ensure!(
                notes.n_atoms == n_atoms,
                "the codes are for a dictionary of {} atoms, and this one has {n_atoms}; decode with the dictionary that made them",
                notes.n_atoms
            );
        }
        let made_by = match tensors.remove("dictionary").map(|halves| halves.to_vec1::<u32>()).transpose()? {
            Some(halves) => match halves[..] {
                [high, low] => Some((u64::from(high) << 32) | u64::from(low)),
                _ => bail!("`dictionary` must be two numbers, got {}", halves.len()),
            },
            None => None,
        };
        ensure!(
            made_by.is_none_or(|made_by| Ok(made_by) == fingerprint(dictionary.atoms()).map_err(|_| ())),
            "the codes are for another dictionary of {n_atoms} atoms; decode with the dictionary that made them"
        );
        let mut take = |name: &str, dtype: DType| -> Result<Tensor> {
            let Some(tensor) = tensors.remove(name) else { bail!("must hold the array `{name}`") };
            let got = tensor.dtype();
            ensure!(got == dtype, "`{name}` must be {dtype:?}, got {got:?}");
            Ok(tensor)
        };
        let (indices, values) = (take("indices", DType::U32)?, take("values", DType::F32)?);
        let (count, mean) = (take("count", DType::U32)?, take("mean", DType::F32)?);
        let (m, s) = indices.dims2().map_err(|err| err.context("`indices` must be a matrix"))?;
        for (name, tensor, want) in
            [("values", &values, &[m, s][..]), ("count", &count, &[m]), ("mean", &mean, &[m])]
        {
            ensure!(
                tensor.dims() == want,
                "`{name}` must have shape {want:?} to go with indices of [{m}, {s}], got {:?}",
                tensor.dims()
            );
        }
        ensure!(m > 0 && s > 0, "there must be at least 1 code, got none");
        let largest = indices.max_all()?.to_scalar::<u32>()?;
        ensure!(
            (largest as usize) < n_atoms,
            "`indices` must be below {n_atoms}, the atoms of this dictionary, got {largest}"
        );
        let longest = count.max(0)?.to_scalar::<u32>()?;
        ensure!(longest as usize <= s, "`count` must be at most {s}, the width of indices, got {longest}");
        for (name, tensor) in [("values", &values), ("mean", &mean)] {
            let sum = tensor.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
            ensure!(sum.is_finite(), "`{name}` must be finite numbers, and some are not; encode again");
        }
        Ok(Self { dictionary: made_by, codes: SparseCodes { indices, values, count, n_atoms }, mean, notes })
    }

    /// Codes and means of `n` rows from `first` on, on `device`.
    ///
    /// # Errors
    /// When there are not so many rows.
    pub fn rows(&self, first: usize, n: usize, device: &Device) -> Result<(SparseCodes, Tensor)> {
        // Of a view all that it is of would be copied.
        let part = |t: &Tensor| t.narrow(0, first, n)?.force_contiguous()?.to_device(device);
        let SparseCodes { indices, values, count, n_atoms } = &self.codes;
        let codes = SparseCodes {
            indices: part(indices)?,
            values: part(values)?,
            count: part(count)?,
            n_atoms: *n_atoms,
        };
        Ok((codes, part(&self.mean)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    /// A dictionary of so many atoms of four values.
    fn of(n_atoms: usize) -> Dictionary {
        let config = crate::dictionary::DictionaryConfig::new(n_atoms, 4, 2);
        Dictionary::from_tensor(config, Tensor::ones((n_atoms, 4), DType::F32, &Cpu).unwrap()).unwrap()
    }

    /// Three rows of two entries over five atoms.
    fn example(notes: Option<Notes>) -> CodesFile {
        CodesFile {
            dictionary: Some(fingerprint(of(5).atoms()).unwrap()),
            codes: SparseCodes {
                indices: Tensor::new(&[[4u32, 1], [2, 0], [0, 0]], &Cpu).unwrap(),
                values: Tensor::new(&[[1f32, -2.], [3., 0.], [0., 0.]], &Cpu).unwrap(),
                count: Tensor::new(&[2u32, 1, 0], &Cpu).unwrap(),
                n_atoms: 5,
            },
            mean: Tensor::new(&[7f32, 8., 9.], &Cpu).unwrap(),
            notes,
        }
    }

    fn notes(cut: Option<Cut>) -> Option<Notes> {
        Some(Notes { n_atoms: 5, n_features: 4, unit: "grey levels".to_owned(), cut })
    }

    #[test]
    fn both_formats_give_back_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let image = |name: &str| CodedImage { name: name.to_owned(), height: 2, width: 3 };
        let cut = Cut { side: 2, step: 1, images: vec![image("a/ä \"b\".png"), image("c")] };
        for (name, notes) in
            [("a.npz", None), ("a.safetensors", notes(None)), ("b.safetensors", notes(Some(cut)))]
        {
            let (path, written) = (dir.path().join(name), example(notes));
            written.write(&path).unwrap();
            let read = CodesFile::read(&path, &of(5)).unwrap();
            let atoms = (of(5).atoms() * 2.).unwrap();
            let other = Dictionary::from_tensor(of(5).config().clone(), atoms).unwrap();
            let err = format!("{:#}", CodesFile::read(&path, &other).unwrap_err());
            assert!(
                err.contains("another dictionary of 5 atoms; decode with the dictionary that made them"),
                "{err}"
            );
            assert_eq!(read.notes, written.notes);
            let (codes, mean) = read.rows(0, 2, &Cpu).unwrap();
            assert_eq!(codes.indices.to_vec2::<u32>().unwrap(), [[4, 1], [2, 0]]);
            assert_eq!(codes.values.to_vec2::<f32>().unwrap(), [[1., -2.], [3., 0.]]);
            assert_eq!(codes.count.to_vec1::<u32>().unwrap(), [2, 1]);
            assert_eq!(mean.to_vec1::<f32>().unwrap(), [7., 8.]);
        }
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_what_they_lack() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let text = |n_atoms: usize| format!("{:#}", CodesFile::read(&path, &of(n_atoms)).unwrap_err());
        assert!(text(5).contains("a.safetensors: cannot be read"), "{}", text(5));
        let fine = example(notes(None));
        fine.write(&path).unwrap();
        assert!(text(6).contains("for a dictionary of 5 atoms, and this one has 6"), "{}", text(6));
        CodesFile { mean: fine.mean.narrow(0, 0, 2).unwrap(), ..example(notes(None)) }.write(&path).unwrap();
        assert!(
            text(5).contains("`mean` must have shape [3] to go with indices of [3, 2], got [2]"),
            "{}",
            text(5)
        );
        let mut beyond = example(notes(None));
        beyond.codes.indices = (beyond.codes.indices + 1.).unwrap();
        beyond.write(&path).unwrap();
        assert!(
            text(5).contains("`indices` must be below 5, the atoms of this dictionary, got 5"),
            "{}",
            text(5)
        );
        candle::safetensors::save(&HashMap::from([("count", fine.codes.count)]), &path).unwrap();
        assert!(text(5).contains("must hold the array `indices`"), "{}", text(5));
    }
}
