//! Folders of sparse autoencoders as other libraries write and read them.
//!
//! | | files | arrays |
//! |---|---|---|
//! | SAELens | `cfg.json` with `architecture`, `sae_weights.safetensors` | `W_enc` `[d_in, d_sae]`, `b_enc`, `W_dec`, `b_dec`, `threshold`; gated `b_gate`, `b_mag`, `r_mag` |
//! | sparsify | `cfg.json`, `sae.safetensors` | `encoder.weight`, `encoder.bias`, `W_dec`, `b_dec`, `W_skip` |
//! | dictionary_learning | `ae.safetensors`, the state of `ae.pt` | `encoder.weight`, `encoder.bias`, `decoder.weight` `[d_in, d_sae]`, `b_dec`, `k`, `threshold`; ReLU `bias` |
//!
//! None has a place for a [preparation](crate::Preparation): a factor is multiplied into the
//! weights, anything else is refused. BatchTopK and Matryoshka become JumpReLU in SAELens, as there.
use super::config::{BIAS, DECODER, DECODER_BIAS, ENCODER, MAGNITUDE_BIAS, MAGNITUDE_SCALE, SKIP, THRESHOLD};
use super::{Kind, Sae, SaeConfig};
use crate::io::{load_tensors, save_tensors, unread, written};
use candle::{DType, Device, Error, Result, Tensor};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Whose files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// SAELens.
    SaeLens,
    /// EleutherAI's sparsify.
    Sparsify,
    /// dictionary_learning.
    DictionaryLearning,
}

const CONFIG: &str = "cfg.json";

impl FileFormat {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::SaeLens, Self::Sparsify, Self::DictionaryLearning];

    /// The file with its weights.
    pub fn weights(self) -> &'static str {
        match self {
            Self::SaeLens => "sae_weights.safetensors",
            Self::Sparsify => "sae.safetensors",
            Self::DictionaryLearning => "ae.safetensors",
        }
    }

    /// The format of a folder; none where it is not one of these.
    ///
    /// # Errors
    /// When all that it holds is a pickle; the message says how to convert it.
    pub fn of(folder: &Path) -> Result<Option<Self>> {
        let found = Self::ALL.into_iter().find(|format| folder.join(format.weights()).is_file());
        if found.is_some()
            || !folder.is_dir()
            || folder.join("config.json").is_file() && !folder.join("ae.pt").is_file()
        {
            return Ok(found);
        }
        let files = std::fs::read_dir(folder)?.flatten().map(|file| file.path());
        match files.filter(|path| path.extension().is_some_and(|end| end == "pt")).min() {
            Some(pickle) => candle::bail!(
                "{}: is a pickle, which can run code when it is read; convert it: python3 -c \"import torch, safetensors.torch as s; \
                 s.save_file({{k: v.contiguous() for k, v in torch.load('{}', map_location='cpu').items()}}, 'ae.safetensors')\"",
                pickle.display(),
                pickle.file_name().unwrap_or_default().to_string_lossy()
            ),
            None => Ok(None),
        }
    }
}

/// The tensors of a folder, taken by their names there.
struct Given<'a> {
    path: &'a Path,
    tensors: HashMap<String, Tensor>,
}

impl Given<'_> {
    fn refused(&self, why: impl std::fmt::Display) -> Error {
        unread(self.path, &why)
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        let found = self.tensors.get(name).cloned();
        found.ok_or_else(|| self.refused(format_args!("it must hold `{name}`")))
    }

    fn matrix(&self, name: &str) -> Result<Tensor> {
        let t = self.get(name)?;
        if t.rank() != 2 {
            return Err(self.refused(format_args!("`{name}` must be a matrix, got shape {:?}", t.dims())));
        }
        Ok(t)
    }

    fn transposed(&self, name: &str) -> Result<Tensor> {
        self.matrix(name)?.t()?.contiguous()
    }

    /// One number, of any type and shape.
    fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(t) = self.tensors.get(name) else { return Ok(None) };
        match t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?[..] {
            [x] => Ok(Some(x)),
            _ => Err(self.refused(format_args!("`{name}` must be one number, got shape {:?}", t.dims()))),
        }
    }
}

/// Reads a folder of `format`: the configuration, and the tensors by our names.
pub(super) fn read(
    folder: &Path,
    format: FileFormat,
    device: &Device,
) -> Result<(SaeConfig, HashMap<String, Tensor>)> {
    let path = folder.join(format.weights());
    let given = Given { path: &path, tensors: load_tensors(&path, device)?.0 };
    let (config, tensors) = match format {
        FileFormat::SaeLens => of_sae_lens(&given, &fields(folder)?)?,
        FileFormat::Sparsify => of_sparsify(&given, &fields(folder)?)?,
        FileFormat::DictionaryLearning => of_dictionary_learning(&given)?,
    };
    Ok((config, tensors.into_iter().map(|(name, t)| (name.to_owned(), t)).collect()))
}

/// The fields of `cfg.json`.
fn fields(folder: &Path) -> Result<Value> {
    let path = folder.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(|e| unread(&path, &e))?;
    serde_json::from_str(&text).map_err(|e| unread(&path, &e))
}

/// `k` of a configuration.
fn k_of(given: &Given<'_>, fields: &Value) -> Result<usize> {
    let k = fields.get("k").and_then(Value::as_u64);
    k.map(|k| k as usize).ok_or_else(|| given.refused(format_args!("{CONFIG} beside it must have `k`")))
}

type Named = Vec<(&'static str, Tensor)>;

fn of_sae_lens(given: &Given<'_>, fields: &Value) -> Result<(SaeConfig, Named)> {
    let text = |name: &str, usual: &'static str| {
        fields.get(name).and_then(Value::as_str).unwrap_or(usual).to_owned()
    };
    let normalised = text("normalize_activations", "none");
    if normalised != "none" {
        return Err(given.refused(format_args!(
            "normalize_activations of {CONFIG} must be none, got {normalised}; fold it into the weights first"
        )));
    }
    let kind = match &text("architecture", "standard")[..] {
        "standard" => Kind::Relu,
        "topk" => Kind::TopK { k: k_of(given, fields)? },
        "jumprelu" => Kind::JumpRelu,
        "gated" => Kind::Gated,
        other => {
            return Err(given.refused(format_args!(
                "architecture of {CONFIG} must be standard, topk, jumprelu or gated, got {other}"
            )));
        }
    };
    let encoder = given.transposed("W_enc")?;
    let (n, d) = encoder.dims2()?;
    let is_gated = kind == Kind::Gated;
    let mut tensors = vec![
        (ENCODER, encoder),
        (BIAS, given.get(if is_gated { "b_gate" } else { "b_enc" })?),
        (DECODER, given.matrix("W_dec")?),
        (DECODER_BIAS, given.get("b_dec")?),
    ];
    if is_gated {
        tensors.extend([(MAGNITUDE_BIAS, given.get("b_mag")?), (MAGNITUDE_SCALE, given.get("r_mag")?)]);
    }
    if kind == Kind::JumpRelu {
        tensors.push((THRESHOLD, given.get("threshold")?));
    }
    let subtract_bias = fields.get("apply_b_dec_to_input").and_then(Value::as_bool).unwrap_or(true);
    Ok((SaeConfig { subtract_bias, ..SaeConfig::new(d, n, kind) }, tensors))
}

fn of_sparsify(given: &Given<'_>, fields: &Value) -> Result<(SaeConfig, Named)> {
    let activation = fields.get("activation").and_then(Value::as_str).unwrap_or("topk");
    if activation != "topk" {
        return Err(given.refused(format_args!("activation of {CONFIG} must be topk, got {activation}")));
    }
    let encoder = given.matrix("encoder.weight")?;
    let (n, d) = encoder.dims2()?;
    let decoder = given.matrix("W_dec")?;
    let kind = Kind::TopK { k: k_of(given, fields)? };
    let is_transcoder = fields.get("transcode").and_then(Value::as_bool).unwrap_or(false);
    let config = match is_transcoder {
        true => SaeConfig::transcoder(d, n, decoder.dim(1)?, kind),
        false => SaeConfig::new(d, n, kind),
    };
    let mut tensors = vec![
        (ENCODER, encoder),
        (BIAS, given.get("encoder.bias")?),
        (DECODER, decoder),
        (DECODER_BIAS, given.get("b_dec")?),
    ];
    let skip = given.tensors.get("W_skip");
    tensors.extend(skip.map(|skip| (SKIP, skip.clone())));
    Ok((SaeConfig { skip: skip.is_some(), ..config }, tensors))
}

fn of_dictionary_learning(given: &Given<'_>) -> Result<(SaeConfig, Named)> {
    let encoder = given.matrix("encoder.weight")?;
    let (n, d) = encoder.dims2()?;
    let threshold = given.number("threshold")?.filter(|t| *t >= 0.);
    let (kind, bias) = match given.number("k")?.map(|k| k as usize) {
        Some(k) if threshold.is_some() => (Kind::BatchTopK { k }, "b_dec"),
        Some(k) => (Kind::TopK { k }, "b_dec"),
        None => (Kind::Relu, "bias"),
    };
    let mut tensors = vec![
        (BIAS, given.get("encoder.bias")?),
        (DECODER, given.transposed("decoder.weight")?),
        (DECODER_BIAS, given.get(bias)?),
    ];
    if let (Kind::BatchTopK { .. }, Some(threshold)) = (&kind, threshold) {
        tensors.push((THRESHOLD, Tensor::new(&[threshold], encoder.device())?.to_dtype(encoder.dtype())?));
    }
    tensors.push((ENCODER, encoder));
    Ok((SaeConfig::new(d, n, kind), tensors))
}

impl Sae {
    /// Writes a folder that another library reads, in the type of the model; see the
    /// [module](self).
    ///
    /// # Errors
    /// When the format has no place for the model, or the folder is not writable.
    pub fn save_as(&self, folder: impl AsRef<Path>, format: FileFormat) -> Result<()> {
        let folder = folder.as_ref();
        let no_place = |what: &str| {
            Error::Msg(format!("Sae::save_as: {format:?} has no place for {what}; give another format"))
        };
        let config = &self.config;
        let dtype = self.encoder.dtype();
        let Some(factor) = config.preparation.as_scale(dtype) else {
            return Err(no_place("a preparation that is more than a factor"));
        };
        if (config.skip || config.n_targets.is_some()) && format != FileFormat::Sparsify {
            return Err(no_place("transcoders and what skips latents"));
        }
        if config.n_targets.is_some() && factor != 1. {
            return Err(no_place("a factor on the rows of a transcoder"));
        }
        let encoder = (&self.encoder * factor)?;
        let decoder = (&self.decoder * (1. / factor))?;
        let bias = self.other(BIAS)?.clone();
        let decoder_bias = (self.other(DECODER_BIAS)? * (1. / factor))?;
        let (fields, tensors): (Option<Value>, Named) = match format {
            FileFormat::SaeLens => {
                let (architecture, mut tensors) = match &config.kind {
                    Kind::Relu => ("standard", vec![("b_enc", bias)]),
                    Kind::TopK { .. } => ("topk", vec![("b_enc", bias)]),
                    Kind::BatchTopK { .. } | Kind::Matryoshka { .. } | Kind::JumpRelu => {
                        let threshold = self.other(THRESHOLD)?.maximum(0.)?.broadcast_as(config.n_latents)?;
                        ("jumprelu", vec![("b_enc", bias), ("threshold", threshold.contiguous()?)])
                    }
                    Kind::Gated => {
                        let magnitude =
                            [MAGNITUDE_BIAS, MAGNITUDE_SCALE].map(|name| self.other(name).cloned());
                        let [b, r] = magnitude;
                        ("gated", vec![("b_gate", bias), ("b_mag", b?), ("r_mag", r?)])
                    }
                };
                let mut fields = json!({
                    "architecture": architecture,
                    "d_in": config.n_visible,
                    "d_sae": config.n_latents,
                    "dtype": if dtype == DType::F64 { "float64" } else { "float32" },
                    "device": "cpu",
                    "apply_b_dec_to_input": config.subtract_bias,
                    "normalize_activations": "none",
                    "reshape_activations": "none",
                    "metadata": {},
                });
                if let (Kind::TopK { k }, Value::Object(fields)) = (&config.kind, &mut fields) {
                    fields.insert("k".to_owned(), json!(k));
                }
                tensors.extend([("W_enc", encoder.t()?), ("W_dec", decoder), ("b_dec", decoder_bias)]);
                (Some(fields), tensors)
            }
            FileFormat::Sparsify => {
                let Kind::TopK { k } = config.kind else { return Err(no_place("kinds other than TopK")) };
                if config.subtract_bias == config.n_targets.is_some() {
                    return Err(no_place("an encoder that reads rows as they are"));
                }
                let fields = json!({
                    "activation": "topk",
                    "expansion_factor": config.n_latents.div_ceil(config.n_visible),
                    "normalize_decoder": true,
                    "num_latents": config.n_latents,
                    "k": k,
                    "multi_topk": false,
                    "skip_connection": config.skip,
                    "transcode": config.n_targets.is_some(),
                    "d_in": config.n_visible,
                });
                let mut tensors =
                    vec![(ENCODER, encoder), (BIAS, bias), (DECODER, decoder), (DECODER_BIAS, decoder_bias)];
                tensors.extend(self.parameter_named(SKIP).map(|skip| (SKIP, skip.clone())));
                (Some(fields), tensors)
            }
            FileFormat::DictionaryLearning => {
                if !config.subtract_bias {
                    return Err(no_place("an encoder that reads rows as they are"));
                }
                let mut tensors = vec![(ENCODER, encoder), (BIAS, bias), ("decoder.weight", decoder.t()?)];
                let threshold = match config.kind {
                    Kind::JumpRelu | Kind::Gated => {
                        return Err(no_place("kinds with thresholds or gates of latents"));
                    }
                    Kind::Relu => None,
                    Kind::TopK { .. } => Some(Tensor::new(-1f64, decoder.device())?.to_dtype(dtype)?),
                    Kind::BatchTopK { .. } | Kind::Matryoshka { .. } => {
                        Some(self.other(THRESHOLD)?.maximum(0.)?.squeeze(0)?)
                    }
                };
                match (config.kind.k(), threshold) {
                    (Some(k), Some(threshold)) => tensors.extend([
                        ("k", Tensor::new(k as i64, decoder.device())?),
                        ("threshold", threshold),
                        ("b_dec", decoder_bias),
                    ]),
                    _ => tensors.push(("bias", decoder_bias)),
                }
                (None, tensors)
            }
        };
        std::fs::create_dir_all(folder)?;
        let tensors = tensors.into_iter().map(|(name, t)| (name.to_owned(), t));
        save_tensors(
            &folder.join(format.weights()),
            tensors,
            HashMap::from([("format".to_owned(), "pt".to_owned())]),
        )?;
        match fields {
            Some(fields) => {
                let text = serde_json::to_vec_pretty(&fields).map_err(Error::wrap)?;
                written(&folder.join(CONFIG), &text)?.finish().map_err(Error::from)
            }
            None => Ok(()),
        }
    }
}
