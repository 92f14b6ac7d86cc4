//! The execution log: a file in which handlers record their actions, independent of Cueline's own records.

mod record;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

pub use record::{AttemptLabel, RecordedAttempt};

/// The environment variable that names the file for the handler `record` of the test worker.
pub const FILE_VARIABLE: &str = "CUELINE_TEST_EXECUTION_LOG";

/// An event that a handler records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The attempt started, and no other attempt of its run or lane was running.
    Start,
    /// The attempt started while another attempt of its run or lane was running.
    Overlap,
    /// The attempt ran to its end and returned success.
    End,
    /// The attempt ran to its end and returned failure.
    Fail,
    /// The attempt was asked to stop, and stopped.
    Stop,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub event: Event,
    /// When the line was written, in milliseconds.
    pub at: i64,
    pub executor: String,
    pub job: String,
    pub shard: u64,
    pub run: i64,
    pub attempt: u32,
    /// In milliseconds.
    pub fire_at: i64,
    /// The number of the job's definition, in tests that number definitions.
    pub revision: u32,
    /// The worker's process for a native handler, else the process of the command.
    pub pid: i32,
    /// When the attempt began, in milliseconds. If its process is stopped right after that, it writes the line later.
    pub began: i64,
    /// The executor, run and attempt that were running, for [`Event::Overlap`].
    pub other: Option<(String, i64, u32)>,
}

impl Entry {
    /// Whether the entry records the start of an attempt.
    pub fn is_start(&self) -> bool {
        matches!(self.event, Event::Start | Event::Overlap)
    }
}

/// The file that handlers append to.
#[derive(Debug, Clone)]
pub struct ExecutionLog(PathBuf);

impl ExecutionLog {
    /// The log in `folder`.
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join("executions"))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All entries, in the order in which they were written.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let text = std::fs::read_to_string(&self.0).context("failed to read the execution log")?;
        text.lines()
            .map(|line| parse(line).with_context(|| format!("execution log: {line:?}")))
            .collect()
    }
}

fn parse(line: &str) -> Result<Entry> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [
        event,
        at,
        executor,
        job,
        shard,
        run,
        attempt,
        fire_at,
        revision,
        pid,
        began,
        ref more @ ..,
    ] = fields[..]
    else {
        bail!("fewer than eleven fields")
    };
    let event = match event {
        "start" => Event::Start,
        "overlap" => Event::Overlap,
        "end" => Event::End,
        "fail" => Event::Fail,
        "stop" => Event::Stop,
        other => bail!("unknown event {other}"),
    };
    Ok(Entry {
        event,
        at: at.parse()?,
        executor: executor.to_owned(),
        job: job.to_owned(),
        shard: shard.parse()?,
        run: run.parse()?,
        attempt: attempt.parse()?,
        fire_at: fire_at.parse()?,
        revision: revision.parse()?,
        pid: pid.parse()?,
        began: began.parse()?,
        other: more.first().and_then(|other| parse_holder(other)),
    })
}

fn parse_holder(text: &str) -> Option<(String, i64, u32)> {
    let mut fields = text.split('/');
    let (executor, run, attempt) = (fields.next()?, fields.next()?, fields.next()?);
    Some((
        executor.to_owned(),
        run.parse().ok()?,
        attempt.parse().ok()?,
    ))
}
