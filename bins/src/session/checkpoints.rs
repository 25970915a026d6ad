//! The checkpoints of a run: the last one, and the one before it in case the disk damages the last.
use crate::report::Report;
use crate::run_folder::RunFolder;
use crate::stages::{self, Stage};
use anyhow::{Context, Result, bail};
use chandlery::checkpoint::verify;
use std::fs;
use std::path::Path;

/// The last one, in the folder of a run.
pub const CHECKPOINT: &str = "checkpoint/trainer.safetensors";
/// The one before it.
pub const PREVIOUS: &str = "checkpoint/previous.safetensors";
/// One that is whole and not the last one yet.
const NEXT: &str = "checkpoint/next.safetensors";

/// Has `write` write a checkpoint to a path. At every moment the last one stands whole.
///
/// # Errors
/// When the disk refuses.
pub fn write(folder: &RunFolder, write: impl FnOnce(&Path) -> candle::Result<()>) -> Result<()> {
    let _stage = stages::enter(Stage::Checkpoints);
    let next = folder.file(NEXT)?;
    write(&next)?;
    let (last, previous) = (folder.file(CHECKPOINT)?, folder.file(PREVIOUS)?);
    if last.exists() {
        // The last one keeps its name until the new one takes it. Not every disk has two names for
        // one file: there the one before stands alone for a moment.
        let _ = fs::remove_file(&previous);
        fs::hard_link(&last, &previous)
            .or_else(|_| fs::rename(&last, &previous))
            .with_context(|| format!("{}: cannot write", previous.display()))?;
    }
    fs::rename(&next, &last).with_context(|| format!("{}: cannot write", last.display()))
}

/// Begins a run with its first checkpoint, which `write` writes to a path: until that is whole, a
/// former run stays as it was. `describe` then writes what the run was asked for, before the
/// checkpoint has its name, so that there is never a checkpoint without it.
///
/// # Errors
/// When the disk refuses.
pub fn begin(
    folder: &RunFolder,
    write: impl FnOnce(&Path) -> candle::Result<()>,
    describe: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _stage = stages::enter(Stage::Checkpoints);
    let next = folder.join(NEXT);
    let parent = next.parent().unwrap_or(&next);
    fs::create_dir_all(parent).with_context(|| format!("{}: cannot make", parent.display()))?;
    write(&next)?;
    // What a former run was asked for stays until that of the new one replaces it.
    folder.begin(&[NEXT, super::info::FILE])?;
    describe()?;
    let last = folder.file(CHECKPOINT)?;
    fs::rename(&next, &last).with_context(|| format!("{}: cannot write", last.display()))
}

/// What `load` makes of the last checkpoint, or of the one before it where the last is damaged or
/// missing, which is said.
///
/// # Errors
/// When neither is whole, or `load` refuses the one that is.
pub fn read<T>(folder: &RunFolder, report: &Report, load: impl Fn(&Path) -> Result<T>) -> Result<T> {
    let _stage = stages::enter(Stage::Checkpoints);
    let at = || format!("--resume {}", folder.path().display());
    folder.remove_leftovers();
    let (last, previous) = (folder.join(CHECKPOINT), folder.join(PREVIOUS));
    if !last.exists() && !previous.exists() {
        bail!(
            "{}: this run ended before its first checkpoint; begin it again by the command that began it",
            at()
        )
    }
    if let Err(why) = verify(&last) {
        let why = crate::report::one_line(&why.into());
        if verify(&previous).is_err() {
            bail!("{}: {why}; there is no whole checkpoint before it, so begin the run again", at())
        }
        report.note(&format!("note: {why}; going on from the checkpoint before it, {}", previous.display()));
        let loaded = load(&previous).with_context(at)?;
        // The next one is not to push it aside for one that is damaged.
        fs::rename(&previous, &last).with_context(|| format!("{}: cannot write", last.display()))?;
        return Ok(loaded);
    }
    load(&last).with_context(at)
}
