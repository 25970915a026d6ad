//! `bench all`: the commands of BENCHMARKS.md, and what they print, as a page of one commit and one
//! device.
use super::page::PageArgs;
use super::paper::write;
use crate::device::describe;
use crate::options::Common;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

/// Options of `bench all`.
#[derive(Debug, Args)]
pub struct AllArgs {
    #[command(flatten)]
    common: Common,
    /// The page to write.
    #[arg(long, value_name = "FILE", default_value = "BENCHMARKS.md")]
    markdown: PathBuf,
    #[command(flatten)]
    page: PageArgs,
}

/// What a command printed.
#[derive(Debug, Serialize)]
struct Ran {
    /// The heading that it stands below.
    section: String,
    command: String,
    /// Of the whole command, its start included.
    seconds: f64,
    printed: String,
}

pub(super) fn run(args: &AllArgs) -> Result<()> {
    let device = describe(&args.common.open_device()?);
    let commands = commands(&args.page.read()?);
    ensure!(!commands.is_empty(), "--page: no command of bench that needs no file of its own");
    let report = Report::new(args.common.json);
    let mut made = vec![];
    for (section, command) in commands {
        report.line(&format!("{section}: {command}"))?;
        made.push(ran(section, command, &args.common)?);
        // What was made stands, whatever becomes of the next command.
        write(&args.markdown, &written(&device, &made))?;
    }
    report.finish_as_is(&made)
}

/// The commands of `bench` in blocks for a shell, each with the heading that it stands below, and
/// without what is said of it. Those that want a file or a folder of the reader's are left out, and
/// papers, which have a page of their own.
fn commands(page: &str) -> Vec<(String, String)> {
    let (mut section, mut within, mut found) = (String::new(), false, vec![]);
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.to_owned();
        } else if line.starts_with("```") {
            within = line == "```sh";
        } else if let Some(command) = line.strip_prefix("cargo run --bin bench").filter(|_| within) {
            let command = command.split('#').next().unwrap_or(command);
            let Some((_, arguments)) = command.split_once(" -- ") else { continue };
            let is_theirs = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
            if !arguments.starts_with("paper ") && !arguments.split(' ').any(is_theirs) {
                found.push((section.clone(), format!("bench {}", arguments.trim())));
            }
        }
    }
    found
}

/// Runs a command as a process of its own, on this device unless it names one.
fn ran(section: String, mut command: String, common: &Common) -> Result<Ran> {
    if !command.contains(" --device ") {
        command += &format!(" --device {}", common.device);
    }
    let start = Instant::now();
    let mut process = Command::new(std::env::current_exe().context("this program")?);
    let output = process.args(command.split_whitespace().skip(1)).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| command.clone())?;
    ensure!(output.status.success(), "{command}: {}", output.status);
    let printed = String::from_utf8(output.stdout).with_context(|| command.clone())?;
    Ok(Ran {
        section,
        command,
        seconds: start.elapsed().as_secs_f64(),
        printed: printed.trim_end().to_owned(),
    })
}

/// The page of what was made so far.
fn written(device: &str, made: &[Ran]) -> String {
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output().ok();
    let commit = commit.filter(|of| of.status.success()).and_then(|of| String::from_utf8(of.stdout).ok());
    let day = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut page = format!(
        "# Benchmarks, made again\n\nVersion {}, commit {}, {}, on {device}, by `bench all`.\n",
        env!("CARGO_PKG_VERSION"),
        commit.as_deref().map_or("unknown", str::trim),
        day.split('T').next().unwrap_or(&day),
    );
    let mut section = "";
    for ran in made {
        if ran.section != section {
            section = &ran.section;
            page += &format!("\n## {section}\n");
        }
        page += &format!("\n`{}` ({:.1} s)\n\n```text\n{}\n```\n", ran.command, ran.seconds, ran.printed);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::super::page::PAGE;
    use super::*;

    #[test]
    fn the_page_has_commands_and_those_of_papers_and_files_are_left_out() {
        let sections: Vec<_> = commands(PAGE).into_iter().map(|(section, _)| section).collect();
        for section in ["Restricted Boltzmann machines", "Greedy pursuits", "t-SNE", "Convolution"] {
            assert!(sections.iter().any(|of| of == section), "{section} in {sections:?}");
        }
        let page = "## A\n```sh\ncargo run --bin bench -- rbm --size 2x3  # small\ncargo run --bin bench -- paper klaus\n\
                    cargo run --bin bench -- dictionary --dump FOLDER\n```\ncargo run --bin bench -- knn\n";
        assert_eq!(commands(page), [("A".to_owned(), "bench rbm --size 2x3".to_owned())]);
    }
}
