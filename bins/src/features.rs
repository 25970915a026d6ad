//! Features of the rows of a split, written to a file: the command `encode`.
use crate::arrays::{self, Format};
use crate::progress::Progress;
use crate::report::{Outcome, Report, named, of_data};
use crate::rows::{Blocks, Reads, Rows};
use crate::run_folder::check_writable;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery_datasets::count;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::Path;

/// What is encoded, and where the features go.
pub struct Encoding<'a> {
    /// The file, of a name that [`Format::of`] takes, or `-`.
    pub out: &'a Path,
    /// The rows.
    pub rows: &'a Rows,
    /// How the network reads them.
    pub reads: Reads,
    /// The layers whose features are written side by side, counted from 1, of how many.
    pub layers: (RangeInclusive<usize>, usize),
    /// Their features.
    pub width: usize,
}

/// The report of a command that writes features to `out`, after checks that they can be written
/// there.
///
/// # Errors
/// When `out` has a name that [`Format::of`] does not take, or cannot be written.
pub fn report_beside(json: bool, out: &Path) -> Result<Report> {
    let report = Report::beside(json, out)?;
    Format::of(out).context("--out")?;
    check_writable(out).context("--out")?;
    Ok(report)
}

impl Encoding<'_> {
    /// Writes what `features` makes of blocks of raw rows for each layer, side by side
    /// `[batch, width]`, and says so.
    pub fn write(
        self,
        report: &Report,
        device: &Device,
        features: impl Fn(&Tensor, usize) -> candle::Result<Tensor>,
    ) -> Result<Outcome> {
        let Self { out, rows: Rows { name: data, split, .. }, reads, layers: (layers, n_layers), width } =
            self;
        let shape = (split.n_samples(), width);
        let bar = Progress::rows(shape.0 as u64, 0);
        let one = (layers.start() == layers.end()).then_some(*layers.end());
        bar.label(match one {
            Some(layer) => format!("layer {layer}/{n_layers}"),
            None => "all layers".to_owned(),
        });
        let mut blocks = Blocks::new(split, reads, device)?;
        let next = || {
            let Some(rows) = blocks.next()? else {
                return Ok(None);
            };
            bar.advance(rows.dim(0)? as u64);
            let each: candle::Result<Vec<_>> = layers.clone().map(|layer| features(&rows, layer)).collect();
            of_data(data, each.and_then(|each| Tensor::cat(&each, 1)).map(Some).map_err(Into::into))
        };
        arrays::write(out, shape, next, split.labels.as_deref())?;
        bar.finish();
        let (rows, features) = (count(shape.0, "row"), count(shape.1, "feature"));
        report.line(&format!("{rows} of {features} in {}", named(out)))?;
        report.finish(json!({
            "out": out,
            "data": data,
            "n_samples": shape.0,
            "n_features": shape.1,
            "layer": one.map_or(Value::from("all"), Value::from),
            "labels": split.labels.is_some() && Format::of(out)?.has_labels(),
        }))?;
        Ok(Outcome::Done)
    }
}
