//! Data sets of the Hugging Face hub, by their parquet branch (`refs/convert/parquet`).
//!
//! Files are fetched once into the hub's cache and found there from then on, without the network. The environment rules
//! as for every client of the hub: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, and `HF_HUB_OFFLINE=1` for the
//! cache alone.
use crate::error::one_line;
use crate::options::DataOptions;
use crate::table::{Shard, choose, open_files};
use crate::{Dataset, Error, Result};
use hf_hub::{HFClientSync, HFError, HFRepositorySync, RepoTypeDataset};
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
    let repo = Repo::new(known.id)?;
    let test = repo.fetch(known.test)?;
    let train = repo.fetch(known.train)?;
    repo.open(&[train], &[test], options)
}

/// Opens `OWNER/NAME`.
pub(crate) fn open(id: &str, options: &DataOptions) -> Result<Dataset> {
    let part = |s: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !s.is_empty() && s.chars().all(allowed) && !s.starts_with('.')
    };
    match id.split_once('/') {
        Some((owner, name)) if part(owner) && part(name) => {}
        _ => {
            return Err(Error::Hub {
                id: id.to_owned(),
                what: "is not of the form OWNER/NAME".to_owned(),
                fix: "write for example hub:ylecun/mnist".to_owned(),
            });
        }
    }
    let repo = Repo::new(id)?;
    let chosen = choose(&format!("hub {id}"), repo.list()?, options)?;
    // From the last file of the test split to the first of the training split: where a later shard is in the cache, a
    // missing earlier one shows that a download was broken off, so that `list` can tell without the network.
    let fetch = |shards: &[Shard]| -> Result<Vec<PathBuf>> {
        let files = shards.iter().rev().map(|shard| repo.fetch(&shard.path));
        let mut files = files.collect::<Result<Vec<_>>>()?;
        files.reverse();
        Ok(files)
    };
    let test = fetch(&chosen.test)?;
    let train = fetch(&chosen.train)?;
    repo.open(&train, &test, options)
}

struct Repo {
    id: String,
    repo: HFRepositorySync<RepoTypeDataset>,
    endpoint: String,
    cache_dir: PathBuf,
    offline: bool,
}

impl Repo {
    fn new(id: &str) -> Result<Self> {
        let client = hf_hub::HFClient::builder().retry_max_attempts(3).build().and_then(|client| {
            let (endpoint, cache_dir) = (client.endpoint().to_owned(), client.cache_dir().to_owned());
            Ok((HFClientSync::from_inner(client)?, endpoint, cache_dir))
        });
        let (client, endpoint, cache_dir) = client.map_err(|e| Error::Hub {
            id: id.to_owned(),
            what: format!("no client: {}", one_line(e)),
            fix: "check HF_ENDPOINT and the other HF_ variables".to_owned(),
        })?;
        let (owner, name) = hf_hub::split_id(id);
        let offline = std::env::var("HF_HUB_OFFLINE")
            .is_ok_and(|v| ["1", "on", "yes", "true"].contains(&v.to_ascii_lowercase().as_str()));
        Ok(Self { id: id.to_owned(), repo: client.dataset(owner, name), endpoint, cache_dir, offline })
    }

    /// The local path of a file, from the cache or else from the network.
    fn fetch(&self, file: &str) -> Result<PathBuf> {
        let request = self.repo.download_file().filename(file).revision(REVISION);
        match request.clone().local_files_only(true).send() {
            Ok(path) => return Ok(path),
            Err(HFError::LocalEntryNotFound { .. }) if !self.offline => {}
            Err(HFError::EntryNotFound { .. }) if !self.offline => {}
            Err(e) => return Err(self.error(Some(file), e)),
        }
        tracing::info!(data = self.id, file, endpoint = self.endpoint, "downloading");
        let path = request.send().map_err(|e| self.error(Some(file), e))?;
        tracing::info!(data = self.id, file, path = %path.display(), "downloaded");
        Ok(path)
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
        let listed = match self.repo.info().revision(REVISION).send() {
            Ok(info) => info.siblings.unwrap_or_default(),
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
        let folder = format!("datasets--{}", self.id.replace('/', "--"));
        let folder = self.cache_dir.join(folder);
        let Ok(commit) = std::fs::read_to_string(folder.join("refs").join(REVISION)) else {
            return Vec::new();
        };
        let snapshot = folder.join("snapshots").join(commit.trim());
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

    fn open(&self, train: &[PathBuf], test: &[PathBuf], options: &DataOptions) -> Result<Dataset> {
        let at = format!("hub {}", self.id);
        let remedy = |path: &Path| {
            // The snapshot's entry links to the blob, which has to go too.
            let blob = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            format!("delete {} and run again to fetch it afresh", blob.display())
        };
        open_files(&at, train, test, options, &remedy)
    }

    fn offline_error(&self) -> Error {
        Error::Hub {
            id: self.id.clone(),
            what: format!("not in the cache {}", self.cache_dir.display()),
            fix: "unset HF_HUB_OFFLINE to download it".to_owned(),
        }
    }

    /// Words an error of the client; `file` is what was being fetched, none while listing.
    fn error(&self, file: Option<&str>, error: HFError) -> Error {
        let of = file.map(|file| format!("{file} ")).unwrap_or_default();
        let (what, fix) = match error {
            HFError::LocalEntryNotFound { .. } | HFError::EntryNotFound { .. } if self.offline => {
                return self.offline_error();
            }
            HFError::RepoNotFound { .. }
            | HFError::RevisionNotFound { .. }
            | HFError::EntryNotFound { .. } => (
                format!("{of}not found at {} (404)", self.endpoint),
                "check the spelling of OWNER/NAME, and that the hub's viewer shows the data set",
            ),
            // The hub answers so for names that do not exist, too.
            HFError::AuthRequired { .. } | HFError::Forbidden { .. } => (
                format!("{of}not found at {}, or not for everyone", self.endpoint),
                "check the spelling of OWNER/NAME; for a private or gated data set set HF_TOKEN",
            ),
            HFError::RateLimited { .. } => (
                format!("{} asks for fewer requests (429)", self.endpoint),
                "wait some minutes, or set HF_TOKEN",
            ),
            ref e if unreachable(e) => (
                format!(
                    "{of}not in the cache {} and {} cannot be reached",
                    self.cache_dir.display(),
                    self.endpoint
                ),
                "check the network and HF_ENDPOINT, or use mnist-sample, which needs neither",
            ),
            HFError::Request { source, .. } if source.is_body() || source.is_decode() => {
                (format!("the download of {of}broke off"), "run again")
            }
            HFError::Io(e) => (
                format!("cannot write to the cache {}: {e}", self.cache_dir.display()),
                "check its permissions and free space, or set HF_HUB_CACHE",
            ),
            HFError::CacheLockTimeout { path } => (
                format!("another process holds {}", path.display()),
                "wait for its download to end and run again",
            ),
            other => (format!("{of}could not be fetched: {}", one_line(other)), "run again later"),
        };
        Error::Hub { id: self.id.clone(), what, fix: fix.to_owned() }
    }
}

/// Whether the hub was not reached at all, or was, but is out of order.
fn unreachable(error: &HFError) -> bool {
    match error {
        HFError::Request { source, .. } => source.is_connect() || source.is_timeout(),
        HFError::Http { context } => context.status.is_server_error(),
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
