//! Records an attempt of a handler. Each line is one `write` call, so that lines of several processes never mix.
//!
//! A running attempt locks a file of its lane (executor if the lane is its own, job and shard) and a file of its run. The kernel releases both
//! when the process ends, however it ends. An attempt that finds a lock taken records an overlap and the holder.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use cueline_runtime::{Clock as _, SystemClock};

/// The fields of an attempt in the log.
#[derive(Debug, Clone)]
pub struct AttemptLabel {
    pub executor: String,
    pub job: String,
    /// Names the lane, apart from the shard: the executor, unless the group shares the lane, and the job. Distinguishes the
    /// job from earlier and later ones of the same name.
    pub lane: String,
    pub shard: String,
    pub run: String,
    pub attempt: String,
    /// In milliseconds.
    pub fire_at: String,
    /// The number of the job's definition, in tests that number them.
    pub revision: u32,
    /// When the attempt began, in milliseconds. Read the clock before any slow step, because the process may be
    /// stopped.
    pub began: i64,
}

impl fmt::Display for AttemptLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            executor,
            job,
            shard,
            run,
            attempt,
            fire_at,
            revision,
            began,
            lane: _,
        } = self;
        let pid = std::process::id();
        write!(
            f,
            "{executor} {job} {shard} {run} {attempt} {fire_at} {revision} {pid} {began}"
        )
    }
}

/// An attempt whose start is in the log.
#[derive(Debug)]
pub struct RecordedAttempt {
    file: PathBuf,
    label: AttemptLabel,
    locks: Vec<File>,
}

impl Drop for RecordedAttempt {
    fn drop(&mut self) {
        for lock in &self.locks {
            // Closing the file is not enough: a child process that is being started keeps it open until it has loaded
            // its program.
            let _ = lock.unlock();
        }
    }
}

impl RecordedAttempt {
    /// Records the start in `file`. If `exclusive`, another attempt in the same lane counts as an overlap.
    pub fn start(file: &Path, label: AttemptLabel, exclusive: bool) -> io::Result<Self> {
        let mut names = vec![format!("{}.run", label.run)];
        if exclusive {
            let AttemptLabel { lane, shard, .. } = &label;
            names.push(format!("{lane}.{shard}.lane"));
        }
        let mut attempt = Self {
            file: file.to_owned(),
            label,
            locks: Vec::new(),
        };
        let mut holder = None;
        for name in names {
            match attempt.try_lock(&name)? {
                Ok(lock) => attempt.locks.push(lock),
                Err(other) => holder = Some(other),
            }
        }
        match holder {
            None => attempt.append("start", "")?,
            Some(other) => attempt.append("overlap", &format!(" {other}"))?,
        }
        Ok(attempt)
    }

    /// Takes the lock, or returns its holder.
    fn try_lock(&self, name: &str) -> io::Result<Result<File, String>> {
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.lock_file(name))?;
        match lock.try_lock() {
            Ok(()) => {
                let AttemptLabel {
                    executor,
                    run,
                    attempt,
                    ..
                } = &self.label;
                lock.set_len(0)?;
                lock.rewind()?;
                write!(lock, "{executor}/{run}/{attempt}")?;
                Ok(Ok(lock))
            }
            Err(TryLockError::WouldBlock) => {
                let mut other = String::new();
                lock.read_to_string(&mut other)?;
                Ok(Err(if other.is_empty() { "?".into() } else { other }))
            }
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// The lock file is in the folder `locks` beside the log, if that exists. The folder may be in memory, because each
    /// attempt creates and removes locks.
    fn lock_file(&self, name: &str) -> PathBuf {
        let folder = self.file.with_file_name("locks");
        if folder.is_dir() {
            folder.join(name)
        } else {
            self.file.with_extension(name)
        }
    }

    fn append(&self, event: &str, more: &str) -> io::Result<()> {
        let now = SystemClock.now_ms();
        let line = format!("{event} {now} {}{more}\n", self.label);
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.file)?
            .write_all(line.as_bytes())
    }

    /// Records the end: `end`, `fail` or `stop`.
    pub fn end(self, event: &str) -> io::Result<()> {
        self.append(event, "")?;
        // No other attempt of this run may follow, and the files of thousands of runs would pile up.
        let _ = std::fs::remove_file(self.lock_file(&format!("{}.run", self.label.run)));
        Ok(())
    }
}
