//! The command `encode`: sparse codes of a data set to a file.
use super::args::EncodeArgs;
use super::measure::Sums;
use super::restore::check_step;
use super::signals::{Signals, holds_images, open_images};
use crate::progress::Progress;
use crate::report::{Outcome, Report};
use crate::run_folder::{check_writable, write_beside};
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{Dictionary, DictionaryConfig, image::PatchGrid};
use chandlery_ops::{ErrorTarget, SparseCodes};
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;

/// Patches that are coded at once.
const BAND: usize = 65_536;

/// Writes the codes of every row, or of every patch of every image.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let format = Format::of(&args.out).context("--out")?;
    check_writable(&args.out).context("--out")?;
    let device = args.common.device.open()?;
    let dictionary = Dictionary::from_pretrained(&args.model, &device)?;
    let config = dictionary.config();
    let coder = coder(args, config)?;
    let mut codes =
        Gathered { coder, atoms: dictionary.atoms(), parts: Vec::new(), sums: Sums::new(config.n_atoms) };
    if let (true, Some(side)) = (holds_images(&args.data)?, patch_side(config)) {
        encode_images(args, config, side, &device, &mut codes)?;
    } else {
        ensure!(
            args.step.is_none(),
            "--step: is for patches of images, and {} holds rows; leave it out",
            args.data
        );
        let dataset = args.read.open(&args.data)?;
        ensure!(
            dataset.n_features() == config.n_features,
            "{}: rows must have the {} values of an atom, got {}",
            args.data,
            config.n_features,
            dataset.n_features()
        );
        let signals = Signals::rows(&args.data, dataset.train, dataset.image, config.remove_mean);
        let bar = Progress::rows(signals.split.n_samples() as u64, 0);
        bar.label("coding".to_owned());
        let mut blocks = signals.blocks(&device)?;
        while let Some(rows) = blocks.next()? {
            codes.add(&rows, None)?;
            bar.advance(rows.dim(0)? as u64);
        }
        bar.finish();
    }
    let (tensors, measure) = codes.finish()?;
    let n_rows = tensors["count"].elem_count();
    write(&args.out, format, &tensors)?;
    report.line(&format!(
        "{n_rows} codes of {:.2} atoms on average in {}; RMSE {:.4}",
        measure.mean_count,
        args.out.display(),
        measure.rmse
    ))?;
    report.finish(&json!({
        "out": args.out,
        "n_rows": n_rows,
        "n_atoms": config.n_atoms,
        "mean_count": measure.mean_count,
        "used": measure.used,
        "rmse": measure.rmse,
    }))?;
    Ok(Outcome::Done)
}

/// How rows are coded: as in training, but for what the command line says.
fn coder(args: &EncodeArgs, config: &DictionaryConfig) -> Result<SparseCoder> {
    let n_nonzero = args.nonzero.unwrap_or(config.n_nonzero);
    ensure!(
        n_nonzero <= config.n_atoms,
        "--nonzero: must be at most the {} atoms of this dictionary, got {n_nonzero}",
        config.n_atoms
    );
    let root = (config.n_features as f64).sqrt();
    Ok(SparseCoder {
        method: args.pursuit.map_or(config.method, Into::into),
        n_nonzero,
        error: args.error.map(|rms| ErrorTarget::Absolute(rms * root)),
        nonnegative: false,
    })
}

/// The side of the square grey patches that a dictionary is for, if it is for such.
fn patch_side(config: &DictionaryConfig) -> Option<usize> {
    match config.image {
        Some([height, width, 1]) if height == width => Some(height),
        _ => None,
    }
}

/// All patches of all images, in their order.
fn encode_images(
    args: &EncodeArgs,
    config: &DictionaryConfig,
    side: usize,
    device: &Device,
    codes: &mut Gathered,
) -> Result<()> {
    let step = args.step.unwrap_or(side);
    check_step(step, side)?;
    let images = open_images(&args.data, &args.read)?;
    for image in images.images() {
        let at = || format!("{}: image {}", args.data, image.name());
        let grid = PatchGrid::new(image.height(), image.width(), side, step).with_context(at)?;
        let levels: Vec<f32> = image.to_f32().into_iter().map(|value| 255. * value).collect();
        let plane = Tensor::from_vec(levels, (image.height(), image.width()), device)?;
        for band in grid.bands(BAND) {
            let rows = grid.rows(&plane, band)?;
            let mean = rows.mean_keepdim(1)?;
            match config.remove_mean {
                true => codes.add(&rows.broadcast_sub(&mean)?, Some(mean))?,
                false => codes.add(&rows, None)?,
            }
        }
    }
    Ok(())
}

/// Codes on their way to a file.
struct Gathered<'a> {
    coder: SparseCoder,
    atoms: &'a Tensor,
    parts: Vec<(SparseCodes, Option<Tensor>)>,
    sums: Sums,
}

impl Gathered<'_> {
    fn add(&mut self, rows: &Tensor, mean: Option<Tensor>) -> Result<()> {
        let codes = self.coder.encode(rows, self.atoms)?;
        self.sums.add(rows, &codes, self.atoms)?;
        self.parts.push((codes, mean));
        Ok(())
    }

    /// The tensors of the file, and what coding came to.
    fn finish(self) -> Result<(HashMap<String, Tensor>, super::measure::Measure)> {
        let join = |of: &dyn Fn(&SparseCodes) -> Tensor| -> Result<Tensor> {
            let parts: Vec<_> = self.parts.iter().map(|(codes, _)| of(codes)).collect();
            Ok(Tensor::cat(&parts, 0)?.to_device(&Device::Cpu)?)
        };
        let mut tensors = HashMap::from([
            ("indices".to_owned(), join(&|codes| codes.indices.clone())?),
            ("values".to_owned(), join(&|codes| codes.values.clone())?.to_dtype(DType::F32)?),
            ("count".to_owned(), join(&|codes| codes.count.clone())?),
        ]);
        let means: Vec<Tensor> = self.parts.iter().filter_map(|(_, mean)| mean.clone()).collect();
        if !means.is_empty() {
            tensors.insert("mean".to_owned(), Tensor::cat(&means, 0)?.squeeze(1)?.to_device(&Device::Cpu)?);
        }
        Ok((tensors, self.sums.finish()))
    }
}

/// A format of codes, told by the extension.
#[derive(Debug, Clone, Copy)]
enum Format {
    Npz,
    Safetensors,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => Ok(Self::Npz),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => bail!("{}: the name must end in .npz or .safetensors", path.display()),
        }
    }
}

fn write(path: &Path, format: Format, tensors: &HashMap<String, Tensor>) -> Result<()> {
    write_beside(path, |partial| {
        match format {
            Format::Npz => Tensor::write_npz(&tensors.iter().collect::<Vec<_>>(), partial)?,
            Format::Safetensors => candle::safetensors::save(tensors, partial)?,
        }
        Ok(())
    })
}
