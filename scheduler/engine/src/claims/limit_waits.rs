//! Runs that are due and wait for a limit of their jobs.
//!
//! Runs that wait for the same limit form a queue, in the order of their places. The first of them are tried again when the
//! rate allows it, when an attempt that uses the limit has ended, and after a short time, because other nodes dispatch and
//! ingest too. The others follow them. Pure: it reads no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{JobId, RunId, Timestamp};
use cueline_store::{
    ClaimedRun, DispatchLimits, LIMIT_ASKED_WITHIN_MS, LaneKey, LimitKey, LimitPlace,
    LimitWaitReason, limits_of_job,
};

/// The first wait for the end of an attempt.
const FIRST_WAIT_MS: u64 = 10;
/// The longest wait for the end of an attempt. Each wait is twice as long as the one before.
const LONGEST_WAIT_MS: u64 = 250;
/// The shortest wait for a rate.
const SHORTEST_RATE_WAIT_MS: u64 = 2;
/// The longest wait for a rate. A definition may have changed meanwhile.
const LONGEST_RATE_WAIT_MS: u64 = LIMIT_ASKED_WITHIN_MS;
/// The most runs of a queue that are tried together.
const MAX_TRIED: usize = 256;
/// Jobs whose ends wake queues. Beyond this number, queues wait for [`LONGEST_WAIT_MS`].
const MAX_USERS: usize = 10_000;

/// The waiting runs, by limit.
#[derive(Debug, Default)]
pub(crate) struct LimitWaits {
    queues: BTreeMap<LimitKey, Queue>,
    /// Jobs with a concurrency limit whose runs this node has dispatched or holds.
    users: HashMap<JobId, BTreeSet<LimitKey>>,
    /// Where each run is.
    places: HashMap<RunId, (LimitKey, LimitPlace)>,
    /// How many runs of each job or shard wait.
    lanes: HashMap<LaneKey, u32>,
}

#[derive(Debug)]
struct Queue {
    runs: BTreeMap<LimitPlace, ClaimedRun>,
    try_at: Timestamp,
    wait_ms: u64,
    /// How many runs are tried together. It follows how many were let pass.
    tried_together: usize,
    /// Runs of the present try.
    tried: usize,
    /// Those of them that were refused.
    refused: usize,
}

impl LimitWaits {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds a run that was claimed now, if others wait for one of its limits. Otherwise it gives the run back.
    pub(crate) fn join(&mut self, run: ClaimedRun, limits: &DispatchLimits) -> Option<ClaimedRun> {
        let mut keys = limits.uses.iter().map(|limit| &limit.key);
        let Some(key) = keys.find(|key| self.queues.contains_key(*key)) else {
            return Some(run);
        };
        self.insert(key.clone(), run);
        None
    }

    /// How many runs of the same job, or of the same shard of it, wait.
    pub(crate) fn len_of_lane(&self, run: &ClaimedRun) -> u32 {
        self.lanes.get(&lane_of(run)).copied().unwrap_or_default()
    }

    /// Adds a run to a queue that is there. Replaces an entry of the same run.
    fn insert(&mut self, key: LimitKey, run: ClaimedRun) {
        self.remove(run.id);
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        let place = run.limit_place();
        self.places.insert(run.id, (key, place));
        *self.lanes.entry(lane_of(&run)).or_default() += 1;
        queue.runs.insert(place, run);
    }

    /// Removes a run. Its queue stays until the end of a try.
    pub(crate) fn remove(&mut self, run: RunId) {
        if let Some((key, place)) = self.places.remove(&run)
            && let Some(queue) = self.queues.get_mut(&key)
            && let Some(run) = queue.runs.remove(&place)
        {
            self.note_left(&run);
        }
    }

    fn note_left(&mut self, run: &ClaimedRun) {
        if let Some(waiting) = self.lanes.get_mut(&lane_of(run)) {
            *waiting -= 1;
        }
    }

    /// Adds a run that the store has refused.
    pub(crate) fn hold(
        &mut self,
        key: LimitKey,
        reason: LimitWaitReason,
        run: ClaimedRun,
        now: Timestamp,
    ) {
        self.note_use(&run);
        let queue = self.queues.entry(key.clone()).or_insert_with(|| Queue {
            runs: BTreeMap::new(),
            try_at: now.plus_ms(FIRST_WAIT_MS),
            wait_ms: FIRST_WAIT_MS,
            tried_together: 1,
            tried: 0,
            refused: 0,
        });
        queue.refused += 1;
        if let LimitWaitReason::Rate(at) = reason {
            let (earliest, latest) = (
                now.plus_ms(SHORTEST_RATE_WAIT_MS),
                now.plus_ms(LONGEST_RATE_WAIT_MS),
            );
            queue.try_at = at.clamp(earliest, latest);
        }
        self.insert(key, run);
    }

    /// Notes that an attempt of the run uses its limits. An end of its job then wakes the queues.
    pub(crate) fn note_use(&mut self, run: &ClaimedRun) {
        let limits = limits_of_job(run.job.id, &run.job.spec, None);
        let keys = limits.into_iter().map(|limit| limit.key);
        let keys: BTreeSet<LimitKey> = keys.filter(LimitKey::is_freed_by_ends).collect();
        if keys.is_empty() {
            return;
        }
        if self.users.len() >= MAX_USERS {
            self.users.clear();
        }
        self.users.entry(run.job.id).or_default().extend(keys);
    }

    /// Takes the first runs of the queues that are to be tried, at most `max`. The queue that waits for the longest time is
    /// the first, and those without room keep their times. So a queue that is always full holds back no other one.
    pub(crate) fn pop(&mut self, now: Timestamp, max: usize) -> Vec<ClaimedRun> {
        let mut popped = Vec::new();
        // A try that is later than this was set before the clock was set back.
        let longest = LONGEST_RATE_WAIT_MS.cast_signed();
        let is_early = |queue: &Queue| queue.try_at > now && queue.try_at.since_ms(now) <= longest;
        let queues = self.queues.values_mut();
        let mut queues: Vec<&mut Queue> = queues.filter(|queue| !is_early(queue)).collect();
        queues.sort_by_key(|queue| queue.try_at);
        for queue in queues {
            if popped.len() >= max {
                break;
            }
            (queue.tried, queue.refused) = (0, 0);
            for _ in 0..queue.tried_together.min(max - popped.len()) {
                let Some((_, run)) = queue.runs.pop_first() else {
                    break;
                };
                queue.tried += 1;
                popped.push(run);
            }
            queue.try_at = now.plus_ms(queue.wait_ms);
        }
        for run in &popped {
            self.places.remove(&run.id);
            self.note_left(run);
        }
        popped
    }

    /// Ends a try: decides when the queues are tried again, and how many of their runs.
    pub(crate) fn end_try(&mut self, now: Timestamp) {
        for queue in self.queues.values_mut() {
            if queue.tried == 0 && queue.refused == 0 {
                continue;
            }
            let passed = queue.tried.saturating_sub(queue.refused);
            if queue.tried > 0 && queue.refused == 0 {
                queue.tried_together = (2 * queue.tried_together).min(MAX_TRIED);
                queue.try_at = now;
                queue.wait_ms = FIRST_WAIT_MS;
            } else {
                queue.tried_together = passed.clamp(1, MAX_TRIED);
                queue.wait_ms = match passed {
                    0 => (2 * queue.wait_ms).min(LONGEST_WAIT_MS),
                    _ => FIRST_WAIT_MS,
                };
            }
            (queue.tried, queue.refused) = (0, 0);
        }
        self.queues.retain(|_, queue| !queue.runs.is_empty());
        self.lanes.retain(|_, waiting| *waiting > 0);
    }

    /// Attempts of these jobs have ended: the queues of their limits are tried now. Returns whether there are any.
    pub(crate) fn wake(&mut self, jobs: &[JobId], now: Timestamp) -> bool {
        let mut any = false;
        for key in jobs.iter().filter_map(|job| self.users.get(job)).flatten() {
            if let Some(queue) = self.queues.get_mut(key) {
                queue.try_at = now;
                queue.wait_ms = FIRST_WAIT_MS;
                any = true;
            }
        }
        any
    }

    /// When a queue is tried next.
    pub(crate) fn next_try(&self) -> Option<Timestamp> {
        self.queues.values().map(|queue| queue.try_at).min()
    }

    /// All waiting runs.
    pub(crate) fn into_runs(self) -> impl Iterator<Item = ClaimedRun> {
        self.queues
            .into_values()
            .flat_map(|queue| queue.runs.into_values())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What the backlog of a job counts: its runs, or those of one shard.
fn lane_of(run: &ClaimedRun) -> LaneKey {
    LaneKey {
        job: run.job.id,
        shard: run.shard.index,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cueline_model::{Job, RunId, RunKind, Shard};
    use serde_json::{Value, json};

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn run(id: i64, job: i64, limits: &Value) -> ClaimedRun {
        let mut spec = json!({ "name": "j", "group": "g", "schedule": { "manual": true }, "handler": { "native": "work" } });
        for (field, value) in limits.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        ClaimedRun {
            id: RunId(id),
            attempt: 1,
            job: Arc::new(Job {
                id: JobId(job),
                version: 1,
                spec: serde_json::from_value(spec).expect("a definition"),
            }),
            kind: RunKind::Manual,
            fire_at: at(id),
            due_at: at(id),
            shard: Shard::whole(),
            params: None,
            executor: None,
            sequence: 0,
            maybe_published: false,
            lane_at: at(id),
        }
    }

    fn with_key(id: i64, job: i64) -> ClaimedRun {
        run(
            id,
            job,
            &json!({ "concurrency": { "key": "db", "limit": 2 } }),
        )
    }

    fn key(run: &ClaimedRun) -> LimitKey {
        let limits = limits_of_job(run.job.id, &run.job.spec, None);
        limits[0].key.clone()
    }

    fn ids(runs: &[ClaimedRun]) -> Vec<i64> {
        runs.iter().map(|run| run.id.0).collect()
    }

    fn refuse(waits: &mut LimitWaits, run: ClaimedRun, now: i64) {
        let reason = LimitWaitReason::Full(RunId(99));
        waits.hold(key(&run), reason, run, at(now));
    }

    #[test]
    fn the_oldest_run_of_a_limit_is_tried_first_whatever_its_job() {
        let mut waits = LimitWaits::default();
        let join = |waits: &mut LimitWaits, run: ClaimedRun| {
            let limits = run.limits(None).expect("has limits");
            waits.join(run, &limits).is_none()
        };
        assert!(!join(&mut waits, with_key(5, 1)), "none waits");
        refuse(&mut waits, with_key(5, 1), 0);
        waits.end_try(at(0));
        assert!(join(&mut waits, with_key(3, 2)));
        let other = run(
            2,
            2,
            &json!({ "concurrency": { "key": "other", "limit": 1 } }),
        );
        assert!(!join(&mut waits, other), "another limit");
        assert_eq!(waits.len(), 2);
        assert_eq!(waits.len_of_lane(&with_key(8, 2)), 1);
        assert_eq!(ids(&waits.pop(at(9), 9)), [0; 0], "too early");
        assert_eq!(ids(&waits.pop(at(10), 9)), [3]);
        assert_eq!(waits.len_of_lane(&with_key(8, 2)), 0);
    }

    /// An edit may change priority, key and limit.
    #[test]
    fn a_run_that_was_claimed_again_waits_once() {
        let mut waits = LimitWaits::default();
        refuse(&mut waits, with_key(1, 1), 0);
        let limits = json!({ "priority": 1, "concurrency": { "key": "db", "limit": 3 } });
        let edited = run(1, 1, &limits);
        refuse(&mut waits, edited.clone(), 0);
        assert_eq!((waits.len(), waits.len_of_lane(&edited)), (1, 1));
        waits.end_try(at(0));
        let tried = waits.pop(at(10), 9);
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].job.spec, edited.job.spec);
        refuse(&mut waits, with_key(1, 1), 10);
        waits.remove(RunId(1));
        waits.remove(RunId(2));
        assert_eq!((waits.len(), waits.len_of_lane(&tried[0])), (0, 0));
        waits.end_try(at(10));
        assert!(waits.is_empty());
    }

    #[test]
    fn more_are_tried_as_long_as_all_pass() {
        let mut waits = LimitWaits::default();
        for id in 1..=8 {
            refuse(&mut waits, with_key(id, 1), 0);
        }
        waits.end_try(at(0));
        let mut sizes = Vec::new();
        for _ in 0..3 {
            sizes.push(waits.pop(at(10), 99).len());
            waits.end_try(at(10));
        }
        assert_eq!(sizes, [1, 2, 4]);
        let last = waits.pop(at(10), 99);
        assert_eq!(ids(&last), [8]);
        refuse(&mut waits, last[0].clone(), 10);
        waits.end_try(at(10));
        assert_eq!(waits.next_try(), Some(at(20)));
        waits.pop(at(20), 99);
        waits.end_try(at(20));
        assert!(waits.is_empty());
        assert_eq!(waits.len(), 0);
    }

    #[test]
    fn a_limit_with_a_long_queue_holds_back_no_other_one() {
        let mut waits = LimitWaits::default();
        let keyed = |id, key: &str| {
            let limits = json!({ "concurrency": { "key": key, "limit": 9 } });
            run(id, 1, &limits)
        };
        for id in 1..=100 {
            refuse(&mut waits, keyed(id, "a"), 0);
        }
        refuse(&mut waits, keyed(1_000, "b"), 0);
        waits.end_try(at(0));
        let mut tries = 0;
        // Each batch has room for one run, and all of them pass.
        while !ids(&waits.pop(at(10 + tries), 1)).contains(&1_000) {
            waits.end_try(at(10 + tries));
            tries += 1;
            assert!(tries < 3, "the other limit waits");
        }
    }

    #[test]
    fn an_end_wakes_the_limits_of_its_job_only() {
        let mut waits = LimitWaits::default();
        refuse(&mut waits, with_key(1, 1), 0);
        for now in [0, 10, 30, 70, 150] {
            waits.end_try(at(now));
            for run in waits.pop(waits.next_try().expect("a try"), 9) {
                refuse(&mut waits, run, now);
            }
        }
        waits.end_try(at(400));
        waits.note_use(&with_key(9, 7));
        assert!(!waits.wake(&[JobId(3)], at(401)));
        assert!(waits.wake(&[JobId(7)], at(401)));
        assert_eq!(waits.next_try(), Some(at(401)));
    }

    #[test]
    fn a_rate_is_tried_when_it_has_a_place() {
        let mut waits = LimitWaits::default();
        let one = run(
            1,
            1,
            &json!({ "rate_limit": { "count": 1, "per": "second" } }),
        );
        waits.hold(
            key(&one),
            LimitWaitReason::Rate(at(900)),
            one.clone(),
            at(0),
        );
        waits.end_try(at(0));
        assert_eq!(waits.next_try(), Some(at(900)));
        assert!(!waits.wake(&[JobId(1)], at(5)), "an end frees no rate");
        waits.hold(key(&one), LimitWaitReason::Rate(at(90_000)), one, at(0));
        assert_eq!(waits.next_try(), Some(at(2_000)));
        assert_eq!(waits.len(), 1, "the same run");
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_try() {
        let mut waits = LimitWaits::default();
        refuse(&mut waits, with_key(1, 1), 100_000);
        waits.end_try(at(100_000));
        assert_eq!(ids(&waits.pop(at(5), 9)), [1]);
    }
}
