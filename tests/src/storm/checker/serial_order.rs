//! G6: a `serial` lane starts the first attempts that wait in the order of their fire times.

use std::collections::HashMap;

use super::Observations;
use super::early_starts::earliest_publication;
use super::lanes::lane_shard;
use super::records::{delayed, has_standstill, is_disturbed, published_from};
use crate::consistency::Run;
use crate::execution_log::Entry;
use crate::storm::faults::InjectedFault;
use crate::storm::job_kinds::JobKind;

/// A start in a lane after the start of a run that was due later.
#[derive(Debug)]
pub(super) struct Inversion<'a> {
    pub(super) late: &'a Entry,
    /// The last one that started before. If the late trigger was not there by then, it was not there earlier.
    pub(super) newer: &'a Entry,
}

fn age(entry: &Entry) -> (i64, i64) {
    (entry.fire_at, entry.run)
}

/// Executor, which is empty for the lane of a group, job and shard.
type Lane<'a> = (&'a str, &'a str, Option<u64>);

/// The lane of an attempt, if it is a serial one.
fn serial_lane<'a>(entry: &'a Entry, kinds: &[JobKind]) -> Option<Lane<'a>> {
    let kind = kinds.iter().find(|kind| kind.has(&entry.job))?;
    let shard = lane_shard(Some(kind), entry.shard);
    let executor = kind.lane_executor(&entry.executor);
    let lane = (executor, entry.job.as_str(), shard);
    (kind.block() == "serial").then_some(lane)
}

/// All inversions in the serial lanes. A later attempt is published later than newer runs, so only first ones count.
pub(super) fn inversions<'a>(entries: &'a [Entry], kinds: &[JobKind]) -> Vec<Inversion<'a>> {
    let mut starts: Vec<&Entry> = entries
        .iter()
        .filter(|e| e.is_start() && e.attempt == 1)
        .collect();
    // A stopped process may record a start late.
    starts.sort_by_key(|e| e.began);
    // Of each lane the starts after which none of a newer run came.
    let mut newest = HashMap::<Lane<'_>, Vec<&Entry>>::new();
    let mut found = Vec::new();
    for start in starts {
        let Some(lane) = serial_lane(start, kinds) else {
            continue;
        };
        let newest = newest.entry(lane).or_default();
        while newest.pop_if(|last| age(last) <= age(start)).is_some() {}
        if let Some(newer) = newest.last().copied() {
            found.push(Inversion { late: start, newer });
        }
        newest.push(start);
    }
    found
}

/// Starts out of order whose late trigger was not in its lane when the newer run started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LateTriggers {
    /// Published after that.
    pub(super) published_late: usize,
    /// Published before, and delivered after a fault of the worker or the broker.
    pub(super) delivered_again: usize,
}

/// On a busy machine a lane decides on a start at most this long before the handler begins. In between the start is
/// recorded in the start log, which takes a confirmation of the broker, and a turn of the worker's event loop journals
/// it.
const DECIDED_MS: i64 = 300;

/// When the attempts of each serial lane ended, in order.
struct LaneEnds<'a>(HashMap<Lane<'a>, Vec<i64>>);

impl<'a> LaneEnds<'a> {
    fn new(entries: &'a [Entry], kinds: &[JobKind]) -> Self {
        let mut ends = HashMap::<Lane<'_>, Vec<i64>>::new();
        for end in entries.iter().filter(|e| !e.is_start()) {
            if let Some(lane) = serial_lane(end, kinds) {
                ends.entry(lane).or_default().push(end.at);
            }
        }
        for ends in ends.values_mut() {
            ends.sort_unstable();
        }
        Self(ends)
    }

    /// The lane decided on this start at this time or later: not before its previous attempt had ended.
    fn decided_at(&self, observed: &Observations, start: &Entry, kinds: &[JobKind]) -> i64 {
        let ends = serial_lane(start, kinds).and_then(|lane| self.0.get(&lane));
        let ends = ends.map_or(&[][..], Vec::as_slice);
        let earlier = ends.partition_point(|end| *end < start.began);
        let previous = ends[..earlier].last().copied();
        let usual = held_from(observed, start) - DECIDED_MS;
        previous.map_or(usual, |previous| previous.max(usual))
    }
}

/// From when on the decided start may have waited. A start that cannot be journalled waits until its worker's disk has
/// room.
fn held_from(observed: &Observations, start: &Entry) -> i64 {
    let holds = |fault: &&InjectedFault| {
        let period = fault.began..=fault.over + DECIDED_MS;
        fault.fills_disk_of(&start.executor) && period.contains(&start.began)
    };
    let fault = observed.faults.iter().find(holds);
    fault.map_or(start.began, |fault| fault.began)
}

/// On a busy machine a published trigger is in its lane this long after the publication. In between the broker delivers
/// it, and it waits for the turn of the worker's event loop that is under way, whose journal write may be slow.
const ARRIVED_MS: i64 = 300;

/// In a burst, confirmations are written this long after the publication: the schedulers hold them back for up to 400 ms
/// (`BurstGate`), then collect more for 10 ms, and commit.
const CONFIRMED_MS: i64 = 500;

/// Runs are claimed and planned this long before they are due.
const CLAIMED_AHEAD_MS: i64 = 2_000;

/// G6: returns violations, and the numbers of explained inversions. The order of first attempts is fire time, then run
/// id, unless the older trigger was not there yet.
pub(super) fn check_serial_order(
    observed: &Observations,
    kinds: &[JobKind],
) -> (Vec<String>, LateTriggers) {
    let runs: HashMap<i64, &Run> = observed.runs.iter().map(|run| (run.id, run)).collect();
    let latest = LatestPublications::new(&observed.runs);
    let ends = LaneEnds::new(&observed.entries, kinds);
    let (mut violations, mut explained) = (Vec::new(), LateTriggers::default());
    for Inversion { late, newer } in inversions(&observed.entries, kinds) {
        let newer_run = runs.get(&newer.run);
        let due = newer_run.map_or(newer.fire_at, |run| published_from(observed, run, 1));
        let start = NewerStart {
            published_from: earliest_publication(observed, due),
            decided_at: ends.decided_at(observed, newer, kinds),
            began: newer.began,
            had_late: had_late(observed, late, newer),
        };
        match runs.get(&late.run) {
            run if start.had_late == Some(true) => {
                violations.push(format!("G6: {newer:?} while {late:?} waited: {run:?}"));
            }
            Some(run)
                if was_published_late(observed, &latest, run, start)
                    || is_behind_in_backlog(observed, run, newer_run.copied()) =>
            {
                explained.published_late += 1;
            }
            Some(run) if was_delivered_again(observed, run, late, start) => {
                explained.delivered_again += 1;
            }
            run => violations.push(format!("G6: {late:?} after {newer:?}: {run:?}")),
        }
    }
    (violations, explained)
}

/// The start that a late trigger missed.
#[derive(Debug, Clone, Copy)]
struct NewerStart {
    /// When the newer run could be published at the earliest: not before it was due (G14).
    published_from: i64,
    /// When its lane decided on the start, or the earliest time at which it could.
    decided_at: i64,
    began: i64,
    /// Whether the late trigger was in the lane then. `None` if the worker's log does not say.
    had_late: Option<bool>,
}

/// Whether the worker's log says that the late attempt was in the lane when the newer one was started. Each worker has a
/// log of its own, so it says nothing about starts at two workers.
fn had_late(observed: &Observations, late: &Entry, newer: &Entry) -> Option<bool> {
    let lanes = observed.lanes.get(&late.executor)?;
    (late.executor == newer.executor)
        .then(|| lanes.had_when_started(late.run, newer.run))
        .flatten()
}

impl NewerStart {
    /// Whether it could be decided before a trigger that was confirmed then was in the lane.
    ///
    /// The queue of an executor delivers in order. What the broker had confirmed before the newer run could be published
    /// was in the lane before it.
    fn can_precede(self, observed: &Observations, confirmed_at: i64) -> bool {
        let came_later = || delayed(observed, confirmed_at, ARRIVED_MS) > self.decided_at;
        confirmed_at > self.published_from && self.had_late.map_or_else(came_later, |had| !had)
    }
}

/// For each fire time, when the last of its runs was published whose queue time is known.
struct LatestPublications(HashMap<i64, i64>);

impl LatestPublications {
    fn new(runs: &[Run]) -> Self {
        let mut latest = HashMap::new();
        for run in runs.iter().filter(|run| run.attempt == 1) {
            if let Some(queued_at) = run.queued_at {
                let last = latest.entry(run.fire_at).or_insert(queued_at);
                *last = queued_at.max(*last);
            }
        }
        Self(latest)
    }

    fn of(&self, fire_at: i64) -> Option<i64> {
        self.0.get(&fire_at).copied()
    }
}

/// Whether the first trigger of the run was published only after its lane had decided to start a newer run.
///
/// The store writes the queue time after the publication, so a slow store makes a run look late. It keeps that time of
/// the last attempt only, and none of a run that ended first. Then a run that was due at the same time and whose queue
/// time is known, or a fault, has to explain a late publication.
fn was_published_late(
    observed: &Observations,
    latest: &LatestPublications,
    run: &Run,
    newer: NewerStart,
) -> bool {
    let is_first = run.attempt == 1;
    if let Some(queued_at) = run.queued_at.filter(|_| is_first) {
        return newer.can_precede(observed, queued_at);
    }
    // A run that ended before its queue time was written was published shortly before it started.
    if let Some(started_at) = run.started_at.filter(|_| is_first) {
        let came_later = || started_at - CONFIRMED_MS + ARRIVED_MS > newer.decided_at;
        return newer.had_late.map_or_else(came_later, |had| !had);
    }
    let from = run.fire_at - CLAIMED_AHEAD_MS;
    let delays = |fault: &InjectedFault| {
        !fault.fault.target.is_worker() && fault.overlaps(from, newer.decided_at)
    };
    published_from(observed, run, 1) > newer.decided_at
        || latest
            .of(run.fire_at)
            .is_some_and(|at| newer.can_precede(observed, at))
        || observed.faults.iter().any(delays)
        || has_standstill(observed, from, newer.decided_at)
}

/// Whether the trigger was published late, and not before that of the newer run. It is then behind it in the executor's
/// queue. In a backlog the worker takes only as many triggers as it has room for, so it may come to the lane much later.
fn is_behind_in_backlog(observed: &Observations, run: &Run, newer: Option<&Run>) -> bool {
    let queued_at = |run: &Run| run.queued_at.filter(|_| run.attempt == 1);
    let (Some(at), Some(newer_at)) = (queued_at(run), newer.and_then(queued_at)) else {
        return false;
    };
    let is_late = at > published_from(observed, run, 1) + BACKLOG_MS;
    is_late && at + CONFIRMED_MS > newer_at
}

/// After a fault the triggers that had to wait are in their lanes within this time.
const BACKLOG_MS: i64 = 3_000;

/// Whether a fault of the worker or the broker met the published trigger on its way into the lane, and could keep it
/// from there until the newer run started.
fn was_delivered_again(
    observed: &Observations,
    run: &Run,
    late: &Entry,
    newer: NewerStart,
) -> bool {
    let from = published_from(observed, run, 1);
    let arrived_at = arrived_at(observed, run, from);
    let until = arrived_at.map_or(newer.began, |at| at.min(newer.began));
    is_disturbed(observed, &late.executor, from, until)
}

/// When the first trigger of the run was in the worker's journal, which keeps it over a restart. Known for a trigger that
/// was published on time and met no backlog of an earlier fault.
fn arrived_at(observed: &Observations, run: &Run, published_from: i64) -> Option<i64> {
    let queued_at = run.queued_at.filter(|_| run.attempt == 1)?;
    let arrived_at = delayed(observed, queued_at, ARRIVED_MS);
    let from = published_from - BACKLOG_MS;
    let delays = |fault: &InjectedFault| fault.overlaps(from, arrived_at);
    let has_backlog = queued_at > published_from + CONFIRMED_MS
        || observed.faults.iter().any(delays)
        || has_standstill(observed, from, arrived_at);
    (!has_backlog).then_some(arrived_at)
}

#[cfg(test)]
mod tests;
