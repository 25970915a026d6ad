//! Features of the rows of a split, written to a file: the command `encode`.
use crate::arrays::{self, Format};
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::report::{Outcome, Report, named, of_data};
use crate::rows::{Blocks, InTurn, Reads, Rows, agree};
use crate::run_folder::check_writable;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery_datasets::count;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::Path;

/// What is encoded, and where the features go.
pub struct Encoding<'a> {
    /// The file, of a name that [`Format::of`] takes, or `-`.
    pub out: &'a Path,
    /// Who encodes: ranks take blocks of rows in turn, and rank 0 writes.
    pub ranks: &'a Ranks,
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
        let Self { out, ranks, rows: Rows { name: data, split, .. }, reads, layers, width } = self;
        let (layers, n_layers) = layers;
        agree(ranks, [split])?;
        let shape = (split.n_samples(), width);
        let bar = Progress::rows(shape.0 as u64, 0);
        let one = (layers.start() == layers.end()).then_some(*layers.end());
        bar.label(match one {
            Some(layer) => format!("layer {layer}/{n_layers}"),
            None => "all layers".to_owned(),
        });
        let mut blocks = Blocks::of_rank(ranks, split, reads, device)?;
        let mut made = InTurn::new(ranks, device, || {
            let Some(rows) = blocks.next()? else {
                return Ok(None);
            };
            let each: candle::Result<Vec<_>> = layers.clone().map(|layer| features(&rows, layer)).collect();
            let side_by_side = each.and_then(|each| Tensor::cat(&each, 1)?.to_dtype(DType::F32));
            of_data(data, side_by_side.map(|features| Some(vec![features])).map_err(Into::into))
        })?;
        if ranks.is_first() {
            let next = || {
                let Some(block) = made.next()?.and_then(|mut block| block.pop()) else { return Ok(None) };
                bar.advance(block.dim(0)? as u64);
                Ok(Some(block))
            };
            arrays::write(out, shape, next, split.labels.as_deref())?;
        }
        made.finish()?;
        ranks.first_goes_on();
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
