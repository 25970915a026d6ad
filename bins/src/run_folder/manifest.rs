//! `files.txt`: the files that a run wrote to its folder.
//!
//! A name is listed before its file is written, so that a run that is killed leaves no file that is
//! not listed.
use anyhow::{Context, Result, bail};
use chandlery_datasets::whole::{is_unfinished, write_whole};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

/// The file.
pub(super) const FILE: &str = "files.txt";
/// Its first line, by which it is known.
const TITLE: &str = "Files of a run of Chandlery; --overwrite removes these and no others.";
/// What a run writes before it has a checkpoint.
const BEFORE: [&str; 2] = [FILE, "run.json"];
const CHECKPOINTS: &str = "checkpoint";
const FIRST: &str = "next.safetensors";

/// The names of the files; none where no run has begun.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    names: Option<BTreeSet<String>>,
}

impl Manifest {
    /// That of a folder. A file of the same name that does not begin as that of a run does is
    /// somebody's own.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => String::new(),
            Err(e) => return Err(e).with_context(|| format!("{}: cannot be read", path.display())),
        };
        let Some(names) = text.strip_prefix(TITLE) else {
            return Ok(Self::default());
        };
        // A line without its end was being written, and its file was not.
        let whole = names.rfind('\n').and_then(|end| names.get(..end)).unwrap_or_default();
        let names: BTreeSet<String> =
            whole.lines().filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let inside =
            |name: &String| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if let Some(name) = names.iter().find(|name| !inside(name)) {
            bail!("{}: must name files in the folder, got {name}; remove the line", path.display())
        }
        Ok(Self { names: Some(names) })
    }

    /// Whether there is one.
    pub(super) fn is_of_run(&self) -> bool {
        self.names.is_some()
    }

    /// The folders of its files, within that of the run.
    pub(super) fn folders(&self) -> BTreeSet<PathBuf> {
        let parents = self.names.iter().flatten().filter_map(|name| Path::new(name).parent());
        [Path::new(""), Path::new(CHECKPOINTS)].into_iter().chain(parents).map(Path::to_owned).collect()
    }

    /// Adds a name.
    pub(super) fn add(&mut self, folder: &Path, name: &str) -> Result<()> {
        let Some(names) = &mut self.names else {
            return self.write(folder, BTreeSet::from([name.to_owned()]));
        };
        if names.contains(name) {
            return Ok(());
        }
        let path = folder.join(FILE);
        let appended = File::options().append(true).open(&path);
        let appended = appended.and_then(|mut file| file.write_all(format!("{name}\n").as_bytes()));
        appended.with_context(|| format!("{}: cannot write", path.display()))?;
        names.insert(name.to_owned());
        Ok(())
    }

    /// Removes all files but those of `keep`, which are what is left.
    pub(super) fn begin(&mut self, folder: &Path, keep: &[&str]) -> Result<()> {
        for name in self.names.iter().flatten().filter(|name| !keep.contains(&name.as_str())) {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Err(e).with_context(|| format!("{}: cannot remove", path.display()));
                }
                _ => {}
            }
            // A folder that still holds something stays.
            let within = Path::new(name).ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
            within.for_each(|parent| drop(fs::remove_dir(folder.join(parent))));
        }
        let kept = keep.iter().filter(|name| folder.join(name).exists());
        self.write(folder, kept.map(|name| (*name).to_owned()).collect())
    }

    fn write(&mut self, folder: &Path, names: BTreeSet<String>) -> Result<()> {
        let lines = names.iter().map(|name| format!("{name}\n")).collect::<String>();
        write_whole::<Error>(&folder.join(FILE), |file| write!(file, "{TITLE}\n{lines}"))?;
        self.names = Some(names);
        Ok(())
    }
}

/// Whether a folder holds nothing, or what a run left that ended before its first checkpoint.
pub(super) fn is_empty(folder: &Path) -> std::io::Result<bool> {
    let holds_only = |folder: &Path, known: &dyn Fn(&str) -> bool| -> std::io::Result<bool> {
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            if !is_unfinished(&name, None) && !name.to_str().is_some_and(known) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let of_run = Manifest::read(folder).is_ok_and(|manifest| manifest.is_of_run());
    let before = |name: &str| of_run && BEFORE.contains(&name) || name == CHECKPOINTS;
    let checkpoints = folder.join(CHECKPOINTS);
    Ok(holds_only(folder, &before)?
        && (!checkpoints.exists()
            || checkpoints.is_dir() && holds_only(&checkpoints, &|name| name == FIRST)?))
}
