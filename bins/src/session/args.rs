//! Options of every training command, and what `--resume` refuses.
use crate::help::called;
use crate::options::{Common, at_least_one, bytes, not_negative};
use crate::ranks::RanksArgs;
use anyhow::Result;
use chandlery_datasets::{FeedConfig, Split};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Parser};
use std::ffi::OsString;
use std::path::PathBuf;

/// How rows reach the device: options of the process, on which the result does not depend but for
/// the rows of a buffer, which the settings of a run keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct FeedArgs {
    /// Size of the chunks that are copied to the device: 64MiB, 500MB or a number of bytes. Uses
    /// about five times this memory on the host and twice this memory on the device. The result
    /// does not depend on it, but for the rounding of that of sparse-autoencoder.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub chunk_bytes: usize,
    /// Data sets up to this size stay on the device. Larger ones are streamed to it in chunks in
    /// every epoch; 0 streams every data set.
    #[arg(long, value_name = "BYTES", default_value = "2GiB", value_parser = bytes)]
    pub resident_bytes: usize,
    /// Rows of the buffer that minibatches are drawn from, as the settings of a run have it.
    #[arg(skip)]
    pub mix: Option<usize>,
}

impl FeedArgs {
    /// Minibatches of `batch` rows in the order of `seed`.
    pub fn config(self, batch: usize, seed: u64) -> FeedConfig {
        FeedConfig {
            chunk_bytes: self.chunk_bytes,
            resident_bytes: Some(self.resident_bytes),
            mix: self.mix,
            ..FeedConfig::new(batch, seed)
        }
    }

    /// Rows of a chunk, for what reads all rows in every step; none where they stay on the device.
    pub fn chunk(self, split: &Split) -> Option<usize> {
        let bytes = split.size_bytes();
        let rows = self.chunk_bytes.saturating_mul(split.n_samples()) / bytes.max(1);
        (bytes > self.resident_bytes).then_some(rows.max(1))
    }
}

impl Default for FeedArgs {
    fn default() -> Self {
        let FeedConfig { chunk_bytes, resident_bytes, mix, .. } = FeedConfig::new(1, 0);
        Self { chunk_bytes, resident_bytes: resident_bytes.unwrap_or(0), mix }
    }
}

/// Where a run goes, how it is resumed, and where it computes.
#[derive(Debug, Clone, Args)]
pub struct SessionArgs {
    /// Folder of the run; default: a new one under runs/, named by program and UTC time, such as
    /// runs/dbn-20250102T030405Z.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the run in the folder of --out, or of --save-dictionary: the files that it wrote,
    /// which its files.txt lists, are removed once the new run has its first checkpoint. A folder
    /// of anything else is refused.
    #[arg(long)]
    pub overwrite: bool,
    /// Resume an interrupted run with its own data and settings; the result has the same bits as
    /// that of an uninterrupted run.
    #[arg(long, value_name = "RUN")]
    pub resume: Option<PathBuf>,
    /// Seconds between checkpoints; 0: after every step. Unless 0 is given, the program waits
    /// longer where checkpoints would take more than 1 % of the time. It also writes one at the
    /// first step, at the end of training, and when Ctrl-C or SIGTERM stops it, unless the step
    /// takes longer than 2 s. It keeps the last two.
    #[arg(long, value_name = "SECONDS", default_value_t = 60., value_parser = not_negative)]
    pub checkpoint_every: f64,
    /// Stop after this many steps (minibatches, or iterations over all rows), as if Ctrl-C had been
    /// pressed then.
    #[arg(long, value_name = "STEPS", hide = true, value_parser = at_least_one)]
    pub stop_after_steps: Option<usize>,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
    /// Where the program computes, and how it reports.
    #[command(flatten)]
    pub common: Common,
}

impl SessionArgs {
    /// The result of a command; an error names the run that is resumed, whose settings may be what
    /// is wrong.
    ///
    /// # Errors
    /// That of the command.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        let Some(run) = &self.resume else { return result };
        let at = format!("--resume {}", run.display());
        result.map_err(|err| if format!("{err:#}").contains(&at) { err } else { err.context(at) })
    }
}

/// Options that `--resume` accepts: those of the process, and those that extend a run. The run
/// keeps all others.
const WITH_RESUME: [&str; 13] = [
    "resume",
    "checkpoint_every",
    "chunk_bytes",
    "resident_bytes",
    "stop_after_steps",
    "gpus",
    "group_timeout",
    "device",
    "threads",
    "json",
    "iterations",
    "epochs",
    RESUMES_WITH_DIVIDE,
];
/// The identifier of `--divide` where a run may go on with another division.
pub const RESUMES_WITH_DIVIDE: &str = "resumes_with_divide";

/// Reads a command line, which starts with what the user calls the program. With `--resume`, every other option that would be ignored is an error.
///
/// # Errors
/// Those of clap.
pub fn parse<C: Parser>(args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<C, clap::Error> {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let name = args.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let mut command = called(C::command(), &name);
    let matches = command.try_get_matches_from_mut(&args)?;
    check(&mut command, &matches)?;
    C::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
}

fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    if let Some((name, of_subcommand)) = matches.subcommand() {
        return match command.find_subcommand_mut(name) {
            Some(subcommand) => check(subcommand, of_subcommand),
            None => Ok(()),
        };
    }
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    if !command.get_arguments().any(|arg| arg.get_id() == "resume") || !given("resume") {
        return Ok(());
    }
    let ignored = command.get_arguments().find(|arg| {
        let id = arg.get_id().as_str();
        !WITH_RESUME.contains(&id) && id != "help" && id != "version" && given(id)
    });
    match ignored.map(ToString::to_string) {
        Some(arg) => {
            let text = format!("--resume cannot be used with {arg}: a resumed run keeps its own");
            Err(command.error(ErrorKind::ArgumentConflict, text))
        }
        None => Ok(()),
    }
}

/// For tests: panics unless the command line of `C` is sound, every flag of it and of its
/// sub-commands has a sentence, and every command line of their examples is accepted; the program
/// itself, `train`, `encode` and `evaluate` must have some.
#[cfg(test)]
pub(crate) fn assert_sound<C: Parser>() {
    fn check<C: Parser>(command: &Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = crate::help::examples(&help);
        let wanted =
            command.has_subcommands() || ["train", "encode", "evaluate"].contains(&command.get_name());
        assert!(!wanted || examples.len() >= 2, "{}: no examples", command.get_name());
        let wide = help.lines().find(|line| line.chars().count() > 100);
        assert!(wide.is_none(), "{}: wider than a line: {wide:?}", command.get_name());
        for example in examples {
            let line = example.join(" ");
            if let Err(err) = parse::<C>(example) {
                panic!("{line}: {err}")
            }
        }
        for arg in command.get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.len() > 12, "{} --{}: no sentence", command.get_name(), arg.get_id());
        }
        command.get_subcommands().for_each(check::<C>);
    }
    let command = C::command();
    command.clone().debug_assert();
    check::<C>(&command);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        feed: FeedArgs,
    }

    #[test]
    fn default_sizes_of_the_command_line_are_those_of_the_library() {
        assert_eq!(parse::<Cli>(["program"]).unwrap().feed, FeedArgs::default());
    }
}
