//! A stand-in for the hub: two paths of its protocol, over the loopback interface.
//!
//! `GET /api/datasets/ID/revision/REVISION` lists files; `GET /datasets/ID/resolve/REVISION/FILE` delivers one, or the part of it that a
//! `Range` asks for, with its length, its tag and the commit in the header. All else is a 404.
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The commit that the server says its files are of.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the server answers.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// Files whose body breaks off half-way.
    pub cut: HashSet<String>,
    /// A status for everything.
    pub status: Option<&'static str>,
}

/// A stand-in for the hub; it ends with the test's process.
pub struct Server {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
    manner: Arc<Mutex<Manner>>,
}

impl Server {
    /// Serves `files` as the parquet branch of the data set `id`.
    pub fn start(id: &str, files: Vec<(&str, Vec<u8>)>) -> Result<Self, Box<dyn std::error::Error>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let names: Vec<serde_json::Value> = files
            .iter()
            .map(|(name, _)| serde_json::json!({ "rfilename": name }))
            .chain([serde_json::json!({ "rfilename": "README.md" })])
            .collect();
        let info = serde_json::json!({ "id": id, "sha": COMMIT, "siblings": names });
        let mut served: HashMap<String, Vec<u8>> = files
            .into_iter()
            .map(|(name, body)| {
                let path = format!("/datasets/{id}/resolve/refs%2Fconvert%2Fparquet/{name}");
                (path, body)
            })
            .collect();
        let info_path = format!("/api/datasets/{id}/revision/refs%2Fconvert%2Fparquet");
        served.insert(info_path, info.to_string().into_bytes());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let manner = Arc::new(Mutex::new(Manner::default()));
        let (log, how) = (requests.clone(), manner.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let manner = how.lock().map(|m| m.clone()).unwrap_or_default();
                // A client that hangs up is its own affair.
                if let Ok(request) = answer(stream, &served, &manner)
                    && let Ok(mut log) = log.lock()
                {
                    log.push(request);
                }
            }
        });
        Ok(Self { endpoint, requests, manner })
    }

    pub fn behave(&self, manner: Manner) {
        if let Ok(mut now) = self.manner.lock() {
            *now = manner;
        }
    }

    /// Requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().map(|mut log| std::mem::take(&mut *log)).unwrap_or_default()
    }
}

fn answer(
    mut stream: TcpStream,
    served: &HashMap<String, Vec<u8>>,
    manner: &Manner,
) -> std::io::Result<String> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let (mut header, mut range) = (String::new(), None);
    while reader.read_line(&mut header)? > 2 {
        let lower = header.to_ascii_lowercase();
        range = lower.strip_prefix("range: bytes=").map(|range| range.trim().to_owned()).or(range);
        header.clear();
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (status, body): (&str, &[u8]) = match (manner.status, served.get(path)) {
        (Some(status), _) => (status, b"out of order"),
        (None, Some(body)) => ("200 OK", body),
        (None, None) => ("404 Not Found", b"{\"error\": \"not found\"}"),
    };
    let tag: u64 = body.iter().fold(7, |tag, &b| tag.wrapping_mul(31) ^ u64::from(b));
    let whole = body.len();
    let bounds = range.as_deref().and_then(|range| range.split_once('-')).filter(|_| status == "200 OK");
    let (status, body, part) = match bounds {
        Some((first, last)) => {
            let first = first.parse().unwrap_or(0).min(whole);
            let end = last.parse().map_or(whole, |last: usize| last + 1).clamp(first, whole);
            let part = format!("Content-Range: bytes {first}-{}/{whole}\r\n", end.saturating_sub(1));
            ("206 Partial Content", &body[first..end], part)
        }
        None => (status, body, String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{part}ETag: \"{tag:016x}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if method == "GET" {
        let cut = manner.cut.iter().any(|name| path.ends_with(name));
        let end = if cut { body.len() / 2 } else { body.len() };
        stream.write_all(&body[..end])?;
    }
    stream.flush()?;
    Ok(format!("{method} {path}"))
}
