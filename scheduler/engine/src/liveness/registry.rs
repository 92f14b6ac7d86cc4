//! The live executors, according to their heartbeats. Runs are routed to them. Knows neither broker nor store.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cueline_model::{
    ExecutorId, ExecutorLabels, GroupName, Heartbeat, JobSpec, Session, Timestamp, Weight,
};
use cueline_runtime::Activator;

use crate::lock::lock;
use crate::route::failover::{Answer, Answered};
use crate::route::{Candidate, Candidates, ExecutorFacts};

/// The most lists of candidates of one group that are kept.
const MAX_CACHED: usize = 10_000;

#[derive(Debug)]
struct Known {
    capabilities: Vec<String>,
    labels: ExecutorLabels,
    weight: Weight,
    capacity: u32,
    accepts_triggers: bool,
    /// The attempts that it held at its last heartbeat.
    held: u64,
    /// The attempts that this node has given to it since, without those whose end this node has ingested since.
    given: i64,
    answered: Answered,
    session: Session,
    /// Since then it has not been silent for too long.
    alive_since: Timestamp,
    last_heartbeat_at: Timestamp,
}

impl Known {
    /// Whether the heartbeat says the same about what the executor takes.
    fn is_as_in(&self, heartbeat: &Heartbeat) -> bool {
        self.accepts_triggers == accepts_triggers(heartbeat)
            && self.capabilities == heartbeat.capabilities
            && self.labels == heartbeat.labels
            && (self.weight, self.capacity) == (heartbeat.weight, heartbeat.capacity)
    }
}

fn accepts_triggers(heartbeat: &Heartbeat) -> bool {
    !heartbeat.draining && !heartbeat.gone && heartbeat.refusal.is_none()
}

#[derive(Debug, Default)]
struct Ping {
    is_asked: bool,
    /// Whether a run waits for the answer.
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct Inner {
    executors: BTreeMap<ExecutorId, Known>,
    /// Executors that have to be asked, or are being asked, whether they answer.
    pings: BTreeMap<ExecutorId, Ping>,
    /// Candidates by group, and by capability and selector. Cleared by each change.
    cache: HashMap<GroupName, HashMap<String, Candidates>>,
}

#[derive(Debug)]
pub(crate) struct Registry {
    dead_after_ms: i64,
    inner: Mutex<Inner>,
    changes: AtomicU64,
    /// Whether the attempts of executors are counted, because a job chooses by them.
    counts_given: AtomicBool,
    pub(crate) wake_pings: Activator,
}

impl Registry {
    pub(crate) fn new(dead_after_ms: u64) -> Self {
        Self {
            dead_after_ms: i64::try_from(dead_after_ms).unwrap_or(i64::MAX),
            inner: Mutex::default(),
            changes: AtomicU64::new(0),
            counts_given: AtomicBool::new(false),
            wake_pings: Activator::new(),
        }
    }

    /// Records a heartbeat received at `at`. Returns whether it changed the candidates.
    pub(crate) fn record(&self, heartbeat: &Heartbeat, at: Timestamp) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.executors.get(&heartbeat.executor);
        let before = before.filter(|known| !self.is_expired(known.last_heartbeat_at, at));
        let known = Known {
            capabilities: heartbeat.capabilities.clone(),
            labels: heartbeat.labels.clone(),
            weight: heartbeat.weight,
            capacity: heartbeat.capacity,
            held: heartbeat.held,
            given: 0,
            answered: Answered {
                last_sign_at: at,
                unanswered_at: None,
            },
            accepts_triggers: accepts_triggers(heartbeat),
            session: heartbeat.session,
            alive_since: before.map_or(at, |before| before.alive_since),
            last_heartbeat_at: at,
        };
        let is_same = before.is_some_and(|before| before.is_as_in(heartbeat));
        inner.executors.insert(heartbeat.executor.clone(), known);
        if !is_same {
            self.changed(&mut inner);
        }
        !is_same
    }

    /// Whether runs may be routed differently once this heartbeat, received at `at`, is recorded. Another one is only a sign of
    /// life, without which `failover` asks the executor.
    pub(crate) fn changes_routing(&self, heartbeat: &Heartbeat, at: Timestamp) -> bool {
        // The attempts that an executor holds count from its last heartbeat on.
        if self.counts_given.load(Ordering::Relaxed) {
            return true;
        }
        let inner = lock(&self.inner);
        let known = inner.executors.get(&heartbeat.executor);
        !known.is_some_and(|known| {
            !self.is_expired(known.last_heartbeat_at, at)
                && known.session == heartbeat.session
                && known.answered.unanswered_at.is_none()
                && known.is_as_in(heartbeat)
        })
    }

    /// Whether an executor with this last heartbeat counts as dead. A heartbeat from far in the future was received
    /// before this node's clock was set back. Its executor may have died since.
    pub(crate) fn is_expired(&self, last_heartbeat_at: Timestamp, now: Timestamp) -> bool {
        now.since_ms(last_heartbeat_at).saturating_abs() > self.dead_after_ms
    }

    /// Removes the executors that have been silent for too long. Returns whether there were any.
    pub(crate) fn expire(&self, now: Timestamp) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.executors.len();
        inner.executors.retain(|executor, known| {
            let is_expired = self.is_expired(known.last_heartbeat_at, now);
            if is_expired {
                tracing::warn!(
                    group = %executor.group,
                    executor = %executor.name,
                    "executor fell silent; it gets no more triggers until its next heartbeat"
                );
            }
            !is_expired
        });
        let is_changed = inner.executors.len() != before;
        if is_changed {
            self.changed(&mut inner);
        }
        is_changed
    }

    fn changed(&self, inner: &mut Inner) {
        inner.cache.clear();
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of changes of the candidates so far. If it has grown, an earlier routing decision may be outdated.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Live executors of the job's group that announce its handler, have the labels that it selects, and accept triggers,
    /// sorted by name.
    pub(crate) fn candidates(&self, spec: &JobSpec) -> Candidates {
        let (group, capability) = (&spec.group, spec.handler.capability());
        let key = if spec.selector.is_empty() {
            Cow::Borrowed(&*capability)
        } else {
            Cow::Owned(format!("{capability}\n{}", spec.selector))
        };
        let mut inner = lock(&self.inner);
        if let Some(cached) = inner.cache.get(group).and_then(|of| of.get(&*key)) {
            return cached.clone();
        }
        let found: Vec<Candidate> = inner
            .executors
            .iter()
            .filter(|(executor, known)| {
                executor.group == *group
                    && known.accepts_triggers
                    && known.capabilities.iter().any(|c| *c == capability)
                    && spec.selector.selects(&known.labels)
            })
            .map(|(executor, known)| Candidate {
                name: executor.name.clone(),
                weight: known.weight,
                capacity: known.capacity,
            })
            .collect();
        let candidates = Arc::new(found);
        let of_group = inner.cache.entry(group.clone()).or_default();
        if of_group.len() >= MAX_CACHED {
            of_group.clear();
        }
        of_group.insert(key.into_owned(), candidates.clone());
        candidates
    }

    /// The groups with a live executor that accepts triggers.
    pub(crate) fn live_groups(&self) -> BTreeSet<GroupName> {
        let inner = lock(&self.inner);
        let accepting = inner
            .executors
            .iter()
            .filter(|(_, known)| known.accepts_triggers);
        accepting
            .map(|(executor, _)| executor.group.clone())
            .collect()
    }

    /// The session of a live executor.
    pub(crate) fn session(&self, executor: &ExecutorId) -> Option<Session> {
        let inner = lock(&self.inner);
        inner.executors.get(executor).map(|known| known.session)
    }

    /// An attempt is given to the executor. Returns its session, if it is alive.
    pub(crate) fn note_given(&self, executor: &ExecutorId) -> Option<Session> {
        let mut inner = lock(&self.inner);
        let known = inner.executors.get_mut(executor)?;
        known.given += 1;
        Some(known.session)
    }

    /// An attempt of each of these executors has ended.
    pub(crate) fn note_ended<'a>(&self, executors: impl Iterator<Item = &'a ExecutorId>) {
        if !self.counts_given.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = lock(&self.inner);
        for executor in executors {
            if let Some(known) = inner.executors.get_mut(executor) {
                known.given -= 1;
            }
        }
    }

    /// A run waits until it is known which of these executors answers.
    pub(crate) fn await_answers(&self, group: &GroupName, candidates: &[Candidate]) {
        let mut inner = lock(&self.inner);
        for candidate in candidates {
            if let Some(ping) = inner.pings.get_mut(&id(group, candidate)) {
                ping.is_awaited = true;
            }
        }
        drop(inner);
        self.wake_pings.wake();
    }

    /// At most `limit` executors to ask whether they answer. [`note_answer`](Self::note_answer) follows for each.
    pub(crate) fn begin_pings(&self, limit: usize) -> Vec<ExecutorId> {
        let mut inner = lock(&self.inner);
        let waiting = inner.pings.iter_mut().filter(|(_, ping)| !ping.is_asked);
        let begun = waiting.take(limit).map(|(executor, ping)| {
            ping.is_asked = true;
            executor.clone()
        });
        begun.collect()
    }

    /// The executor has answered a ping, or has not. Returns whether a run waits for that.
    #[must_use]
    pub(crate) fn note_answer(
        &self,
        executor: &ExecutorId,
        has_answered: bool,
        now: Timestamp,
    ) -> bool {
        let mut inner = lock(&self.inner);
        let ping = inner.pings.remove(executor);
        if let Some(known) = inner.executors.get_mut(executor) {
            if has_answered {
                known.answered.last_sign_at = now;
            } else {
                known.answered.unanswered_at = Some(now);
            }
        }
        drop(inner);
        self.changes.fetch_add(1, Ordering::AcqRel);
        ping.is_some_and(|ping| ping.is_awaited)
    }

    /// How long the executor has been alive without being silent for too long. `None` if it is not alive.
    pub(crate) fn alive_ms(&self, executor: &ExecutorId, now: Timestamp) -> Option<i64> {
        let inner = lock(&self.inner);
        let known = inner.executors.get(executor);
        known.map(|known| now.since_ms(known.alive_since))
    }

    /// Whether the executor has sent a recent heartbeat. True for a draining executor too.
    pub(crate) fn is_alive(&self, executor: &ExecutorId) -> bool {
        lock(&self.inner).executors.contains_key(executor)
    }

    /// The number of live executors that take triggers, and of those that take none.
    pub(crate) fn live_counts(&self) -> (u64, u64) {
        let inner = lock(&self.inner);
        let ready = inner.executors.values().filter(|e| e.accepts_triggers);
        let ready = ready.count() as u64;
        (ready, inner.executors.len() as u64 - ready)
    }
}

fn id(group: &GroupName, candidate: &Candidate) -> ExecutorId {
    ExecutorId {
        group: group.clone(),
        name: candidate.name.clone(),
    }
}

impl ExecutorFacts for Registry {
    fn loads(&self, group: &GroupName, candidates: &[Candidate]) -> Vec<u64> {
        self.counts_given.store(true, Ordering::Relaxed);
        let inner = lock(&self.inner);
        let load = |candidate: &Candidate| {
            let known = inner.executors.get(&id(group, candidate))?;
            Some(known.held.saturating_add_signed(known.given))
        };
        let loads = candidates.iter().map(load);
        loads.map(Option::unwrap_or_default).collect()
    }

    fn answers(&self, group: &GroupName, candidates: &[Candidate], now: Timestamp) -> Vec<Answer> {
        let mut inner = lock(&self.inner);
        let Inner {
            executors, pings, ..
        } = &mut *inner;
        let mut answers = Vec::with_capacity(candidates.len());
        let mut is_found = false;
        for candidate in candidates {
            let id = id(group, candidate);
            let answered = executors.get(&id).map(|known| known.answered);
            let answered = answered.unwrap_or_default();
            let answer = answered.answer(now);
            // Executors behind the one that answers do not matter now.
            if !is_found && answered.is_getting_old(now) {
                pings.entry(id).or_default();
            }
            is_found |= answer == Answer::Yes;
            answers.push(answer);
        }
        let has_to_ask = pings.values().any(|ping| !ping.is_asked);
        drop(inner);
        if has_to_ask {
            self.wake_pings.wake();
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            executor: ExecutorId {
                group: "g".parse().expect("valid"),
                name: "e".parse().expect("valid"),
            },
            incarnation: "1".to_owned(),
            session: Session(1),
            capabilities: Vec::new(),
            capacity: 1,
            labels: cueline_model::ExecutorLabels::default(),
            weight: cueline_model::Weight::default(),
            held: 0,
            running: 0,
            draining: false,
            gone: false,
            refusal: None,
        }
    }

    #[test]
    fn a_long_silence_begins_the_life_of_an_executor_anew() {
        let registry = Registry::new(15_000);
        let at = Timestamp::from_millis;
        let executor = heartbeat().executor;
        let alive_ms = |now| registry.alive_ms(&executor, at(now));
        assert_eq!(alive_ms(0), None);
        for (heartbeat_at, alive) in [(1_000, 0), (16_000, 15_000), (31_001, 0), (32_000, 999)] {
            registry.record(&heartbeat(), at(heartbeat_at));
            assert_eq!(alive_ms(heartbeat_at), Some(alive));
        }
    }

    #[test]
    fn heartbeats_that_change_how_runs_are_routed() {
        let registry = Registry::new(15_000);
        let at = Timestamp::from_millis;
        assert!(registry.changes_routing(&heartbeat(), at(0)), "not known");
        registry.record(&heartbeat(), at(0));
        let mut same = heartbeat();
        (same.held, same.running) = (5, 3);
        assert!(!registry.changes_routing(&same, at(5_000)));
        assert!(registry.changes_routing(&same, at(15_001)), "it was silent");
        let changes = |change: fn(&mut Heartbeat)| {
            let mut changed = heartbeat();
            change(&mut changed);
            registry.changes_routing(&changed, at(5_000))
        };
        assert!(changes(|heartbeat| heartbeat.draining = true));
        assert!(changes(|heartbeat| heartbeat.gone = true));
        assert!(changes(|heartbeat| heartbeat.capacity = 2));
        assert!(changes(|heartbeat| heartbeat.weight = Weight::clamped(3)));
        assert!(changes(|heartbeat| {
            heartbeat.labels.insert("zone".to_owned(), "a".to_owned());
        }));
        assert!(changes(
            |heartbeat| heartbeat.refusal = Some("why".to_owned())
        ));
        assert!(changes(|heartbeat| heartbeat.session = Session(2)));
        assert!(changes(|heartbeat| heartbeat
            .capabilities
            .push("shell".to_owned())));
        let _ = registry.note_answer(&heartbeat().executor, false, at(1_000));
        assert!(
            registry.changes_routing(&same, at(5_000)),
            "it had not answered"
        );
        registry.record(&same, at(5_000));
        assert!(!registry.changes_routing(&same, at(5_000)));
        let candidate = Candidate {
            name: "e".parse().expect("valid"),
            weight: cueline_model::Weight::default(),
            capacity: 1,
        };
        registry.loads(&heartbeat().executor.group, &[candidate]);
        assert!(
            registry.changes_routing(&same, at(5_000)),
            "a job chooses by load"
        );
    }

    #[test]
    fn live_executors_are_counted_by_whether_they_take_triggers() {
        let registry = Registry::new(15_000);
        let at = Timestamp::from_millis(1_000);
        registry.record(&heartbeat(), at);
        let mut draining = heartbeat();
        draining.executor.name = "draining".parse().expect("valid");
        draining.draining = true;
        registry.record(&draining, at);
        assert_eq!(registry.live_counts(), (1, 1));
        registry.expire(Timestamp::from_millis(60_000));
        assert_eq!(registry.live_counts(), (0, 0));
    }

    #[test]
    fn an_executor_expires_after_its_last_heartbeat_whatever_the_clock_does() {
        let registry = Registry::new(15_000);
        let at = Timestamp::from_millis;
        let executor = heartbeat().executor;
        assert!(registry.record(&heartbeat(), at(100_000)));
        assert!(!registry.expire(at(115_000)));
        assert!(!registry.expire(at(85_000)), "a small step back");
        assert!(registry.is_alive(&executor));
        assert!(registry.expire(at(84_999)), "the clock was ahead");
        assert!(!registry.is_alive(&executor));
    }
}
