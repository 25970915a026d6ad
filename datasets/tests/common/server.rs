//! A stand-in for the hub over the loopback interface, which answers as the hub and its mirrors do.
//!
//! | path | answer |
//! |---|---|
//! | `/api/{datasets,models}/ID/revision/REVISION` | the commit and its files |
//! | `/[datasets/]ID/resolve/REVISION/FILE` | the file; or a redirect, relative to `/api/resolve-cache/…` or to another host |
//! | `/api/resolve-cache/ID/COMMIT/FILE` | the file |
//! | on the other host `/SHA256` | the file |
//!
//! `HEAD` and `GET` alike. Asked for gzip, it passes over a `Range`, packs, and says no length.
//! What is not there is an error with the hub's header `X-Error-Code`. [`Manner`] makes it worse.
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The commit that the server starts with.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the server answers; the default is the hub with small files.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// A status for everything, perhaps with more lines of a header.
    pub status: Option<&'static str>,
    /// Answers to the first requests whose method and path end so, each given once.
    pub first: Vec<(&'static str, &'static str)>,
    /// `GET`s of a path with this end break off after so many bytes of the file, each once.
    pub cuts: Vec<(&'static str, usize)>,
    /// The same, always.
    pub cut: Option<(&'static str, usize)>,
    /// A `GET` of a path with this end stops after half the file until [`Server::release`].
    pub hold: Option<&'static str>,
    /// Where the bytes are.
    pub bytes: Bytes,
    /// What becomes of a `Range`.
    pub range: Range,
    /// Packs what was asked for as it is.
    pub packs: bool,
    /// Bytes in chunks, without a length.
    pub chunks: bool,
    /// The token without which there is nothing.
    pub token: Option<&'static str>,
    /// The repository is gated.
    pub is_gated: bool,
    /// Lines of the header that are left out.
    pub without: Vec<&'static str>,
    /// Bytes that a `GET` gives in place of those of a file.
    pub wrong: Option<Vec<u8>>,
}

/// Where the bytes of a file are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bytes {
    /// Here, as small files of the hub are.
    #[default]
    Here,
    /// Behind a redirect to a path of this server.
    Cached,
    /// On another host, with the tag and the size in the header of the redirect.
    Elsewhere,
}

/// What becomes of a `Range`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Range {
    /// It is heeded where no gzip is asked for.
    #[default]
    Heeded,
    /// It is passed over.
    Ignored,
    /// It is heeded without `Content-Range`.
    Unnamed,
}

/// A request with its header, names in lower case.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `GET /path`; of the other host `GET elsewhere/path`.
    pub line: String,
    pub header: HashMap<String, String>,
}

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Default)]
struct State {
    /// `datasets/OWNER/NAME` or `OWNER/NAME`.
    page: String,
    /// Commits of revisions.
    refs: HashMap<String, String>,
    commits: HashMap<String, Files>,
    manner: Manner,
    log: Vec<Asked>,
    elsewhere: String,
    is_released: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stand-in for the hub; it ends with the test's process.
pub struct Server {
    pub endpoint: String,
    shared: Arc<Shared>,
}

impl Server {
    /// Serves `files` as the newest commit of `datasets/OWNER/NAME` (its parquet branch) or of the
    /// model `OWNER/NAME`.
    pub fn start(page: &str, files: Vec<(&str, Vec<u8>)>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let listen = |is_hub: bool| -> Result<String> {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = format!("http://{}", listener.local_addr()?);
            let shared = shared.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = shared.clone();
                    // A client that hangs up is its own affair.
                    std::thread::spawn(move || drop(answer(stream, &shared, is_hub)));
                }
            });
            Ok(address)
        };
        let (endpoint, elsewhere) = (listen(true)?, listen(false)?);
        {
            let mut state = shared.lock();
            state.page = page.to_owned();
            state.elsewhere = elsewhere;
        }
        let server = Self { endpoint, shared };
        let branch = if page.starts_with("datasets/") { "refs/convert/parquet" } else { "main" };
        server.commit(branch, COMMIT, files);
        Ok(server)
    }

    /// Puts a revision at a commit with these files.
    pub fn commit(&self, revision: &str, commit: &str, files: Vec<(&str, Vec<u8>)>) {
        let mut state = self.shared.lock();
        state.refs.insert(revision.to_owned(), commit.to_owned());
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes));
        state.commits.insert(commit.to_owned(), files.collect());
    }

    pub fn behave(&self, manner: Manner) {
        let mut state = self.shared.lock();
        state.manner = manner;
        state.is_released = false;
    }

    /// Lets go on what is held.
    pub fn release(&self) {
        self.shared.lock().is_released = true;
        self.shared.changed.notify_all();
    }

    /// Waits until as many requests as `n` have a line with this end.
    pub fn wait_for(&self, n: usize, end: &str) {
        let come = |state: &State| state.log.iter().filter(|asked| asked.line.ends_with(end)).count() >= n;
        let mut state = self.shared.lock();
        while !come(&state) {
            let (next, wait) = self
                .shared
                .changed
                .wait_timeout(state, Duration::from_secs(60))
                .unwrap_or_else(PoisonError::into_inner);
            assert!(!wait.timed_out(), "nobody asks for {end}: {:?}", next.log);
            state = next;
        }
    }

    /// Requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.lock().log)
    }

    /// Their lines.
    pub fn requests(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }
}

/// The SHA-256 of bytes, by which the hub calls large files.
pub fn sha256(bytes: &[u8]) -> String {
    let sum = ring::digest::digest(&ring::digest::SHA256, bytes);
    sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the hub calls a small file, of which only the length and the characters matter here.
fn small_tag(bytes: &[u8]) -> String {
    sha256(bytes).chars().take(40).collect()
}

fn answer(mut stream: TcpStream, shared: &Shared, is_hub: bool) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let (mut line, mut header) = (String::new(), HashMap::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':') {
            header.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        line.clear();
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let host = if is_hub { "" } else { "elsewhere" };
    let asked = Asked { line: format!("{method} {host}{path}"), header };
    let mut state = shared.lock();
    state.log.push(asked.clone());
    shared.changed.notify_all();
    let first = state.manner.first.iter().position(|(end, _)| asked.line.ends_with(end));
    let status = match first {
        Some(place) => Some(state.manner.first.remove(place).1),
        None => state.manner.status,
    };
    let manner = state.manner.clone();
    let found = match status {
        Some(status) => Found::Error(status.to_owned()),
        None if is_hub => state.of_hub(path, asked.header.get("authorization").map(String::as_str)),
        None => state.elsewhere(path),
    };
    let cut = state.manner.cuts.iter().position(|(end, _)| asked.line.ends_with(end));
    let cut = match cut.filter(|_| method == "GET") {
        Some(place) => Some(state.manner.cuts.remove(place)),
        None => manner.cut.filter(|(end, _)| method == "GET" && asked.line.ends_with(end)),
    };
    drop(state);
    let (lines, bytes) = match found {
        Found::Error(status) => {
            return write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        Found::Redirect(status, lines) => {
            let lines = kept(lines, &manner);
            let body = "Found. Redirecting";
            let n = body.len();
            write!(stream, "HTTP/1.1 {status}\r\n{lines}Content-Length: {n}\r\nConnection: close\r\n\r\n")?;
            return if method == "GET" { stream.write_all(body.as_bytes()) } else { Ok(()) };
        }
        Found::File(lines, bytes) => (kept(lines, &manner), bytes),
    };
    let bytes = manner.wrong.clone().filter(|_| method == "GET").unwrap_or(bytes);
    let asks_gzip = asked.header.get("accept-encoding").is_some_and(|encoding| encoding.contains("gzip"));
    let (status, more, body, start) = packed_or_part(&asked, &manner, &bytes, asks_gzip);
    let more = kept(more, &manner);
    write!(stream, "HTTP/1.1 {status}\r\n{lines}{more}Connection: close\r\n\r\n")?;
    if method != "GET" {
        return Ok(());
    }
    let end = cut.map_or(body.len(), |(_, end)| end.saturating_sub(start).min(body.len()));
    let half = body.len() / 2;
    if manner.hold.is_some_and(|name| asked.line.ends_with(name)) {
        stream.write_all(&body[..half])?;
        stream.flush()?;
        let mut state = shared.lock();
        while !state.is_released {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        stream.write_all(&body[half..])?;
    } else if manner.chunks && !asks_gzip && !manner.packs {
        write!(stream, "{:x}\r\n", body.len())?;
        stream.write_all(&body[..end])?;
        if end == body.len() {
            stream.write_all(b"\r\n0\r\n\r\n")?;
        }
    } else {
        stream.write_all(&body[..end])?;
    }
    stream.flush()
}

/// Status, lines of the header, bytes, and the place in the file of the first of them.
fn packed_or_part(
    asked: &Asked,
    manner: &Manner,
    bytes: &[u8],
    asks_gzip: bool,
) -> (&'static str, String, Vec<u8>, usize) {
    let whole = bytes.len();
    let start = asked.header.get("range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let first: usize = first.parse().ok()?;
        Some((first, last.parse().map_or(whole, |last: usize| (last + 1).min(whole))))
    });
    if manner.packs || asks_gzip {
        let mut packed = Vec::new();
        // Reading from memory does not fail.
        let _ = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut packed);
        return ("200 OK", "Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n".to_owned(), packed, 0);
    }
    let length = |n: usize| match manner.chunks {
        true => "Transfer-Encoding: chunked\r\n".to_owned(),
        false => format!("Content-Length: {n}\r\n"),
    };
    match start.filter(|_| manner.range != Range::Ignored) {
        Some((first, _)) if first >= whole => {
            let lines = format!("Content-Range: bytes */{whole}\r\nContent-Length: 0\r\n");
            ("416 Range Not Satisfiable", lines, Vec::new(), 0)
        }
        Some((first, end)) => {
            let range = format!("Content-Range: bytes {first}-{}/{whole}\r\n", end - 1);
            let range = if manner.range == Range::Unnamed { String::new() } else { range };
            ("206 Partial Content", length(end - first) + &range, bytes[first..end].to_vec(), first)
        }
        None => ("200 OK", length(whole), bytes.to_vec(), 0),
    }
}

/// Lines of a header without those that are left out.
fn kept(lines: String, manner: &Manner) -> String {
    let is_kept = |line: &&str| {
        !manner.without.iter().any(|name| line.to_ascii_lowercase().starts_with(&format!("{name}:")))
    };
    lines.split_inclusive("\r\n").filter(is_kept).collect()
}

enum Found {
    /// The status line and more lines.
    Error(String),
    Redirect(&'static str, String),
    File(String, Vec<u8>),
}

impl State {
    fn of_hub(&self, path: &str, authorization: Option<&str>) -> Found {
        let error = |status: &str, code: &str| Found::Error(format!("{status}\r\nX-Error-Code: {code}"));
        let api = match self.page.starts_with("datasets/") {
            true => format!("/api/{}", self.page),
            false => format!("/api/models/{}", self.page),
        };
        let listed = path.strip_prefix(&format!("{api}/revision/"));
        let resolved =
            path.strip_prefix(&format!("/{}/resolve/", self.page)).and_then(|rest| rest.split_once('/'));
        let cached = path.strip_prefix(&format!("/api/resolve-cache/{}/", self.page));
        let cached = cached.and_then(|rest| rest.split('?').next()?.split_once('/'));
        let Some((revision, file)) = listed.map(|revision| (revision, "")).or(resolved).or(cached) else {
            return match authorization {
                Some(_) => error("404 Not Found", "RepoNotFound"),
                None => error("401 Unauthorized", "RepoNotFound"),
            };
        };
        if let Some(token) = self.manner.token
            && authorization != Some(&format!("Bearer {token}"))
        {
            return error("401 Unauthorized", "RepoNotFound");
        }
        if self.manner.is_gated {
            return error("403 Forbidden", "GatedRepo");
        }
        let revision = revision.replace("%2F", "/");
        let commit = self.refs.get(&revision).unwrap_or(&revision);
        let Some(files) = self.commits.get(commit) else {
            return error("404 Not Found", "RevisionNotFound");
        };
        if file.is_empty() {
            let names: Vec<_> = files
                .keys()
                .chain([&"README.md".to_owned()])
                .map(|name| serde_json::json!({ "rfilename": name }))
                .collect();
            let info = serde_json::json!({ "id": self.page, "sha": commit, "siblings": names });
            return Found::File(String::new(), info.to_string().into_bytes());
        }
        let file = file.replace("%20", " ");
        let Some(bytes) = files.get(&file) else {
            return error("404 Not Found", &format!("EntryNotFound\r\nX-Repo-Commit: {commit}"));
        };
        let (small, large, size) = (small_tag(bytes), sha256(bytes), bytes.len());
        let of = format!("X-Repo-Commit: {commit}\r\n");
        match self.manner.bytes {
            Bytes::Cached if cached.is_none() => {
                let lines = format!(
                    "{of}Location: /api/resolve-cache/{}/{commit}/{file}?etag=%22{small}%22\r\n",
                    self.page
                );
                Found::Redirect("307 Temporary Redirect", lines)
            }
            Bytes::Elsewhere => {
                let linked = format!(
                    "X-Linked-Size: {size}\r\nX-Linked-ETag: \"{large}\"\r\nX-Xet-Hash: {}\r\n",
                    sha256(b"xet")
                );
                let link = "Link: <https://nowhere.invalid/xet-read-token>; rel=\"xet-auth\"\r\n";
                let lines = format!("{of}{linked}{link}Location: {}/{large}?signed=1\r\n", self.elsewhere);
                Found::Redirect("302 Found", lines)
            }
            _ => Found::File(format!("{of}ETag: \"{small}\"\r\n"), bytes.clone()),
        }
    }

    /// The other host knows no commits, calls files by other tags, and wants no token.
    fn elsewhere(&self, path: &str) -> Found {
        let all = self.commits.values().flat_map(BTreeMap::values);
        let mut of = all.filter(|bytes| path.starts_with(&format!("/{}", sha256(bytes))));
        match of.next() {
            Some(bytes) => Found::File("ETag: \"of-the-other-host\"\r\n".to_owned(), bytes.clone()),
            None => Found::Error("403 Forbidden".to_owned()),
        }
    }
}
