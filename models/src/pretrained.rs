//! A model in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
//!
//! Every model has `save_pretrained(folder)` and `from_pretrained(folder or hub id, device)`. A hub id is `owner/name`, or `owner/name@revision`
//! for a branch, a tag or a commit; both files are of one commit. With `hub:` before it, it is an id even if there is a folder `owner` here.
//! `config.json` holds the fields of its
//! configuration and two more:
//!
//! | field | what |
//! |---|---|
//! | `model_type` | the [`name`](ModelType::name) of its [`ModelType`]; files from before there was one are told by their other fields |
//! | `format` | the version of the format, 2; 1 had a number `input_scale` or `remove_mean` in place of `preparation` |
//!
//! [`model_type`] says which model a folder holds, so that a program can take any.
//!
//! ```
//! use candle::Device::Cpu;
//! use chandlery::pretrained::{ModelType, model_type};
//! use chandlery::rbm::{Rbm, RbmConfig};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("chandlery-type-{}", std::process::id()));
//! let rbm = Rbm::init(RbmConfig::new(4, 3), Philox::new(1, 0), &Cpu)?;
//! rbm.save_pretrained(&folder)?;
//! let name = folder.display().to_string(); // or a hub id, "owner/name"
//! assert_eq!(model_type(&name)?, ModelType::Rbm);
//! let again = Rbm::from_pretrained(&name, &Cpu)?;
//! assert_eq!(again.config(), rbm.config());
//! # std::fs::remove_dir_all(&folder).map_err(candle::Error::wrap)?;
//! # Ok(()) }
//! ```
use crate::check::is_finite;
use crate::io::{bytes_of, load_tensors, written};
use crate::prepare::Prepares;
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::Preparation;
use chandlery_datasets::whole::{finish_all, is_unfinished};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// The version of `config.json` and of the names in `model.safetensors` that this library writes, and the highest that it reads.
const FORMAT: u64 = 2;

/// Which model a `config.json` is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelType {
    /// [`Rbm`](crate::rbm::Rbm).
    Rbm,
    /// [`Dbn`](crate::dbn::Dbn).
    Dbn,
    /// [`LabelledDbn`](crate::labelled::LabelledDbn).
    LabelledDbn,
    /// [`Feedforward`](crate::feedforward::Feedforward).
    Feedforward,
    /// [`Dictionary`](crate::dictionary::Dictionary).
    Dictionary,
    /// [`Dae`](crate::dae::Dae).
    Dae,
    /// [`StackedDae`](crate::dae::StackedDae).
    StackedDae,
    /// [`SparseAutoencoder`](crate::sparse_autoencoder::SparseAutoencoder).
    SparseAutoencoder,
    /// [`SparseCoding`](crate::sparse_coding::SparseCoding).
    SparseCoding,
    /// [`Embedding`](crate::tsne::Embedding).
    Tsne,
}

impl ModelType {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::Rbm,
        Self::Dbn,
        Self::LabelledDbn,
        Self::Feedforward,
        Self::Dictionary,
        Self::Dae,
        Self::StackedDae,
        Self::SparseAutoencoder,
        Self::SparseCoding,
        Self::Tsne,
    ];

    /// The lower-case name that files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rbm => "rbm",
            Self::Dbn => "deep-belief-network",
            Self::LabelledDbn => "labelled-deep-belief-network",
            Self::Feedforward => "feedforward",
            Self::Dictionary => "dictionary",
            Self::Dae => "denoising-autoencoder",
            Self::StackedDae => "stacked-denoising-autoencoder",
            Self::SparseAutoencoder => "sparse-autoencoder",
            Self::SparseCoding => "sparse-coding",
            Self::Tsne => "t-sne",
        }
    }

    /// The type that loads it.
    fn loader(self) -> &'static str {
        match self {
            Self::Rbm => "chandlery::rbm::Rbm",
            Self::Dbn => "chandlery::dbn::Dbn",
            Self::LabelledDbn => "chandlery::labelled::LabelledDbn",
            Self::Feedforward => "chandlery::feedforward::Feedforward",
            Self::Dictionary => "chandlery::dictionary::Dictionary",
            Self::Dae => "chandlery::dae::Dae",
            Self::StackedDae => "chandlery::dae::StackedDae",
            Self::SparseAutoencoder => "chandlery::sparse_autoencoder::SparseAutoencoder",
            Self::SparseCoding => "chandlery::sparse_coding::SparseCoding",
            Self::Tsne => "chandlery::tsne::Embedding",
        }
    }

    /// By the fields of a configuration that says no type; none when they are those of no model.
    fn by_fields(config: &Value) -> Option<Self> {
        // A deep belief network's `layers` are those of a feed-forward network without its `task`, and an RBM's sizes are those of
        // an autoencoder that does not say whether its weights are tied.
        let fields: [(Self, &[&str]); 10] = [
            (Self::Feedforward, &["/task", "/layers"]),
            (Self::LabelledDbn, &["/sizes", "/n_classes"]),
            (Self::StackedDae, &["/layers/0/tied"]),
            (Self::Dbn, &["/layers"]),
            (Self::SparseCoding, &["/n_atoms", "/n_features", "/beta"]),
            (Self::Dictionary, &["/n_atoms", "/n_features"]),
            (Self::Dae, &["/n_visible", "/n_hidden", "/tied"]),
            (Self::SparseAutoencoder, &["/n_visible", "/n_hidden", "/decoder"]),
            (Self::Rbm, &["/n_visible", "/n_hidden"]),
            (Self::Tsne, &["/n_dims", "/perplexity"]),
        ];
        let has = |places: &[&str]| places.iter().all(|place| config.pointer(place).is_some());
        fields.into_iter().find(|(_, names)| has(names)).map(|(model, _)| model)
    }
}

impl Display for ModelType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Which model a folder holds, or by an id (`owner/name[@revision]`) a repository of the hub through its cache.
///
/// # Errors
/// When there is no `config.json` there, it cannot be read, is of no model of this library, or was written by a newer version; the
/// message names it.
pub fn model_type(folder_or_id: &str) -> Result<ModelType> {
    let file = ConfigFile::read(&Place::of(folder_or_id, &[CONFIG])?)?;
    file.model_type()?.ok_or_else(|| {
        file.refused(&"it has no model_type, and the fields of no model of chandlery; give the folder of one")
    })
}

/// Reads the configuration from a folder, or by an id (`owner/name[@revision]`) from the hub through its cache, and makes the model of
/// it and of the weights, in `dtype` on `device`.
///
/// # Errors
/// When there is neither, a file is missing or does not fit, or the model is not of the type `want`; the message names the file.
pub(crate) fn load<C: DeserializeOwned + Prepares, M>(
    want: ModelType,
    folder_or_id: &str,
    dtype: DType,
    device: &Device,
    make: impl FnOnce(C, VarBuilder) -> Result<M>,
) -> Result<M> {
    if !dtype.is_float() {
        candle::bail!("{want}: weights must be of a float type, got {dtype:?}")
    }
    load_stored(want, folder_or_id, device, |config, tensors| {
        make(config, VarBuilder::from_tensors(tensors, dtype, device))
    })
}

/// The same from the tensors in the types that they are stored in.
pub(crate) fn load_stored<C: DeserializeOwned + Prepares, M>(
    want: ModelType,
    folder_or_id: &str,
    device: &Device,
    make: impl FnOnce(C, HashMap<String, Tensor>) -> Result<M>,
) -> Result<M> {
    let (mut config, weights, tensors) = read_both::<C>(want, folder_or_id, device)?;
    let refused = |e: &dyn Display| Error::Msg(format!("{}: {e}", weights.display()));
    for (name, t) in tensors.iter().filter(|(_, t)| t.dtype().is_float()) {
        if !is_finite(t)? {
            return Err(refused(&format_args!(
                "{name} holds NaN or infinite values, so that the model would give nothing else; train it again with a lower learning rate"
            )));
        }
    }
    config.preparation().load(&tensors, device).map_err(|e| refused(&e))?;
    make(config, tensors).map_err(|e| refused(&e))
}

/// Times that a folder is read anew while somebody writes another model to it, and the wait between two.
const READS: usize = 20;
const WAIT: Duration = Duration::from_millis(50);

/// The configuration and the tensors that belong to it, with the path of these: [`save`] takes the configuration away before it changes the
/// weights, so that they belong together where it is the same before and after them.
fn read_both<C: DeserializeOwned>(
    want: ModelType,
    folder_or_id: &str,
    device: &Device,
) -> Result<(C, PathBuf, HashMap<String, Tensor>)> {
    let folder = Path::new(folder_or_id);
    let is_written = || {
        let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.any(|file| is_unfinished(&file.file_name(), Some(CONFIG)))
    };
    let place = Place::of(folder_or_id, &[CONFIG, WEIGHTS])?;
    for again in (0..READS).rev() {
        match ConfigFile::read(&place) {
            Ok(before) => {
                let config = before.config(want)?;
                let path = place.file(WEIGHTS)?;
                let (tensors, _) = load_tensors(&path, device)?;
                let same = |after: ConfigFile| after.text == before.text;
                if again == 0 || !folder.is_dir() || ConfigFile::read(&place).is_ok_and(same) {
                    return Ok((config, path, tensors));
                }
            }
            Err(e) => {
                if again == 0 || !folder.is_dir() || !is_written() && ConfigFile::read(&place).is_err() {
                    return Err(e);
                }
            }
        }
        std::thread::sleep(WAIT);
    }
    candle::bail!("{folder_or_id}: cannot be read while another model is written there; read it again")
}

/// A `config.json`, and what it says about itself.
struct ConfigFile {
    path: PathBuf,
    text: String,
    /// The same, parsed.
    fields: Value,
}

impl ConfigFile {
    /// Refuses a file that is no JSON, and one of a newer format before anything else is made of it.
    fn read(place: &Place) -> Result<Self> {
        let path = place.file(CONFIG)?;
        let unread = |e: &dyn Display| Error::Msg(format!("{}: cannot be read: {e}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|e| unread(&e))?;
        let fields = serde_json::from_str(&text).map_err(|e| unread(&e))?;
        let file = Self { path, text, fields };
        match file.fields.get("format").map(|format| (format, format.as_u64())) {
            None | Some((_, Some(1..=FORMAT))) => Ok(file),
            Some((format, Some(1..))) => Err(file.refused(&format_args!(
                "it is of format {format}, which a newer version of chandlery wrote, and this one reads up to {FORMAT}; update chandlery"
            ))),
            Some((format, _)) => Err(file.refused(&format_args!(
                "format must be a whole number from 1 to {FORMAT}, got {format}"
            ))),
        }
    }

    /// An error that names the file.
    fn refused(&self, why: &dyn Display) -> Error {
        Error::Msg(format!("{}: cannot be read: {why}", self.path.display()))
    }

    /// Which model it is of; none when it neither says so nor has the fields of one.
    fn model_type(&self) -> Result<Option<ModelType>> {
        let Some(said) = self.fields.get("model_type") else {
            return Ok(ModelType::by_fields(&self.fields));
        };
        match ModelType::ALL.into_iter().find(|model| said == model.name()) {
            Some(model) => Ok(Some(model)),
            None => Err(self.refused(&format_args!(
                "model_type must be one of {}, got {said}; it is no model of this version of chandlery",
                ModelType::ALL.map(ModelType::name).join(", ")
            ))),
        }
    }

    /// The configuration, of a model of this type.
    ///
    /// A configuration takes no notice of fields that it does not know, and so none of the two that are not its own; floats are parsed
    /// straight from the text.
    fn config<C: DeserializeOwned>(&self, want: ModelType) -> Result<C> {
        match self.model_type()? {
            Some(got) if got != want => Err(Error::Msg(format!(
                "{}: this model is of type {got}, not {want}; load it with {}::from_pretrained",
                self.path.display(),
                got.loader()
            ))),
            _ => serde_json::from_str(&self.text).map_err(|e| self.refused(&e)),
        }
    }
}

/// The content of `config.json`.
#[derive(Serialize)]
struct Content<'a, C> {
    model_type: &'static str,
    format: u64,
    #[serde(flatten)]
    config: &'a C,
}

/// Writes both files to a folder, which is made if need be, with what was fitted of the preparation that is part of `config`. Each
/// file appears whole. Both are written beside their names first; then, within the time of three renames, the old configuration goes, the
/// weights change, and the configuration comes last, so that who reads the same configuration before and after the weights has its weights.
///
/// # Errors
/// When the folder is not writable.
pub(crate) fn save(
    model_type: ModelType,
    folder: &Path,
    config: &impl Serialize,
    preparation: &Preparation,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::Msg(format!("{}: cannot be made: {e}", folder.display())))?;
    let notes = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let fitted = preparation.tensors().map_err(Error::wrap)?;
    let path = folder.join(WEIGHTS);
    let weights = written(&path, &bytes_of(&path, tensors.into_iter().chain(fitted), notes)?)?;
    let path = folder.join(CONFIG);
    let content = Content { model_type: model_type.name(), format: FORMAT, config };
    let mut text = serde_json::to_vec_pretty(&content).map_err(Error::wrap)?;
    text.push(b'\n');
    let config = written(&path, &text)?;
    let first = || match std::fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(std::io::Error::new(e.kind(), format!("{}: cannot write: {e}", path.display())))
        }
        _ => Ok(()),
    };
    Ok(finish_all([weights, config], first)?)
}

/// Whether a name that is that of no folder may be one of the hub: an owner and a name, and not one
/// below a folder that is here, or `runs`, where programs put theirs: of those another folder was
/// meant.
fn may_be_id(name: &Path) -> bool {
    // A revision may have slashes of its own.
    let text = name.to_string_lossy();
    let name = Path::new(text.split_once('@').map_or(&*text, |(name, _)| name));
    let parts: Vec<_> = name.components().collect();
    match parts[..] {
        [Component::Normal(owner), Component::Normal(_)] => owner != "runs" && !Path::new(owner).is_dir(),
        _ => false,
    }
}

/// Where a model is.
enum Place {
    Folder(PathBuf),
    /// One commit of a repository of the hub, by its id.
    #[cfg(feature = "hub")]
    Hub(String, Box<chandlery_datasets::hub::Snapshot>),
}

impl Place {
    /// A folder, or else the repository with this id, of which `files` will be read.
    fn of(folder_or_id: &str, files: &[&str]) -> Result<Self> {
        let folder = Path::new(folder_or_id);
        if folder.is_dir() {
            return Ok(Self::Folder(folder.to_owned()));
        }
        let id = folder_or_id.strip_prefix("hub:");
        if id.is_none() && !may_be_id(folder) {
            return Err(Error::Msg(format!("{folder_or_id}: no such folder")));
        }
        Self::of_hub(id.unwrap_or(folder_or_id), files)
    }

    #[cfg(feature = "hub")]
    fn of_hub(id: &str, files: &[&str]) -> Result<Self> {
        let snapshot = chandlery_datasets::hub::Snapshot::of_model(id, files);
        let file = files.first().copied().unwrap_or_default();
        Ok(Self::Hub(id.to_owned(), Box::new(snapshot.map_err(|e| not_given(id, file, &e))?)))
    }

    #[cfg(not(feature = "hub"))]
    fn of_hub(id: &str, _: &[&str]) -> Result<Self> {
        Err(Error::Msg(format!(
            "{id}: no such folder; to load models from the Hugging Face hub build chandlery with the feature `hub`"
        )))
    }

    /// The path of a file, downloaded if it is neither here nor in the hub's cache.
    fn file(&self, name: &str) -> Result<PathBuf> {
        match self {
            Self::Folder(folder) => Ok(folder.join(name)),
            #[cfg(feature = "hub")]
            Self::Hub(id, snapshot) => snapshot.fetch(name).map_err(|e| not_given(id, name, &e)),
        }
    }
}

#[cfg(feature = "hub")]
fn not_given(id: &str, file: &str, why: &dyn Display) -> Error {
    Error::Msg(format!("{id}: no such folder, and the hub gives no {file} of a model of this name: {why}"))
}
