//! Runs that are due and wait until an executor has room, for the route `any`.
//!
//! Runs with the same candidates form a queue: those of higher priority first, then those that were due first. A queue is
//! tried when room may have appeared, and after a short time, because other nodes ingest ends too. Pure: it reads no clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use cueline_model::{GroupName, JobSpec, RunId, Timestamp};
use cueline_store::ClaimedRun;

/// The longest time between two tries.
const LONGEST_WAIT_MS: u64 = 250;

/// What runs with the same candidates have in common: the group, and handler and labels of its executors.
type QueueKey = (GroupName, String);

/// The place of a run in its queue.
type Place = (Reverse<u8>, Timestamp, RunId);

/// The waiting runs, by queue.
#[derive(Debug, Default)]
pub(crate) struct RoomWaits {
    queues: BTreeMap<QueueKey, BTreeMap<Place, ClaimedRun>>,
    /// Where each run is.
    places: HashMap<RunId, (QueueKey, Place)>,
    try_at: Timestamp,
}

fn key(spec: &JobSpec) -> QueueKey {
    let capability = spec.handler.capability();
    (
        spec.group.clone(),
        format!("{capability}\n{}", spec.selector),
    )
}

impl RoomWaits {
    /// Adds a run. Replaces an entry of the same run.
    pub(crate) fn hold(&mut self, run: ClaimedRun) {
        self.remove(run.id);
        let place = (Reverse(run.job.spec.priority), run.due_at, run.id);
        let key = key(&run.job.spec);
        self.places.insert(run.id, (key.clone(), place));
        self.queues.entry(key).or_default().insert(place, run);
    }

    /// Removes a run.
    pub(crate) fn remove(&mut self, run: RunId) {
        let Some((key, place)) = self.places.remove(&run) else {
            return;
        };
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.remove(&place);
            if queue.is_empty() {
                self.queues.remove(&key);
            }
        }
    }

    /// Whether other runs wait for the same executors.
    pub(crate) fn has_queue(&self, spec: &JobSpec) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&key(spec))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Room may have appeared. Returns whether any run waits.
    pub(crate) fn wake(&mut self) -> bool {
        self.try_at = Timestamp::from_millis(i64::MIN);
        !self.is_empty()
    }

    /// When the queues are tried next.
    pub(crate) fn next_try(&self) -> Option<Timestamp> {
        (!self.is_empty()).then_some(self.try_at)
    }

    /// If a try is due: takes the first runs of each queue, as many as `room` says for its first one, and at most `max`.
    pub(crate) fn pop(
        &mut self,
        now: Timestamp,
        max: usize,
        mut room: impl FnMut(&ClaimedRun) -> u64,
    ) -> Vec<ClaimedRun> {
        let mut popped = Vec::new();
        // A try that is later than this was set before the clock was set back.
        let is_early =
            self.try_at > now && self.try_at.since_ms(now) <= LONGEST_WAIT_MS.cast_signed();
        if self.is_empty() || is_early {
            return popped;
        }
        self.try_at = now.plus_ms(LONGEST_WAIT_MS);
        for queue in self.queues.values_mut() {
            let Some((_, first)) = queue.first_key_value() else {
                continue;
            };
            let room = usize::try_from(room(first)).unwrap_or(usize::MAX);
            for _ in 0..room.min(max - popped.len()) {
                let Some((_, run)) = queue.pop_first() else {
                    break;
                };
                self.places.remove(&run.id);
                popped.push(run);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        popped
    }

    /// All waiting runs.
    pub(crate) fn into_runs(self) -> impl Iterator<Item = ClaimedRun> {
        self.queues.into_values().flat_map(BTreeMap::into_values)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cueline_model::{Job, JobId, RunKind, Shard};

    use super::*;

    fn run(id: i64, due: i64, priority: u8, handler: &str) -> ClaimedRun {
        let spec = serde_json::from_value(serde_json::json!({
            "name": "j", "group": "g", "schedule": { "manual": true }, "handler": { "native": handler }, "priority": priority,
        }));
        ClaimedRun {
            id: RunId(id),
            attempt: 1,
            job: Arc::new(Job {
                id: JobId(1),
                version: 1,
                spec: spec.expect("a definition"),
            }),
            kind: RunKind::Manual,
            fire_at: Timestamp::default(),
            due_at: Timestamp::from_millis(due),
            shard: Shard::whole(),
            params: None,
            executor: None,
            sequence: 0,
            maybe_published: false,
            lane_at: Timestamp::default(),
        }
    }

    fn ids(runs: &[ClaimedRun]) -> Vec<i64> {
        runs.iter().map(|run| run.id.0).collect()
    }

    #[test]
    fn the_first_runs_of_each_queue_are_taken_as_room_allows() {
        let mut waits = RoomWaits::default();
        for run in [
            run(1, 5, 5, "a"),
            run(2, 4, 5, "a"),
            run(3, 9, 9, "a"),
            run(4, 1, 5, "b"),
        ] {
            waits.hold(run);
        }
        waits.hold(run(1, 5, 5, "a"));
        assert_eq!(waits.len(), 4);
        assert!(waits.has_queue(&run(9, 9, 9, "b").job.spec));
        assert!(!waits.has_queue(&run(9, 9, 9, "c").job.spec));
        let is_a = |run: &ClaimedRun| run.job.spec.handler.capability().ends_with('a');
        let at = Timestamp::from_millis;
        let taken = waits.pop(at(10), 9, |run| if is_a(run) { 2 } else { 0 });
        assert_eq!(ids(&taken), [3, 2], "priority, then due time");
        assert_eq!(waits.len(), 2);
        assert_eq!(ids(&waits.pop(at(11), 9, |_| 9)), [0; 0], "too early");
        assert_eq!(waits.next_try(), Some(at(260)));
        assert!(waits.wake());
        assert_eq!(ids(&waits.pop(at(12), 1, |_| 9)), [1]);
        assert_eq!(ids(&waits.pop(at(262), 9, |_| 9)), [4]);
        assert!(waits.is_empty() && !waits.wake());
        assert_eq!(waits.next_try(), None);
    }

    #[test]
    fn a_run_that_was_claimed_again_waits_once() {
        let mut waits = RoomWaits::default();
        waits.hold(run(1, 5, 5, "a"));
        waits.hold(run(1, 5, 9, "b"));
        assert_eq!(waits.len(), 1);
        assert!(!waits.has_queue(&run(1, 5, 5, "a").job.spec));
        waits.remove(RunId(1));
        assert!(waits.is_empty());
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_try() {
        let mut waits = RoomWaits::default();
        let at = Timestamp::from_millis;
        waits.hold(run(1, 0, 5, "a"));
        assert!(waits.pop(at(100_000), 9, |_| 0).is_empty());
        assert_eq!(ids(&waits.pop(at(1_000), 9, |_| 1)), [1]);
    }
}
