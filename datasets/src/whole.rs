//! Files that appear whole or not at all.
//!
//! A [`WholeFile`] is written beside its name, as `.NAME.RANDOM.part`, and renamed over it once it
//! is on the disk. Each writer has such a file of its own, so that of two writers of one name the
//! last one wins, whole. What an error leaves is removed; [`abandon`] removes what a process that
//! is about to end leaves, and [`remove_leftovers`] what one that was killed left.
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Error, ErrorKind, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::{Builder, NamedTempFile};

/// How the name of a file that is not whole ends.
const SUFFIX: &str = ".part";
/// Bytes of a name that are kept in that of the file beside it, as names have at most 255.
const MOST_BYTES: usize = 200;

/// The files of this process that are not whole yet.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    // The set is whole whatever a thread that panicked did.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file: `write` is given what takes its bytes. The file gets its name, in place of one
/// that has it, when `write` has succeeded and the bytes are on the disk.
///
/// ```
/// use chandlery_datasets::whole::write_whole;
/// use std::io::{Error, Write};
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("a.txt");
/// write_whole::<Error>(&path, |file| file.write_all(b"first"))?;
/// let failed = write_whole(&path, |file| file.write_all(b"sec").and(Err(Error::other("no more"))));
/// assert_eq!(failed.unwrap_err().to_string(), "no more");
/// assert_eq!(std::fs::read(&path)?, b"first");
/// assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of `write`, and when the folder or the disk refuses; the message of these names `path`.
pub fn write_whole<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut WholeFile) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut file = WholeFile::create(path)?;
    write(&mut file)?;
    Ok(file.finish()?)
}

/// A file that is being written. It has its name after [`finish`](Self::finish), and is gone when
/// it is dropped before. Errors name it.
#[derive(Debug)]
pub struct WholeFile {
    /// As it was asked for.
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A file beside the name that it will have.
    Beside(BufWriter<NamedTempFile>, PathBuf),
    /// A pipe or a device, which takes bytes as they come.
    Straight(BufWriter<File>),
}

impl WholeFile {
    /// Begins a file of this name, with the permissions of any new file. A link stays one: the file
    /// that it names is written.
    ///
    /// # Errors
    /// When the folder does not exist or takes no file.
    pub fn create(path: &Path) -> Result<Self> {
        let named = |e| named(path, e);
        // A link to nothing is replaced.
        let is_link = fs::symlink_metadata(path).is_ok_and(|what| what.is_symlink());
        let target = if is_link { fs::canonicalize(path).ok() } else { None };
        let target = std::path::absolute(target.as_deref().unwrap_or(path)).map_err(named)?;
        if fs::metadata(&target).is_ok_and(|what| !what.is_file() && !what.is_dir()) {
            let device = OpenOptions::new().write(true).open(&target).map_err(named)?;
            return Ok(Self { path: path.to_owned(), to: To::Straight(BufWriter::new(device)) });
        }
        let folder = target.parent().unwrap_or(&target);
        let mut builder = Builder::new();
        let prefix = format!(".{}.", shortened(target.file_name().unwrap_or_default()));
        builder.prefix(&prefix).suffix(SUFFIX);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Less what the process masks.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut unfinished = unfinished();
        let beside = builder.tempfile_in(folder).map_err(named)?;
        unfinished.insert(beside.path().to_owned());
        // By which others see that it is being written. Not every file system has locks.
        let _ = beside.as_file().try_lock();
        Ok(Self { path: path.to_owned(), to: To::Beside(BufWriter::new(beside), target) })
    }

    /// Where the bytes go until the file has its name, for writers that want a path.
    pub fn beside(&self) -> &Path {
        match &self.to {
            To::Beside(file, _) => file.get_ref().path(),
            To::Straight(_) => &self.path,
        }
    }

    /// Gives the file its name once its bytes are on the disk.
    ///
    /// # Errors
    /// When the disk is full or the file cannot be renamed. What had the name stays.
    pub fn finish(self) -> Result<()> {
        finish_all([self], || Ok(()))
    }

    /// Waits until the bytes are on the disk.
    fn sync(&mut self) -> Result<()> {
        let synced = match &mut self.to {
            To::Beside(file, _) => file.flush().and_then(|()| file.get_ref().as_file().sync_all()),
            To::Straight(device) => device.flush(),
        };
        synced.map_err(|e| named(&self.path, e))
    }
}

/// Gives files their names, in their order, after `first` was done: by the process itself all or
/// none of it is done.
///
/// # Errors
/// Those of `first`, and as [`WholeFile::finish`].
pub fn finish_all(
    files: impl IntoIterator<Item = WholeFile>,
    first: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut files: Vec<WholeFile> = files.into_iter().collect();
    files.iter_mut().try_for_each(WholeFile::sync)?;
    let mut unfinished = unfinished();
    let ended = first().and_then(|()| {
        for file in &mut files {
            if let To::Beside(beside, target) = &mut file.to {
                fs::rename(beside.get_ref().path(), &*target).map_err(|e| named(&file.path, e))?;
                unfinished.remove(beside.get_ref().path());
                // The name beside it is no longer its own.
                beside.get_mut().disable_cleanup(true);
            }
        }
        Ok(())
    });
    // Dropping what is left takes the lock, too.
    drop(unfinished);
    ended
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let To::Beside(beside, _) = &mut self.to {
            let path = beside.get_ref().path().to_owned();
            let mut unfinished = unfinished();
            if unfinished.remove(&path) {
                // An error cannot be returned from here.
                let _ = fs::remove_file(&path);
                beside.get_mut().disable_cleanup(true);
            }
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let written = match &mut self.to {
            To::Beside(file, _) => file.write(bytes),
            To::Straight(device) => device.write(bytes),
        };
        written.map_err(|e| named(&self.path, e))
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = match &mut self.to {
            To::Beside(file, _) => file.flush(),
            To::Straight(device) => device.flush(),
        };
        flushed.map_err(|e| named(&self.path, e))
    }
}

impl Seek for WholeFile {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let sought = match &mut self.to {
            To::Beside(file, _) => file.seek(to),
            To::Straight(device) => device.seek(to),
        };
        sought.map_err(|e| named(&self.path, e))
    }
}

/// An error of writing that names the file; one that was interrupted is tried again by whoever
/// writes.
fn named(path: &Path, e: Error) -> Error {
    match e.kind() {
        ErrorKind::Interrupted => e,
        kind => Error::new(kind, format!("{}: cannot write: {e}", path.display())),
    }
}

/// The beginning of a name.
fn shortened(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let mut end = name.len().min(MOST_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default().to_owned()
}

/// A file that is deleted when the value is dropped, or by [`abandon`].
#[derive(Debug)]
pub struct ScratchFile {
    file: NamedTempFile,
}

impl ScratchFile {
    /// An empty file in a folder, whose name ends in `suffix`.
    ///
    /// # Errors
    /// When the folder takes no file; the message names it.
    pub fn create(folder: &Path, suffix: &str) -> Result<Self> {
        let folder = std::path::absolute(folder).map_err(|e| named(folder, e))?;
        let mut unfinished = unfinished();
        let file = Builder::new().prefix("chandlery-").suffix(suffix).tempfile_in(&folder);
        let file = file.map_err(|e| named(&folder, e))?;
        unfinished.insert(file.path().to_owned());
        Ok(Self { file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// To write to.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        unfinished().remove(self.file.path());
    }
}

/// Whether a name is that of a file that is not whole: of `of`, or of any.
pub fn is_unfinished(name: &OsStr, of: Option<&str>) -> bool {
    let name = name.to_string_lossy();
    let Some(inner) = name.strip_prefix('.').and_then(|name| name.strip_suffix(SUFFIX)) else {
        return false;
    };
    let inner = inner.rsplit_once('.').filter(|(name, random)| !name.is_empty() && random.len() == 6);
    inner.is_some_and(|(name, _)| of.is_none_or(|of| of == name))
}

/// Removes the files in a folder that nobody will finish: those of processes that were killed.
pub fn remove_leftovers(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_unfinished(&entry.file_name(), None)) {
        // Whoever writes it holds the lock; what cannot be removed is in nobody's way.
        if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes all files of this process that are not whole or are scratch, for a process that is about
/// to end: from here on no file gets its name and none is begun; whoever tries waits.
pub fn abandon() {
    let unfinished = unfinished();
    for path in unfinished.iter() {
        let _ = fs::remove_file(path);
    }
    std::mem::forget(unfinished);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Barrier;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn of_two_writers_of_one_name_one_leaves_its_file_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        let barrier = Barrier::new(2);
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for byte in [b'a', b'b'] {
                    let (path, barrier) = (&path, &barrier);
                    scope.spawn(move || {
                        write_whole::<Error>(path, |file| {
                            for _ in 0..20 {
                                file.write_all(&[byte; 10_000])?;
                                // Both are under way at each part.
                                barrier.wait();
                            }
                            Ok(())
                        })
                        .unwrap();
                    });
                }
            });
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.len() == 200_000 && bytes.iter().all(|byte| byte == &bytes[0]));
            assert_eq!(names(folder.path()), ["x.bin"]);
        }
    }

    #[test]
    fn an_error_names_the_file_and_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = ScratchFile::create(folder.path(), ".npy").unwrap();
        assert!(scratch.path().exists() && scratch.path().extension().is_some_and(|e| e == "npy"));
        drop(scratch);
        let path = folder.path().join("no/x.bin");
        let err = write_whole::<Error>(&path, |_| Ok(())).unwrap_err();
        assert!(err.to_string().starts_with(&format!("{}: cannot write: ", path.display())), "{err}");
        assert_eq!(err.kind(), ErrorKind::NotFound);
        assert!(names(folder.path()).is_empty());
        // A folder cannot be replaced by a file.
        let path = folder.path().join("y");
        fs::create_dir(&path).unwrap();
        let err = write_whole::<Error>(&path, |file| file.write_all(b"1")).unwrap_err();
        assert!(err.to_string().starts_with(&format!("{}: cannot write: ", path.display())), "{err}");
        assert_eq!(names(folder.path()), ["y"]);
    }

    #[test]
    fn several_files_get_their_names_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let mut file = WholeFile::create(&folder.path().join(name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            file
        };
        let err = finish_all([file("a"), file("b")], || Err(Error::other("not now"))).unwrap_err();
        assert_eq!((err.to_string(), names(folder.path())), ("not now".to_owned(), vec![]));
        finish_all([file("a"), file("b")], || Ok(())).unwrap();
        assert_eq!(names(folder.path()), ["a", "b"]);
        assert_eq!(fs::read(folder.path().join("b")).unwrap(), b"b");
    }

    #[test]
    fn leftovers_are_told_by_their_names_and_by_having_no_writer() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = WholeFile::create(&folder.path().join("a.npy")).unwrap();
        let name = file.beside().file_name().unwrap().to_owned();
        assert!(is_unfinished(&name, None) && is_unfinished(&name, Some("a.npy")), "{name:?}");
        assert!(!is_unfinished(&name, Some("b.npy")));
        for other in ["a.npy", ".part", "..part", ".a.part", ".a.npy.1234567.part", "a.npy.123456.part"] {
            assert!(!is_unfinished(OsStr::new(other), None), "{other}");
        }
        fs::write(folder.path().join(".b.npy.abc123.part"), "left").unwrap();
        fs::write(folder.path().join(".hidden"), "mine").unwrap();
        remove_leftovers(folder.path());
        file.write_all(b"1").unwrap();
        file.finish().unwrap();
        assert_eq!(names(folder.path()), [".hidden", "a.npy"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links_devices_take_bytes_and_permissions_are_those_of_any_file() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("far")).unwrap();
        fs::write(at("far/x"), "old").unwrap();
        symlink("far/x", at("x")).unwrap();
        write_whole::<Error>(&at("x"), |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(at("far/x")).unwrap(), b"new");
        assert!(fs::symlink_metadata(at("x")).unwrap().is_symlink());
        assert_eq!(names(&at("far")), ["x"]);
        fs::write(at("plain"), "").unwrap();
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode();
        assert_eq!(mode("far/x"), mode("plain"));
        symlink("/dev/null", at("null")).unwrap();
        write_whole::<Error>(&at("null"), |file| file.write_all(b"gone")).unwrap();
        assert!(fs::symlink_metadata(at("null")).unwrap().is_symlink());
        if Path::new("/dev/full").exists() {
            symlink("/dev/full", at("full")).unwrap();
            let err = write_whole::<Error>(&at("full"), |file| file.write_all(b"much")).unwrap_err();
            let text = format!("{}: cannot write: No space left on device", at("full").display());
            assert!(err.to_string().starts_with(&text), "{err}");
        }
        assert_eq!(names(folder.path()).len(), if Path::new("/dev/full").exists() { 5 } else { 4 });
    }
}
