//! The arguments of `cueline script`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `cueline script …`
#[derive(Debug, Subcommand)]
pub(crate) enum ScriptCommand {
    /// List scripts with the number of jobs that use them
    List,
    /// Show one script with its text and the jobs that use it
    Show(ScriptShowArgs),
    /// Create a script, or save a new version of it
    Save(ScriptSaveArgs),
    /// Create scripts and save new versions to match the job files; other scripts stay as they are
    Apply(ScriptApplyArgs),
    /// Show which lines differ between two versions
    Diff(ScriptDiffArgs),
    /// List the versions that are kept, newest first
    History(ScriptArg),
    /// Save an earlier version as a new one
    Restore(ScriptRestoreArgs),
    /// Delete a script that no job uses
    Delete(ScriptArg),
}

/// One script.
#[derive(Debug, Args)]
pub(crate) struct ScriptArg {
    /// The script's name
    #[arg(value_name = "SCRIPT")]
    pub(crate) name: String,
}

/// `cueline script show`
#[derive(Debug, Args)]
pub(crate) struct ScriptShowArgs {
    /// The script's name
    #[arg(value_name = "SCRIPT")]
    pub(crate) name: String,
    /// Show this version instead of the newest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) version: Option<i64>,
    /// Print the text alone, as it is saved
    #[arg(long)]
    pub(crate) text: bool,
}

/// `cueline script save`
#[derive(Debug, Args)]
pub(crate) struct ScriptSaveArgs {
    /// The script's name
    #[arg(value_name = "SCRIPT")]
    pub(crate) name: String,
    /// The file with the text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// bash, sh, python3, node, php or pwsh; by default that of the script, or what the file's ending says
    #[arg(short, long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Why it is saved
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    pub(crate) remark: String,
    /// Save nothing unless the newest version is this one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) if_version: Option<i64>,
}

/// `cueline script apply`
#[derive(Debug, Args)]
pub(crate) struct ScriptApplyArgs {
    /// A job file with scripts: .toml, .yaml, .yml or .json; may be given several times
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
    /// Print the changes without making them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `cueline script diff`
#[derive(Debug, Args)]
pub(crate) struct ScriptDiffArgs {
    /// The script's name
    #[arg(value_name = "SCRIPT")]
    pub(crate) name: String,
    /// The older version
    #[arg(value_name = "FROM", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) from: i64,
    /// The newer version; the newest by default
    #[arg(value_name = "TO", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) to: Option<i64>,
}

/// `cueline script restore`
#[derive(Debug, Args)]
pub(crate) struct ScriptRestoreArgs {
    /// The script's name
    #[arg(value_name = "SCRIPT")]
    pub(crate) name: String,
    /// The version whose language and text are saved again
    #[arg(value_name = "VERSION", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) version: i64,
    /// Why; "version N again" by default
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) remark: Option<String>,
}
