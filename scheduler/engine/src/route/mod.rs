//! Chooses the executor of a run.
//!
//! Each strategy is a pure choice in a file of its own. It gets the candidates, sorted by name, and what this node knows
//! of them. Candidates are live executors of the job's group that announce its handler and that its selector selects. A
//! new strategy is a new arm in [`Router::choose`].

mod any;
pub(crate) mod failover;
mod least_loaded;
mod outstanding;
mod ring;
mod usage;
mod weighted;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cueline_model::{ExecutorName, GroupName, JobId, Route, Timestamp, Weight};
use cueline_store::ClaimedRun;
use rand::RngExt as _;
use rand::rngs::StdRng;

use failover::{Answer, FirstAnswering, first_answering};
pub(crate) use outstanding::{MAX_ATTEMPTS, Outstanding};
use ring::Ring;
use usage::Usage;
use weighted::Cycle;

/// An executor that may get a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Candidate {
    pub(crate) name: ExecutorName,
    pub(crate) weight: Weight,
    /// The most handlers that it runs at once.
    pub(crate) capacity: u32,
}

/// Live executors that can run a job, sorted by name. The list is shared until the registry changes.
pub(crate) type Candidates = Arc<Vec<Candidate>>;

/// What a node knows of live executors at this moment.
pub(crate) trait ExecutorFacts {
    /// The attempts that each candidate has, about.
    fn loads(&self, group: &GroupName, candidates: &[Candidate]) -> Vec<u64>;

    /// Whether each candidate answers. Asks those again whose last answer is old.
    fn answers(&self, group: &GroupName, candidates: &[Candidate], now: Timestamp) -> Vec<Answer>;
}

/// Which executor gets a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Executor(ExecutorName),
    /// There is no candidate.
    NoExecutor,
    /// Executors have to answer first.
    AwaitAnswers,
    /// All executors are full.
    AwaitRoom,
}

/// At this many rings or cycles the cache is cleared.
const MAX_CACHED: usize = 1_000;

/// At this many jobs with the route `any`, all are forgotten. Their attempts count again once they get a run.
const MAX_ANY_JOBS: usize = 1_000;

/// A failover run whose dispatch deadline is nearer than this waits for no answer, in ms.
const MIN_TIME_TO_WAIT_MS: u64 = 5_000;

/// Chooses executors. Caches what is costly to build, and remembers which executors the runs of jobs got.
#[derive(Debug)]
pub(crate) struct Router {
    rng: StdRng,
    rings: HashMap<Candidates, Ring>,
    cycles: HashMap<Candidates, Cycle>,
    usage: Usage,
    outstanding: Arc<Outstanding>,
    /// Jobs with the route `any`, by group.
    any_jobs: HashMap<GroupName, HashSet<JobId>>,
    /// The loads of executors for the runs of one batch, with what the batch has given them.
    batch_loads: HashMap<GroupName, HashMap<ExecutorName, u64>>,
}

/// Jobs whose earlier runs this node does not know, and has to read before it chooses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Their last runs decide.
    pub(crate) history: Vec<JobId>,
    /// Their outstanding attempts decide.
    pub(crate) outstanding: Vec<JobId>,
}

impl Router {
    /// Random choices come from `rng`.
    pub(crate) fn new(rng: StdRng, outstanding: Arc<Outstanding>) -> Self {
        Self {
            rng,
            rings: HashMap::new(),
            cycles: HashMap::new(),
            usage: Usage::default(),
            outstanding,
            any_jobs: HashMap::new(),
            batch_loads: HashMap::new(),
        }
    }

    /// Begins a batch: what earlier ones have given to executors is known by now.
    pub(crate) fn begin_batch(&mut self) {
        self.batch_loads.clear();
    }

    /// The runs of `any` jobs that the candidates may get now.
    pub(crate) fn room(
        &mut self,
        group: &GroupName,
        candidates: &Candidates,
        facts: &impl ExecutorFacts,
        now: Timestamp,
    ) -> u64 {
        let loads = self.loads(group, candidates, facts, now);
        let pairs = candidates.iter().zip(loads);
        pairs
            .map(|(candidate, load)| any::room(candidate, load))
            .sum()
    }

    /// The attempts of each candidate: those that it holds by its heartbeats, and at least those of `any` jobs that are
    /// known to be given to it and not to have ended. What this batch has given counts too.
    fn loads(
        &mut self,
        group: &GroupName,
        candidates: &Candidates,
        facts: &impl ExecutorFacts,
        now: Timestamp,
    ) -> Vec<u64> {
        let of = self.batch_loads.entry(group.clone()).or_default();
        let is_known = candidates.iter().all(|one| of.contains_key(&one.name));
        if !is_known {
            let held = facts.loads(group, candidates);
            let given = match self.any_jobs.get(group) {
                Some(jobs) => self.outstanding.at_executors(jobs, candidates, now),
                None => Vec::new(),
            };
            for (index, candidate) in candidates.iter().enumerate() {
                let of_index = |loads: &[u64]| loads.get(index).copied().unwrap_or(0);
                let load = of_index(&held).max(of_index(&given));
                of.entry(candidate.name.clone()).or_insert(load);
            }
        }
        candidates
            .iter()
            .map(|one| of.get(&one.name).copied().unwrap_or(0))
            .collect()
    }

    /// The candidate with room for a run of an `any` job.
    fn with_room(
        &mut self,
        run: &ClaimedRun,
        candidates: &Candidates,
        facts: &impl ExecutorFacts,
        (turn, now): (u64, Timestamp),
    ) -> Option<usize> {
        let group = &run.job.spec.group;
        if self.any_jobs.values().map(HashSet::len).sum::<usize>() >= MAX_ANY_JOBS {
            self.any_jobs.clear();
        }
        let jobs = self.any_jobs.entry(group.clone()).or_default();
        jobs.insert(run.job.id);
        let loads = self.loads(group, candidates, facts, now);
        let index = any::choose(candidates, &loads, turn)?;
        if let Some(load) = self
            .batch_loads
            .get_mut(group)
            .and_then(|of| of.get_mut(&candidates[index].name))
        {
            *load += 1;
        }
        Some(index)
    }

    /// The executor for `run`.
    pub(crate) fn choose(
        &mut self,
        run: &ClaimedRun,
        candidates: &Candidates,
        facts: &impl ExecutorFacts,
        now: Timestamp,
    ) -> Choice {
        if let Some(pinned) = &run.executor {
            return named(candidates, pinned);
        }
        if candidates.is_empty() {
            return Choice::NoExecutor;
        }
        let spec = &run.job.spec;
        let count = candidates.len() as u64;
        let nth = |n: u64| usize::try_from(n % count).unwrap_or(0);
        // A retry moves on to the next executor, because the run has just failed on this one.
        let retries = u64::from(run.attempt.saturating_sub(1));
        let turn = run.sequence + retries;
        let index = match &spec.route {
            Route::Executor(name) => return named(candidates, name),
            Route::First | Route::Broadcast => 0,
            Route::Last => candidates.len() - 1,
            Route::Round => nth(turn),
            Route::Sharded(_) => {
                let fire = run.sequence / u64::from(run.shard.total);
                nth(u64::from(run.shard.index) + fire + retries)
            }
            Route::Random => nth(self.rng.random()),
            Route::Weighted => cached(&mut self.cycles, candidates, Cycle::new).at(turn),
            Route::ConsistentHash => {
                let ring = cached(&mut self.rings, candidates, Ring::new);
                ring.find(&run.job.id.to_string()).unwrap_or(0)
            }
            Route::Lfu => self.usage.least_frequent(run.job.id, candidates, now),
            Route::Lru => self.usage.least_recent(run.job.id, candidates, now),
            Route::Busyover => self.outstanding.first_idle(run.job.id, candidates, now),
            Route::Any => match self.with_room(run, candidates, facts, (turn, now)) {
                Some(index) => index,
                None => return Choice::AwaitRoom,
            },
            Route::LeastLoaded => {
                let loads = facts.loads(&spec.group, candidates);
                least_loaded::choose(candidates, &loads, turn)
            }
            Route::Failover => {
                // A late run must not end `unroutable` while it waits.
                let since = run.fire_at.min(run.due_at);
                let deadline = since.plus_ms(spec.dispatch_deadline.as_millis());
                let may_wait = deadline >= now.plus_ms(MIN_TIME_TO_WAIT_MS);
                let answers = facts.answers(&spec.group, candidates, now);
                match first_answering(&answers, may_wait) {
                    FirstAnswering::Candidate(index) => index,
                    FirstAnswering::Unknown => return Choice::AwaitAnswers,
                }
            }
        };
        Choice::Executor(candidates[index].name.clone())
    }

    /// Remembers that `run` goes to `executor`, if later choices depend on it.
    pub(crate) fn record(&mut self, run: &ClaimedRun, executor: &ExecutorName, now: Timestamp) {
        match run.job.spec.route {
            Route::Lfu | Route::Lru => self.usage.record(run.job.id, executor, now),
            Route::Busyover | Route::Any => {
                self.outstanding
                    .add(run.job.id, run.attempt_id(), executor, now);
            }
            _ => {}
        }
    }

    /// Forgets that `run` goes to an executor, because its trigger is not published.
    pub(crate) fn forget(&self, run: &ClaimedRun) {
        if matches!(run.job.spec.route, Route::Busyover | Route::Any) {
            self.outstanding.end([run.attempt_id()]);
        }
    }

    /// The jobs among those of `runs` whose earlier runs have to be read. Each is named once.
    pub(crate) fn unread(&self, runs: &[ClaimedRun]) -> Unread {
        let mut unread = Unread::default();
        for run in runs {
            let job = run.job.id;
            match run.job.spec.route {
                Route::Lfu | Route::Lru if !self.usage.knows(job) => unread.history.push(job),
                Route::Busyover | Route::Any if !self.outstanding.knows(job) => {
                    unread.outstanding.push(job);
                }
                _ => {}
            }
        }
        for jobs in [&mut unread.history, &mut unread.outstanding] {
            jobs.sort_unstable();
            jobs.dedup();
        }
        unread
    }

    /// The last runs of `job` were given to these executors at these times, in any order.
    pub(crate) fn add_history(
        &mut self,
        job: JobId,
        runs: impl IntoIterator<Item = (ExecutorName, Timestamp)>,
        now: Timestamp,
    ) {
        self.usage.seed(job, runs, now);
    }
}

fn named(candidates: &Candidates, name: &ExecutorName) -> Choice {
    if candidates.iter().any(|candidate| candidate.name == *name) {
        Choice::Executor(name.clone())
    } else {
        Choice::NoExecutor
    }
}

/// What was built for these candidates.
fn cached<'c, T>(
    cache: &'c mut HashMap<Candidates, T>,
    candidates: &Candidates,
    build: impl FnOnce(&[Candidate]) -> T,
) -> &'c T {
    if cache.len() >= MAX_CACHED && !cache.contains_key(candidates) {
        cache.clear();
    }
    cache
        .entry(candidates.clone())
        .or_insert_with(|| build(candidates))
}
