//! The arguments of `cueline calendar`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `cueline calendar …`
#[derive(Debug, Subcommand)]
pub(crate) enum CalendarCommand {
    /// List calendars with the jobs that use them
    List,
    /// Show one calendar
    Show(CalendarArg),
    /// Create and change calendars to match the files; other calendars stay as they are
    Apply(CalendarApplyArgs),
    /// Create or replace a calendar with the events of an iCalendar file
    Import(CalendarImportArgs),
    /// Delete a calendar that no job uses
    Delete(CalendarArg),
}

/// One calendar.
#[derive(Debug, Args)]
pub(crate) struct CalendarArg {
    /// The calendar's name
    #[arg(value_name = "CALENDAR")]
    pub(crate) name: String,
}

/// `cueline calendar apply`
#[derive(Debug, Args)]
pub(crate) struct CalendarApplyArgs {
    /// A job file with calendars: .toml, .yaml, .yml or .json; may be given several times
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
    /// Print the changes without making them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `cueline calendar import`
#[derive(Debug, Args)]
pub(crate) struct CalendarImportArgs {
    /// An iCalendar file
    #[arg(value_name = "FILE.ics")]
    pub(crate) file: PathBuf,
    /// The calendar's name; that of the file without its ending by default
    #[arg(long, value_name = "CALENDAR")]
    pub(crate) name: Option<String>,
    /// The time zone of whole days, and of times without one
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) timezone: String,
    /// How many years of repeated events are computed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=50))]
    pub(crate) years: u64,
    /// Print the calendar as a job file instead of applying it
    #[arg(long)]
    pub(crate) print: bool,
}
