//! What handlers wrote down themselves, independent of all that Cueline says.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The witness program.
pub fn program() -> PathBuf {
    beside_tests("cueline-witness")
}

/// `cueline` with the handler `witness`.
pub fn worker() -> PathBuf {
    beside_tests("cueline-test-worker")
}

/// A program that was built beside the running test.
pub(crate) fn beside_tests(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let folder = test
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("."));
    let program = folder.join(name);
    assert!(
        program.exists(),
        "{} is not there: run the tests by `make test`, which builds it first",
        program.display()
    );
    program
}

/// What a handler noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It started, alone in its lane.
    Start,
    /// It started while another of its lane was still there.
    Overlap,
    /// It came to its end and returned success.
    End,
    /// It came to its end and returned failure.
    Fail,
    /// It was told to stop, and has.
    Stop,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What happened.
    pub what: What,
    /// When, in milliseconds.
    pub at: i64,
    /// On which executor.
    pub executor: String,
    /// Whose job.
    pub job: String,
    /// Which part of the work.
    pub shard: u64,
    /// The run.
    pub run: i64,
    /// The attempt.
    pub attempt: u32,
    /// The fire time, in milliseconds.
    pub fire_at: i64,
    /// Which of the job's definitions, as far as the test numbers them.
    pub round: u32,
    /// Its process: the worker's own, or that of the program that it ran.
    pub pid: i32,
    /// When the attempt was begun, in milliseconds: what is noted at its start may be noted late.
    pub begun: i64,
    /// Who else was there: executor, run and attempt.
    pub other: Option<(String, i64, u32)>,
}

/// The file that handlers append to.
#[derive(Debug, Clone)]
pub struct Witness(PathBuf);

impl Witness {
    /// A file in `folder`.
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join("witness"))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All notes, in the order in which they were written.
    pub fn notes(&self) -> Result<Vec<Note>> {
        let text = std::fs::read_to_string(&self.0).context("failed to read the witness file")?;
        text.lines()
            .map(|line| note(line).with_context(|| format!("witness line {line:?}")))
            .collect()
    }
}

fn note(line: &str) -> Result<Note> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [
        what,
        at,
        executor,
        job,
        shard,
        run,
        attempt,
        fire_at,
        round,
        pid,
        begun,
        ref more @ ..,
    ] = fields[..]
    else {
        bail!("not eleven fields")
    };
    let what = match what {
        "start" => What::Start,
        "overlap" => What::Overlap,
        "end" => What::End,
        "fail" => What::Fail,
        "stop" => What::Stop,
        other => bail!("unknown note {other}"),
    };
    Ok(Note {
        what,
        at: at.parse()?,
        executor: executor.to_owned(),
        job: job.to_owned(),
        shard: shard.parse()?,
        run: run.parse()?,
        attempt: attempt.parse()?,
        fire_at: fire_at.parse()?,
        round: round.parse()?,
        pid: pid.parse()?,
        begun: begun.parse()?,
        other: more.first().and_then(|other| holder(other)),
    })
}

fn holder(text: &str) -> Option<(String, i64, u32)> {
    let mut parts = text.split('/');
    let (executor, run, attempt) = (parts.next()?, parts.next()?, parts.next()?);
    Some((
        executor.to_owned(),
        run.parse().ok()?,
        attempt.parse().ok()?,
    ))
}
