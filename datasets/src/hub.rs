//! The Hugging Face hub: files of any repository, and data sets by their parquet branch (`refs/convert/parquet`).
//!
//! Files are fetched once into the hub's cache and found there from then on, without the network. The environment rules
//! as for every client of the hub: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, and `HF_HUB_OFFLINE=1` for the
//! cache alone.
use crate::decode::AnyImages;
use crate::error::one_line;
use crate::options::DataOptions;
use crate::table::{Shard, choose, open_files, open_images};
use crate::{Dataset, Error, Result};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, RepoType};
use std::path::{Path, PathBuf};

const REVISION: &str = "refs/convert/parquet";

/// A data set whose files are known, so that they need not be listed.
pub(crate) struct Known {
    id: &'static str,
    train: &'static str,
    test: &'static str,
}

/// MNIST: 60,000 training and 10,000 test digits, 28×28 grey.
pub(crate) const MNIST: Known =
    Known { id: "ylecun/mnist", train: "mnist/train/0000.parquet", test: "mnist/test/0000.parquet" };

/// Fashion-MNIST: of the same shape as MNIST.
pub(crate) const FASHION_MNIST: Known = Known {
    id: "zalando-datasets/fashion_mnist",
    train: "fashion_mnist/train/0000.parquet",
    test: "fashion_mnist/test/0000.parquet",
};

/// Opens a data set whose files are known.
pub(crate) fn open_known(known: &Known, options: &DataOptions) -> Result<Dataset> {
    let repo = Repo::new(Kind::Dataset, known.id)?;
    let test = repo.fetch(known.test)?;
    let train = repo.fetch(known.train)?;
    repo.open(&[train], &[test], options)
}

/// Opens `OWNER/NAME`.
pub(crate) fn open(id: &str, options: &DataOptions) -> Result<Dataset> {
    let repo = Repo::new(Kind::Dataset, id)?;
    let chosen = choose(&format!("hub {id}"), repo.list()?, options)?;
    // From the last file of the test split to the first of the training split: where a later shard is in the cache, a
    // missing earlier one shows that a download was broken off, so that `list` can tell without the network.
    let test = repo.fetch_all(&chosen.test)?;
    let train = repo.fetch_all(&chosen.train)?;
    repo.open(&train, &test, options)
}

/// The training images of a data set whose files are known.
pub(crate) fn images_of_known(known: &Known, options: &DataOptions) -> Result<AnyImages> {
    let repo = Repo::new(Kind::Dataset, known.id)?;
    let train = repo.fetch(known.train)?;
    repo.images(&[train], options)
}

/// The training images of `OWNER/NAME`, of any sizes.
pub(crate) fn images(id: &str, options: &DataOptions) -> Result<AnyImages> {
    let repo = Repo::new(Kind::Dataset, id)?;
    let chosen = choose(&format!("hub {id}"), repo.list()?, options)?;
    let train = repo.fetch_all(&chosen.train)?;
    repo.images(&train, options)
}

/// Refuses what is not of the form `OWNER/NAME`.
fn check_id(kind: Kind, id: &str) -> Result<()> {
    let part = |s: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !s.is_empty() && s.chars().all(allowed) && !s.starts_with('.')
    };
    match id.split_once('/') {
        Some((owner, name)) if part(owner) && part(name) => Ok(()),
        _ => Err(Error::Hub {
            id: id.to_owned(),
            what: "is not of the form OWNER/NAME".to_owned(),
            fix: match kind {
                Kind::Model => "give a folder, or the OWNER/NAME of a model".to_owned(),
                Kind::Dataset => "write for example hub:ylecun/mnist".to_owned(),
            },
        }),
    }
}

/// What a repository of the hub holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model, at its newest revision.
    Model,
    /// A data set, as parquet files.
    Dataset,
}

/// The local path of a file of the repository `id` (`OWNER/NAME`), from the cache or else downloaded to it.
///
/// # Errors
/// When `id` is not of that form, the hub has no such file, or it cannot be reached; the message says what to do.
pub fn fetch(kind: Kind, id: &str, file: &str) -> Result<PathBuf> {
    Repo::new(kind, id)?.fetch(file)
}

/// Attempts to go on with a download that broke off.
const RETRIES: usize = 3;

struct Repo {
    id: String,
    kind: Kind,
    repo: ApiRepo,
    cache: Cache,
    /// As the hub's clients name it.
    of_cache: hf_hub::Repo,
    endpoint: String,
    offline: bool,
}

/// What the environment says, where it says something.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

impl Repo {
    fn new(kind: Kind, id: &str) -> Result<Self> {
        check_id(kind, id)?;
        let cache = match variable(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]) {
            Some(folder) => Cache::new(folder.into()),
            None => Cache::from_env(),
        };
        // A token beside another cache is not the user's.
        let token = variable(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).or_else(|| Cache::from_env().token());
        let endpoint = variable(&["HF_ENDPOINT"]).unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let builder = ApiBuilder::from_cache(cache.clone()).with_endpoint(endpoint.clone()).with_token(token);
        let api: Api =
            builder.with_progress(false).with_retries(RETRIES).build().map_err(|e| Error::Hub {
                id: id.to_owned(),
                what: format!("no client: {}", one_line(e)),
                fix: "check HF_ENDPOINT and the other HF_ variables".to_owned(),
            })?;
        let of_cache = match kind {
            Kind::Model => hf_hub::Repo::new(id.to_owned(), RepoType::Model),
            Kind::Dataset => {
                hf_hub::Repo::with_revision(id.to_owned(), RepoType::Dataset, REVISION.to_owned())
            }
        };
        let offline = variable(&["HF_HUB_OFFLINE"])
            .is_some_and(|v| ["1", "on", "yes", "true"].contains(&v.to_ascii_lowercase().as_str()));
        let repo = api.repo(of_cache.clone());
        Ok(Self { id: id.to_owned(), kind, repo, cache, of_cache, endpoint, offline })
    }

    /// The local path of a file, from the cache or else from the network.
    fn fetch(&self, file: &str) -> Result<PathBuf> {
        if let Some(path) = self.cache.repo(self.of_cache.clone()).get(file) {
            return Ok(path);
        }
        if self.offline {
            return Err(self.offline_error());
        }
        self.remove_dangling(file);
        tracing::info!(id = self.id, file, endpoint = self.endpoint, "downloading");
        let path = self.repo.download(file).map_err(|e| self.error(Some(file), e))?;
        tracing::info!(id = self.id, file, path = %path.display(), "downloaded");
        Ok(path)
    }

    /// Removes a link of the cache whose file somebody has deleted, so that the file can be fetched afresh.
    fn remove_dangling(&self, file: &str) {
        let links = self.snapshot().map(|snapshot| snapshot.join(file));
        if let Some(link) = links.filter(|link| link.is_symlink() && !link.exists()) {
            // Where it cannot be removed, the download says so.
            let _ = std::fs::remove_file(link);
        }
    }

    /// The folder of the cache with the newest revision, as the hub's clients lay it out.
    fn snapshot(&self) -> Option<PathBuf> {
        let folder = self.cache.path().join(self.of_cache.folder_name());
        let commit = std::fs::read_to_string(folder.join("refs").join(self.of_cache.revision())).ok()?;
        Some(folder.join("snapshots").join(commit.trim()))
    }

    /// The parquet files there are: by the hub, or by the cache when the hub cannot be reached.
    fn list(&self) -> Result<Vec<Shard>> {
        let cached = self.cached();
        if self.offline {
            return match cached.is_empty() {
                true => Err(self.offline_error()),
                false => complete(&self.id, cached),
            };
        }
        let listed = match self.repo.info() {
            Ok(info) => info.siblings,
            Err(e) if unreachable(&e) && !cached.is_empty() => {
                tracing::warn!(data = self.id, "the hub cannot be reached; using the cache");
                return complete(&self.id, cached);
            }
            Err(e) => return Err(self.error(None, e)),
        };
        let shards: Vec<Shard> = listed
            .iter()
            .map(|sibling| sibling.rfilename.as_str())
            .filter(|file| file.ends_with(".parquet"))
            .map(Shard::of)
            .collect();
        if shards.is_empty() {
            return Err(Error::Hub {
                id: self.id.clone(),
                what: format!("has no parquet files in {REVISION}"),
                fix: "choose a data set that the hub's viewer shows".to_owned(),
            });
        }
        Ok(shards)
    }

    /// Parquet files of the revision's snapshot in the cache, as the hub's clients lay it out.
    fn cached(&self) -> Vec<Shard> {
        let Some(snapshot) = self.snapshot() else {
            return Vec::new();
        };
        let mut files = Vec::new();
        collect_files(&snapshot, &mut files);
        files
            .iter()
            .filter_map(|path| path.strip_prefix(&snapshot).ok())
            .map(|path| path.to_string_lossy())
            .filter(|path| path.ends_with(".parquet"))
            .map(|path| Shard::of(&path))
            .collect()
    }

    /// The local paths of all files, fetched from the last to the first.
    fn fetch_all(&self, shards: &[Shard]) -> Result<Vec<PathBuf>> {
        let files = shards.iter().rev().map(|shard| self.fetch(&shard.path));
        let mut files = files.collect::<Result<Vec<_>>>()?;
        files.reverse();
        Ok(files)
    }

    fn open(&self, train: &[PathBuf], test: &[PathBuf], options: &DataOptions) -> Result<Dataset> {
        open_files(&format!("hub {}", self.id), train, test, options, &fetch_afresh)
    }

    fn images(&self, files: &[PathBuf], options: &DataOptions) -> Result<AnyImages> {
        open_images(&format!("hub {}", self.id), files, options, &fetch_afresh)
    }

    fn offline_error(&self) -> Error {
        Error::Hub {
            id: self.id.clone(),
            what: format!("not in the cache {}", self.cache.path().display()),
            fix: "unset HF_HUB_OFFLINE to download it".to_owned(),
        }
    }

    /// Words an error of the client; `file` is what was being fetched, none while listing.
    fn error(&self, file: Option<&str>, error: ApiError) -> Error {
        let of = file.map(|file| format!("{file} ")).unwrap_or_default();
        let (what, fix) = match (&error, status(&error)) {
            (_, Some(404)) => (format!("{of}not found at {} (404)", self.endpoint), self.spelling(false)),
            // The hub answers so for names that do not exist, too.
            (_, Some(401 | 403)) => {
                (format!("{of}not found at {}, or not for everyone", self.endpoint), self.spelling(true))
            }
            (_, Some(429)) => (
                format!("{} asks for fewer requests (429)", self.endpoint),
                "wait some minutes, or set HF_TOKEN".to_owned(),
            ),
            (e, _) if unreachable(e) => (
                format!(
                    "{of}not in the cache {} and {} cannot be reached",
                    self.cache.path().display(),
                    self.endpoint
                ),
                match self.kind {
                    Kind::Model => "check the network and HF_ENDPOINT".to_owned(),
                    Kind::Dataset => {
                        "check the network and HF_ENDPOINT, or use mnist-sample, which needs neither"
                            .to_owned()
                    }
                },
            ),
            (ApiError::TooManyRetries(_) | ApiError::InvalidResume, _) => {
                (format!("the download of {of}broke off"), "run again".to_owned())
            }
            (ApiError::IoError(e), _) => (
                format!("cannot write to the cache {}: {e}", self.cache.path().display()),
                "check its permissions and free space, or set HF_HUB_CACHE".to_owned(),
            ),
            (ApiError::LockAcquisition(path), _) => (
                format!("another process holds {}", path.display()),
                "wait for its download to end and run again".to_owned(),
            ),
            (other, _) => {
                (format!("{of}could not be fetched: {}", one_line(other)), "run again later".to_owned())
            }
        };
        Error::Hub { id: self.id.clone(), what, fix }
    }

    /// What to do where the hub has nothing of that name, or not for everyone.
    fn spelling(&self, token: bool) -> String {
        match (self.kind, token) {
            (Kind::Dataset, false) => {
                "check the spelling of OWNER/NAME, and that the hub's viewer shows the data set".to_owned()
            }
            (Kind::Dataset, true) => {
                "check the spelling of OWNER/NAME; for a private or gated data set set HF_TOKEN".to_owned()
            }
            (Kind::Model, false) => "check the spelling of OWNER/NAME".to_owned(),
            (Kind::Model, true) => {
                "check the spelling of OWNER/NAME; for a private or gated model set HF_TOKEN".to_owned()
            }
        }
    }
}

/// What to do about a damaged file.
fn fetch_afresh(path: &Path) -> String {
    // The snapshot's entry links to the blob, which has to go too.
    let blob = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    format!("delete {} and run again to fetch it afresh", blob.display())
}

/// The status that the hub answered with, where it answered with an error.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(e) => match **e {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}

/// Whether the hub was not reached at all, or was, but is out of order.
fn unreachable(error: &ApiError) -> bool {
    use ureq::Error;
    match error {
        ApiError::RequestError(e) => match &**e {
            Error::StatusCode(status) => *status >= 500,
            Error::HostNotFound | Error::ConnectionFailed | Error::Timeout(_) => true,
            Error::Io(e) => e.kind() != std::io::ErrorKind::UnexpectedEof,
            _ => false,
        },
        _ => false,
    }
}

/// Refuses a cache from which a shard before the last one is missing.
fn complete(id: &str, shards: Vec<Shard>) -> Result<Vec<Shard>> {
    for shard in &shards {
        let Some((folder, file)) = shard.path.rsplit_once('/') else {
            continue;
        };
        let Some(number) = file.strip_suffix(".parquet").and_then(|n| n.parse().ok()) else {
            continue;
        };
        for before in 0..number {
            let path = format!("{folder}/{before:04}.parquet");
            if !shards.iter().any(|shard| shard.path == path) {
                return Err(Error::Hub {
                    id: id.to_owned(),
                    what: format!("the cache holds {} but not {path}", shard.path),
                    fix: "run again with the network to complete the download".to_owned(),
                });
            }
        }
    }
    Ok(shards)
}

/// Files below `folder`; what cannot be listed is not in the cache.
fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        match path.is_dir() {
            true => collect_files(&path, files),
            false => files.push(path),
        }
    }
}
