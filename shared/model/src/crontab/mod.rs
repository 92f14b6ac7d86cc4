//! Imports crontabs as jobs that behave as under cron.
//!
//! This module turns text into jobs. Callers read the text and store the jobs. Each schedule line becomes one job or is
//! refused with a reason; no line is skipped silently. The jobs do what cron does:
//!
//! - The command runs as `SHELL -c COMMAND`. Its environment holds only the crontab's variables and the few that cron
//!   sets. A variable applies to the lines after it. Values are not expanded.
//! - The first unescaped `%` ends the command, and the rest is its standard input. Each further `%` is a line break;
//!   `\%` is a percent sign.
//! - cron starts a run even if earlier ones still run. The block policy is therefore `parallel`. cron has no limit; the
//!   job has [`MAX_PARALLEL`].
//! - cron does not catch up. The misfire policy is therefore `skip`, with a grace of one minute, within which cron
//!   itself starts a job late.
//! - Failures are not retried, and there is no time limit.
//!
//! `MAILTO` becomes the label `mailto`, `CRON_TZ` the schedule's time zone, and cronie's `RANDOM_DELAY` the job's
//! jitter.

mod line;
mod naming;

use std::collections::BTreeMap;

use crate::duration::DurationMs;
use crate::handler::{HandlerSpec, Interpreter, ProcessSpec, ShellSpec};
use crate::job::{
    JobSpec, default_backlog, default_dispatch_deadline, default_kill_grace, default_priority,
};
use crate::name::{GroupName, NameError};
use crate::policy::{Block, Fence, Misfire, MisfirePolicy, OnLost, Retry, Scope};
use crate::retention::Retention;
use crate::route::Route;
use crate::schedule::{CronSchedule, Dialect, Schedule};
use crate::selector::Selector;
use line::{Header, Line};
use naming::Names;

/// The most runs of an imported job at a time. Further runs wait in its lane. A job that reaches this limit is probably
/// stuck.
pub const MAX_PARALLEL: u32 = 100;

/// The longest command line that is accepted.
const MAX_COMMAND_BYTES: usize = 64 * 1024;

/// Whether the word after the time fields is the user who runs the command, as in `/etc/crontab` and `/etc/cron.d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UserColumn {
    /// Each line has one.
    Yes,
    /// No line has one.
    No,
    /// Detected: the word after the times is a well-known account, and another word follows. If a header comment names a
    /// user column, the word only has to look like an account. A file whose lines differ is refused.
    #[default]
    Auto,
}

/// How to read a crontab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// The name or path of the file, for the names and descriptions of the jobs.
    pub source: String,
    /// The time zone of lines that no `CRON_TZ` precedes.
    pub timezone: String,
    /// The group of the jobs.
    pub group: GroupName,
    /// Whether there is a user column.
    pub user_column: UserColumn,
}

impl ImportOptions {
    /// Options for `source`: time zone UTC, group `default`, user column decided per line.
    pub fn new(source: impl Into<String>) -> Result<Self, NameError> {
        Ok(Self {
            source: source.into(),
            timezone: "UTC".to_owned(),
            group: "default".parse()?,
            user_column: UserColumn::Auto,
        })
    }
}

/// The result of a schedule line.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The number of the line, from 1.
    pub line: u32,
    /// The job, or the reason why there is none.
    pub job: Result<JobSpec, String>,
}

/// A warning about a line that was still imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The number of the line, from 1.
    pub line: u32,
    /// The warning.
    pub message: String,
}

/// An imported crontab.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Import {
    /// One entry per schedule line, in order.
    pub entries: Vec<Entry>,
    /// Warnings in the order of lines.
    pub warnings: Vec<Warning>,
}

/// Why a crontab is refused as a whole: some of its lines seem to name a user, and others do not. cron reads all lines of
/// a file in one way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {with} seems to name a user before the command, and line {without} does not; \
     give --user-column yes (as in /etc/crontab and /etc/cron.d) or --user-column no (as in a user's own crontab)"
)]
pub struct MixedColumns {
    /// The first line that seems to name a user.
    pub with: u32,
    /// The first line that does not.
    pub without: u32,
}

/// Imports a crontab.
///
/// # Errors
///
/// [`MixedColumns`] if the user column is to be detected, and the lines differ.
///
/// ```
/// use cueline_model::crontab::{ImportOptions, import};
///
/// let options = ImportOptions::new("nightly.crontab")?;
/// let import = import("0 4 * * * backup --all\n", &options).expect("one kind of lines");
/// let job = import.entries[0].job.as_ref().unwrap();
/// assert_eq!(job.name.as_str(), "nightly.backup");
/// # Ok::<(), cueline_model::name::NameError>(())
/// ```
pub fn import(text: &str, options: &ImportOptions) -> Result<Import, MixedColumns> {
    let mut reading = Reading {
        options,
        env: BTreeMap::new(),
        header: Header::None,
        names: Names::new(&options.source),
        import: Import::default(),
        with_user: None,
        without_user: None,
    };
    for (number, text) in (1..).zip(text.lines()) {
        match line::read(text) {
            Line::Blank => {}
            Line::Comment(comment) => reading.header = reading.header.or_read(comment),
            Line::Variable { name, value } => reading.variable(number, name, value),
            Line::BadVariable(reason) => reading.import.entries.push(Entry {
                line: number,
                job: Err(reason),
            }),
            Line::Entry(text) => {
                let job = reading.entry(number, text);
                reading.import.entries.push(Entry { line: number, job });
            }
        }
    }
    match (options.user_column, reading.with_user, reading.without_user) {
        (UserColumn::Auto, Some(with), Some(without)) => Err(MixedColumns { with, without }),
        _ => Ok(reading.import),
    }
}

struct Reading<'a> {
    options: &'a ImportOptions,
    env: BTreeMap<String, String>,
    header: Header,
    names: Names,
    import: Import,
    /// The first line that names a user, and the first one that does not.
    with_user: Option<u32>,
    without_user: Option<u32>,
}

impl Reading<'_> {
    fn warn(&mut self, line: u32, message: impl Into<String>) {
        self.import.warnings.push(Warning {
            line,
            message: message.into(),
        });
    }

    fn variable(&mut self, line: u32, name: String, value: String) {
        if name == "LOGNAME" || name == "USER" {
            self.warn(
                line,
                format!("{name} is left out: cron sets it to the user that the command runs as"),
            );
            return;
        }
        self.env.insert(name, value);
    }

    fn entry(&mut self, line: u32, text: &str) -> Result<JobSpec, String> {
        let (time, rest) = line::split_time(text)?;
        let (user, command) = line::split_user(rest, self.options.user_column, self.header)?;
        let first = match user {
            Some(_) => &mut self.with_user,
            None => &mut self.without_user,
        };
        first.get_or_insert(line);
        let (quiet, command) = line::split_option(command)?;
        let command = accepted_command(command)?;
        let schedule = self.schedule(&time, line)?;
        if quiet {
            self.warn(
                line,
                "the option -n is left out: it limits mail to failures, and no mail is sent",
            );
        }
        let jitter = self.random_delay(line);
        if command.input.is_some() {
            self.warn(
                line,
                "the command has an unescaped %: cron ends it there and gives it the rest as standard input, \
                 and so does the job; for a percent sign write \\%",
            );
        }
        let name = self.names.unique(&command.script, line)?;
        Ok(JobSpec {
            name,
            group: self.options.group.clone(),
            description: format!("imported from {}:{line}", self.options.source),
            schedule,
            start_at: None,
            end_at: None,
            calendars: Vec::new(),
            retention: Retention::default(),
            jitter,
            misfire: Misfire {
                policy: MisfirePolicy::Skip,
                grace: DurationMs::secs(60),
                ..Misfire::default()
            },
            route: Route::default(),
            selector: Selector::default(),
            block: Block::Parallel(MAX_PARALLEL),
            scope: Scope::default(),
            backlog: default_backlog(),
            rate_limit: None,
            concurrency: None,
            timeout: None,
            kill_grace: default_kill_grace(),
            retry: Retry::default(),
            on_lost: OnLost::Fail,
            fence: Fence::Stop,
            dispatch_deadline: default_dispatch_deadline(),
            priority: default_priority(),
            handler: HandlerSpec::from(self.shell(command, user)),
            params: None,
            after: None,
            labels: self
                .env
                .get("MAILTO")
                .map(|to| ("mailto".to_owned(), to.clone()))
                .into_iter()
                .collect(),
            enabled: None,
        })
    }

    fn shell(&self, command: line::Command, user: Option<&str>) -> ShellSpec {
        let mut env = self.env.clone();
        env.remove("CRON_TZ");
        env.remove("RANDOM_DELAY");
        let shell = env.get("SHELL").map_or("/bin/sh", String::as_str);
        ShellSpec {
            script: command.script,
            interpreter: Interpreter::Sh,
            shell: Some(shell.to_owned()),
            process: ProcessSpec {
                clear_env: true,
                // cron starts commands in `HOME`. Without `HOME` it uses the user's home directory, as `clear_env`
                // does.
                cwd: env.get("HOME").filter(|home| !home.is_empty()).cloned(),
                stdin: command.input.map(Into::into),
                run_as: user.map(str::to_owned),
                env: env
                    .into_iter()
                    .map(|(n, value)| (n, value.into()))
                    .collect(),
            },
        }
    }

    fn schedule(&mut self, time: &str, line: u32) -> Result<Schedule, String> {
        if time.eq_ignore_ascii_case("@reboot") {
            return Ok(Schedule::Startup);
        }
        if !time.starts_with('@') && time.contains('~') {
            return Err(format!(
                "{time:?}: '~' is a time that cronie draws at random; write one of the times, and RANDOM_DELAY for a spread"
            ));
        }
        let timezone = self.env.get("CRON_TZ").unwrap_or(&self.options.timezone);
        let (expression, shortened) = line::shorten_steps(time);
        let schedule = CronSchedule::parse(&expression, timezone, Some(Dialect::Unix), None)
            .map_err(|error| format!("{time:?}: {}", error.with_suggestion()))?;
        for item in shortened {
            self.warn(
                line,
                format!(
                    "the step of {item:?} is longer than its field: only the first value of the range matches, as under cron. \
                     The job has {expression:?}"
                ),
            );
        }
        Ok(Schedule::Cron(schedule))
    }

    /// cronie's `RANDOM_DELAY`: the longest delay, in minutes.
    fn random_delay(&mut self, line: u32) -> DurationMs {
        let Some(text) = self.env.get("RANDOM_DELAY") else {
            return DurationMs::default();
        };
        // cronie accepts at most a day.
        if let Ok(minutes @ 0..=1_440) = text.trim().parse::<u64>() {
            return DurationMs::secs(minutes * 60);
        }
        let message =
            format!("RANDOM_DELAY {text:?} is left out: a number of minutes 0–1440 is expected");
        self.warn(line, message);
        DurationMs::default()
    }
}

/// Parses the command of an entry. Refuses one that the job could not run.
fn accepted_command(text: &str) -> Result<line::Command, String> {
    if text.len() > MAX_COMMAND_BYTES {
        return Err(format!(
            "a command of {} bytes; at most {MAX_COMMAND_BYTES} are accepted",
            text.len()
        ));
    }
    let command = line::split_input(text);
    if command.script.trim().is_empty() {
        return Err("there is no command after the time fields".to_owned());
    }
    if command.script.contains('\0') {
        return Err("the command has a NUL character".to_owned());
    }
    Ok(command)
}

#[cfg(test)]
mod tests;
