//! The command `encode`: features of a data set to a file.
use super::args::{EncodeArgs, SplitArg};
use super::{load, rows};
use crate::arrays::{self, Format};
use crate::progress::Progress;
use crate::report::{Outcome, Report};
use crate::run_folder::check_writable;
use anyhow::{Context, Result, ensure};
use chandlery_datasets::{Dataset, Split};
use serde_json::json;

/// Writes features of every row of a split.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    Format::of(&args.out).context("--out")?;
    check_writable(&args.out).context("--out")?;
    let device = args.common.device.open()?;
    let dbn = load(&args.model, &device)?;
    let n_layers = dbn.layers().len();
    let layer = args.layer.unwrap_or(n_layers);
    ensure!(layer <= n_layers, "--layer: must be between 1 and {n_layers} for this network, got {layer}");
    let split = split_of(args.data.open()?, args.split)?;
    let shape = (split.n_samples(), dbn.config().layers[layer - 1].n_hidden);
    let bar = Progress::rows(shape.0 as u64, 0);
    bar.label(format!("layer {layer}/{n_layers}"));
    let mut blocks = rows::Blocks::new(&split, dbn.config(), &device)?;
    let next = || {
        let Some(rows) = blocks.next()? else {
            return Ok(None);
        };
        bar.advance(rows.dim(0)? as u64);
        Ok(Some(rows::features(&dbn, &rows, Some(layer))?))
    };
    arrays::write(&args.out, shape, next, split.labels.as_deref())?;
    bar.finish();
    report.line(&format!("{} rows of {} features in {}", shape.0, shape.1, args.out.display()))?;
    report.finish(&json!({
        "out": args.out,
        "n_samples": shape.0,
        "n_features": shape.1,
        "layer": layer,
        "labels": split.labels.is_some() && Format::of(&args.out)? == Format::Safetensors,
    }))?;
    Ok(Outcome::Done)
}

/// One split of a data set.
pub fn split_of(dataset: Dataset, split: SplitArg) -> Result<Split> {
    match split {
        SplitArg::Train => Ok(dataset.train),
        SplitArg::Test => dataset
            .test
            .with_context(|| format!("--split test: {} has no test rows; use --split train", dataset.name)),
    }
}
