//! The weights that training starts from: drawn, or given.
use super::args::Settings;
use crate::patch_rows::Family;
use crate::program::{model_type, other_model};
use crate::report::is_stdout;
use crate::rows::Rows;
use crate::run_folder::RunFolder;
use crate::session::info::check_finished;
use anyhow::{Context, Result, anyhow, ensure};
use candle::{DType, Device, Tensor};
use chandlery::io::load_tensors;
use chandlery::pretrained::ModelType;
use chandlery::sparse_autoencoder::{Decoder, SparseAutoencoder, SparseAutoencoderConfig};
use chandlery::{LoadOptions, Model, Philox};
use std::path::Path;

/// The place of the first weights in the random sequence of a run's seed.
pub const START: u64 = 1 << 32;
/// In a run folder, the model that a run began with, where that was given.
const KEPT: &str = "checkpoint/start";

/// Weights that the command line names.
pub struct Given {
    weight: Tensor,
    bias: Tensor,
    decoder_weight: Tensor,
    visible_bias: Tensor,
    /// What the outputs are, where a model says it.
    decoder: Option<Decoder>,
}

impl Given {
    /// Reads a model, or a `.safetensors` file, onto the CPU.
    ///
    /// # Errors
    /// When it is neither, another model, of shapes that do not fit, or not finite.
    pub fn open(name: &str) -> Result<Self> {
        Self::read(name).with_context(|| format!("--start-from {name}"))
    }

    fn read(name: &str) -> Result<Self> {
        let path = Path::new(name);
        let is_file = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("safetensors"));
        if !is_stdout(path) && is_file && !path.is_dir() {
            return Self::of_file(path);
        }
        check_finished(name)?;
        let of = model_type(name)?;
        if of != ModelType::SparseAutoencoder {
            return Err(anyhow!(other_model(of, "a sparse autoencoder")));
        }
        let model = SparseAutoencoder::from_pretrained(name, &LoadOptions::on(&Device::Cpu))?;
        let mut tensors = model.tensors().into_iter().map(|(_, t)| t);
        let mut next = || tensors.next().context("a sparse autoencoder must have four tensors");
        let (weight, bias, decoder_weight, visible_bias) = (next()?, next()?, next()?, next()?);
        let decoder = Some(model.config().decoder);
        Self { weight, bias, decoder_weight, visible_bias, decoder }.checked()
    }

    fn of_file(path: &Path) -> Result<Self> {
        let (mut tensors, _) = load_tensors(path, &Device::Cpu)?;
        let mut names: Vec<String> = tensors.keys().cloned().collect();
        names.sort();
        let mut matrix = |name: &str| {
            tensors
                .remove(name)
                .filter(|t| t.rank() == 2)
                .with_context(|| format!("must hold `{name}`, a matrix; it holds: {}", names.join(", ")))
        };
        let (weight, decoder_weight) = (matrix("weight")?, matrix("decoder_weight")?);
        let (n_hidden, n_visible) = weight.dims2()?;
        let mut of = |name: &str, n: usize| match tensors.remove(name) {
            Some(bias) => Ok(bias),
            None => Tensor::zeros(n, DType::F32, &Device::Cpu),
        };
        let (bias, visible_bias) = (of("bias", n_hidden)?, of("visible_bias", n_visible)?);
        Self { weight, bias, decoder_weight, visible_bias, decoder: None }.checked()
    }

    /// In f32, if shapes fit and all is finite.
    fn checked(self) -> Result<Self> {
        let (n_hidden, n_visible) = self.weight.dims2()?;
        for (name, t, want) in [
            ("decoder_weight", &self.decoder_weight, &[n_visible, n_hidden][..]),
            ("bias", &self.bias, &[n_hidden][..]),
            ("visible_bias", &self.visible_bias, &[n_visible][..]),
        ] {
            ensure!(
                t.dims() == want,
                "`{name}` must have shape {want:?} with a `weight` of {:?}, got {:?}",
                self.weight.dims(),
                t.dims()
            );
        }
        let narrow = |name: &str, t: &Tensor| -> Result<Tensor> {
            let t = t.to_dtype(DType::F32).with_context(|| format!("`{name}`"))?.contiguous()?;
            let sum = t.abs()?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
            ensure!(sum.is_finite(), "`{name}` must be finite numbers");
            Ok(t)
        };
        Ok(Self {
            weight: narrow("weight", &self.weight)?,
            bias: narrow("bias", &self.bias)?,
            decoder_weight: narrow("decoder_weight", &self.decoder_weight)?,
            visible_bias: narrow("visible_bias", &self.visible_bias)?,
            decoder: self.decoder,
        })
    }

    /// Rows of the weights.
    pub fn n_hidden(&self) -> usize {
        self.bias.elem_count()
    }

    /// The model with these weights.
    fn model(&self, config: SparseAutoencoderConfig, device: &Device) -> Result<SparseAutoencoder> {
        ensure!(
            self.visible_bias.elem_count() == config.n_visible,
            "the weights must be for the {} values of a prepared row, got {}",
            config.n_visible,
            self.visible_bias.elem_count()
        );
        if let Some(decoder) = self.decoder.filter(|&decoder| decoder != config.decoder) {
            let [is, name] = match decoder {
                Decoder::Sigmoid => ["sigmoid units", "sigmoid"],
                Decoder::Linear => ["linear units", "linear"],
            };
            anyhow::bail!("the outputs of this model are {is}; give --decoder {name}")
        }
        let [weight, bias, decoder_weight, visible_bias] =
            [&self.weight, &self.bias, &self.decoder_weight, &self.visible_bias].map(|t| t.to_device(device));
        Ok(SparseAutoencoder::from_tensors(config, weight?, bias?, decoder_weight?, visible_bias?)?)
    }
}

/// The model that training starts from; given weights are those that `folder` keeps, where it does.
///
/// # Errors
/// When rows cannot be prepared, or given weights are missing or of another size.
pub fn first_model(
    settings: &Settings,
    rows: &Rows,
    device: &Device,
    folder: Option<&RunFolder>,
) -> Result<SparseAutoencoder> {
    let preparation = SparseAutoencoder::USUAL.preparation(rows, &settings.prepare, settings.seed)?;
    let n_visible = preparation.n_outputs(rows.split.n_features())?;
    let config = SparseAutoencoderConfig {
        decoder: settings.decoder.into(),
        start: settings.start.into(),
        preparation,
        image: rows.split.image,
        ..SparseAutoencoderConfig::new(n_visible, settings.hidden)
    };
    let Some(name) = &settings.start_from else {
        return Ok(SparseAutoencoder::init(config, Philox::new(settings.seed, START), device)?);
    };
    let kept = folder.map(|folder| folder.join(KEPT)).filter(|path| path.join("config.json").exists());
    let given = match kept {
        Some(path) => Given::read(&path.to_string_lossy())?,
        None => Given::open(name)?,
    };
    given.model(config, device).with_context(|| format!("--start-from {name}"))
}

/// Keeps given weights, which the user may change or remove before the run is resumed.
///
/// # Errors
/// When the disk refuses.
pub fn keep(settings: &Settings, rows: &Rows, device: &Device, folder: &RunFolder) -> Result<()> {
    if settings.start_from.is_some() && !folder.join(KEPT).join("config.json").exists() {
        let first = first_model(settings, rows, device, None)?;
        folder.save_model(KEPT, |path| first.save_pretrained(path))?;
    }
    Ok(())
}
