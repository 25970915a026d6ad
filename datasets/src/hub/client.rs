//! Requests to the hub.
//!
//! All ask for the bytes as they are (`Accept-Encoding: identity`): asked for gzip, the hub passes
//! over a `Range`. A redirect to another host is followed without the token. What may pass by
//! itself, a busy server or a broken connection, is asked again.
use super::failure::Failure;
use super::place::Settings;
use std::io::{ErrorKind, Read};
use std::time::Duration;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION, RANGE};
use ureq::http::uri::PathAndQuery;
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ureq::{Agent, Body};

/// How often a request, or a download that does not get further, is tried again.
pub(super) const RETRIES: u32 = 3;

/// The longest that a server's wish to wait is granted.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Redirects that are followed.
const REDIRECTS: usize = 10;

/// The most bytes of a list of files.
const LISTING: u64 = 1 << 28;

/// What the hub says of a file, in the answers from the first to the last redirect.
#[derive(Debug, Clone, Default)]
pub(super) struct Described {
    /// The commit that it belongs to.
    pub(super) commit: Option<String>,
    /// What its bytes are called.
    pub(super) tag: Option<String>,
    /// The SHA-256 of its bytes.
    pub(super) sha256: Option<String>,
    /// Its length in bytes.
    pub(super) size: Option<u64>,
}

impl Described {
    /// Takes what an answer says; only the hub itself gives files their tags.
    fn take(&mut self, status: StatusCode, headers: &HeaderMap, is_hub: bool) {
        if let Some(commit) = text(headers, "x-repo-commit").filter(|_| is_hub || self.commit.is_none()) {
            self.commit = Some(commit.to_owned());
        }
        let linked = text(headers, "x-linked-etag").map(tag_of);
        if let Some(linked) = &linked {
            let is_sha256 = linked.len() == 64 && linked.bytes().all(|b| b.is_ascii_hexdigit());
            self.sha256 = is_sha256.then(|| linked.to_ascii_lowercase());
        }
        let own = text(headers, "etag").map(tag_of).filter(|_| is_hub || self.tag.is_none());
        if let Some(tag) = linked.or(own.filter(|_| self.sha256.is_none())) {
            self.tag = Some(tag.to_owned());
        }
        // A redirect has a length of its own, and bytes that are packed another.
        let length = text(headers, "content-length")
            .filter(|_| status == StatusCode::OK && is_gzip(headers).is_ok_and(|packed| !packed));
        if let Some(size) = text(headers, "x-linked-size").or(length.filter(|_| self.size.is_none())) {
            self.size = size.parse().ok();
        }
    }
}

/// The tag without its quotes and the mark of a weak one.
fn tag_of(text: &str) -> &str {
    text.trim_start_matches("W/").trim_matches('"')
}

/// A header that is readable text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim).filter(|value| !value.is_empty())
}

/// Asks one hub.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    /// The hub that the token is for.
    origin: Option<(String, String)>,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_per_read(Some(settings.patience))
            .user_agent(concat!("chandlery/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint = settings.endpoint.clone();
        let origin = endpoint.parse().ok().and_then(|uri| origin(&uri));
        Self { agent: Agent::new_with_config(config), endpoint, origin, token: settings.token.clone() }
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// What the hub says of a file.
    pub(super) fn describe(&self, path: &str) -> Result<Described, Failure> {
        let mut described = Described::default();
        match self.ask(&Method::HEAD, path, 0, &mut described) {
            // Servers without HEAD; the body of the answer is not read.
            Err(Failure::Status { status: 405 | 501, .. }) => {
                described = Described::default();
                self.ask(&Method::GET, path, 0, &mut described)?;
            }
            other => drop(other?),
        }
        Ok(described)
    }

    /// The bytes of a file from `start` on, as far as the server heeds that.
    pub(super) fn get(&self, path: &str, start: u64) -> Result<Response<Body>, Failure> {
        self.ask(&Method::GET, path, start, &mut Described::default())
    }

    /// A document in JSON.
    pub(super) fn json(&self, path: &str) -> Result<serde_json::Value, Failure> {
        let mut response = self.get(path, 0)?;
        let packed = is_gzip(response.headers())?;
        let reader = response.body_mut().as_reader().take(LISTING);
        let read = match packed {
            true => serde_json::from_reader(flate2::read::GzDecoder::new(reader)),
            false => serde_json::from_reader(reader),
        };
        read.map_err(|e| match e.is_io() || e.is_eof() {
            true => Failure::Cut(e.to_string()),
            false => Failure::Wrong(format!("gives a list of files that cannot be read ({e})")),
        })
    }

    /// Asks until there is an answer that is no wish to wait.
    fn ask(
        &self,
        method: &Method,
        path: &str,
        start: u64,
        described: &mut Described,
    ) -> Result<Response<Body>, Failure> {
        let mut tries = 0;
        loop {
            let failure = match self.follow(method, path, start, described) {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let wait = match &failure {
                Failure::Status { status: 408 | 429 | 500 | 502..=504, wait, .. } => {
                    wait.unwrap_or(pause(tries, false))
                }
                Failure::Cut(_) => pause(tries, true),
                _ => return Err(failure),
            };
            if tries == RETRIES || wait > LONGEST_WAIT {
                return Err(failure);
            }
            tracing::info!(path, wait_ms = wait.as_millis() as u64, "the hub is asked again: {failure:?}");
            std::thread::sleep(wait);
            tries += 1;
        }
    }

    /// Asks once, and where the answers send it.
    fn follow(
        &self,
        method: &Method,
        path: &str,
        start: u64,
        described: &mut Described,
    ) -> Result<Response<Body>, Failure> {
        let bad = |text: &str| Failure::Wrong(format!("gives an address that cannot be read ({text})"));
        let first = format!("{}/{path}", self.endpoint);
        let mut at: Uri = first.parse().map_err(|_| bad(&first))?;
        for _ in 0..=REDIRECTS {
            let is_hub = origin(&at) == self.origin;
            let mut request = Request::builder().method(method).uri(&at).header(ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if start > 0 {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            let request = request.body(()).map_err(|_| match self.token {
                Some(_) => Failure::Token,
                None => bad(&at.to_string()),
            })?;
            let response = self.agent.run(request).map_err(of_transport)?;
            let (status, headers) = (response.status(), response.headers());
            described.take(status, headers, is_hub);
            if !status.is_redirection() {
                return answered(response);
            }
            // What is needed of a file stands in the answer that sends on to the bytes of it, which
            // may not be asked for their head.
            let location = headers.get(LOCATION).and_then(|l| l.to_str().ok());
            let location = location.ok_or_else(|| bad("a redirect to nowhere"))?;
            let next = joined(&at, location).ok_or_else(|| bad(location))?;
            let is_described = described.commit.is_some() && described.tag.is_some();
            if *method == Method::HEAD && is_described && origin(&next) != self.origin {
                return Ok(response);
            }
            at = next;
        }
        Err(Failure::Wrong("sends from one address to the next without an end".to_owned()))
    }
}

/// How long to wait before trying again, after so many tries; a connection that was cut is made
/// again at once.
pub(super) fn pause(tries: u32, cut: bool) -> Duration {
    match tries.checked_sub(u32::from(cut)) {
        Some(tries) => Duration::from_millis(100 << (2 * tries.min(4))),
        None => Duration::ZERO,
    }
}

/// Whether the body is packed; identity was asked for.
pub(super) fn is_gzip(headers: &HeaderMap) -> Result<bool, Failure> {
    match text(headers, "content-encoding").map(str::to_ascii_lowercase).as_deref() {
        None | Some("identity") => Ok(false),
        Some("gzip" | "x-gzip") => Ok(true),
        Some(other) => Err(Failure::Wrong(format!("packs files by {other}, which it was not asked for"))),
    }
}

/// An answer with what was asked for; else how it failed.
fn answered(response: Response<Body>) -> Result<Response<Body>, Failure> {
    let (status, headers) = (response.status(), response.headers());
    if status.is_success() {
        return Ok(response);
    }
    // The hub's own header says when the count of requests starts afresh: `"api";r=0;t=55`.
    let fresh = || text(headers, "ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="));
    let wait = text(headers, "retry-after").or_else(fresh).and_then(|seconds| seconds.parse().ok());
    let code = text(headers, "x-error-code").map(str::to_owned);
    Err(Failure::Status { status: status.as_u16(), code, wait: wait.map(Duration::from_secs) })
}

/// What kept a request from being answered.
fn of_transport(error: ureq::Error) -> Failure {
    use ureq::{Error, Timeout};
    let text = error.to_string();
    match error {
        Error::HostNotFound | Error::ConnectionFailed => Failure::Unreachable,
        Error::Timeout(Timeout::Connect | Timeout::Resolve) => Failure::Unreachable,
        Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => Failure::Unreachable,
        Error::Io(_) | Error::Timeout(_) | Error::Protocol(_) => Failure::Cut(text),
        Error::Http(_) => Failure::Token,
        _ => Failure::Wrong(format!("cannot be asked ({text})")),
    }
}

/// Scheme and host with its port: who is asked.
fn origin(uri: &Uri) -> Option<(String, String)> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().or(match scheme.as_str() {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    })?;
    Some((scheme, format!("{}:{port}", uri.host()?.to_ascii_lowercase())))
}

/// Where a redirect from `at` leads.
fn joined(at: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next()?;
    if let Some(rest) = location.strip_prefix("//") {
        return format!("{}://{rest}", at.scheme_str()?).parse().ok();
    }
    if let Ok(uri) = location.parse::<Uri>()
        && uri.scheme().is_some()
    {
        return Some(uri);
    }
    let path = match location.strip_prefix('/') {
        Some(_) => location.to_owned(),
        None => format!("{}/{location}", at.path().rsplit_once('/')?.0),
    };
    let mut parts = at.clone().into_parts();
    parts.path_and_query = Some(path.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

/// Parts of the header `Content-Range: bytes FIRST-LAST/WHOLE`: the first byte, and the length of
/// the whole where it is known.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (bounds, whole) = text(headers, "content-range")?.strip_prefix("bytes")?.trim().split_once('/')?;
    let first = bounds.split_once('-')?.0.parse().ok()?;
    Some((first, whole.parse().ok()))
}
