//! The command `completions`: what a shell needs to complete the commands and options of a program.
use crate::report::{Outcome, to_stdout};
use anyhow::Result;
use clap::{Args, Command, CommandFactory};
use clap_complete::{Shell, generate};

/// Arguments of `completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell. For bash, add `source <(PROGRAM completions bash)` to ~/.bashrc, with the name of
    /// this program, which must be on PATH. For other shells, save the output to the file that the
    /// shell reads completions from.
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

impl CompletionsArgs {
    /// Prints the completions of the program with the command line `C`.
    ///
    /// # Errors
    /// When standard output refuses.
    pub fn print<C: CommandFactory>(&self) -> Result<Outcome> {
        self.print_of(C::command())
    }

    /// The same of a command line.
    pub(crate) fn print_of(&self, mut command: Command) -> Result<Outcome> {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        generate(self.shell, &mut command, name, &mut script);
        to_stdout(|out| Ok(out.write_all(&script)?))?;
        Ok(Outcome::Done)
    }
}
