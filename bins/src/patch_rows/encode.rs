//! The command `encode`: what a model makes of every row, to a file.
use super::{EncodeArgs, Rows, UseArgs};
use crate::features::{Encoding, report_beside};
use crate::report::Outcome;
use crate::rows::Reads;
use anyhow::Result;
use candle::{Device, Module};

/// Writes what the model that `open` opens makes of the rows; `reads` says how it reads them, and how many features it has.
///
/// # Errors
/// Those of `open`, when a row is not what the model reads, or the disk refuses.
pub fn encode<M: Module>(
    args: &EncodeArgs,
    open: impl FnOnce(&UseArgs) -> Result<(Device, M, Rows)>,
    reads: impl FnOnce(&M) -> (Reads, usize),
) -> Result<Outcome> {
    let report = report_beside(args.of.common.json, &args.out)?;
    let (device, model, rows) = open(&args.of)?;
    let (reads, width) = reads(&model);
    let encoding =
        Encoding { out: &args.out, data: &rows.name, split: &rows.split, reads, layers: (1..=1, 1), width };
    encoding.write(&report, &device, |rows, _| model.forward(rows))
}
