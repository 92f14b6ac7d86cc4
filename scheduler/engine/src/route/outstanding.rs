//! The choice of `busyover`: the first executor whose lane for the job is idle, by the attempts that have not ended. Also
//! what executors have of `any` jobs.
//!
//! A node knows the attempts that it dispatches and the ends that it ingests. What other nodes dispatch and ingest, it
//! reads from the store again and again. No executor is asked.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cueline_model::{AttemptId, ExecutorName, JobId, Timestamp};
use cueline_store::JobAttempt;

use super::Candidate;
use crate::lock::lock;

/// A job without a run for this time is forgotten.
const KEPT_MS: i64 = 600_000;
/// At this many jobs or attempts, all are forgotten and read again.
const MAX_JOBS: usize = 1_000;
pub(crate) const MAX_ATTEMPTS: usize = 10_000;

/// The attempts of jobs that have not ended, as far as this node knows.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    inner: Mutex<Inner>,
    /// Whether there is any job. Ends of attempts are not looked at without one.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: HashMap<JobId, JobAttempts>,
    attempts: HashMap<AttemptId, Given>,
}

#[derive(Debug, Default)]
struct JobAttempts {
    by_executor: HashMap<ExecutorName, u64>,
    last_used_at: Timestamp,
}

#[derive(Debug)]
struct Given {
    job: JobId,
    executor: ExecutorName,
    at: Timestamp,
}

impl Inner {
    fn add(&mut self, attempt: AttemptId, given: Given) {
        self.end(attempt);
        let of = self.jobs.entry(given.job).or_default();
        *of.by_executor.entry(given.executor.clone()).or_default() += 1;
        self.attempts.insert(attempt, given);
    }

    fn end(&mut self, attempt: AttemptId) {
        let Some(given) = self.attempts.remove(&attempt) else {
            return;
        };
        let Some(of) = self.jobs.get_mut(&given.job) else {
            return;
        };
        if let Some(count) = of.by_executor.get_mut(&given.executor) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                of.by_executor.remove(&given.executor);
            }
        }
    }
}

impl Outstanding {
    pub(super) fn knows(&self, job: JobId) -> bool {
        self.is_used.load(Ordering::Acquire) && lock(&self.inner).jobs.contains_key(&job)
    }

    /// The first candidate without an attempt of the job. If all have some, the first of those with the fewest.
    pub(super) fn first_idle(&self, job: JobId, candidates: &[Candidate], now: Timestamp) -> usize {
        let mut inner = lock(&self.inner);
        let of = inner.jobs.entry(job).or_default();
        of.last_used_at = now;
        self.is_used.store(true, Ordering::Release);
        let indexed = candidates.iter().enumerate();
        let count = |candidate: &Candidate| of.by_executor.get(&candidate.name).copied();
        indexed
            .min_by_key(|(_, candidate)| count(candidate))
            .map_or(0, |(index, _)| index)
    }

    /// The number of attempts of these jobs at each candidate.
    pub(super) fn at_executors(
        &self,
        jobs: &HashSet<JobId>,
        candidates: &[Candidate],
        now: Timestamp,
    ) -> Vec<u64> {
        if !self.is_used.load(Ordering::Acquire) {
            return vec![0; candidates.len()];
        }
        let mut inner = lock(&self.inner);
        let mut counts = vec![0; candidates.len()];
        for job in jobs {
            let Some(of) = inner.jobs.get_mut(job) else {
                continue;
            };
            of.last_used_at = now;
            for (count, candidate) in counts.iter_mut().zip(candidates) {
                *count += of.by_executor.get(&candidate.name).copied().unwrap_or(0);
            }
        }
        counts
    }

    /// An attempt of the job is given to `executor`.
    pub(super) fn add(
        &self,
        job: JobId,
        attempt: AttemptId,
        executor: &ExecutorName,
        at: Timestamp,
    ) {
        let mut inner = lock(&self.inner);
        if inner.jobs.len() > MAX_JOBS || inner.attempts.len() >= MAX_ATTEMPTS {
            *inner = Inner::default();
        }
        let executor = executor.clone();
        inner.add(attempt, Given { job, executor, at });
        self.is_used.store(true, Ordering::Release);
    }

    /// These attempts have ended, or were not given to an executor after all.
    pub(crate) fn end(&self, attempts: impl IntoIterator<Item = AttemptId>) {
        if !self.is_used.load(Ordering::Acquire) {
            return;
        }
        let mut inner = lock(&self.inner);
        for attempt in attempts {
            inner.end(attempt);
        }
    }

    /// The jobs whose attempts have to be read again. Forgets those that were not used for long.
    pub(crate) fn jobs(&self, now: Timestamp) -> Vec<JobId> {
        if !self.is_used.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut inner = lock(&self.inner);
        inner
            .jobs
            .retain(|_, of| now.since_ms(of.last_used_at).saturating_abs() <= KEPT_MS);
        let Inner { jobs, attempts } = &mut *inner;
        attempts.retain(|_, given| jobs.contains_key(&given.job));
        self.is_used.store(!jobs.is_empty(), Ordering::Release);
        jobs.keys().copied().collect()
    }

    /// `found` are the attempts of `jobs` in the store, read at `read_at` or later. Attempts that were given to executors
    /// since then stay.
    pub(crate) fn replace(&self, jobs: &[JobId], found: Vec<JobAttempt>, read_at: Timestamp) {
        let mut inner = lock(&self.inner);
        for job in jobs {
            let of = inner.jobs.entry(*job).or_default();
            of.last_used_at = of.last_used_at.max(read_at);
            of.by_executor.clear();
        }
        let known = std::mem::take(&mut inner.attempts);
        for (attempt, given) in known {
            if given.at >= read_at || !jobs.contains(&given.job) {
                inner.attempts.insert(attempt, given);
            }
        }
        let Inner { jobs: of, attempts } = &mut *inner;
        for given in attempts.values().filter(|given| jobs.contains(&given.job)) {
            let of = of.entry(given.job).or_default();
            *of.by_executor.entry(given.executor.clone()).or_default() += 1;
        }
        for JobAttempt {
            job,
            attempt,
            executor,
        } in found
        {
            let at = read_at;
            inner.add(attempt, Given { job, executor, at });
        }
        self.is_used.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{RunId, Weight};
    use proptest::prelude::*;

    use super::*;

    fn name(n: usize) -> ExecutorName {
        format!("e{n}").parse().expect("a name")
    }

    fn candidates(count: usize) -> Vec<Candidate> {
        (0..count)
            .map(|n| Candidate {
                name: name(n),
                weight: Weight::default(),
                capacity: 1,
            })
            .collect()
    }

    fn attempt(run: i64) -> AttemptId {
        AttemptId {
            run: RunId(run),
            attempt: 1,
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_reading_replaces_all_but_what_was_given_since() {
        let (outstanding, job) = (Outstanding::default(), JobId(1));
        assert!(!outstanding.knows(job));
        outstanding.add(job, attempt(1), &name(0), at(10));
        outstanding.add(job, attempt(2), &name(1), at(20));
        assert!(outstanding.knows(job));
        let chosen = |now| outstanding.first_idle(job, &candidates(3), at(now));
        assert_eq!(chosen(20), 2);
        // The first attempt has ended at another node, which has given one to the third executor.
        let found = vec![JobAttempt {
            job,
            attempt: attempt(3),
            executor: name(2),
        }];
        outstanding.replace(&[job], found, at(20));
        assert_eq!(chosen(21), 0);
        outstanding.add(job, attempt(4), &name(0), at(21));
        assert_eq!(chosen(22), 0, "all are busy");
        outstanding.end([attempt(2)]);
        assert_eq!(chosen(22), 1);
        assert_eq!(outstanding.jobs(at(22 + KEPT_MS)), [job]);
        assert_eq!(outstanding.jobs(at(23 + KEPT_MS)), []);
        assert!(!outstanding.knows(job));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let outstanding = Outstanding::default();
        for run in 0..=i64::try_from(MAX_ATTEMPTS).unwrap() {
            outstanding.add(JobId(run % 7), attempt(run), &name(0), at(0));
        }
        assert!(lock(&outstanding.inner).attempts.len() <= MAX_ATTEMPTS);
    }

    proptest! {
        /// The model is a list of the attempts that have not ended.
        #[test]
        fn the_first_idle_executor_is_chosen(steps in proptest::collection::vec((0..2_i64, 0..12_i64, any::<bool>()), 1..60)) {
            let outstanding = Outstanding::default();
            let mut model: Vec<(i64, i64, usize)> = Vec::new();
            for (run, (job, other, ends)) in (100..).zip(steps) {
                let of = |n: usize| model.iter().filter(|(_, of, at)| *of == job && *at == n).count();
                let expected = (0..3).min_by_key(|n| of(*n)).unwrap();
                let chosen = outstanding.first_idle(JobId(job), &candidates(3), at(0));
                prop_assert_eq!(chosen, expected);
                outstanding.add(JobId(job), attempt(run), &name(chosen), at(0));
                model.push((run, job, chosen));
                if ends {
                    outstanding.end([attempt(run - other)]);
                    model.retain(|(at, ..)| *at != run - other);
                }
            }
        }
    }
}
