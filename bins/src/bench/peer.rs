//! Scripts that measure other libraries, run by Python.
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// How `--peer SCRIPT` is run: by python3, or what the variable PYTHON names, in the script's
/// folder, since it may import what lies beside it.
pub(super) fn command(script: &Path) -> Result<Command> {
    ensure!(script.is_file(), "--peer {}: no such file", script.display());
    let name = script.file_name().context("--peer: must name a file")?;
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.arg(name);
    if let Some(folder) = script.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        command.current_dir(folder);
    }
    Ok(command)
}
