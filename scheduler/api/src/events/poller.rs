//! Reads changes from the store while there are subscribers.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Backoff, Stop};
use cueline_store::{JobsFingerprint, KnownRun, RunCursor, Store, StoreError};
use tokio::time::Instant;

use super::event::{Event, Kind, Kinds};
use super::feed::Running;
use super::snapshots::{
    Executors, Jobs, MAX_JOBS, compare_executors, compare_jobs, seen_executors,
};
use super::watched_runs::{MAX_WATCHED, WatchedRuns};

/// Runs are read this often. The wait is longer if the reading takes long: a feed uses at most a fifth of one connection
/// to the store.
const TURN: Duration = Duration::from_millis(500);
const WAIT_PER_READING: u32 = 4;

/// Jobs and executors change less often than runs.
const SLOW_TURN: Duration = Duration::from_secs(2);

/// Runs or jobs in one call of the store.
const PART: usize = 2_000;

/// Parts of new runs in one turn. More follow in the next one.
const MAX_PARTS: usize = 8;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Reads until there are no more subscribers, or until a stop. A store that fails is asked again; what was missed
/// meanwhile is read then.
pub(super) async fn run(feed: Running, store: Arc<dyn Store>, stop: Stop) {
    let mut poller = Poller {
        feed,
        store,
        runs: None,
        jobs: None,
        executors: None,
    };
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut is_failing = false;
    while let Some(wanted) = poller.feed.wanted() {
        let begun = Instant::now();
        let turn = tokio::select! {
            biased;
            () = stop.soft() => return,
            turn = poller.turn(wanted) => turn,
        };
        let wait = match turn {
            Ok(()) => {
                if is_failing {
                    tracing::info!("changes for event streams were read again");
                }
                is_failing = false;
                backoff.reset();
                TURN.max(begun.elapsed() * WAIT_PER_READING)
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!(
                        %error,
                        "failed to read changes for event streams; they are late until the store answers. Check the database"
                    );
                }
                is_failing = true;
                backoff.next_wait()
            }
        };
        tokio::select! {
            biased;
            () = stop.soft() => return,
            () = poller.feed.until_wanted() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

struct Poller {
    feed: Running,
    store: Arc<dyn Store>,
    runs: Option<Runs>,
    jobs: Option<KnownJobs>,
    executors: Option<KnownExecutors>,
}

struct Runs {
    cursor: RunCursor,
    watched: WatchedRuns,
    overflow_is_told: bool,
}

struct KnownJobs {
    fingerprint: JobsFingerprint,
    jobs: Jobs,
    read_at: Instant,
}

struct KnownExecutors {
    executors: Executors,
    read_at: Instant,
}

impl Poller {
    async fn turn(&mut self, wanted: Kinds) -> Result<(), StoreError> {
        // First of all: what is not wanted has to begin again later, also if a reading fails now.
        self.runs.take_if(|_| !wanted.contains(Kind::Run));
        self.jobs.take_if(|_| !wanted.contains(Kind::Job));
        self.executors.take_if(|_| !wanted.contains(Kind::Executor));
        if wanted.contains(Kind::Run) {
            self.read_runs().await?;
        }
        if wanted.contains(Kind::Job) {
            self.read_jobs().await?;
        }
        if wanted.contains(Kind::Executor) {
            self.read_executors().await?;
        }
        Ok(())
    }

    async fn read_runs(&mut self) -> Result<(), StoreError> {
        let Some(mut runs) = self.runs.take() else {
            self.runs = Some(self.begin_runs().await?);
            self.feed.begin(Kind::Run);
            self.tell_overflow();
            return Ok(());
        };
        let read = self.read_changes(&mut runs).await;
        // What was announced stays announced, also after a failure.
        let has_room = runs.watched.len() <= MAX_WATCHED / 2;
        let restarted = matches!(read, Ok(true));
        if restarted || (runs.overflow_is_told && has_room) {
            self.feed.interrupt(Kind::Run);
            self.runs = Some(self.begin_runs().await?);
            self.feed.begin(Kind::Run);
        } else {
            self.runs = Some(runs);
        }
        self.tell_overflow();
        read.map(drop)
    }

    async fn begin_runs(&self) -> Result<Runs, StoreError> {
        let read = self.store.live_runs(MAX_WATCHED + 1).await?;
        Ok(Runs {
            cursor: read.cursor,
            watched: WatchedRuns::new(read.live, MAX_WATCHED),
            overflow_is_told: false,
        })
    }

    /// Announces new runs, and changes of those that are watched. `true` if the store has gone back.
    async fn read_changes(&self, runs: &mut Runs) -> Result<bool, StoreError> {
        for _ in 0..MAX_PARTS {
            let read = self.store.new_runs(&runs.cursor, PART).await?;
            if read.restarted {
                return Ok(true);
            }
            runs.cursor = read.cursor;
            let events = runs.watched.add(read.runs);
            self.feed.publish(events.iter().map(Event::of_run));
            if !read.more {
                break;
            }
        }
        let known: Vec<KnownRun> = runs.watched.known().collect();
        for part in known.chunks(PART) {
            let read = self.store.changed_runs(part).await?;
            let events = runs.watched.update(read);
            self.feed.publish(events.iter().map(Event::of_run));
        }
        Ok(false)
    }

    fn tell_overflow(&mut self) {
        if let Some(runs) = &mut self.runs
            && runs.watched.has_overflowed()
            && !runs.overflow_is_told
        {
            runs.overflow_is_told = true;
            let watched = runs.watched.len();
            self.feed.publish([Event::overflow(Kind::Run, watched)]);
        }
    }

    async fn read_jobs(&mut self) -> Result<(), StoreError> {
        let is_recent = |known: &KnownJobs| known.read_at.elapsed() < SLOW_TURN;
        if self.jobs.as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        // Read before the jobs: a change in between is found in the next turn.
        let fingerprint = self.store.jobs_fingerprint().await?;
        let read_at = Instant::now();
        if let Some(known) = &mut self.jobs
            && known.fingerprint == fingerprint
        {
            known.read_at = read_at;
            return Ok(());
        }
        let (jobs, is_cut) = self.all_jobs().await?;
        if let Some(known) = &self.jobs {
            let events = compare_jobs(&known.jobs, &jobs);
            self.feed.publish(events.iter().map(Event::of_job));
        } else {
            self.feed.begin(Kind::Job);
            if is_cut {
                self.feed.publish([Event::overflow(Kind::Job, jobs.len())]);
            }
        }
        self.jobs = Some(KnownJobs {
            fingerprint,
            jobs,
            read_at,
        });
        Ok(())
    }

    /// The jobs with the lowest ids, and whether there are more.
    async fn all_jobs(&self) -> Result<(Jobs, bool), StoreError> {
        let mut jobs = Jobs::new();
        let mut after = None;
        while jobs.len() < MAX_JOBS {
            let part = self.store.job_briefs(after, PART).await?;
            let is_last = part.len() < PART;
            after = part.last().map(|job| job.id).or(after);
            jobs.extend(part.into_iter().map(|job| (job.id, job)));
            if is_last {
                return Ok((jobs, false));
            }
        }
        Ok((jobs, true))
    }

    async fn read_executors(&mut self) -> Result<(), StoreError> {
        let is_recent = |known: &KnownExecutors| known.read_at.elapsed() < SLOW_TURN;
        if self.executors.as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        let read = self.store.executors().await?;
        // Read after the list, so that no heartbeat is in the future.
        let now = self.store.now().await?;
        let executors = seen_executors(read, now);
        match &self.executors {
            Some(known) => {
                let events = compare_executors(&known.executors, &executors);
                self.feed.publish(events.iter().map(Event::of_executor));
            }
            None => self.feed.begin(Kind::Executor),
        }
        self.executors = Some(KnownExecutors {
            executors,
            read_at: Instant::now(),
        });
        Ok(())
    }
}
