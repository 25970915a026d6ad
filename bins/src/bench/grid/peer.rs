//! The script that times the cells by another library: it reads a line of JSON for each cell and
//! answers it by one.
use super::super::peer::command;
use anyhow::{Context, Result, bail};
use candle::Device;
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// The script, which ends with this.
pub(in crate::bench) struct Peer {
    name: String,
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    device: &'static str,
}

/// What the script says of a cell.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::bench) enum Answer {
    /// Seconds of a step, slice after slice, at least one.
    Measured { peer: String, seconds: Vec<f64> },
    /// Why it cannot tell, such as a library that is not installed.
    Missing { missing: String },
}

impl Peer {
    /// Starts the script and waits until it has loaded its libraries, which would slow down ours.
    pub fn start(script: &Path, device: &Device) -> Result<Self> {
        let name = format!("--peer {}", script.display());
        let mut child = command(script)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| name.clone())?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name}: cannot be talked to")
        };
        let device = if device.is_cpu() { "cpu" } else { "cuda" };
        let mut peer = Self { name, child, questions, answers: BufReader::new(answers), device };
        let line = peer.line()?;
        if line != "ready" {
            bail!("{}: it must begin with a line `ready`, got {line:?}", peer.name)
        }
        Ok(peer)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).with_context(|| format!("{}: it has ended", self.name))?;
        Ok(line.trim_end().to_owned())
    }

    /// Puts a question, an object, and reads its answer.
    pub fn put(&mut self, mut question: Value) -> Result<Answer> {
        question["device"] = self.device.into();
        question["threads"] = rayon::current_num_threads().into();
        writeln!(self.questions, "{question}").with_context(|| format!("{}: it has ended", self.name))?;
        let line = self.line()?;
        match serde_json::from_str(&line) {
            Ok(Answer::Measured { seconds, .. }) if seconds.is_empty() => {
                bail!("{}: seconds must have at least one entry, got none", self.name)
            }
            Ok(answer) => Ok(answer),
            Err(why) => {
                bail!("{}: an answer must be a line of JSON, got {line:?}: {why}", self.name)
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Gone already or not: nothing is left to be asked.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_measured_or_missing() {
        let read = |text| serde_json::from_str::<Answer>(text).ok();
        let measured = read(r#"{"peer": "PyTorch 2.9", "seconds": [0.5, 0.25]}"#);
        assert!(matches!(measured, Some(Answer::Measured { seconds, .. }) if seconds == [0.5, 0.25]));
        let missing = read(r#"{"missing": "torch is not installed"}"#);
        assert!(matches!(missing, Some(Answer::Missing { missing }) if missing.contains("torch")));
        assert!(read("{}").is_none() && read("").is_none());
    }
}
