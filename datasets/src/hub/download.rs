//! The bytes of one file, from the hub into the cache.
//!
//! They gather in a file beside the final name, which a later run goes on with, and get the final
//! name when their length, and their SHA-256 where the hub gives it, are right. Processes that want
//! one file wait for the first of them.
use super::cache::Folder;
use super::client::{Client, Described, RETRIES, content_range, is_gzip, pause, text};
use super::failure::Failure;
use ring::digest;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use ureq::http::StatusCode;

const BUFFER_BYTES: usize = 1 << 18;

/// Sees to it that the cache holds the blob with this tag.
pub(super) fn bring(
    client: &Client,
    path: &str,
    described: &Described,
    folder: &Folder,
    tag: &str,
) -> Result<(), Failure> {
    let blob = folder.blob(tag);
    let io = |e: std::io::Error| Failure::Io(blob.clone(), e);
    if is_whole(&blob, described) {
        return Ok(());
    }
    std::fs::create_dir_all(blob.parent().unwrap_or(&blob)).map_err(io)?;
    let lock = folder.lock(tag).map_err(io)?;
    if is_whole(&blob, described) {
        return Ok(());
    }
    let name = match lock {
        Some(_) => format!("{tag}.incomplete"),
        None => format!("{tag}.{}.incomplete", std::process::id()),
    };
    let part = folder.blob(&name);
    let io = |e: std::io::Error| Failure::Io(part.clone(), e);
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&part).map_err(io)?;
    let mut part_file = Part { client, path, part: &part, file, want: described.size };
    let found = part_file.len()?;
    let mut checked = part_file.fill().and_then(|()| part_file.check(described));
    if found > 0 && matches!(checked, Err(Failure::Damaged(_))) {
        tracing::info!(path, "what an earlier run left is damaged, and fetched afresh");
        part_file.clear()?;
        checked = part_file.fill().and_then(|()| part_file.check(described));
    }
    if matches!(checked, Err(Failure::Damaged(_))) {
        // Nothing can be gone on with.
        let _ = std::fs::remove_file(&part);
    }
    checked?;
    part_file.file.sync_all().map_err(io)?;
    drop(part_file);
    match std::fs::rename(&part, &blob) {
        // Without locks another process may have been faster.
        Err(_) if is_whole(&blob, described) => Ok(()),
        other => other.map_err(io),
    }
}

/// Whether the blob is there, as long as the hub says.
fn is_whole(blob: &Path, described: &Described) -> bool {
    std::fs::metadata(blob).is_ok_and(|found| described.size.is_none_or(|size| size == found.len()))
}

/// The bytes that have come so far.
struct Part<'a> {
    client: &'a Client,
    path: &'a str,
    part: &'a Path,
    file: File,
    /// Bytes of the whole.
    want: Option<u64>,
}

impl Part<'_> {
    fn io(&self, e: std::io::Error) -> Failure {
        Failure::Io(self.part.to_owned(), e)
    }

    fn len(&self) -> Result<u64, Failure> {
        Ok(self.file.metadata().map_err(|e| self.io(e))?.len())
    }

    /// Drops all bytes.
    fn clear(&mut self) -> Result<(), Failure> {
        self.file.set_len(0).map_err(|e| self.io(e))
    }

    /// Receives what is missing, in as many requests as the connection breaks.
    fn fill(&mut self) -> Result<(), Failure> {
        if self.want.is_some_and(|want| self.len().is_ok_and(|len| len > want)) {
            self.clear()?;
        }
        let (mut most, mut tries) = (self.len()?, 0);
        loop {
            let len = self.len()?;
            if self.want.is_some_and(|want| len == want) {
                return Ok(());
            }
            let failure = match self.receive(len) {
                Ok(()) => return Ok(()),
                Err(failure @ (Failure::Short(..) | Failure::Cut(_) | Failure::Unreachable)) => failure,
                Err(other) => return Err(other),
            };
            let len = self.len()?;
            (most, tries) = if len > most { (len, 0) } else { (most, tries + 1) };
            match failure {
                failure if most == 0 && !matches!(failure, Failure::Short(..)) => return Err(failure),
                _ if tries > RETRIES => return Err(Failure::Short(most, self.want)),
                _ => tracing::info!(path = self.path, bytes = len, "a download broke off and goes on"),
            }
            std::thread::sleep(pause(tries, true));
        }
    }

    /// Receives the bytes from `start` on, or all again where the server cannot give these alone.
    fn receive(&mut self, start: u64) -> Result<(), Failure> {
        let response = match self.client.get(self.path, start) {
            Err(Failure::Status { status: 416, .. }) if start > 0 => {
                self.clear()?;
                return self.receive(0);
            }
            other => other?,
        };
        let (parts, body) = response.into_parts();
        let headers = &parts.headers;
        let packed = is_gzip(headers)?;
        let is_chunked =
            text(headers, "transfer-encoding").is_some_and(|encoding| encoding.contains("chunked"));
        let length = text(headers, "content-length").filter(|_| !packed && !is_chunked);
        let length: Option<u64> = length.and_then(|length| length.parse().ok());
        let is_part = parts.status == StatusCode::PARTIAL_CONTENT;
        let whole = match (is_part, content_range(headers)) {
            (false, _) => length,
            // What follows is what is missing, as the range says or, without one, as its length
            // does.
            (true, Some((first, whole))) if first == start && !packed => whole,
            (true, None) if length.is_some() && length.map(|n| n + start) == self.want => self.want,
            (true, _) if start > 0 => {
                self.clear()?;
                return self.receive(0);
            }
            (true, _) => {
                return Err(Failure::Wrong("gives a part of a file that was not asked for".to_owned()));
            }
        };
        if let Some((want, whole)) = self.want.zip(whole)
            && want != whole
        {
            return Err(Failure::Damaged(format!("it has {whole} bytes, and the hub says {want}")));
        }
        let want = self.want.or(whole);
        if want.is_none() && !packed && !is_chunked {
            return Err(Failure::Wrong("does not say how long the file is".to_owned()));
        }
        let start = if is_part { start } else { 0 };
        if !is_part {
            self.clear()?;
        }
        self.file.seek(SeekFrom::Start(start)).map_err(|e| self.io(e))?;
        match packed {
            true => self.copy(flate2::read::GzDecoder::new(body.into_reader()), start, want),
            false => self.copy(body.into_reader(), start, want),
        }
    }

    /// Appends what comes to the `start` bytes before it.
    fn copy(&mut self, mut body: impl Read, start: u64, want: Option<u64>) -> Result<(), Failure> {
        let (mut len, mut buffer) = (start, vec![0; BUFFER_BYTES]);
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => {
                    tracing::debug!(path = self.path, error = %e, "cut");
                    return Err(Failure::Short(len, want));
                }
            };
            let got = buffer.get(..n).unwrap_or_default();
            self.file.write_all(got).map_err(|e| self.io(e))?;
            len += n as u64;
            if want.is_some_and(|want| len > want) {
                self.clear()?;
                return Err(Failure::Damaged(format!(
                    "it is longer than the {} bytes of the file",
                    want.unwrap_or(0)
                )));
            }
        }
        match want {
            Some(want) if len < want => Err(Failure::Short(len, Some(want))),
            _ => Ok(()),
        }
    }

    /// Compares the bytes with what the hub says of them.
    fn check(&mut self, described: &Described) -> Result<(), Failure> {
        let Some(want) = &described.sha256 else {
            return Ok(());
        };
        self.file.rewind().map_err(|e| self.io(e))?;
        let (mut sum, mut buffer) = (digest::Context::new(&digest::SHA256), vec![0; BUFFER_BYTES]);
        loop {
            match self.file.read(&mut buffer).map_err(|e| self.io(e))? {
                0 => break,
                n => sum.update(buffer.get(..n).unwrap_or_default()),
            }
        }
        let got: String = sum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        match got == *want {
            true => Ok(()),
            false => Err(Failure::Damaged(format!("its SHA-256 is {got}, and the hub says {want}"))),
        }
    }
}
