//! The Hugging Face hub: models, and data sets by their parquet branch (`refs/convert/parquet`) or
//! another revision.
//!
//! Files are fetched once into the hub's cache and found there from then on, without the network;
//! all clients of the hub share it. The files of one model or data set are of one commit.
//! `OWNER/NAME@REVISION` names a branch, a tag or a commit.
//!
//! | variable | what |
//! |---|---|
//! | `HF_HOME` | folder of the cache (`hub`) and the token (`token`); default `~/.cache/huggingface` |
//! | `HF_HUB_CACHE` | folder of the cache alone |
//! | `HF_TOKEN`, `HF_TOKEN_PATH` | token for private and gated repositories, or the file that holds it |
//! | `HF_HUB_OFFLINE` | `1`: the cache alone |
//! | `HF_ENDPOINT` | another hub, or a mirror; default `https://huggingface.co` |
//! | `HF_HUB_DOWNLOAD_TIMEOUT` | the longest silence in seconds before a connection is made again; default 30 |
mod cache;
mod client;
mod download;
mod failure;
mod place;
mod snapshot;
mod wording;

use crate::decode::AnyImages;
use crate::options::DataOptions;
use crate::table::{Shard, choose, open_files, open_images};
use crate::{Dataset, Error, Result};
use place::Kind;
use snapshot::Repo;
pub use snapshot::Snapshot;
use std::path::{Path, PathBuf};

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

/// The local files of a data set.
struct Files {
    at: String,
    train: Vec<PathBuf>,
    test: Vec<PathBuf>,
}

/// Opens a data set whose files are known.
pub(crate) fn open_known(known: &Known, options: &DataOptions) -> Result<Dataset> {
    Files::of_known(known, options, true)?.open(options)
}

/// Opens `OWNER/NAME`, or `OWNER/NAME@REVISION`.
pub(crate) fn open(id: &str, options: &DataOptions) -> Result<Dataset> {
    Files::of(id, options, true)?.open(options)
}

/// The training images of a data set whose files are known.
pub(crate) fn images_of_known(known: &Known, options: &DataOptions) -> Result<AnyImages> {
    Files::of_known(known, options, false)?.images(options)
}

/// The training images of `OWNER/NAME`, of any sizes.
pub(crate) fn images(id: &str, options: &DataOptions) -> Result<AnyImages> {
    Files::of(id, options, false)?.images(options)
}

impl Files {
    /// Of a data set whose files are known, at the revision where they are.
    fn of_known(known: &Known, options: &DataOptions, with_test: bool) -> Result<Self> {
        if options.revision.is_some() {
            return Self::of(known.id, options, with_test);
        }
        let repo = Repo::new(Kind::Dataset, known.id, None)?;
        let test = with_test.then_some(known.test);
        Self::fetch(repo, None, &[known.train], test.as_slice())
    }

    /// Of a data set whose files the hub lists.
    fn of(id: &str, options: &DataOptions, with_test: bool) -> Result<Self> {
        let repo = Repo::new(Kind::Dataset, id, options.revision.as_deref())?;
        let (files, commit, is_cache) = repo.list()?;
        let shards: Vec<Shard> =
            files.iter().filter(|file| file.ends_with(".parquet")).map(|file| Shard::of(file)).collect();
        if shards.is_empty() {
            return Err(wording::no_parquet(&repo.place));
        }
        if is_cache {
            complete(&repo.place.id, &shards)?;
        }
        let chosen = choose(&format!("hub {}", repo.place.id), shards, options)?;
        let paths = |shards: &[Shard]| shards.iter().map(|shard| shard.path.clone()).collect::<Vec<_>>();
        let (train, test) = (paths(&chosen.train), paths(&chosen.test));
        let test = if with_test { test } else { Vec::new() };
        Self::fetch(repo, commit, &borrowed(&train), &borrowed(&test))
    }

    /// Fetches from the last file of the test split to the first of the training split: where a
    /// later shard is in the cache, a missing earlier one shows that a download was broken off, so
    /// that [`complete`] can tell without the network.
    fn fetch(repo: Repo, commit: Option<String>, train: &[&str], test: &[&str]) -> Result<Self> {
        let at = format!("hub {}", repo.place.id);
        let snapshot = repo.at(commit, &[test, train].concat())?;
        let test = snapshot.fetch_all(test.iter().copied())?;
        let train = snapshot.fetch_all(train.iter().copied())?;
        snapshot.settle();
        Ok(Self { at, train, test })
    }

    fn open(&self, options: &DataOptions) -> Result<Dataset> {
        open_files(&self.at, &self.train, &self.test, options, &fetch_afresh)
    }

    fn images(&self, options: &DataOptions) -> Result<AnyImages> {
        open_images(&self.at, &self.train, options, &fetch_afresh)
    }
}

fn borrowed(paths: &[String]) -> Vec<&str> {
    paths.iter().map(String::as_str).collect()
}

/// What to do about a damaged file.
fn fetch_afresh(path: &Path) -> String {
    // The snapshot's entry links to the blob, which has to go too.
    let blob = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    format!("delete {} and run again to fetch it afresh", blob.display())
}

/// Refuses a cache from which a shard before the last one is missing.
fn complete(id: &str, shards: &[Shard]) -> Result<()> {
    for shard in shards {
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
    Ok(())
}
