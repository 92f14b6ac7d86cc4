//! G4: how many lost attempts without a recorded start the faults can explain.
//!
//! A standstill of the machine counts as a fault of all workers: it may cost them their leases. A full disk hides no
//! start by itself. It can hold a worker between the record and the journal, but only the loss of its lease makes the
//! attempt `lost`, and then the fault that cost the lease is the cause.
//!
//! A worker writes a start into its start log, waits for the broker's confirmation, journals the start, and runs the
//! handler, which then records it here. If the worker is killed, frozen or cut off in between, or the broker fails, then
//! the handler may have run, as far as anybody else can know, and `lost` is the only true state.
//!
//! One record of the log is in flight at a time, and has at most 256 attempts. In a storm fewer can be meant: from the
//! decision of its lane until its end, an attempt holds a place in its lane and one of the worker's
//! [`CONCURRENCY`] places. So each interruption of a worker hides at most the places of each lane, and at most
//! [`CONCURRENCY`] attempts together.

use std::collections::{HashMap, HashSet};

use super::lanes::lane_shard;
use super::records::{RECOVERY_MS, disturbs_until};
use crate::consistency::Run;
use crate::storm::WORKERS;
use crate::storm::cluster::CONCURRENCY;
use crate::storm::faults::{FaultKind, InjectedFault};
use crate::storm::job_kinds::JobKind;

/// The numbers of a fault and of a worker that it interrupted. Standstills have the numbers after those of the faults.
pub(super) type Cause = (usize, usize);

/// A lost attempt without a recorded start, and what may hide its start.
#[derive(Debug)]
pub(super) struct HiddenStart<'a> {
    pub(super) run: &'a Run,
    pub(super) attempt: u32,
    /// Several, if several faults met the attempt, or if its worker is unknown.
    pub(super) causes: Vec<Cause>,
}

/// The period in which a lost attempt may have been about to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartPeriod {
    /// When it could be published at the earliest.
    pub(super) published_from: i64,
    /// When the worker decided to start it, or the earliest time at which it could, by the store.
    pub(super) decided_at: i64,
    pub(super) lost_at: i64,
}

/// A signal has reached its process this long after the beginning of the fault, even on a busy machine.
const SIGNALLED_MS: i64 = 1_000;

/// The interruptions of workers that may hide a start in this period. The worker may be unknown.
pub(super) fn causes(
    faults: &[InjectedFault],
    standstills: &[(i64, i64)],
    worker: Option<&str>,
    period: StartPeriod,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    let is_worker = |name: &str| worker.is_none_or(|worker| worker == name);
    for (fault_number, fault) in faults.iter().enumerate() {
        // The attempt may have waited in its lane until the fault.
        if !fault.overlaps(period.decided_at, period.lost_at) {
            continue;
        }
        for number in 1..=WORKERS {
            let name = format!("worker-{number}");
            let until = hides_until(fault, &name);
            let is_there = until.is_some_and(|until| period.published_from <= until);
            if is_there && is_worker(&name) {
                causes.push((fault_number, number));
            }
        }
    }
    for (standstill, (began, over)) in (faults.len()..).zip(standstills) {
        let until = over + RECOVERY_MS;
        let is_met = *began <= period.lost_at && period.decided_at <= until;
        if is_met && period.published_from <= until {
            let workers = (1..=WORKERS).filter(|number| is_worker(&format!("worker-{number}")));
            causes.extend(workers.map(|number| (standstill, number)));
        }
    }
    causes
}

/// Until when a trigger must have been published for this fault to hide the start of its attempt on the worker. `None`
/// if the fault hides none: a worker that gets SIGTERM ends what it has started, and gives back the rest.
fn hides_until(fault: &InjectedFault, worker: &str) -> Option<i64> {
    match fault.fault.kind {
        FaultKind::Terminate => None,
        // What comes later, comes to the next process.
        FaultKind::Kill(_) if fault.hits_worker(worker) => Some(fault.began + SIGNALLED_MS),
        _ => disturbs_until(fault, worker),
    }
}

/// A worker at a fault, and one of its lanes or, without a lane, all of it.
type Places<'a> = (Cause, Option<Lane<'a>>);

/// Job and shard.
type Lane<'a> = (&'a str, Option<u64>);

/// Returns a violation for each attempt that is too much for its lane, and one if there are too many for a worker.
pub(super) fn check_hidden_starts(hidden: &[HiddenStart], kinds: &[JobKind]) -> Vec<String> {
    let kind_of = |job: &str| kinds.iter().find(|kind| kind.has(job));
    let places_in_lane = |(_, lane): &Places| {
        let kind = lane.and_then(|(job, _)| kind_of(job));
        kind.map_or(usize::MAX, most_starting)
    };
    let in_lanes = hidden.iter().map(|start| {
        let shard = lane_shard(kind_of(&start.run.job), start.run.shard);
        places_of(start, Some((start.run.job.as_str(), shard)))
    });
    let in_lanes: Vec<_> = in_lanes.collect();
    let too_many = without_place(&in_lanes, &places_in_lane);
    let mut violations: Vec<String> = too_many
        .into_iter()
        .map(|number| {
            let HiddenStart { run, attempt, .. } = &hidden[number];
            format!("G4: lost although no fault was left that hides a start in its lane: attempt {attempt} of {run:?}")
        })
        .collect();
    let on_workers = hidden.iter().map(|start| places_of(start, None));
    let on_workers: Vec<_> = on_workers.collect();
    let too_many = without_place(&on_workers, &|_| CONCURRENCY);
    if !too_many.is_empty() {
        violations.push(format!(
            "G4: {} attempts without a recorded start ended lost, {} more than the faults can hide; each hides at most {CONCURRENCY} for each worker that it interrupted",
            hidden.len(),
            too_many.len()
        ));
    }
    violations
}

fn places_of<'a>(start: &HiddenStart, lane: Option<Lane<'a>>) -> Vec<Places<'a>> {
    start.causes.iter().map(|cause| (*cause, lane)).collect()
}

/// How many attempts of one lane may be between the decision of the lane and the recorded start.
fn most_starting(kind: &JobKind) -> usize {
    match kind.block() {
        // An attempt that is covered while its record is under way frees the lane for the newer one.
        "cover" => 2,
        _ => kind.slots(),
    }
}

/// Gives each attempt one of the places that it may have held. Returns those for which none is left, however the places
/// are given away.
fn without_place<'a>(
    wanted: &[Vec<Places<'a>>],
    count: &dyn Fn(&Places<'a>) -> usize,
) -> Vec<usize> {
    let mut given = HashMap::new();
    let attempts = 0..wanted.len();
    attempts
        .filter(|attempt| !give_place(*attempt, wanted, count, &mut given, &mut HashSet::new()))
        .collect()
}

/// Finds a place for the attempt. Others move if they can: an augmenting path of a bipartite matching.
fn give_place<'a>(
    attempt: usize,
    wanted: &[Vec<Places<'a>>],
    count: &dyn Fn(&Places<'a>) -> usize,
    given: &mut HashMap<Places<'a>, Vec<usize>>,
    tried: &mut HashSet<Places<'a>>,
) -> bool {
    for places in &wanted[attempt] {
        if !tried.insert(*places) {
            continue;
        }
        let holders = given.entry(*places).or_default();
        if holders.len() < count(places) {
            holders.push(attempt);
            return true;
        }
        // Moving another attempt does not change these holders, because their places were tried.
        for (place, other) in holders.clone().into_iter().enumerate() {
            if give_place(other, wanted, count, given, tried) {
                if let Some(holders) = given.get_mut(places) {
                    holders[place] = attempt;
                }
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::{fault, run};
    use super::*;
    use crate::storm::faults::Target;
    use crate::storm::job_kinds::kinds;

    const KILLED: i64 = 10_000;

    fn kill(worker: usize) -> InjectedFault {
        let kind = FaultKind::Kill(Duration::ZERO);
        fault(Target::Worker(worker), kind, KILLED, KILLED + 5_000)
    }

    /// The number of violations for lost attempts of these jobs, each with these causes.
    fn judged(lost: &[(&str, &[Cause])]) -> usize {
        let runs = (1..).zip(lost).map(|(id, (job, _))| run(id, job, 0));
        let runs: Vec<Run> = runs.collect();
        let hidden = runs.iter().zip(lost).map(|(run, (_, causes))| HiddenStart {
            run,
            attempt: 1,
            causes: causes.to_vec(),
        });
        let hidden: Vec<_> = hidden.collect();
        check_hidden_starts(&hidden, &kinds()).len()
    }

    const ONE: &[Cause] = &[(0, 1)];
    const EITHER: &[Cause] = &[(0, 1), (0, 2)];

    #[test]
    fn an_interruption_hides_as_many_starts_as_a_lane_has_places() {
        for (job, most) in [
            ("serial-0", 1),
            ("discard-0", 1),
            ("parallel-0", 2),
            ("lasting-0", 10),
            // The covered one and the one that covered it.
            ("cover-0", 2),
        ] {
            assert_eq!(judged(&vec![(job, ONE); most]), 0, "{job}");
            assert_eq!(judged(&vec![(job, ONE); most + 1]), 1, "{job}");
        }
        assert_eq!(judged(&[("serial-0", ONE), ("serial-1", ONE)]), 0);
        let second_fault: &[Cause] = &[(1, 1)];
        assert_eq!(judged(&[("serial-0", ONE), ("serial-0", second_fault)]), 0);
    }

    #[test]
    fn attempts_of_unknown_workers_share_what_the_faults_hide() {
        let job = "serial-0";
        let three = [(job, EITHER), (job, EITHER), (job, ONE)];
        assert_eq!(judged(&three[..2]), 0, "one on each worker");
        assert_eq!(judged(&three[1..]), 0, "the first one moves");
        assert_eq!(judged(&three), 1);
    }

    #[test]
    fn an_interruption_hides_at_most_the_places_of_its_worker() {
        // Nothing is known about the lanes of these jobs.
        assert_eq!(judged(&vec![("other-0", ONE); CONCURRENCY]), 0);
        assert_eq!(judged(&vec![("other-0", ONE); CONCURRENCY + 1]), 1);
        assert_eq!(judged(&vec![("other-0", EITHER); 2 * CONCURRENCY]), 0);
    }

    #[test]
    fn a_kill_hides_no_start_of_a_trigger_that_was_published_later() {
        let of = |published_from| {
            let period = StartPeriod {
                published_from,
                decided_at: published_from,
                lost_at: KILLED + 20_000,
            };
            causes(&[kill(0), kill(1)], &[], Some("worker-2"), period)
        };
        assert_eq!(of(KILLED - 50), [(1, 2)]);
        assert_eq!(of(KILLED + SIGNALLED_MS), [(1, 2)]);
        assert_eq!(of(KILLED + SIGNALLED_MS + 1), [], "to the next process");
    }

    #[test]
    fn a_fault_of_the_broker_interrupts_each_worker() {
        let kind = FaultKind::Kill(Duration::ZERO);
        let broker = fault(Target::Broker, kind, KILLED, KILLED + 5_000);
        let period = StartPeriod {
            published_from: KILLED + 2_000,
            decided_at: KILLED + 2_000,
            lost_at: KILLED + 9_000,
        };
        let all = causes(std::slice::from_ref(&broker), &[], None, period);
        assert_eq!(all, [(0, 1), (0, 2), (0, 3)]);
        let later = StartPeriod {
            published_from: KILLED + 5_001,
            decided_at: KILLED + 5_001,
            ..period
        };
        assert_eq!(causes(&[broker], &[], None, later), []);
    }

    #[test]
    fn a_standstill_interrupts_each_worker() {
        let standstill = (KILLED, KILLED + 5_000);
        let period = StartPeriod {
            published_from: KILLED + 2_000,
            decided_at: KILLED + 2_000,
            lost_at: KILLED + 9_000,
        };
        let all = causes(&[kill(0)], &[standstill], None, period);
        assert_eq!(all, [(1, 1), (1, 2), (1, 3)]);
        let one = causes(&[], &[standstill], Some("worker-2"), period);
        assert_eq!(one, [(0, 2)]);
        let earlier = StartPeriod {
            published_from: KILLED - 2_000,
            decided_at: KILLED - 2_000,
            lost_at: KILLED - 1,
        };
        assert_eq!(causes(&[], &[standstill], None, earlier), []);
        let later = StartPeriod {
            published_from: KILLED + 8_001,
            ..period
        };
        assert_eq!(causes(&[], &[standstill], None, later), []);
    }
}
