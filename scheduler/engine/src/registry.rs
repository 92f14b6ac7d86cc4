//! Who is alive: executors by their heartbeats.
//!
//! What heartbeats told, kept for routing. Knows neither where they come from nor the store.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cueline_model::{ExecutorName, GroupName, Heartbeat, Timestamp};

use crate::lock::lock;
use crate::route::Candidates;

#[derive(Debug)]
struct Known {
    capabilities: Vec<String>,
    takes_work: bool,
    heard_at: Timestamp,
}

#[derive(Debug, Default)]
struct Inner {
    executors: BTreeMap<(GroupName, ExecutorName), Known>,
    /// Answers to `candidates`, until something changes.
    cache: HashMap<(GroupName, String), Candidates>,
}

/// The live executors as this node hears them.
#[derive(Debug)]
pub(crate) struct Registry {
    dead_after_ms: u64,
    inner: Mutex<Inner>,
    /// Grows with each change of who can be routed to.
    changes: AtomicU64,
}

impl Registry {
    pub(crate) fn new(dead_after_ms: u64) -> Self {
        Self {
            dead_after_ms,
            inner: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// Takes note of a sign of life. Whether it changed who can be routed to.
    pub(crate) fn hear(&self, beat: &Heartbeat, now: Timestamp) -> bool {
        let mut inner = lock(&self.inner);
        let key = (beat.executor.group.clone(), beat.executor.name.clone());
        let known = Known {
            capabilities: beat.capabilities.clone(),
            takes_work: !beat.draining && !beat.gone,
            heard_at: now,
        };
        let before = inner.executors.get(&key);
        let same = before.is_some_and(|b| {
            b.takes_work == known.takes_work
                && b.capabilities == known.capabilities
                && !self.is_silent(b, now)
        });
        inner.executors.insert(key, known);
        if !same {
            self.changed(&mut inner);
        }
        !same
    }

    /// Takes note of a sign of life that somebody else heard at `heard_at`, unless that is too long ago.
    pub(crate) fn remember(&self, beat: &Heartbeat, heard_at: Timestamp, now: Timestamp) {
        if now.since_ms(heard_at) <= self.dead_after() {
            self.hear(beat, heard_at);
        }
    }

    /// Drops who has been silent for too long from the candidates. Whether that changed anything.
    pub(crate) fn expire(&self, now: Timestamp) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.executors.len();
        let dead: Vec<_> = inner
            .executors
            .iter()
            .filter(|(_, known)| self.is_silent(known, now))
            .map(|(key, _)| key.clone())
            .collect();
        for key in dead {
            tracing::warn!(group = %key.0, executor = %key.1, "executor has fallen silent");
            inner.executors.remove(&key);
        }
        let changed = inner.executors.len() != before;
        if changed {
            self.changed(&mut inner);
        }
        changed
    }

    fn changed(&self, inner: &mut Inner) {
        inner.cache.clear();
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// How often it has changed who can be routed to: a decision made before a change may be out of date.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn is_silent(&self, known: &Known, now: Timestamp) -> bool {
        now.since_ms(known.heard_at) > self.dead_after()
    }

    fn dead_after(&self) -> i64 {
        i64::try_from(self.dead_after_ms).unwrap_or(i64::MAX)
    }

    /// Live executors of `group` that can run `capability`, sorted by name.
    pub(crate) fn candidates(&self, group: &GroupName, capability: &str) -> Candidates {
        let mut inner = lock(&self.inner);
        let key = (group.clone(), capability.to_owned());
        if let Some(known) = inner.cache.get(&key) {
            return known.clone();
        }
        let names: Vec<ExecutorName> = inner
            .executors
            .iter()
            .filter(|((g, _), known)| {
                g == group && known.takes_work && known.capabilities.iter().any(|c| c == capability)
            })
            .map(|((_, name), _)| name.clone())
            .collect();
        let candidates = Arc::new(names);
        inner.cache.insert(key, candidates.clone());
        candidates
    }

    /// Whether the executor has been heard lately, draining or not.
    pub(crate) fn is_alive(&self, group: &GroupName, name: &ExecutorName) -> bool {
        lock(&self.inner)
            .executors
            .contains_key(&(group.clone(), name.clone()))
    }
}
