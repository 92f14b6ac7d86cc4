//! Runs that are due and wait for a lane that all executors of their group share.
//!
//! The first runs of a lane are its probes: they are tried again when an attempt of their job has ended, and after a
//! short time, because other nodes ingest ends too. The others follow them. Pure: it reads no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{JobId, RunId, Timestamp};
use cueline_store::{ClaimedRun, LaneKey};

/// The first wait before a probe.
const FIRST_WAIT_MS: u64 = 10;
/// The longest wait before a probe. Each wait is twice as long as the one before.
const LONGEST_WAIT_MS: u64 = 250;

/// The waiting runs, by lane.
#[derive(Debug, Default)]
pub(crate) struct LaneWaits {
    lanes: BTreeMap<LaneKey, WaitingLane>,
    probes: BTreeSet<(Timestamp, LaneKey)>,
    /// Where each run is.
    places: HashMap<RunId, (LaneKey, Timestamp)>,
}

#[derive(Debug)]
struct WaitingLane {
    /// In the order of the lane.
    runs: BTreeMap<(Timestamp, RunId), ClaimedRun>,
    probe_at: Timestamp,
    wait_ms: u64,
}

impl LaneWaits {
    /// Adds a run. Replaces an entry of the same run.
    pub(crate) fn hold(&mut self, lane: LaneKey, run: ClaimedRun, now: Timestamp) {
        self.remove(run.id);
        self.places.insert(run.id, (lane, run.lane_at));
        let waiting = self.lanes.entry(lane).or_insert_with(|| {
            let probe_at = now.plus_ms(FIRST_WAIT_MS);
            self.probes.insert((probe_at, lane));
            WaitingLane {
                runs: BTreeMap::new(),
                probe_at,
                wait_ms: FIRST_WAIT_MS,
            }
        });
        waiting.runs.insert((run.lane_at, run.id), run);
    }

    /// Removes a run. Its lane stays until its next probe.
    pub(crate) fn remove(&mut self, run: RunId) {
        if let Some((lane, at)) = self.places.remove(&run)
            && let Some(waiting) = self.lanes.get_mut(&lane)
        {
            waiting.runs.remove(&(at, run));
        }
    }

    /// Adds a run that was claimed now. It is probed at once if it comes before all others of its lane.
    pub(crate) fn join(&mut self, lane: LaneKey, run: ClaimedRun, now: Timestamp) {
        let place = (run.lane_at, run.id);
        let first = self.lanes.get(&lane);
        let first = first.and_then(|waiting| waiting.runs.first_key_value());
        let comes_first = first.is_some_and(|(first, _)| place < *first);
        self.hold(lane, run, now);
        if comes_first {
            self.probe_now(lane, now);
        }
    }

    /// Whether runs of the lane wait, or are being probed.
    pub(crate) fn contains(&self, lane: LaneKey) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// How many runs of the lane wait.
    pub(crate) fn len_of(&self, lane: LaneKey) -> usize {
        self.lanes
            .get(&lane)
            .map_or(0, |waiting| waiting.runs.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Takes the first runs of the lanes whose probe is due: one of a lane without places, otherwise as many as the lane
    /// has places. The lane stays until [`release`](Self::release). Takes at most `max` runs and those of one lane.
    pub(crate) fn pop_probes(&mut self, now: Timestamp, max: usize) -> Vec<ClaimedRun> {
        let mut popped = Vec::new();
        while popped.len() < max
            && let Some((at, lane)) = self.probes.first().copied()
            // A probe that is later than this was put off before the clock was set back.
            && (at <= now || at.since_ms(now) > LONGEST_WAIT_MS.cast_signed())
        {
            self.probes.pop_first();
            let Some(waiting) = self.lanes.get_mut(&lane) else {
                continue;
            };
            if waiting.runs.is_empty() {
                self.lanes.remove(&lane);
                continue;
            }
            let slots = waiting.runs.values().next().and_then(ClaimedRun::lane);
            let slots = slots.and_then(|place| place.slots).unwrap_or(1);
            for _ in 0..slots {
                let Some((_, run)) = waiting.runs.pop_first() else {
                    break;
                };
                self.places.remove(&run.id);
                popped.push(run);
            }
            waiting.wait_ms = (2 * waiting.wait_ms).min(LONGEST_WAIT_MS);
            waiting.probe_at = now.plus_ms(waiting.wait_ms);
            self.probes.insert((waiting.probe_at, lane));
        }
        popped
    }

    /// Ends the wait of a lane, and returns its runs in order.
    pub(crate) fn release(&mut self, lane: LaneKey) -> Vec<ClaimedRun> {
        let Some(waiting) = self.lanes.remove(&lane) else {
            return Vec::new();
        };
        self.probes.remove(&(waiting.probe_at, lane));
        let runs: Vec<ClaimedRun> = waiting.runs.into_values().collect();
        for run in &runs {
            self.places.remove(&run.id);
        }
        runs
    }

    /// Probes the lanes of these jobs now. Returns whether there are any.
    pub(crate) fn wake(&mut self, jobs: &[JobId], now: Timestamp) -> bool {
        let mut any = false;
        for job in jobs {
            let shards = lane(*job, 0)..=lane(*job, u32::MAX);
            for (lane, waiting) in self.lanes.range_mut(shards) {
                any = true;
                self.probes.remove(&(waiting.probe_at, *lane));
                waiting.probe_at = now;
                waiting.wait_ms = FIRST_WAIT_MS;
                self.probes.insert((now, *lane));
            }
        }
        any
    }

    /// Probes the lane now, if runs of it wait.
    pub(crate) fn probe_now(&mut self, lane: LaneKey, now: Timestamp) {
        if let Some(waiting) = self.lanes.get_mut(&lane) {
            self.probes.remove(&(waiting.probe_at, lane));
            waiting.probe_at = now;
            self.probes.insert((now, lane));
        }
    }

    /// Removes the runs of the lane before the last one.
    pub(crate) fn pop_older(&mut self, lane: LaneKey) -> Vec<ClaimedRun> {
        let Some(waiting) = self.lanes.get_mut(&lane) else {
            return Vec::new();
        };
        let Some((last, _)) = waiting.runs.last_key_value() else {
            return Vec::new();
        };
        let last = waiting.runs.split_off(&last.clone());
        let older = std::mem::replace(&mut waiting.runs, last);
        for (_, run) in older.keys() {
            self.places.remove(run);
        }
        older.into_values().collect()
    }

    /// The last waiting run of the lane.
    pub(crate) fn last(&self, lane: LaneKey) -> Option<RunId> {
        let waiting = self.lanes.get(&lane)?;
        waiting.runs.last_key_value().map(|((_, run), _)| *run)
    }

    /// When the next probe is due.
    pub(crate) fn next_probe(&self) -> Option<Timestamp> {
        self.probes.first().map(|(at, _)| *at)
    }

    /// All waiting runs.
    pub(crate) fn into_runs(self) -> impl Iterator<Item = ClaimedRun> {
        self.lanes
            .into_values()
            .flat_map(|lane| lane.runs.into_values())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn lane(job: JobId, shard: u32) -> LaneKey {
    LaneKey { job, shard }
}
