//! How a handler bears witness: it appends what it sees to a file that nobody else writes, one line a `write`.
//!
//! For as long as an attempt lasts it holds a lock on a file of its lane's own (executor, job and shard), and on one of its run's: the kernel releases
//! them when the process dies, however it dies. Finding one taken is an overlap, and says with whom.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use cueline_runtime::{Clock as _, SystemClock};

/// Whose attempt it is.
#[derive(Debug, Clone)]
pub struct Who {
    /// The executor's name.
    pub executor: String,
    /// The job's name.
    pub job: String,
    /// What tells the job from others of its name, before and after it was deleted.
    pub lane: String,
    /// Which part of the work.
    pub shard: String,
    /// The run.
    pub run: String,
    /// The attempt.
    pub attempt: String,
    /// The fire time, in milliseconds.
    pub fire_at: String,
    /// Which of the job's definitions it was given, as far as the test numbers them.
    pub round: u32,
    /// When the attempt was begun, in milliseconds: before anything that takes its time, for its process may be stopped then.
    pub begun: i64,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            executor,
            job,
            shard,
            run,
            attempt,
            fire_at,
            round,
            begun,
            lane: _,
        } = self;
        let pid = std::process::id();
        write!(
            f,
            "{executor} {job} {shard} {run} {attempt} {fire_at} {round} {pid} {begun}"
        )
    }
}

/// An attempt that has begun.
#[derive(Debug)]
pub struct Testimony {
    file: PathBuf,
    who: Who,
    locks: Vec<File>,
}

impl Drop for Testimony {
    fn drop(&mut self) {
        for lock in &self.locks {
            // Closing the file is not enough: a child that this process is about to start has it open as well until it is another program.
            let _ = lock.unlock();
        }
    }
}

impl Testimony {
    /// Notes the start in `file`. `alone` in its lane: where two at once are as they should be, only its run is its own.
    pub fn begin(file: &Path, who: Who, alone: bool) -> io::Result<Self> {
        let mut names = vec![format!("{}.run", who.run)];
        if alone {
            names.push(format!("{}.{}.{}.lane", who.executor, who.lane, who.shard));
        }
        let mut testimony = Self {
            file: file.to_owned(),
            who,
            locks: Vec::new(),
        };
        let mut holder = None;
        for name in names {
            match testimony.take(&name)? {
                Ok(lock) => testimony.locks.push(lock),
                Err(other) => holder = Some(other),
            }
        }
        match holder {
            None => testimony.note("start", "")?,
            Some(other) => testimony.note("overlap", &format!(" {other}"))?,
        }
        Ok(testimony)
    }

    /// Takes the lock, or says who has it.
    fn take(&self, name: &str) -> io::Result<Result<File, String>> {
        let path = self.lock_file(name);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match lock.try_lock() {
            Ok(()) => {
                let Who {
                    executor,
                    run,
                    attempt,
                    ..
                } = &self.who;
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

    /// In the folder `locks` beside the file if there is one, which may be in memory: locks come and go with each attempt.
    fn lock_file(&self, name: &str) -> PathBuf {
        let folder = self.file.with_file_name("locks");
        if folder.is_dir() {
            folder.join(name)
        } else {
            self.file.with_extension(name)
        }
    }

    fn note(&self, what: &str, more: &str) -> io::Result<()> {
        let now = SystemClock.now_ms();
        let line = format!("{what} {now} {}{more}\n", self.who);
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.file)?
            .write_all(line.as_bytes())
    }

    /// Notes the end: `end`, `fail` or `stop`.
    pub fn end(self, what: &str) -> io::Result<()> {
        self.note(what, "")?;
        // Nobody else is to run it any more; thousands of files would be left.
        let _ = std::fs::remove_file(self.lock_file(&format!("{}.run", self.who.run)));
        Ok(())
    }
}
