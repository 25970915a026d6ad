//! Which repository, which of its revisions, and where the environment says that the hub and its
//! cache are.
use crate::error::one_line;
use crate::{Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The branch on which the hub keeps data sets as parquet files.
pub(super) const PARQUET: &str = "refs/convert/parquet";

/// What a path of a URL must not hold as it stands; a `/` of a revision is one of them.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What a repository of the hub holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    /// A data set, as parquet files.
    Dataset,
}

/// A revision of a repository.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// `OWNER/NAME`.
    pub(super) id: String,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
}

impl Place {
    /// Takes `OWNER/NAME` or `OWNER/NAME@REVISION` apart; `revision` is one that was given beside
    /// it.
    pub(super) fn parse(kind: Kind, text: &str, revision: Option<&str>) -> Result<Self> {
        let (id, own) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (text, None),
        };
        let refuse = |what: String, fix: &str| {
            Err(Error::Hub { id: one_line(text), what: one_line(what), fix: fix.to_owned() })
        };
        match id.split_once('/') {
            Some((owner, name)) if is_name(owner) && is_name(name) => {}
            _ => {
                let fix = match kind {
                    Kind::Model => "give a folder, or the OWNER/NAME of a model",
                    Kind::Dataset => "write for example hub:ylecun/mnist",
                };
                return refuse("is not of the form OWNER/NAME".to_owned(), fix);
            }
        }
        let revision = match (own, revision) {
            (Some(own), Some(other)) if own != other => {
                return refuse(
                    format!("the revision is given twice, as {own} and as {other}"),
                    "give one of them",
                );
            }
            (own, other) => own.or(other),
        };
        let default = match kind {
            Kind::Model => "main",
            Kind::Dataset => PARQUET,
        };
        let revision = revision.unwrap_or(default);
        if !is_path(revision) {
            return refuse(
                format!("'{revision}' is no name of a revision"),
                "give a branch, a tag or a commit, such as main",
            );
        }
        // The hub and its cache know commits in lower case.
        let revision = match is_commit(revision) {
            true => revision.to_ascii_lowercase(),
            false => revision.to_owned(),
        };
        Ok(Self { kind, id: id.to_owned(), revision })
    }

    /// The commit, where the revision is one.
    pub(super) fn as_commit(&self) -> Option<&str> {
        Some(self.revision.as_str()).filter(|revision| is_commit(revision))
    }

    /// Whether it is the revision that nobody has to choose.
    pub(super) fn is_default(&self) -> bool {
        match self.kind {
            Kind::Model => self.revision == "main",
            Kind::Dataset => self.revision == PARQUET,
        }
    }

    /// The name of its folder in the cache.
    pub(super) fn folder(&self) -> String {
        let kind = match self.kind {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        };
        format!("{kind}--{}", self.id.replace('/', "--"))
    }

    /// The path of its page below the endpoint.
    pub(super) fn page(&self) -> String {
        match self.kind {
            Kind::Model => self.id.clone(),
            Kind::Dataset => format!("datasets/{}", self.id),
        }
    }

    /// The path of a file at a revision, below the endpoint.
    pub(super) fn file(&self, revision: &str, file: &str) -> String {
        let file: Vec<String> = file.split('/').map(escaped).collect();
        format!("{}/resolve/{}/{}", self.page(), escaped(revision), file.join("/"))
    }

    /// The path of the list of files, below the endpoint.
    pub(super) fn listing(&self) -> String {
        let kind = match self.kind {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        };
        format!("api/{kind}/{}/revision/{}", self.id, escaped(&self.revision))
    }
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Whether it may be one part of a repository's name, or a tag of the hub that names a file of the
/// cache.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 200 && text.chars().all(allowed) && !text.starts_with('.')
}

/// Whether it names something below a folder: parts between `/`, of which none leads elsewhere.
pub(super) fn is_path(text: &str) -> bool {
    let allowed = |c: char| !c.is_control() && c != '\\' && c != ':';
    text.split('/').all(|part| !part.is_empty() && part != "." && part != ".." && part.chars().all(allowed))
}

/// What the environment says.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) endpoint: String,
    pub(super) cache: PathBuf,
    pub(super) token: Option<String>,
    pub(super) offline: bool,
    /// The longest silence of the hub.
    pub(super) patience: Duration,
}

impl Settings {
    /// None when there is neither a variable nor a home that says where the cache is.
    pub(super) fn read() -> Option<Self> {
        let home = || {
            let cache = variable("XDG_CACHE_HOME").map(expanded);
            cache
                .or_else(|| Some(std::env::home_dir()?.join(".cache")))
                .map(|cache| cache.join("huggingface"))
        };
        let home = variable("HF_HOME").map(expanded).or_else(home);
        let cache = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")).map(expanded);
        let file = variable("HF_TOKEN_PATH").map(expanded).or_else(|| Some(home.as_ref()?.join("token")));
        let token = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| std::fs::read_to_string(file?).ok());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok());
        let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Some(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: cache.or_else(|| Some(home?.join("hub")))?,
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: variable("HF_HUB_OFFLINE")
                .is_some_and(|v| ["1", "on", "yes", "true"].contains(&v.to_ascii_lowercase().as_str())),
            patience: seconds.filter(|s| !s.is_zero()).unwrap_or(Duration::from_secs(30)),
        })
    }
}

/// A variable of the environment that says something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The path with the home for a leading `~`.
fn expanded(path: String) -> PathBuf {
    let rest = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match rest.zip(std::env::home_dir()) {
        Some((rest, home)) => home.join(rest.trim_start_matches('/')),
        None => Path::new(&path).to_owned(),
    }
}
