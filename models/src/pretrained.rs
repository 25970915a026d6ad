//! A model in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
//!
//! A hub id is `owner/name`, or `owner/name@revision` for a branch, a tag or a commit; both files
//! are of one commit. With `hub:` before it, it is an id even if there is a folder `owner` here;
//! without, only two plain names are one, of which the first is no folder here and not `runs`, so
//! that a mistyped folder asks nobody.
//!
//! `config.json` holds the fields of the configuration and two more:
//!
//! | field | what |
//! |---|---|
//! | `model_type` | the [`name`](ModelType::name) of its [`ModelType`] |
//! | `format` | the version of the format, 1 |
//!
//! `model.safetensors` holds the parameters and, as `preparation.…`, what was fitted of the
//! preparation. Names are those that [`Model::new`](crate::Model::new) looks for; `weight` with
//! `bias` are a [`candle_nn::Linear`] and a `torch.nn.Linear` as they stand.
//!
//! [`model_type`] says which model a folder holds, so that a program can take any.
//!
//! ```
//! use candle::Device::Cpu;
//! use chandlery::pretrained::{LoadOptions, ModelType, model_type};
//! use chandlery::rbm::{Rbm, RbmConfig};
//! use chandlery::{Model, Philox};
//! # fn main() -> candle::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("chandlery-type-{}", std::process::id()));
//! let rbm = Rbm::init(RbmConfig::new(4, 3), Philox::new(1, 0), &Cpu)?;
//! rbm.save_pretrained(&folder)?;
//! assert_eq!(model_type(&folder)?, ModelType::Rbm);
//! let again = Rbm::from_pretrained(&folder, &LoadOptions::on(&Cpu))?; // or a hub id, "owner/name"
//! assert_eq!(again.config(), rbm.config());
//! # std::fs::remove_dir_all(&folder).map_err(candle::Error::wrap)?;
//! # Ok(()) }
//! ```
use crate::check::is_finite;
use crate::io::{bytes_of, load_tensors, written};
use crate::pieces::{self, Streamed};
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::Preparation;
use chandlery_datasets::whole::{WholeFile, finish_all, is_unfinished};
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

/// The version of `config.json` and of the names in `model.safetensors`.
const FORMAT: u64 = 1;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where it goes. Default the CPU.
    pub device: Device,
    /// The float type of its parameters, in which it computes; none, the default, for the one that
    /// they are stored in.
    pub dtype: Option<DType>,
    /// A branch, a tag or a commit of a repository of the hub; none, the default, for its main
    /// branch, or the one that the id names.
    pub revision: Option<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self::on(&Device::Cpu)
    }
}

impl LoadOptions {
    /// To `device`, and the defaults.
    pub fn on(device: &Device) -> Self {
        Self { device: device.clone(), dtype: None, revision: None }
    }
}

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
    /// [`Sae`](crate::sparse_autoencoder::sae::Sae).
    Sae,
    /// [`SparseCoding`](crate::sparse_coding::SparseCoding).
    SparseCoding,
    /// [`Embedding`](crate::tsne::Embedding).
    Tsne,
    /// [`Softmax`](crate::softmax::Softmax).
    Softmax,
}

impl ModelType {
    /// Every one.
    pub const ALL: [Self; 12] = [
        Self::Rbm,
        Self::Dbn,
        Self::LabelledDbn,
        Self::Feedforward,
        Self::Dictionary,
        Self::Dae,
        Self::StackedDae,
        Self::SparseAutoencoder,
        Self::Sae,
        Self::SparseCoding,
        Self::Tsne,
        Self::Softmax,
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
            Self::Sae => "sae",
            Self::SparseCoding => "sparse-coding",
            Self::Tsne => "t-sne",
            Self::Softmax => "softmax",
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
            Self::Sae => "chandlery::sparse_autoencoder::sae::Sae",
            Self::SparseCoding => "chandlery::sparse_coding::SparseCoding",
            Self::Tsne => "chandlery::tsne::Embedding",
            Self::Softmax => "chandlery::softmax::Softmax",
        }
    }

    /// The name of that type alone, which errors of the model begin with.
    pub(crate) fn rust_name(self) -> &'static str {
        self.loader().rsplit(':').next().unwrap_or_default()
    }
}

impl Display for ModelType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Which model a folder holds, or by an id (`owner/name[@revision]`) a repository of the hub
/// through its cache.
///
/// # Errors
/// When there is no `config.json` there, it cannot be read, is of no model of this library, or was
/// written by another version; the message names it.
pub fn model_type(folder_or_id: impl AsRef<Path>) -> Result<ModelType> {
    ConfigFile::read(&Place::of(folder_or_id.as_ref(), None, &[CONFIG])?)?.model_type()
}

/// [`Model::from_pretrained`](crate::Model::from_pretrained): `make` makes a model of its
/// configuration and its tensors.
pub(crate) fn load<C: DeserializeOwned, M>(
    want: ModelType,
    folder_or_id: &Path,
    options: &LoadOptions,
    make: impl FnOnce(C, VarBuilder) -> Result<M>,
) -> Result<M> {
    let LoadOptions { device, dtype, revision } = options;
    let (config, weights, tensors) = read_both::<C>(want, folder_or_id, revision.as_deref(), device)?;
    let refused = |e: &dyn Display| Error::Msg(format!("{}: {e}", weights.display()));
    let floats = || tensors.iter().filter(|(_, t)| t.dtype().is_float());
    for (name, t) in floats() {
        if !is_finite(t)? {
            return Err(refused(&format_args!(
                "{name} holds NaN or infinite values, so that the model would give nothing else; train it again with a lower learning rate"
            )));
        }
    }
    let stored = floats().filter(|(name, _)| !name.starts_with("preparation.")).map(|(_, t)| t.dtype());
    let dtype = dtype.or(stored.max_by_key(|dtype| dtype.size_in_bytes())).unwrap_or(DType::F32);
    make(config, VarBuilder::from_tensors(tensors, dtype, device)).map_err(|e| refused(&e))
}

/// Times that a folder is read anew while somebody writes another model to it, and the wait between
/// two.
const READS: usize = 20;
const WAIT: Duration = Duration::from_millis(50);

/// The configuration and the tensors that belong to it, with the path of these: [`save`] takes the
/// configuration away before it changes the weights, so that they belong together where it is the
/// same before and after them.
fn read_both<C: DeserializeOwned>(
    want: ModelType,
    folder: &Path,
    revision: Option<&str>,
    device: &Device,
) -> Result<(C, PathBuf, HashMap<String, Tensor>)> {
    let is_written = || {
        let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.any(|file| is_unfinished(&file.file_name(), Some(CONFIG)))
    };
    let place = Place::of(folder, revision, &[CONFIG, WEIGHTS])?;
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
    candle::bail!("{}: cannot be read while another model is written there; read it again", folder.display())
}

/// A `config.json`, and what it says about itself.
struct ConfigFile {
    path: PathBuf,
    text: String,
    /// The same, parsed.
    fields: Value,
}

impl ConfigFile {
    /// Refuses a file that is no JSON, and one of another format before anything else is made of
    /// it.
    fn read(place: &Place) -> Result<Self> {
        let path = place.file(CONFIG)?;
        let unread = |e: &dyn Display| Error::Msg(format!("{}: cannot be read: {e}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|e| unread(&e))?;
        let fields: Value = serde_json::from_str(&text).map_err(|e| unread(&e))?;
        let file = Self { path, text, fields };
        match file.fields.get("format") {
            Some(format) if format.as_u64() == Some(FORMAT) => Ok(file),
            None if file.fields.get("model_type").is_none() => {
                Err(file
                    .refused(&"it has no model_type: it is no model of chandlery; give the folder of one"))
            }
            format => Err(file.refused(&format_args!(
                "format must be {FORMAT}, got {}; another version of chandlery wrote it",
                format.map_or_else(|| "none".to_owned(), ToString::to_string)
            ))),
        }
    }

    /// An error that names the file.
    fn refused(&self, why: &dyn Display) -> Error {
        Error::Msg(format!("{}: cannot be read: {why}", self.path.display()))
    }

    /// Which model it is of.
    fn model_type(&self) -> Result<ModelType> {
        let said = self.fields.get("model_type").unwrap_or(&Value::Null);
        let known = ModelType::ALL.into_iter().find(|model| said == model.name());
        known.ok_or_else(|| {
            self.refused(&format_args!(
                "model_type must be one of {}, got {said}; it is no model of this version of chandlery",
                ModelType::ALL.map(ModelType::name).join(", ")
            ))
        })
    }

    /// The configuration, of a model of this type.
    ///
    /// A configuration takes no notice of fields that it does not know, and so none of the two that
    /// are not its own; floats are parsed straight from the text.
    fn config<C: DeserializeOwned>(&self, want: ModelType) -> Result<C> {
        match self.model_type()? {
            got if got != want => Err(Error::Msg(format!(
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

/// [`Model::save_pretrained`](crate::Model::save_pretrained). Each file appears whole. Both are
/// written beside their names first; then, within the time of three renames, the old configuration
/// goes, the weights change, and the configuration comes last, so that who reads the same
/// configuration before and after the weights has its weights.
pub(crate) fn save(
    folder: &Path,
    model_type: ModelType,
    config: &impl Serialize,
    preparation: &Preparation,
    tensors: Vec<(String, Tensor)>,
) -> Result<()> {
    let fitted = preparation.tensors().map_err(Error::wrap)?;
    saved(folder, model_type, config, |path, notes| {
        written(path, &bytes_of(path, tensors.into_iter().chain(fitted), notes)?)
    })
}

/// The same of a model whose tensors come in pieces.
pub(crate) fn save_in_pieces(
    folder: &Path,
    model_type: ModelType,
    config: &impl Serialize,
    preparation: &Preparation,
    tensors: Vec<Streamed<'_>>,
) -> Result<()> {
    let fitted = preparation.tensors().map_err(Error::wrap)?;
    let tensors = tensors.into_iter().chain(fitted.into_iter().map(|(name, t)| Streamed::whole(name, t)));
    let tensors = pieces::in_order(tensors.collect());
    saved(folder, model_type, config, |path, notes| Ok(pieces::written(path, &tensors, notes)?.0))
}

fn saved(
    folder: &Path,
    model_type: ModelType,
    config: &impl Serialize,
    write: impl FnOnce(&Path, HashMap<String, String>) -> Result<WholeFile>,
) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::Msg(format!("{}: cannot be made: {e}", folder.display())))?;
    let notes = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let weights = write(&folder.join(WEIGHTS), notes)?;
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
    fn of(folder: &Path, revision: Option<&str>, files: &[&str]) -> Result<Self> {
        let text = folder.to_string_lossy();
        let id = text.strip_prefix("hub:");
        match revision {
            _ if id.is_none() && !folder.is_dir() && !may_be_id(folder) => {
                Err(Error::Msg(format!("{text}: no such folder")))
            }
            None if folder.is_dir() => Ok(Self::Folder(folder.to_owned())),
            None => Self::of_hub(id.unwrap_or(&text), files),
            Some(revision) if folder.is_dir() || text.contains('@') => Err(Error::Msg(format!(
                "{text}: revision must be none for a folder and for an id that names one, got {revision}"
            ))),
            Some(revision) => Self::of_hub(&format!("{}@{revision}", id.unwrap_or(&text)), files),
        }
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
