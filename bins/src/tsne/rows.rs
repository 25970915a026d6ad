//! The rows that are laid out, and layouts that are read from files.
use super::choices::SplitsArg;
use crate::options::DataArgs;
use anyhow::{Context, Result, bail, ensure};
use candle::{Device, Tensor};
use chandlery_datasets::{DataOptions, Dataset, ImageShape, Split, count, open};
use std::path::Path;

/// Raw rows with what is known of them.
pub struct Rows {
    /// The data set, as the user named it.
    pub name: String,
    /// `[n, n_inputs]`, u8 or f32.
    pub raw: Tensor,
    /// `[n]`, where all rows have one.
    pub labels: Option<Vec<u32>>,
    /// Names of the classes in the order of their numbers.
    pub class_names: Option<Vec<String>>,
    /// How the values of a row make an image.
    pub image: Option<ImageShape>,
}

impl Rows {
    /// Opens rows and copies them to `device`.
    pub fn open(args: &DataArgs, splits: SplitsArg, device: &Device) -> Result<Self> {
        Self::of(args.open()?, splits, device)
    }

    /// Copies rows of a data set to `device`.
    pub fn of(dataset: Dataset, splits: SplitsArg, device: &Device) -> Result<Self> {
        let Dataset { name, train, test, class_names } = dataset;
        let splits: Vec<Split> = match (splits, test) {
            (SplitsArg::Train, _) | (SplitsArg::All, None) => vec![train],
            (SplitsArg::All, Some(test)) => vec![train, test],
            (SplitsArg::Test, Some(test)) => vec![test],
            (SplitsArg::Test, None) => bail!("--split test: {name} has no test rows; use --split train"),
        };
        let raw = splits.iter().map(|split| split.raw(device)).collect::<Result<Vec<_>, _>>()?;
        let labels: Option<Vec<&[u32]>> = splits.iter().map(|split| split.labels.as_deref()).collect();
        Ok(Self {
            name,
            raw: Tensor::cat(&raw, 0)?,
            labels: labels.map(|of| of.concat()),
            class_names,
            image: splits.first().and_then(|split| split.image),
        })
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
