//! Rows with their targets behind them: what transcoders learn from.
use crate::options::{ReadArgs, located};
use crate::patch_rows::InputArgs;
use crate::rows::{Rows, SplitArg};
use anyhow::{Context, Result, ensure};
use chandlery_datasets::{Split, count};

/// The rows of a data set that belong to `rows`, which `input` names: of the same split.
///
/// # Errors
/// When it is missing or malformed, its rows are of another number or type, or `rows` are patches.
pub fn open(targets: &str, input: &InputArgs, rows: &Rows, asked: Option<SplitArg>) -> Result<Split> {
    ensure!(
        !rows.patches,
        "--targets: {} is cut into patches, which have no targets; leave it out",
        rows.name
    );
    let base = input.base.as_deref();
    let read = ReadArgs { stay: true, ..input.read.located(base) };
    let split = Rows::of(read.open_as("--targets", &located(targets, base))?, asked)?.split;
    ensure!(
        split.n_samples() == rows.split.n_samples(),
        "--targets {targets}: must have a row for each of the {} of {}, got {}",
        count(rows.split.n_samples(), "row"),
        rows.name,
        split.n_samples()
    );
    Ok(split)
}

/// The same rows with these targets behind them.
///
/// # Errors
/// When they are of another type.
pub fn behind(rows: &Rows, targets: &Split) -> Result<Rows> {
    let split = rows.split.beside(targets).context("--targets")?;
    Ok(Rows { split, image: None, ..rows.clone() })
}
