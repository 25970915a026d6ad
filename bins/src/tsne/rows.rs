//! The rows that are laid out, and layouts that are read from files.
use super::args::Settings;
use crate::choices::SplitsArg;
use crate::options::{DataArgs, RowsArgs};
use crate::session::card::{scale_of, scale_of_rows};
use crate::session::info::{check_finished, data_and_settings};
use crate::stages::{self, Stage};
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::tsne::TsneConfig;
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{
    Centre, DataOptions, Dataset, Fingerprint, ImageShape, Preparation, Split, count, open,
};
use chandlery_ops::core::free_memory;
use std::path::Path;

/// Raw rows with what is known of them.
pub struct Rows {
    /// The data set, as the user named it.
    pub name: String,
    /// The rows themselves.
    pub held: Held,
    /// What was subtracted from the columns before they were rounded to f32; empty where nothing
    /// was.
    pub centre: Vec<f64>,
    /// `[n]`, where all rows have one.
    pub labels: Option<Vec<u32>>,
    /// Names of the classes in the order of their numbers.
    pub class_names: Option<Vec<String>>,
    /// Names of the columns, where the source has them.
    pub column_names: Option<Vec<String>>,
    /// How the values of a row make an image.
    pub image: Option<ImageShape>,
    /// What tells them from others.
    pub fingerprint: Fingerprint,
}

/// Raw rows.
pub enum Held {
    /// `[n, n_inputs]`, u8 or f32, on the device, or in host memory.
    Dense(Tensor),
    /// Sparse ones, which become dense when they are prepared, on this device.
    Sparse(Split, Device),
}

impl Rows {
    /// Opens rows, without the means of columns that f32 does not hold where they may be
    /// subtracted, and copies them to `device`.
    pub fn open(
        args: &DataArgs,
        splits: SplitsArg,
        centre: Option<&Centre>,
        device: &Device,
    ) -> Result<Self> {
        Self::of(opened(args, centre)?, splits, centre, device)
    }

    /// The same for a run with `config`, to which rows are copied if the device has room for them; if
    /// it has not, they stay in host memory.
    pub fn open_for(
        config: &TsneConfig,
        args: &DataArgs,
        splits: SplitsArg,
        centre: Option<&Centre>,
        device: &Device,
    ) -> Result<Self> {
        let dataset = opened(args, centre)?;
        let (train, test) = (Some(&dataset.train), dataset.test.as_ref());
        let taken = match splits {
            SplitsArg::Train => [train, None],
            SplitsArg::Test => [None, test],
            SplitsArg::All => [train, test],
        };
        let (mut n, mut bytes) = (0, 0);
        for split in taken.into_iter().flatten() {
            (n, bytes) = (n + split.n_samples(), bytes + split.size_bytes());
        }
        let n_features = dataset.train.n_features();
        let fits = device.is_cpu()
            || dataset.train.rows.is_sparse()
            || config.fits(n, n_features, bytes as u64, device)?;
        Self::of(dataset, splits, centre, if fits { device } else { &Device::Cpu })
    }

    /// Copies rows of a data set, which was read with this centre, to `device`.
    pub fn of(dataset: Dataset, splits: SplitsArg, centre: Option<&Centre>, device: &Device) -> Result<Self> {
        let _stage = stages::enter(Stage::Data);
        let Dataset { name, train, test, class_names, column_names, .. } = dataset;
        let splits: Vec<Split> = match (splits, test) {
            (SplitsArg::Train, _) | (SplitsArg::All, None) => vec![train],
            (SplitsArg::All, Some(test)) => vec![train, test],
            (SplitsArg::Test, Some(test)) => vec![test],
            (SplitsArg::Test, None) => bail!("--split test: {name} has no test rows; use --split train"),
        };
        let held = match splits.as_slice() {
            [split] if split.rows.is_sparse() => Held::Sparse(split.clone(), device.clone()),
            splits => {
                let raw = splits.iter().map(|split| centred(split, centre, device));
                Held::Dense(Tensor::cat(&raw.collect::<Result<Vec<_>>>()?, 0)?)
            }
        };
        let labels: Option<Vec<&[u32]>> = splits.iter().map(|split| split.labels.as_deref()).collect();
        let fingerprint = Fingerprint::of(&splits, class_names.as_deref())?;
        Ok(Self {
            name,
            fingerprint,
            held,
            centre: centre.and_then(Centre::values).unwrap_or_default().to_vec(),
            labels: labels.map(|of| of.concat()),
            class_names,
            column_names,
            image: splits.first().and_then(|split| split.image),
        })
    }

    /// What `steps` do to raw rows, fitted to these.
    pub fn preparation(&self, steps: &[StepConfig], seed: u64) -> Result<Preparation> {
        if steps.is_empty() {
            return Ok(Preparation::default());
        }
        let _stage = stages::enter(Stage::Preparation);
        match &self.held {
            Held::Dense(raw) => {
                let split = Split::from_tensors(raw, None)?;
                Preparation::fit(&split, steps, seed)
            }
            Held::Sparse(split, _) => Preparation::fit(split, steps, seed),
        }
        .context("--prepare")
    }

    /// What t-SNE reads of the rows, f32 `[n, n_features]`.
    pub fn read(&self, preparation: &Preparation) -> Result<Tensor> {
        match &self.held {
            Held::Dense(raw) => Ok(preparation.apply(raw)?.to_dtype(DType::F32)?.contiguous()?),
            Held::Sparse(split, device) => prepared(split, preparation, device),
        }
    }

    /// Raw rows on the device, where they are dense.
    pub fn raw(&self) -> Option<&Tensor> {
        match &self.held {
            Held::Dense(raw) => Some(raw),
            Held::Sparse(..) => None,
        }
    }

    /// How raw rows are handed to the layout.
    pub fn scale(&self, preparation: &Preparation) -> Result<String> {
        match &self.held {
            Held::Dense(raw) => scale_of_rows(raw, preparation),
            Held::Sparse(split, _) => scale_of(split, preparation),
        }
    }

    /// Values in a raw row.
    pub fn n_inputs(&self) -> usize {
        match &self.held {
            Held::Dense(raw) => raw.dims().last().copied().unwrap_or(0),
            Held::Sparse(split, _) => split.n_features(),
        }
    }

    /// How many there are.
    pub fn n(&self) -> usize {
        match &self.held {
            Held::Dense(raw) => raw.dims().first().copied().unwrap_or(0),
            Held::Sparse(split, _) => split.n_samples(),
        }
    }

    /// How many of what width, in words.
    pub fn words(&self) -> String {
        format!("{} of {}", count(self.n(), "row"), self.n_inputs())
    }
}

/// A data set without the means of columns that f32 does not hold.
fn opened(args: &DataArgs, centre: Option<&Centre>) -> Result<Dataset> {
    let mut args = args.clone();
    args.read.centre = centre.cloned();
    args.open()
}

/// Prepared rows of a split of sparse rows, which must have room.
pub fn prepared(split: &Split, preparation: &Preparation, device: &Device) -> Result<Tensor> {
    let width = preparation.n_outputs(split.n_features())?;
    let need = 4 * split.n_samples() as u64 * width as u64;
    if let Some(free) = free_memory(device)? {
        // They are gathered, and joined.
        ensure!(
            2 * need <= free,
            "--data: {} of {width} values take {:.1} GiB as dense rows, and {:.1} GiB are free; prepare them to fewer, as by --prepare \
             log1p,pca=50, or take fewer by --max-rows",
            count(split.n_samples(), "row"),
            2. * need as f64 / f64::from(1 << 30),
            free as f64 / f64::from(1 << 30)
        );
    }
    Ok(preparation.apply_split(split, device)?)
}

/// Rows on `device` as they are stored, without the centre that they were read with, if they did
/// not lose it on reading.
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

/// What the run was asked for, if the layout is the folder of one.
pub fn of_run(layout: &Path, data: &RowsArgs) -> Result<Option<(DataArgs, Settings)>> {
    match data_and_settings::<Settings>(layout) {
        // A run is not needed where the data is named.
        Err(_) if data.data.is_some() => Ok(None),
        run => run,
    }
}

/// Reads a layout of `n` rows from a file, or from the folder of a run: f32 `[n, n_dims]`.
pub fn read_layout(path: &Path, flag: &str, n: usize, device: &Device) -> Result<Tensor> {
    points_of(&layout_file(path, flag)?, &format!("{flag} {}", path.display()), n, device)
}

/// The points of `n` rows that a file holds.
pub fn points_of(file: &Dataset, at: &str, n: usize, device: &Device) -> Result<Tensor> {
    let layout = file.train.to_tensor(device)?;
    let (points, n_dims) = layout.dims2()?;
    ensure!(
        points == n && matches!(n_dims, 1..=3),
        "{at}: must have shape [{n}, 1], [{n}, 2] or [{n}, 3], a point for each row that --split selects, got [{points}, {n_dims}]"
    );
    Ok(layout)
}

/// The file of a layout, or that of the folder of a run, with the labels that it has.
pub fn layout_file(path: &Path, flag: &str) -> Result<Dataset> {
    check_finished(&path.display().to_string()).with_context(|| flag.to_owned())?;
    let file = if path.is_dir() { path.join("layout.npy") } else { path.to_owned() };
    open(&file.display().to_string(), &DataOptions::default())
        .with_context(|| format!("{flag} {}", path.display()))
}
