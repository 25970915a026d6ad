//! The checkpoints of a run: the last one, and the one before it in case the disk damages the last.
use crate::report::Report;
use crate::run_folder::RunFolder;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// The last one, in the folder of a run.
pub const CHECKPOINT: &str = "checkpoint/trainer.safetensors";
/// The one before it.
pub const PREVIOUS: &str = "checkpoint/previous.safetensors";

/// Has `write` write a checkpoint to a path. At every moment the last one stands whole.
///
/// # Errors
/// When the disk refuses.
pub fn write(folder: &RunFolder, write: impl FnOnce(&Path) -> candle::Result<()>) -> Result<()> {
    folder.make_for(CHECKPOINT)?;
    let last = folder.join(CHECKPOINT);
    if last.exists() {
        folder.write_with(PREVIOUS, |beside| {
            // Left by a process that was killed.
            if beside.exists() {
                fs::remove_file(beside)?;
            }
            // The last one keeps its name until the new one takes it. Not every disk has two names for one file.
            if fs::hard_link(&last, beside).is_err() {
                fs::copy(&last, beside)?;
            }
            Ok(())
        })?;
    }
    Ok(write(&last)?)
}

/// What `load` makes of the last checkpoint, or of the one before where the file of the last is damaged, which is said.
///
/// # Errors
/// That of the last one when it is whole and refused, or when neither can be read.
pub fn read<T>(folder: &RunFolder, report: &Report, load: impl Fn(&Path) -> Result<T>) -> Result<T> {
    let at = || format!("--resume {}", folder.path().display());
    let previous = folder.join(PREVIOUS);
    match load(&folder.join(CHECKPOINT)) {
        Err(err) if previous.exists() && is_damaged(&folder.join(CHECKPOINT)) => {
            let Ok(loaded) = load(&previous) else { return Err(err).with_context(at) };
            report
                .line(&format!("{err:#}; going on from the checkpoint before it, {}", previous.display()))?;
            Ok(loaded)
        }
        loaded => loaded.with_context(at),
    }
}

/// Whether a file is there and cannot be read as the tensors that it should hold.
fn is_damaged(path: &Path) -> bool {
    path.exists() && candle::safetensors::load(path, &candle::Device::Cpu).is_err()
}
