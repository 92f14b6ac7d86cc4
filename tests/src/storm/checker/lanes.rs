//! G7, G8: what lanes did with their triggers. A run is `discarded` only by a busy lane or a full backlog, and
//! `covered` only by a newer trigger.

use std::collections::HashMap;

use super::Observations;
use super::records::{DELIVERY_MS, Records, delayed, over_at, published_from};
use crate::consistency::Run;
use crate::execution_log::{Entry, Event};
use crate::storm::faults::FaultKind;
use crate::storm::job_kinds::JobKind;

/// On a busy machine a lane is busy for this long after its handler has recorded its end. The worker collects ended
/// attempts, and one write of the journal may be under way.
const LANE_MS: i64 = 300;

fn by_job(runs: &[Run]) -> HashMap<&str, Vec<&Run>> {
    let mut jobs = HashMap::<&str, Vec<&Run>>::new();
    for run in runs {
        jobs.entry(&run.job).or_default().push(run);
    }
    jobs
}

/// The lane's part that differs between runs of a job on one executor.
pub(super) fn lane_shard(kind: Option<&JobKind>, shard: u64) -> Option<u64> {
    kind.is_some_and(JobKind::has_lane_per_shard)
        .then_some(shard)
}

/// When the attempts of serial lanes ended. After a halt, such a lane starts its runs one after the other, however late
/// the last one is.
pub(super) struct SerialEnds<'a> {
    ends: HashMap<(&'a str, &'a str), Vec<&'a Entry>>,
    kinds: &'a [JobKind],
}

impl<'a> SerialEnds<'a> {
    pub(super) fn new(entries: &'a [Entry], kinds: &'a [JobKind]) -> Self {
        let mut ends = HashMap::<_, Vec<&Entry>>::new();
        for end in entries.iter().filter(|e| !e.is_start()) {
            let kind = kinds.iter().find(|kind| kind.has(&end.job));
            if kind.is_some_and(|kind| kind.block() == "serial") {
                ends.entry(serial_lane(end, kinds)).or_default().push(end);
            }
        }
        Self { ends, kinds }
    }

    /// When the start was possible: due, and after the end of each older run in its lane that started before. Only older
    /// ones count, because a newer run must not start first.
    pub(super) fn ready_at(&self, start: &Entry) -> i64 {
        let lane = serial_lane(start, self.kinds);
        let ends = self.ends.get(&lane).into_iter().flatten();
        let older = ends.filter(|end| end.fire_at < start.fire_at && end.at <= start.at + LANE_MS);
        older
            .map(|end| end.at)
            .max()
            .map_or(start.fire_at, |end| end.max(start.fire_at))
    }
}

/// The executor, which is empty for the lane of a group, and the job.
fn serial_lane<'a>(entry: &'a Entry, kinds: &[JobKind]) -> (&'a str, &'a str) {
    let kind = kinds.iter().find(|kind| kind.has(&entry.job));
    let executor = entry.executor.as_str();
    let executor = kind.map_or(executor, |kind| kind.lane_executor(executor));
    (executor, entry.job.as_str())
}

/// G7: each discarded run met a busy lane, or a lane whose backlog was full.
pub(super) fn check_discarded(
    observed: &Observations,
    records: &Records,
    kinds: &[JobKind],
) -> Vec<String> {
    let jobs = by_job(&observed.runs);
    let mut violations = Vec::new();
    for run in observed.runs.iter().filter(|r| r.state == "discarded") {
        let kind = kinds.iter().find(|kind| kind.has(&run.job));
        let shard = lane_shard(kind, run.shard);
        let occupants = jobs[run.job.as_str()].iter().filter(|other| {
            other.id != run.id
                && lane_shard(kind, other.shard) == shard
                && occupies(observed, records, other, run)
        });
        // A full backlog names its limit.
        let (least, by_policy) = match backlog_limit(&run.message) {
            Some(limit) => (limit, true),
            None => (1, kind.is_some_and(|kind| kind.block() == "discard")),
        };
        if !by_policy {
            violations.push(format!("G7: discarded without that policy: {run:?}"));
        } else if occupants.take(least).count() < least {
            violations.push(format!("G7: discarded by an idle lane: {run:?}"));
        }
        if (1..=run.attempt).any(|a| records.attempt(run.id, a).start.is_some()) {
            violations.push(format!("G7: discarded after its start: {run:?}"));
        }
    }
    violations
}

/// The limit in `the backlog of 2 is full`.
fn backlog_limit(message: &str) -> Option<usize> {
    let limit = message.split("the backlog of ").nth(1)?;
    limit.split_whitespace().next()?.parse().ok()
}

/// Whether an attempt of `other` waited or ran in the lane of `run` when `run` ended.
fn occupies(observed: &Observations, records: &Records, other: &Run, run: &Run) -> bool {
    let Some(at) = run.ended_at else {
        return false;
    };
    (1..=other.attempt).any(|attempt| {
        let recorded = records.attempt(other.id, attempt);
        let is_last = attempt == other.attempt;
        let executor = match recorded.start {
            Some(start) => Some(&start.executor),
            // The database keeps the executor of the last attempt only.
            None => is_last.then_some(&other.executor),
        };
        let never_in_lane = is_last
            && recorded.start.is_none()
            && matches!(other.state.as_str(), "discarded" | "skipped");
        if never_in_lane || executor.is_some_and(|executor| *executor != run.executor) {
            return false;
        }
        let end = recorded.end.map(|end| end.at);
        let Some(until) = end.or_else(|| over_at(observed, other, attempt)) else {
            return false;
        };
        let from = published_from(observed, other, attempt);
        from <= at && at <= free_at(observed, &run.executor, (other.id, attempt), until)
    })
}

/// When a lane is idle at the latest if its attempt ended at `end`. A worker that is stopped right then frees the lane
/// after it continues. The worker's log tells the time, unless the worker was killed before.
fn free_at(observed: &Observations, worker: &str, (run, attempt): (i64, u32), end: i64) -> i64 {
    let usual = usually_free_at(observed, worker, end);
    let left = observed
        .lanes
        .get(worker)
        .and_then(|lanes| lanes.left_at(run, attempt));
    left.map_or(usual, |left| left.min(usual.max(end + DELIVERY_MS)))
}

fn usually_free_at(observed: &Observations, worker: &str, end: i64) -> i64 {
    let halts = observed.faults.iter().filter_map(|fault| {
        let stop = fault.hits_worker(worker) && matches!(fault.fault.kind, FaultKind::Stop(..));
        stop.then_some((fault.began, fault.over))
    });
    halts
        .filter(|(began, over)| *began <= end + LANE_MS && end <= *over)
        .map(|(_, over)| over + LANE_MS)
        .fold(delayed(observed, end, LANE_MS), i64::max)
}

/// G8: each covered run was replaced by a later trigger of its lane, and a native handler did not return success.
pub(super) fn check_covered(
    observed: &Observations,
    records: &Records,
    kinds: &[JobKind],
) -> Vec<String> {
    let jobs = by_job(&observed.runs);
    let mut violations = Vec::new();
    for run in observed.runs.iter().filter(|r| r.state == "covered") {
        let kind = kinds.iter().find(|kind| kind.has(&run.job));
        let at = run.ended_at.unwrap_or(i64::MIN);
        let newer = jobs[run.job.as_str()].iter().any(|other| {
            let moved = other.attempt > 1 || other.executor == run.executor;
            let is_newer = (other.fire_at, other.id) > (run.fire_at, run.id);
            // A new attempt of an older run is a newer trigger.
            let covers = (1..=other.attempt).any(|attempt| {
                (is_newer || attempt > 1) && published_from(observed, other, attempt) <= at
            });
            other.id != run.id && other.state != "skipped" && moved && covers
        });
        if !newer {
            violations.push(format!("G8: covered by no newer run: {run:?}"));
        }
        let recorded = records.attempt(run.id, run.attempt);
        let succeeded = recorded.end.is_some_and(|end| end.event == Event::End);
        // A program may record its end and be stopped before it exits.
        if succeeded && kind.is_some_and(JobKind::is_native) {
            violations.push(format!("G8: covered after its success: {run:?}"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::{end, fault, run, start};
    use super::*;
    use crate::execution_log::Entry;
    use crate::storm::faults::Target;
    use crate::storm::job_kinds::kinds;
    use crate::storm::lane_log::LaneLog;

    const AT: i64 = 100_000;

    fn ended(run: Run, state: &str, at: i64) -> Run {
        Run {
            state: state.to_owned(),
            ended_at: Some(at),
            ..run
        }
    }

    fn observed(runs: Vec<Run>, entries: Vec<Entry>) -> Observations {
        Observations {
            runs,
            entries,
            ..Observations::default()
        }
    }

    fn discards(observed: &Observations) -> usize {
        check_discarded(observed, &Records::new(&observed.entries), &kinds()).len()
    }

    #[test]
    fn a_busy_lane_discards() {
        let busy = ended(run(1, "discard-0", AT), "succeeded", AT + 600);
        let met = ended(run(2, "discard-0", AT + 500), "discarded", AT + 505);
        let entries = vec![start(&busy, AT + 5), end(&busy, AT + 605)];
        let all = observed(vec![busy.clone(), met.clone()], entries.clone());
        assert_eq!(discards(&all), 0);
        let idle = ended(met.clone(), "discarded", AT + 1_000);
        assert_eq!(
            discards(&observed(vec![busy.clone(), idle], entries.clone())),
            1,
            "the lane was idle"
        );
        let elsewhere = Run {
            executor: "worker-2".to_owned(),
            ..met.clone()
        };
        assert_eq!(
            discards(&observed(vec![busy.clone(), elsewhere], entries.clone())),
            1,
            "another executor has another lane"
        );
        let mut started = entries.clone();
        started.push(start(&met, AT + 510));
        let all = observed(vec![busy.clone(), met.clone()], started);
        assert_eq!(discards(&all), 1, "it had started");
        let serial = Run {
            job: "serial-0".to_owned(),
            ..met
        };
        assert_eq!(discards(&observed(vec![busy, serial], entries)), 1);
    }

    #[test]
    fn a_worker_that_was_stopped_frees_its_lane_late() {
        let busy = ended(run(1, "discard-0", AT), "succeeded", AT + 605);
        let met = ended(run(2, "discard-0", AT + 8_500), "discarded", AT + 8_710);
        let entries = vec![start(&busy, AT + 5), end(&busy, AT + 605)];
        let kind = FaultKind::Stop(Duration::from_secs(8), false);
        let stop = |from: i64| fault(Target::Worker(0), kind, from, from + 8_000);
        let with = |faults| Observations {
            faults,
            ..observed(vec![busy.clone(), met.clone()], entries.clone())
        };
        assert_eq!(discards(&with(vec![stop(AT + 700)])), 0);
        assert_eq!(discards(&with(vec![stop(AT + 1_000)])), 1, "too late");
    }

    #[test]
    fn the_workers_log_tells_when_a_lane_was_free() {
        let busy = ended(run(1, "discard-0", AT), "succeeded", AT + 605);
        let met = ended(run(2, "discard-0", AT + 1_000), "discarded", AT + 1_400);
        let entries = vec![start(&busy, AT + 5), end(&busy, AT + 605)];
        let left = |ms| {
            let at = jiff::Timestamp::from_millisecond(AT + ms).unwrap();
            let log = format!("{at} DEBUG the attempt has left its lane run_id=1 attempt=1\n");
            let lanes = LaneLog::parse(&log).unwrap();
            let lanes = [("worker-1".to_owned(), lanes)].into();
            Observations {
                lanes,
                ..observed(vec![busy.clone(), met.clone()], entries.clone())
            }
        };
        assert_eq!(discards(&left(1_450)), 0);
        assert_eq!(discards(&left(1_350)), 1, "idle");
        let never = observed(vec![busy.clone(), met.clone()], entries.clone());
        assert_eq!(discards(&never), 1);
        let met = ended(met.clone(), "discarded", AT + 2_700);
        let too_late = Observations {
            runs: vec![busy.clone(), met],
            ..left(2_800)
        };
        assert_eq!(discards(&too_late), 1, "a lane is free soon after an end");
    }

    #[test]
    fn a_full_backlog_needs_as_many_runs() {
        let message = "the backlog of 2 is full".to_owned();
        let full = Run {
            message,
            ..ended(run(9, "serial-0", AT), "discarded", AT + 5)
        };
        let waiting = |id| ended(run(id, "serial-0", AT - 500), "succeeded", AT + 400);
        let two = observed(vec![waiting(1), waiting(2), full.clone()], vec![]);
        assert_eq!(discards(&two), 0);
        assert_eq!(discards(&observed(vec![waiting(1), full], vec![])), 1);
    }

    fn covers(runs: Vec<Run>, entries: Vec<Entry>) -> usize {
        let observed = observed(runs, entries);
        check_covered(&observed, &Records::new(&observed.entries), &kinds()).len()
    }

    #[test]
    fn only_a_newer_run_covers() {
        let old = ended(run(1, "cover-0", AT), "covered", AT + 700);
        let newer = ended(run(2, "cover-0", AT + 500), "succeeded", AT + 1_400);
        assert_eq!(covers(vec![old.clone(), newer.clone()], vec![]), 0);
        assert_eq!(covers(vec![old.clone()], vec![]), 1, "no other run");
        let older = ended(run(2, "cover-0", AT - 500), "succeeded", AT + 100);
        assert_eq!(covers(vec![old.clone(), older], vec![]), 1, "an older run");
        let later = ended(run(2, "cover-0", AT + 1_000), "succeeded", AT + 1_700);
        assert_eq!(covers(vec![old.clone(), later], vec![]), 1, "not yet due");
        let elsewhere = Run {
            executor: "worker-2".to_owned(),
            ..newer.clone()
        };
        assert_eq!(covers(vec![old.clone(), elsewhere], vec![]), 1);
        let entries = vec![start(&old, AT + 5), end(&old, AT + 690)];
        assert_eq!(covers(vec![old, newer], entries), 1, "it had succeeded");
    }

    #[test]
    fn a_serial_run_is_possible_after_the_older_ones_of_its_lane() {
        let (old, new) = (run(1, "serial-0", AT), run(2, "serial-0", AT + 500));
        let ready_at =
            |entries: &[Entry], start: &Entry| SerialEnds::new(entries, &kinds()).ready_at(start);
        let late = start(&new, AT + 9_000);
        assert_eq!(ready_at(&[end(&old, AT + 8_900)], &late), AT + 8_900);
        assert_eq!(ready_at(&[end(&old, AT + 20)], &late), AT + 500, "not due");
        let newer = run(3, "serial-0", AT + 1_000);
        assert_eq!(ready_at(&[end(&newer, AT + 8_900)], &late), AT + 500);
        let parallel = run(1, "parallel-0", AT);
        let late_one = start(&run(2, "parallel-0", AT + 500), AT + 9_000);
        assert_eq!(ready_at(&[end(&parallel, AT + 8_900)], &late_one), AT + 500);
    }
}
