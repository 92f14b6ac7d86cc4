//! `cueline completion` and `cueline man`: text that is generated from the definition of the command line.

use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use cueline_interface::{Failure, Out};
use serde_json::json;

/// `cueline completion`
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: ShellName,
}

/// A shell that completions are generated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellName {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
}

/// `cueline man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory for the pages; made if it does not exist. Pages of the same names are replaced
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Prints the completions of a shell.
pub(crate) fn completion(
    out: Out,
    mut command: Command,
    args: &CompletionArgs,
) -> Result<(), Failure> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    // First into memory, because the generator ends the process if a pipe is closed.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "cueline", &mut text);
    out.text(&String::from_utf8_lossy(&text))
}

/// Writes a man page for each command.
pub(crate) fn man(out: Out, command: Command, args: &ManArgs) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(command, &args.dir));
    let dir = args.dir.display();
    written.map_err(|error| {
        Failure::failed(format!("failed to write man pages into {dir}: {error}"))
    })?;
    if out.is_json() {
        return out.json(&json!({ "dir": args.dir }));
    }
    out.line(&format!(
        "{dir} has the man pages; `man -l {dir}/cueline.1` shows the first"
    ))
}
