//! Who is alive: executors by their heartbeats.
//!
//! Heartbeats are gathered from the broker, written to the store in batches, and kept here for routing.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_broker::{Announcement, Listener};
use cueline_model::{ExecutorName, GroupName, Timestamp};
use cueline_protocol::{Beat, decode};
use cueline_runtime::Stop;
use cueline_store::{ExecutorBeat, StoreError};

use crate::route::Candidates;
use crate::shared::{Shared, lock};

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
}

impl Registry {
    pub(crate) fn new(dead_after_ms: u64) -> Self {
        Self {
            dead_after_ms,
            inner: Mutex::default(),
        }
    }

    /// Takes note of a sign of life. Whether it changed who can be routed to.
    pub(crate) fn hear(&self, beat: &ExecutorBeat, now: Timestamp) -> bool {
        let mut inner = lock(&self.inner);
        let key = (beat.group.clone(), beat.name.clone());
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
            inner.changed();
        }
        !same
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
            inner.changed();
        }
        changed
    }

    fn is_silent(&self, known: &Known, now: Timestamp) -> bool {
        now.since_ms(known.heard_at) > i64::try_from(self.dead_after_ms).unwrap_or(i64::MAX)
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

impl Inner {
    fn changed(&mut self) {
        self.cache.clear();
    }
}

fn read(announcement: &Announcement) -> Option<ExecutorBeat> {
    let beat: Beat = match decode(&announcement.payload) {
        Ok(beat) => beat,
        Err(e) => {
            tracing::warn!(error = %e, "a heartbeat could not be read");
            return None;
        }
    };
    Some(ExecutorBeat {
        group: beat.group,
        name: beat.name,
        incarnation: beat.incarnation,
        capabilities: beat.capabilities,
        capacity: beat.capacity,
        held: beat.held,
        running: beat.running,
        draining: beat.draining,
        gone: beat.gone,
    })
}

/// Takes note of heartbeats that have arrived.
pub(crate) async fn hear(
    shared: &Shared,
    announcements: &[Announcement],
) -> Result<(), StoreError> {
    let beats: Vec<ExecutorBeat> = announcements.iter().filter_map(read).collect();
    if beats.is_empty() {
        return Ok(());
    }
    // The store first: a broadcast is planned from what it knows.
    shared.store.beat(&beats).await?;
    let now = shared.now();
    let mut changed = false;
    for beat in &beats {
        changed |= shared.registry.hear(beat, now);
    }
    if changed {
        unpark(shared);
    }
    Ok(())
}

/// Lets runs that found nobody try again.
pub(crate) fn unpark(shared: &Shared) {
    let parked = std::mem::take(&mut *lock(&shared.parked));
    shared.schedule(parked);
}

/// At most so many heartbeats are written at once.
const MAX_BEATS: usize = 500;

/// Listens until the stop.
pub(crate) async fn listen(shared: Arc<Shared>, mut heartbeats: Listener, stop: Stop) {
    let mut batch = Vec::new();
    // Heartbeats are listened to until the hard stop: an executor that drains during the soft one is still heard.
    loop {
        tokio::select! {
            n = heartbeats.recv_many(&mut batch, MAX_BEATS) => {
                if n == 0 { return; }
                if let Err(e) = hear(&shared, &batch).await {
                    tracing::error!(error = %e, "failed to write down heartbeats; the next ones will tell the same");
                }
                batch.clear();
            }
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.soft() => return,
        }
        if shared.registry.expire(shared.now()) {
            unpark(&shared);
        }
    }
}
