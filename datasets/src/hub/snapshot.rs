//! Files of one repository, all of one commit.
use super::cache::Folder;
use super::client::{Client, Described};
use super::download::bring;
use super::failure::Failure;
use super::place::{Kind, Place, Settings, is_name, is_path};
use super::wording::{offline, worded};
use crate::{Error, Result};
use std::path::PathBuf;

/// A repository at a revision, in the cache and on the hub.
#[derive(Debug)]
pub(super) struct Repo {
    pub(super) place: Place,
    settings: Settings,
    folder: Folder,
    client: Client,
}

impl Repo {
    pub(super) fn new(kind: Kind, id: &str, revision: Option<&str>) -> Result<Self> {
        let place = Place::parse(kind, id, revision)?;
        let settings = Settings::read().ok_or_else(|| Error::Hub {
            id: place.id.clone(),
            what: "there is no home folder for the cache".to_owned(),
            fix: "set HF_HOME to a folder".to_owned(),
        })?;
        let folder = Folder::new(settings.cache.clone(), place.folder());
        let client = Client::new(&settings);
        Ok(Self { place, settings, folder, client })
    }

    /// The commit that the revision stands at, as far as the cache knows.
    fn cached_commit(&self) -> Option<String> {
        let commit = self.place.as_commit().map(str::to_owned);
        commit.or_else(|| self.folder.commit_of(&self.place.revision))
    }

    fn error(&self, file: Option<&str>, failure: Failure) -> Error {
        worded(&self.place, &self.settings, &self.client, file, failure)
    }

    /// The names of all files and the commit: by the hub, or by the cache when the hub cannot be
    /// reached. Whether it was the cache comes last.
    pub(super) fn list(&self) -> Result<(Vec<String>, Option<String>, bool)> {
        let known = self.cached_commit();
        let cached = known.as_ref().map(|commit| self.folder.files(commit)).unwrap_or_default();
        if self.settings.offline {
            return match cached.is_empty() {
                true => Err(offline(&self.place, &self.settings, None)),
                false => Ok((cached, known, true)),
            };
        }
        let listing = match self.client.json(&self.place.listing()) {
            Err(failure) if failure.is_unreachable() && !cached.is_empty() => {
                tracing::warn!(id = self.place.id, "the hub cannot be reached; using the cache");
                return Ok((cached, known, true));
            }
            other => other.map_err(|failure| self.error(None, failure))?,
        };
        let files = listing.get("siblings").and_then(|files| files.as_array()).into_iter().flatten();
        let files = files.filter_map(|file| file.get("rfilename")?.as_str().map(str::to_owned));
        let commit = listing.get("sha").and_then(|sha| sha.as_str()).filter(|sha| is_name(sha));
        Ok((files.collect(), commit.map(str::to_owned), false))
    }

    /// What the hub says of a file at a revision, whose commit is known then.
    fn describe(&self, revision: &str, file: &str) -> Result<(Described, String, String), Failure> {
        let described = self.client.describe(&self.place.file(revision, file))?;
        let no_hub =
            |header: &str| Failure::Wrong(format!("does not answer as a hub does: {header} is missing"));
        let commit = described.commit.clone().filter(|commit| is_name(commit));
        let tag = described.tag.clone().filter(|tag| is_name(tag));
        let commit = commit.ok_or_else(|| no_hub("X-Repo-Commit"))?;
        let tag = tag.ok_or_else(|| no_hub("an ETag that can name a file"))?;
        Ok((described, commit, tag))
    }

    /// Settles the commit that `files` are of, the one that the cache has if it has them all, else
    /// that of the hub.
    pub(super) fn at(self, commit: Option<String>, files: &[&str]) -> Result<Snapshot> {
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        let known = self.cached_commit();
        let has_all = |commit: &String| files.iter().all(|file| self.folder.has(commit, file));
        let pinned = commit.or_else(|| self.place.as_commit().map(str::to_owned));
        if let Some(commit) = pinned.or_else(|| known.clone().filter(has_all)) {
            return Ok(Snapshot { repo: self, commit, files, known: None });
        }
        let is_missing = |file: &&String| known.as_ref().is_none_or(|commit| !self.folder.has(commit, file));
        let file = files.iter().find(is_missing).cloned().unwrap_or_default();
        if self.settings.offline {
            return Err(offline(&self.place, &self.settings, Some(&file)));
        }
        let (described, commit, tag) =
            self.describe(&self.place.revision, &file).map_err(|failure| self.error(Some(&file), failure))?;
        Ok(Snapshot { repo: self, commit, files, known: Some((file, described, tag)) })
    }
}

/// Files of one repository of the hub, all of one commit, so that they belong together.
#[derive(Debug)]
pub struct Snapshot {
    repo: Repo,
    commit: String,
    /// Those that the cache must have before it may say that the revision stands at this commit.
    files: Vec<String>,
    /// What the hub says of one of them, and its tag, where it was asked for the commit.
    known: Option<(String, Described, String)>,
}

impl Snapshot {
    /// The model `OWNER/NAME`, or `OWNER/NAME@REVISION` at a branch, a tag or a commit, of which
    /// `files` are needed. Where the cache has them all, the network is not asked; else the newest
    /// commit of the revision is. No file is fetched yet.
    ///
    /// # Errors
    /// When `id` is not of that form, the hub has no such model, or it cannot be reached; the
    /// message says what to do.
    pub fn of_model(id: &str, files: &[&str]) -> Result<Self> {
        Repo::new(Kind::Model, id, None)?.at(None, files)
    }

    /// The local path of a file, from the cache or else downloaded to it.
    ///
    /// # Errors
    /// When the hub has no such file, it cannot be reached, or the cache cannot be written; the
    /// message says what to do.
    pub fn fetch(&self, file: &str) -> Result<PathBuf> {
        let path = self.bring(file)?;
        self.settle();
        Ok(path)
    }

    /// The local paths of some of its files, fetched from the last to the first.
    pub(super) fn fetch_all<'a>(
        &self,
        files: impl DoubleEndedIterator<Item = &'a str>,
    ) -> Result<Vec<PathBuf>> {
        let mut paths = files.rev().map(|file| self.bring(file)).collect::<Result<Vec<_>>>()?;
        paths.reverse();
        Ok(paths)
    }

    /// Says in the cache where the revision stands, once the cache has all files.
    pub(super) fn settle(&self) {
        let folder = &self.repo.folder;
        let is_whole = || self.files.iter().all(|file| folder.has(&self.commit, file));
        if self.repo.cached_commit().as_ref() != Some(&self.commit)
            && is_whole()
            && let Err(e) = folder.set_commit(&self.repo.place.revision, &self.commit)
        {
            // The files are there all the same.
            tracing::warn!(id = self.repo.place.id, error = %e, "the cache cannot say where the revision stands");
        }
    }

    fn bring(&self, file: &str) -> Result<PathBuf> {
        let Repo { place, settings, folder, client } = &self.repo;
        let error = |failure| self.repo.error(Some(file), failure);
        if !is_path(file) {
            return Err(error(Failure::Wrong("lists a file whose name leads elsewhere".to_owned())));
        }
        if folder.has(&self.commit, file) {
            return Ok(folder.file(&self.commit, file));
        }
        if settings.offline {
            return Err(offline(place, settings, Some(file)));
        }
        tracing::info!(
            id = place.id,
            file,
            commit = self.commit,
            endpoint = settings.endpoint,
            "downloading"
        );
        let (described, tag) = match &self.known {
            Some((known, described, tag)) if known == file => (described.clone(), tag.clone()),
            _ => {
                let (described, commit, tag) = self.repo.describe(&self.commit, file).map_err(error)?;
                if commit != self.commit {
                    let what = format!("gives commit {commit} of it where {} was asked for", self.commit);
                    return Err(error(Failure::Wrong(what)));
                }
                (described, tag)
            }
        };
        bring(client, &place.file(&self.commit, file), &described, folder, &tag).map_err(error)?;
        let io = |e| error(Failure::Io(folder.file(&self.commit, file), e));
        let path = folder.link(&tag, &self.commit, file).map_err(io)?;
        tracing::info!(id = place.id, file, path = %path.display(), "downloaded");
        Ok(path)
    }
}
