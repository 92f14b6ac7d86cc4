//! The live executors, according to their heartbeats. Runs are routed to them. Knows neither broker nor store.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cueline_model::{ExecutorId, ExecutorName, GroupName, Heartbeat, Session, Timestamp};

use crate::lock::lock;
use crate::route::Candidates;

#[derive(Debug)]
struct Known {
    capabilities: Vec<String>,
    accepts_triggers: bool,
    session: Session,
    /// Since then it has not been silent for too long.
    alive_since: Timestamp,
    last_heartbeat_at: Timestamp,
}

#[derive(Debug, Default)]
struct Inner {
    executors: BTreeMap<ExecutorId, Known>,
    /// Candidates by group and capability. Cleared by each change.
    cache: HashMap<GroupName, HashMap<String, Candidates>>,
}

#[derive(Debug)]
pub(crate) struct Registry {
    dead_after_ms: i64,
    inner: Mutex<Inner>,
    changes: AtomicU64,
}

impl Registry {
    pub(crate) fn new(dead_after_ms: u64) -> Self {
        Self {
            dead_after_ms: i64::try_from(dead_after_ms).unwrap_or(i64::MAX),
            inner: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// Records a heartbeat received at `at`. Returns whether it changed the candidates.
    pub(crate) fn record(&self, heartbeat: &Heartbeat, at: Timestamp) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.executors.get(&heartbeat.executor);
        let before = before.filter(|known| !self.is_expired(known.last_heartbeat_at, at));
        let known = Known {
            capabilities: heartbeat.capabilities.clone(),
            accepts_triggers: !heartbeat.draining && !heartbeat.gone && heartbeat.refusal.is_none(),
            session: heartbeat.session,
            alive_since: before.map_or(at, |before| before.alive_since),
            last_heartbeat_at: at,
        };
        let is_same = before.is_some_and(|before| {
            before.accepts_triggers == known.accepts_triggers
                && before.capabilities == known.capabilities
        });
        inner.executors.insert(heartbeat.executor.clone(), known);
        if !is_same {
            self.changed(&mut inner);
        }
        !is_same
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

    /// Live executors of `group` that announce `capability` and accept triggers, sorted by name.
    pub(crate) fn candidates(&self, group: &GroupName, capability: &str) -> Candidates {
        let mut inner = lock(&self.inner);
        if let Some(cached) = inner.cache.get(group).and_then(|of| of.get(capability)) {
            return cached.clone();
        }
        let names: Vec<ExecutorName> = inner
            .executors
            .iter()
            .filter(|(executor, known)| {
                executor.group == *group
                    && known.accepts_triggers
                    && known.capabilities.iter().any(|c| c == capability)
            })
            .map(|(executor, _)| executor.name.clone())
            .collect();
        let candidates = Arc::new(names);
        let of_group = inner.cache.entry(group.clone()).or_default();
        of_group.insert(capability.to_owned(), candidates.clone());
        candidates
    }

    /// The session of a live executor.
    pub(crate) fn session(&self, executor: &ExecutorId) -> Option<Session> {
        let inner = lock(&self.inner);
        inner.executors.get(executor).map(|known| known.session)
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
