//! The choices of `lfu` and `lru`: by the runs of the job that each executor got within the last 24 hours.
//!
//! Each node counts the runs that it dispatches. At the first run of a job it reads the job's last runs from the store.

use std::collections::HashMap;

use cueline_model::{ExecutorName, JobId, Timestamp};

use super::{Candidate, Candidates};

const HOUR_MS: i64 = 3_600_000;
/// The window, in hours. The present hour is one of them.
const HOURS: usize = 24;
/// At this many jobs, those without a run within the window are forgotten; if all have one, all are.
const MAX_JOBS: usize = 10_000;

/// Which executors the runs of jobs got.
#[derive(Debug, Default)]
pub(super) struct Usage {
    jobs: HashMap<JobId, JobUsage>,
    /// The number of recorded uses, which orders them.
    uses: u64,
}

#[derive(Debug, Default)]
struct JobUsage {
    executors: HashMap<ExecutorName, Used>,
    /// The candidates of the last choice.
    candidates: Option<Candidates>,
    last_used_at: Timestamp,
}

/// The use of one executor for one job.
#[derive(Debug, Clone, Default)]
struct Used {
    /// Runs by the hour, modulo the window.
    by_hour: [u64; HOURS],
    hour: i64,
    last_at: Timestamp,
    /// Its place among all uses; 0 for none.
    last_use: u64,
}

fn hour(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(HOUR_MS)
}

impl Used {
    /// Forgets what is older than the window.
    fn move_to(&mut self, now: Timestamp) {
        let hour = hour(now);
        for passed in (self.hour + 1..=hour).rev().take(HOURS) {
            self.by_hour[slot(passed)] = 0;
        }
        self.hour = self.hour.max(hour);
        if now.since_ms(self.last_at) >= HOUR_MS * 24 {
            self.last_use = 0;
        }
    }

    fn count(&self) -> u64 {
        self.by_hour.iter().sum()
    }

    fn add(&mut self, runs: u64, at: Timestamp) {
        // After a step of the clock back, runs count for the latest hour.
        let hour = hour(at).max(self.hour);
        self.by_hour[slot(hour)] += runs;
    }
}

fn slot(hour: i64) -> usize {
    usize::try_from(hour.rem_euclid(24)).unwrap_or(0)
}

impl JobUsage {
    /// Moves the window on. An executor that was no candidate before counts as used as often as the least used of the
    /// others, so that it does not get all runs until it has caught up.
    fn prepare(&mut self, candidates: &Candidates, now: Timestamp) {
        for used in self.executors.values_mut() {
            used.move_to(now);
        }
        self.last_used_at = now;
        let before = self.candidates.replace(candidates.clone());
        if before.as_ref().is_some_and(|before| before == candidates) {
            return;
        }
        // At the first choice, those with runs in the history are not new.
        let was_there = |name: &ExecutorName| match &before {
            Some(before) => before.iter().any(|candidate| candidate.name == *name),
            None => self.count(name) > 0,
        };
        let (old, new): (Vec<&ExecutorName>, Vec<&ExecutorName>) = candidates
            .iter()
            .map(|candidate| &candidate.name)
            .partition(|name| was_there(name));
        let least = old.iter().map(|name| self.count(name)).min().unwrap_or(0);
        for name in new {
            let missing = least.saturating_sub(self.count(name));
            let used = self.executors.entry(name.clone()).or_default();
            used.move_to(now);
            used.add(missing, now);
        }
        self.executors
            .retain(|_, used| used.last_use > 0 || used.count() > 0);
    }

    fn count(&self, name: &ExecutorName) -> u64 {
        self.executors.get(name).map_or(0, Used::count)
    }

    fn last_use(&self, name: &ExecutorName) -> u64 {
        self.executors.get(name).map_or(0, |used| used.last_use)
    }
}

impl Usage {
    pub(super) fn knows(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// The candidate with the fewest runs of the job within the window; of several, the first by name.
    pub(super) fn least_frequent(
        &mut self,
        job: JobId,
        candidates: &Candidates,
        now: Timestamp,
    ) -> usize {
        let usage = self.of(job, now);
        usage.prepare(candidates, now);
        first_least(candidates, |name| usage.count(name))
    }

    /// The candidate that got its last run of the job longest ago, first of all those that got none within the window; of
    /// several, the first by name.
    pub(super) fn least_recent(
        &mut self,
        job: JobId,
        candidates: &Candidates,
        now: Timestamp,
    ) -> usize {
        let usage = self.of(job, now);
        usage.prepare(candidates, now);
        first_least(candidates, |name| usage.last_use(name))
    }

    /// A run of the job goes to `executor`.
    pub(super) fn record(&mut self, job: JobId, executor: &ExecutorName, now: Timestamp) {
        self.uses += 1;
        let last_use = self.uses;
        let usage = self.of(job, now);
        let used = usage.executors.entry(executor.clone()).or_default();
        used.move_to(now);
        used.add(1, now);
        used.last_at = used.last_at.max(now);
        used.last_use = last_use;
        usage.last_used_at = now;
    }

    /// Records the last runs of the job. Those before the window do not count.
    pub(super) fn seed(
        &mut self,
        job: JobId,
        runs: impl IntoIterator<Item = (ExecutorName, Timestamp)>,
        now: Timestamp,
    ) {
        let oldest = hour(now) - 23;
        let mut runs: Vec<_> = runs
            .into_iter()
            .filter(|(_, at)| hour(*at) >= oldest && *at <= now)
            .collect();
        runs.sort_unstable_by_key(|(_, at)| *at);
        for (executor, at) in runs {
            self.record(job, &executor, at);
        }
        self.of(job, now).last_used_at = now;
    }

    fn of(&mut self, job: JobId, now: Timestamp) -> &mut JobUsage {
        if self.jobs.len() >= MAX_JOBS && !self.jobs.contains_key(&job) {
            self.jobs
                .retain(|_, usage| now.since_ms(usage.last_used_at) < HOUR_MS * 24);
            if self.jobs.len() >= MAX_JOBS {
                self.jobs.clear();
            }
        }
        self.jobs.entry(job).or_default()
    }
}

fn first_least(candidates: &[Candidate], of: impl Fn(&ExecutorName) -> u64) -> usize {
    let indexed = candidates.iter().enumerate();
    indexed
        .min_by_key(|(_, candidate)| of(&candidate.name))
        .map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use cueline_model::Weight;
    use proptest::prelude::*;

    use super::*;

    const JOB: JobId = JobId(7);

    fn name(n: usize) -> ExecutorName {
        format!("e{n}").parse().expect("a name")
    }

    fn candidates(of: &[usize]) -> Candidates {
        let candidate = |n: &usize| Candidate {
            name: name(*n),
            weight: Weight::default(),
            capacity: 1,
        };
        Arc::new(of.iter().map(candidate).collect())
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Chooses and records, `runs` times.
    fn run(
        usage: &mut Usage,
        is_lfu: bool,
        of: &Candidates,
        runs: usize,
        now: Timestamp,
    ) -> Vec<usize> {
        (0..runs)
            .map(|_| {
                let index = if is_lfu {
                    usage.least_frequent(JOB, of, now)
                } else {
                    usage.least_recent(JOB, of, now)
                };
                usage.record(JOB, &of[index].name, now);
                index
            })
            .collect()
    }

    #[test]
    fn a_late_joiner_does_not_get_everything() {
        for is_lfu in [true, false] {
            let mut usage = Usage::default();
            let (two, three) = (candidates(&[1, 2]), candidates(&[1, 2, 3]));
            run(&mut usage, is_lfu, &two, 100, at(0));
            let of_third = run(&mut usage, is_lfu, &three, 30, at(1_000));
            let count = of_third.iter().filter(|n| **n == 2).count();
            assert!((9..=11).contains(&count), "lfu {is_lfu}: {of_third:?}");
        }
    }

    #[test]
    fn a_restarted_node_goes_on_where_the_history_ends() {
        let mut usage = Usage::default();
        let three = candidates(&[1, 2, 3]);
        let history = [(1, 10), (2, 30), (1, 20), (2, 5)].map(|(n, ms)| (name(n), at(ms)));
        assert!(!usage.knows(JOB));
        usage.seed(JOB, history, at(100));
        assert!(usage.knows(JOB));
        assert_eq!(usage.least_recent(JOB, &three, at(100)), 2, "it got none");
        let chosen = run(&mut usage, false, &three, 3, at(100));
        assert_eq!(chosen, [2, 0, 1]);
        let mut usage = Usage::default();
        let old = [(1, 0), (1, 1), (2, 25 * HOUR_MS)].map(|(n, ms)| (name(n), at(ms)));
        usage.seed(JOB, old, at(25 * HOUR_MS));
        let chosen = run(&mut usage, true, &candidates(&[1, 2]), 1, at(25 * HOUR_MS));
        assert_eq!(chosen, [0], "what is older than a day does not count");
    }

    #[test]
    fn the_number_of_jobs_is_bounded() {
        let mut usage = Usage::default();
        for job in 0..MAX_JOBS + 5 {
            let job = JobId(i64::try_from(job).unwrap());
            usage.record(job, &name(1), at(0));
        }
        assert!(usage.jobs.len() <= MAX_JOBS);
    }

    /// All uses in a list.
    #[derive(Default)]
    struct Model {
        uses: Vec<(usize, i64)>,
        before: Option<Vec<usize>>,
    }

    impl Model {
        fn count(&self, n: usize, hour: i64) -> usize {
            let counts = |(of, at): &&(usize, i64)| *of == n && hour - *at < 24;
            self.uses.iter().filter(counts).count()
        }

        /// Adds uses of new candidates until they are level with the least used of the others.
        fn level(&mut self, of: &[usize], hour: i64) {
            let before = self.before.replace(of.to_vec());
            if let Some(before) = before {
                let old = of.iter().filter(|n| before.contains(n));
                let least = old.map(|n| self.count(*n, hour)).min().unwrap_or(0);
                for n in of.iter().filter(|n| !before.contains(n)) {
                    while self.count(*n, hour) < least {
                        self.uses.push((*n, hour));
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn lfu_is_a_list_of_all_uses(
            steps in proptest::collection::vec((proptest::sample::subsequence(vec![0, 1, 2, 3], 1..=4), 0..9_i64), 1..80)
        ) {
            let (mut usage, mut model, mut hour) = (Usage::default(), Model::default(), 1_000);
            for (of, hours) in steps {
                hour += hours;
                model.level(&of, hour);
                let least = *of.iter().min_by_key(|n| model.count(**n, hour)).unwrap();
                model.uses.push((least, hour));
                let chosen = run(&mut usage, true, &candidates(&of), 1, at(hour * HOUR_MS));
                prop_assert_eq!(of[chosen[0]], least, "{:?}", model.uses);
            }
        }

        #[test]
        fn lru_is_a_queue(
            steps in proptest::collection::vec((proptest::sample::subsequence(vec![0, 1, 2, 3], 1..=4), 0..9_i64), 1..80)
        ) {
            let (mut usage, mut now) = (Usage::default(), 24);
            let mut last: BTreeMap<usize, (i64, usize)> = BTreeMap::new();
            for (step, (of, hours)) in steps.into_iter().enumerate() {
                now += hours;
                last.retain(|_, (hour, _)| now - *hour < 24);
                let least = *of.iter().min_by_key(|n| last.get(n)).unwrap();
                last.insert(least, (now, step));
                let chosen = run(&mut usage, false, &candidates(&of), 1, at(now * HOUR_MS));
                prop_assert_eq!(of[chosen[0]], least);
            }
        }
    }
}
