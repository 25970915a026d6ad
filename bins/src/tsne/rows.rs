//! The rows that are laid out, and layouts that are read from files.
use super::choices::SplitsArg;
use crate::options::DataArgs;
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{Centre, DataOptions, Dataset, ImageShape, Preparation, Split, count, open};
use std::path::Path;

/// Raw rows with what is known of them.
pub struct Rows {
    /// The data set, as the user named it.
    pub name: String,
    /// `[n, n_inputs]`, u8 or f32.
    pub raw: Tensor,
    /// What was subtracted from the columns before they were rounded to f32; empty where nothing was.
    pub centre: Vec<f64>,
    /// `[n]`, where all rows have one.
    pub labels: Option<Vec<u32>>,
    /// Names of the classes in the order of their numbers.
    pub class_names: Option<Vec<String>>,
    /// Names of the columns, where the source has them.
    pub column_names: Option<Vec<String>>,
    /// How the values of a row make an image.
    pub image: Option<ImageShape>,
}

impl Rows {
    /// Opens rows, without the means of columns that f32 does not hold where they may be subtracted, and copies them to `device`.
    pub fn open(
        args: &DataArgs,
        splits: SplitsArg,
        centre: Option<&Centre>,
        device: &Device,
    ) -> Result<Self> {
        let mut args = args.clone();
        args.read.centre = centre.cloned();
        Self::of(args.open()?, splits, centre, device)
    }

    /// Copies rows of a data set, which was read with this centre, to `device`.
    pub fn of(dataset: Dataset, splits: SplitsArg, centre: Option<&Centre>, device: &Device) -> Result<Self> {
        let Dataset { name, train, test, class_names } = dataset;
        let splits: Vec<Split> = match (splits, test) {
            (SplitsArg::Train, _) | (SplitsArg::All, None) => vec![train],
            (SplitsArg::All, Some(test)) => vec![train, test],
            (SplitsArg::Test, Some(test)) => vec![test],
            (SplitsArg::Test, None) => bail!("--split test: {name} has no test rows; use --split train"),
        };
        let raw = splits.iter().map(|split| centred(split, centre, device)).collect::<Result<Vec<_>>>()?;
        let labels: Option<Vec<&[u32]>> = splits.iter().map(|split| split.labels.as_deref()).collect();
        Ok(Self {
            name,
            raw: Tensor::cat(&raw, 0)?,
            centre: centre.and_then(Centre::values).unwrap_or_default().to_vec(),
            labels: labels.map(|of| of.concat()),
            class_names,
            column_names: None,
            image: splits.first().and_then(|split| split.image),
        })
    }

    /// What `steps` do to raw rows, fitted to these.
    pub fn preparation(&self, steps: &[StepConfig], seed: u64) -> Result<Preparation> {
        if steps.is_empty() {
            return Ok(Preparation::default());
        }
        let split = Split::from_tensor(&self.raw.to_device(&Device::Cpu)?)?;
        Preparation::fit(&split, steps, seed).context("--prepare")
    }

    /// How many there are.
    pub fn n(&self) -> usize {
        self.raw.dims().first().copied().unwrap_or(0)
    }

    /// How many of what width, in words.
    pub fn words(&self) -> String {
        format!("{} of {}", count(self.n(), "row"), self.raw.dims().last().copied().unwrap_or(0))
    }
}

/// Rows on `device` as they are stored, without the centre that they were read with, if they did not lose it on reading.
pub fn centred(split: &Split, centre: Option<&Centre>, device: &Device) -> Result<Tensor> {
    let raw = split.raw(device)?;
    let has_lost_it = split.rows.rounding().is_some_and(|rounding| !rounding.centre.is_empty());
    match centre.and_then(Centre::values) {
        Some(centre) if !has_lost_it => {
            let width = raw.dim(1)?;
            ensure!(
                raw.dtype() == DType::F32 && width == centre.len(),
                "--data: rows must have {} values that are no bytes, as the rows of the layout have, got {width} of {:?}",
                centre.len(),
                raw.dtype()
            );
            let centre = Tensor::new(centre, device)?;
            Ok(raw.to_dtype(DType::F64)?.broadcast_sub(&centre)?.to_dtype(DType::F32)?)
        }
        _ => Ok(raw),
    }
}

/// Reads a layout of `n` rows from a file, or from the folder of a run: f32 `[n, n_dims]`.
pub fn read_layout(path: &Path, flag: &str, n: usize, device: &Device) -> Result<Tensor> {
    let file = if path.is_dir() { path.join("layout.npy") } else { path.to_owned() };
    let at = || format!("{flag} {}", path.display());
    let layout = open(&file.display().to_string(), &DataOptions::default()).with_context(at)?;
    let layout = layout.train.to_tensor(device)?;
    let (points, n_dims) = layout.dims2()?;
    ensure!(
        points == n && matches!(n_dims, 2 | 3),
        "{}: must have shape [{n}, 2] or [{n}, 3], a point for each row that --split selects, got [{points}, {n_dims}]",
        at()
    );
    Ok(layout)
}
