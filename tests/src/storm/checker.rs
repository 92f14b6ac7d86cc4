//! The checker of a storm: compares the database with the execution log, the promises to operators, and the faults.
//!
//! Each check is a pure function of the [`Observations`], except for the one that looks for processes that are left.

mod early_starts;
#[cfg(test)]
mod fixture;
mod full_disks;
mod hidden_starts;
mod lanes;
mod losses;
mod records;
mod reruns;
mod schedules;
mod serial_order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result};

use super::cluster::{failover_after, lease};
use super::faults::{FaultKind, InjectedFault, Target};
use super::job_kinds::{JobKind, kinds};
use super::lane_log::LaneLog;
use super::operator_actions::{Cancellation, Phase, Promise, check_promises, group_has_processes};
use super::store_records::{LedgerEntry, TimelineEvent};
use crate::consistency::{
    Run, check_children, check_fire_times, check_known, events_by_attempt, out_of_order,
};
use crate::execution_log::{Entry, Event};
use records::{Records, delayed, disturbs_until, halted_ms, has_standstill, long_standstills};

/// The observations of a storm. All times are in milliseconds.
#[derive(Debug, Default)]
pub struct Observations {
    pub runs: Vec<Run>,
    pub entries: Vec<Entry>,
    pub faults: Vec<InjectedFault>,
    pub promises: Vec<Promise>,
    pub cancellations: Vec<Cancellation>,
    /// When a scheduler failed over an executor, and the executor's name.
    pub failovers: Vec<(i64, String)>,
    /// Periods in which the whole machine, or its disk, was halted, in order. None overlap.
    pub standstills: Vec<(i64, i64)>,
    /// Triggers that the schedulers found to be lost and published again.
    pub reconciled: u64,
    /// Of the runs that [`runs_with_timeline`] names.
    pub timelines: HashMap<i64, Vec<TimelineEvent>>,
    /// What the lanes of each worker did, by the worker's name.
    pub lanes: HashMap<String, LaneLog>,
    /// Of the jobs with a short misfire grace.
    pub ledgers: HashMap<String, Vec<LedgerEntry>>,
    /// When the jobs were there.
    pub scheduled_from: i64,
    /// When the first job was about to be paused.
    pub scheduled_until: i64,
}

/// The runs whose timelines the checks need.
pub fn runs_with_timeline(observed: &Observations) -> BTreeSet<i64> {
    let several = observed.runs.iter().filter(|r| r.attempt > 1).map(|r| r.id);
    let out_of_order = serial_order::inversions(&observed.entries, &kinds());
    let out_of_order = out_of_order.iter().map(|inversion| inversion.late.run);
    several.chain(out_of_order).collect()
}

/// How many faults of which kind hit which part, and how many runs were in flight meanwhile.
pub fn faults_met(
    observed: &Observations,
) -> BTreeMap<(&'static str, &'static str), (usize, usize)> {
    let mut met = BTreeMap::<_, (usize, usize)>::new();
    for fault in &observed.faults {
        let in_flight = observed.runs.iter().filter(|run| {
            let began = run.fire_at.max(run.created_at);
            let there = !fault.fault.target.is_worker() || fault.hits_worker(&run.executor);
            there && began <= fault.over && run.ended_at.is_some_and(|ended| fault.began <= ended)
        });
        let of = (fault.fault.kind.name(), fault.fault.target.part());
        let (faults, runs) = met.entry(of).or_default();
        *faults += 1;
        *runs += in_flight.count();
    }
    met
}

/// The result of the checks.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Each starts with the guarantee that it violates.
    pub violations: Vec<String>,
    /// Overlaps with attempts whose worker was stopped or killed, and late start records of such attempts.
    pub excused: usize,
    /// Lost attempts of workers that were killed or frozen when the attempt was about to start. Whether it did is
    /// unknown.
    pub uncertain: usize,
    /// Starts out of order, because the older run was published after the newer one had started.
    pub published_late: usize,
    /// Starts out of order, because a fault of the worker or the broker delayed the delivery of the older run.
    pub delivered_again: usize,
    /// The latest start while a scheduler was away, in milliseconds after its fire time.
    pub latest_ms: i64,
}

/// The ends that each attempt recorded, and when.
type Ends = HashMap<(i64, u32), Vec<(Event, i64)>>;

/// Fire times that each job of a storm must have.
const LEAST_FIRE_TIMES: usize = 5;

/// Checks all guarantees.
pub fn check(observed: &Observations) -> Verdict {
    let mut verdict = Verdict::default();
    let kinds = kinds();
    let mut ends = Ends::new();
    for entry in observed.entries.iter().filter(|e| !e.is_start()) {
        let id = (entry.run, entry.attempt);
        ends.entry(id).or_default().push((entry.event, entry.at));
    }
    let mut violations = check_attempts(observed, &ends, &mut verdict.excused);
    // The ledger tells the fire times of a job that may skip some.
    for kind in kinds.iter().filter(|kind| kind.misfire.is_none()) {
        for name in kind.names() {
            violations.extend(check_fire_times(
                &observed.runs,
                &name,
                0,
                kind.every_ms,
                LEAST_FIRE_TIMES,
            ));
        }
    }
    violations.extend(check_by_execution_log(observed, &kinds, &mut verdict));
    violations.extend(schedules::check_window(observed, &kinds));
    let executors = super::WORKERS as u64;
    violations.extend(schedules::check_shards(&observed.runs, &kinds, executors));
    violations.extend(schedules::check_misfires(observed, &kinds));
    violations.extend(check_outcomes(observed, &kinds));
    violations.extend(check_children(&observed.runs, "parent-", "child-"));
    let created: HashMap<i64, i64> = observed.runs.iter().map(|r| (r.id, r.created_at)).collect();
    let created_at = |run: i64| created.get(&run).copied();
    let promises = check_promises(&observed.promises, &observed.entries, created_at);
    violations.extend(promises);
    violations.extend(check_cancellations(observed, &ends));
    if observed.faults.len() > 3 && observed.cancellations.iter().all(|c| c.phase.is_none()) {
        violations.push("G11: nothing was cancelled between two faults".to_owned());
    }
    violations.extend(check_failovers(observed));
    // No server of a storm loses what it has confirmed, and no worker loses its journal.
    if observed.reconciled > 0 {
        let lost = observed.reconciled;
        violations.push(format!("G2: {lost} triggers were lost on the way"));
    }
    violations.extend(check_terminations(observed, &ends));
    violations.extend(check_node_loss(observed, &kinds, &mut verdict.latest_ms));
    violations.extend(early_starts::check_early_starts(observed));
    violations.extend(full_disks::check_full_disks(observed));
    violations.extend(check_process_groups(&observed.entries));
    verdict.violations = violations;
    verdict
}

/// G4 to G9: what became of attempts, and what lanes did, by the execution log.
fn check_by_execution_log(
    observed: &Observations,
    kinds: &[JobKind],
    verdict: &mut Verdict,
) -> Vec<String> {
    let records = Records::new(&observed.entries);
    let (mut violations, uncertain) = losses::check_losses(observed, &records, kinds);
    verdict.uncertain = uncertain;
    violations.extend(lanes::check_discarded(observed, &records, kinds));
    violations.extend(lanes::check_covered(observed, &records, kinds));
    let (disorder, late_triggers) = serial_order::check_serial_order(observed, kinds);
    violations.extend(disorder);
    verdict.published_late = late_triggers.published_late;
    verdict.delivered_again = late_triggers.delivered_again;
    violations.extend(reruns::check_reruns(observed, &records, kinds));
    violations
}

/// Whether the job's handler is a process of its own.
fn is_program(job: &str) -> bool {
    job.starts_with("program") || job.starts_with("process-group")
}

/// G4, G5, G6, G8, G10: no attempt starts twice, attempts of a run start in order, and no two attempts overlap.
fn check_attempts(observed: &Observations, ends: &Ends, excused: &mut usize) -> Vec<String> {
    let mut violations = check_known(&observed.runs, &observed.entries);
    for (late, earlier) in out_of_order(&observed.entries) {
        if is_recorded_late(observed, late, earlier, ends) {
            *excused += 1;
        } else {
            violations.push(format!("G5: {late:?} after {earlier:?}"));
        }
    }
    for entry in &observed.entries {
        if entry.event != Event::Overlap {
            continue;
        }
        match excuse(observed, entry, ends) {
            Ok(()) => *excused += 1,
            Err(why) => violations.push(format!("G6, G10: overlap{why}: {entry:?}")),
        }
    }
    violations
}

/// After a stop, a process ends its attempts within this time.
const CUT_SHORT_MS: i64 = 1_000;

/// Whether the attempt began before its worker was stopped, and recorded its start only after the stop. A later attempt
/// of the run had then started elsewhere. The late attempt must end without effect.
fn is_recorded_late(observed: &Observations, entry: &Entry, later: &Entry, ends: &Ends) -> bool {
    let in_order = entry.run == later.run
        && entry.attempt < later.attempt
        && entry.began < later.began
        && entry.executor != later.executor;
    let stop = observed.faults.iter().find(|fault| {
        let same = fault.hits_worker(&entry.executor);
        let explains = |until: i64| {
            // A stopped worker begins no attempt.
            let recorded_until = delayed(observed, until, CUT_SHORT_MS);
            entry.began < until && (until..=recorded_until).contains(&entry.at)
        };
        same && fault.stopped_until.is_some_and(explains)
    });
    let Some(stop) = stop.filter(|_| in_order) else {
        return false;
    };
    let id = (entry.run, entry.attempt);
    // A native handler checks for cancellation right after it has recorded its start. A program cannot.
    let has_ended = ends
        .get(&id)
        .is_some_and(|ends| ends.iter().any(|(event, _)| *event != Event::Stop));
    !continued(observed, ends, id, stop) && (is_program(&entry.job) || !has_ended)
}

/// Whether an attempt kept running for too long after its worker continued.
fn continued(
    observed: &Observations,
    ends: &Ends,
    attempt: (i64, u32),
    stop: &InjectedFault,
) -> bool {
    let until = delayed(observed, stop.over, CUT_SHORT_MS);
    let late = |(event, at): &(Event, i64)| *event != Event::Stop && *at > until;
    ends.get(&attempt).is_some_and(|ends| ends.iter().any(late))
}

/// After a worker's death its guard ends its programs within this time, even on a busy machine.
const ENDED_BY_GUARD_MS: i64 = 2_000;

/// Whether one of the two overlapping attempts could not be stopped, because its worker was stopped or killed. It must
/// be on another executor and must end without effect. It is either the attempt that was running, or the one that
/// recorded its start late.
fn excuse(observed: &Observations, entry: &Entry, ends: &Ends) -> Result<(), String> {
    let Some((executor, run, attempt)) = &entry.other else {
        return Err(" with an unknown attempt".to_owned());
    };
    if *executor == entry.executor {
        return Err(" on one executor".to_owned());
    }
    let mut starts = observed.entries.iter().filter(|e| e.is_start());
    let other = starts.find(|e| (e.run, e.attempt, &e.executor) == (*run, *attempt, executor));
    if other.is_some_and(|other| is_recorded_late(observed, entry, other, ends)) {
        return Ok(());
    }
    // In the lane of a group, another run follows an attempt whose worker was stopped and failed over.
    let shares_lane = kinds()
        .iter()
        .any(|kind| kind.has(&entry.job) && kind.has_group_lane());
    let is_earlier = *run == entry.run && *attempt < entry.attempt;
    if !(is_earlier || shares_lane && *run != entry.run) {
        return Err(" with an attempt that is not an earlier one".to_owned());
    }
    let program = is_program(&entry.job);
    let cause = observed.faults.iter().find(|fault| {
        let period = match fault.fault.kind {
            // The worker's guard ends a program, unless the guard is stopped too.
            FaultKind::Stop(_, whole) if whole || !program => {
                fault.began..=delayed(observed, fault.over, CUT_SHORT_MS)
            }
            FaultKind::Kill(_) if program => {
                fault.began..=delayed(observed, fault.began, ENDED_BY_GUARD_MS)
            }
            _ => return false,
        };
        fault.hits_worker(executor) && period.contains(&entry.at)
    });
    let Some(cause) = cause else {
        return Err(String::new());
    };
    let is_stop = matches!(cause.fault.kind, FaultKind::Stop(..));
    if is_stop && continued(observed, ends, (*run, *attempt), cause) {
        return Err(" with an attempt that went on long after its worker continued".to_owned());
    }
    Ok(())
}

/// A run with `on_lost = "rerun"` ends `lost` after this many reruns.
const RERUNS: u32 = 3;

/// G4, G7, G8: the state of each run agrees with what its handler recorded.
fn check_outcomes(observed: &Observations, kinds: &[JobKind]) -> Vec<String> {
    let events = events_by_attempt(&observed.entries);
    let nothing = BTreeSet::new();
    let mut violations = Vec::new();
    for run in &observed.runs {
        let kind = kinds.iter().find(|kind| kind.has(&run.job));
        let by_operator = run.job.starts_with("edited-") || kind.is_none();
        let block = kind.map_or("serial", JobKind::block);
        let recorded = events.get(&(run.id, run.attempt)).unwrap_or(&nothing);
        let ever_started = (1..=run.attempt).any(|a| events.contains_key(&(run.id, a)));
        // The pause at the end of the storm may meet a run before or during its publish, or while it waits for another
        // attempt.
        let by_final_pause =
            run.message.contains("paused") || run.message.contains("stopped meanwhile");
        let by_misfire = run.message.contains("misfire policy")
            && kind.is_some_and(|kind| kind.misfire.is_some());
        let agrees = match run.state.as_str() {
            "succeeded" => recorded.contains("start") && recorded.contains("end"),
            // Why it was lost, discarded or covered is checked with the faults and the other runs of its lane.
            "lost" => !kind.is_some_and(JobKind::reruns) || run.attempt > RERUNS,
            "discarded" => !recorded.contains("start"),
            "covered" => block == "cover",
            "skipped" => !ever_started && (by_operator || by_final_pause || by_misfire),
            "cancelled" => by_operator || by_final_pause,
            "failed" => kind.is_some_and(JobKind::fails) && recorded.contains("fail"),
            _ => false,
        };
        if !agrees {
            violations.push(format!(
                "G4: {run:?} is {}, its handler recorded {recorded:?}",
                run.state
            ));
        }
    }
    violations
}

/// A cancellation reaches an executor within this time while no fault is present; it is repeated every second.
const CANCELLATION_MS: i64 = 3_000;

/// G11: a cancelled run is never published if it was scheduled, never starts if it was queued, and is stopped if it was
/// running.
fn check_cancellations(observed: &Observations, ends: &Ends) -> Vec<String> {
    let mut violations = Vec::new();
    let runs: HashMap<i64, &Run> = observed.runs.iter().map(|r| (r.id, r)).collect();
    let mut starts = HashMap::<i64, Vec<&Entry>>::new();
    for entry in observed.entries.iter().filter(|e| e.is_start()) {
        starts.entry(entry.run).or_default().push(entry);
    }
    for cancellation in &observed.cancellations {
        let Some(run) = runs.get(&cancellation.run) else {
            violations.push(format!("G11: no such run: {cancellation:?}"));
            continue;
        };
        let started = starts.get(&cancellation.run).map_or(&[][..], Vec::as_slice);
        let done = cancellation.answer == "done";
        if done && (run.state != "cancelled" || !started.is_empty()) {
            violations.push(format!("G11: {cancellation:?}: {run:?}, {started:?}"));
        }
        let late = started.iter().find(|start| {
            let from = cancellation.at - CANCELLATION_MS;
            start.at > cancellation.at + CANCELLATION_MS && is_undisturbed(observed, from, start.at)
        });
        if let Some(late) = late {
            violations.push(format!(
                "G11: started long after {cancellation:?}: {late:?}"
            ));
        }
        let Some(phase) = cancellation.phase else {
            continue;
        };
        let stopped = || {
            let ends = ends.get(&(run.id, run.attempt));
            ends.is_some_and(|ends| ends.iter().any(|(event, _)| *event == Event::Stop))
        };
        let good = match phase {
            Phase::Scheduled => done,
            Phase::Queued => started.is_empty(),
            Phase::Running => stopped(),
            Phase::ProcessGroup => !ends.contains_key(&(run.id, run.attempt)),
        };
        if !good || run.state != "cancelled" {
            violations.push(format!("G11: {cancellation:?}: {run:?}, {started:?}"));
        }
    }
    violations
}

/// Whether the whole machine, or its disk, was halted during the fault.
fn stood_still(observed: &Observations, fault: &InjectedFault) -> bool {
    has_standstill(observed, fault.began, fault.healed)
}

/// Whether there was neither a fault nor a standstill in this period.
fn is_undisturbed(observed: &Observations, from: i64, to: i64) -> bool {
    let faults = observed.faults.iter().map(|f| (f.began, f.healed));
    let mut all = faults.chain(long_standstills(observed));
    !all.any(|(began, over)| began <= to && from <= over)
}

/// A log line may be written this long after the event that it reports.
const LOG_MS: i64 = 1_000;

/// Whether another fault was present together with this one. What this one must cause is then uncertain.
fn is_alone(observed: &Observations, fault: &InjectedFault) -> bool {
    let mut others = observed
        .faults
        .iter()
        .filter(|other| other.fault != fault.fault || other.began != fault.began);
    !others.any(|other| other.overlaps(fault.began, fault.healed))
}

/// Whether the fault may silence workers while schedulers receive their own messages: those that are connected to a
/// frozen or isolated server of a cluster. Clients of a killed one notice it at once and go to another.
fn silences_clients(fault: &InjectedFault) -> bool {
    let silent = matches!(
        fault.fault.kind,
        FaultKind::Stop(..) | FaultKind::Isolate(_)
    );
    silent && matches!(fault.fault.target, Target::BrokerNode(_))
}

/// G10: exactly the executors that are silent for too long are failed over, even if a scheduler receives no heartbeats.
fn check_failovers(observed: &Observations) -> Vec<String> {
    let mut violations = Vec::new();
    let explains = |fault: &InjectedFault, at: i64, name: &str| {
        let period = fault.began..=fault.healed + LOG_MS;
        // A worker with a full disk sends its heartbeats.
        let is_silent = fault.hits_worker(name) && !fault.fills_disk_of(name);
        (is_silent || silences_clients(fault)) && period.contains(&at)
    };
    let silence_ms = i64::try_from(failover_after().as_millis()).unwrap_or(i64::MAX);
    for (at, name) in &observed.failovers {
        // On a machine that is halted for most of the time, each worker is silent.
        let halted_ms = halted_ms(observed, at - silence_ms - LOG_MS, *at);
        if halted_ms * 2 >= silence_ms {
            continue;
        }
        if !observed.faults.iter().any(|f| explains(f, *at, name)) {
            violations.push(format!(
                "G10: {name} was failed over at {at} without a fault"
            ));
        }
    }
    for fault in &observed.faults {
        let long = match fault.fault.kind {
            FaultKind::Stop(..) | FaultKind::Disconnect(..) => true,
            FaultKind::Kill(away) => !away.is_zero(),
            FaultKind::Terminate
            | FaultKind::Isolate(_)
            | FaultKind::Promote
            | FaultKind::StepClock(..)
            | FaultKind::Fill(_) => false,
        };
        if !long || !is_alone(observed, fault) || stood_still(observed, fault) {
            continue;
        }
        for name in (1..=super::WORKERS).map(|n| format!("worker-{n}")) {
            let found = |(at, other): &(i64, String)| *other == name && explains(fault, *at, other);
            if fault.hits_worker(&name) && !observed.failovers.iter().any(found) {
                violations.push(format!("G10: {name} was not failed over at {fault:?}"));
            }
        }
    }
    violations
}

/// G12: attempts on a worker that gets SIGTERM run to their end.
fn check_terminations(observed: &Observations, ends: &Ends) -> Vec<String> {
    let mut violations = Vec::new();
    let faults = observed.faults.iter();
    for fault in faults.filter(|f| f.fault.kind == FaultKind::Terminate) {
        let Target::Worker(n) = fault.fault.target else {
            continue;
        };
        let name = format!("worker-{}", n + 1);
        for start in observed.entries.iter().filter(|e| e.is_start()) {
            // A covered program may be stopped at any time and then records no end.
            let records_no_end =
                start.job.starts_with("program-cover") || start.job.starts_with("process-group");
            let there = start.executor == name && start.at <= fault.over && !records_no_end;
            let there = there && !stood_still(observed, fault);
            let by_another = || observed.faults.iter().any(|f| may_end(f, start, fault));
            let ended = ends.get(&(start.run, start.attempt));
            let has_ended = ended.is_some_and(|e| e.iter().any(|(_, at)| *at <= fault.over));
            if there && !has_ended && !by_another() {
                violations.push(format!(
                    "G12: {start:?} had not ended when {name} had, at {fault:?}"
                ));
            }
        }
    }
    violations
}

/// Whether an earlier fault may have ended the attempt without a record of its end: its worker was killed, or the worker
/// killed the attempt itself. It does so when it has lost the broker. A native handler then records that it was stopped,
/// unless its worker was stopped too and has no time left. A program cannot.
fn may_end(earlier: &InjectedFault, start: &Entry, drain: &InjectedFault) -> bool {
    let is_of_worker = earlier.hits_worker(&start.executor);
    let is_before = if is_of_worker {
        earlier.healed < drain.began
    } else {
        is_program(&start.job) && earlier.began <= drain.over
    };
    let until = disturbs_until(earlier, &start.executor);
    is_before && until.is_some_and(|until| start.at <= until)
}

/// The time for detection, claim and publish on a busy machine, in addition to the lease.
const SLACK_MS: i64 = 4_000;

/// G13: the other scheduler starts the claimed runs of a lost scheduler within its lease.
fn check_node_loss(observed: &Observations, kinds: &[JobKind], latest_ms: &mut i64) -> Vec<String> {
    let mut violations = Vec::new();
    let serial_ends = lanes::SerialEnds::new(&observed.entries, kinds);
    let lease_ms = i64::try_from(lease().as_millis()).unwrap_or(i64::MAX);
    for fault in &observed.faults {
        let scheduler = matches!(fault.fault.target, Target::Scheduler(_));
        // Without a store, a broker or a worker, runs start late for another reason.
        if !scheduler || !is_alone(observed, fault) || stood_still(observed, fault) {
            continue;
        }
        let due = fault.began - 500..=fault.healed;
        let is_prompt = |e: &&Entry| {
            e.is_start()
                && e.attempt == 1
                && due.contains(&e.fire_at)
                && kinds
                    .iter()
                    .any(|k| k.is_prompt() && k.has(&e.job) && k.prefix != "parent")
        };
        let late_ms = |e: &Entry| e.at - serial_ends.ready_at(e);
        let latest = observed
            .entries
            .iter()
            .filter(is_prompt)
            .max_by_key(|e| late_ms(e));
        let Some(latest) = latest else {
            violations.push(format!("G13: no run started at {fault:?}"));
            continue;
        };
        let late_ms = late_ms(latest);
        *latest_ms = late_ms.max(*latest_ms);
        let halted_ms = halted_ms(observed, fault.began, latest.at);
        if late_ms > lease_ms + SLACK_MS + halted_ms {
            violations.push(format!("G13: {late_ms} ms late at {fault:?}: {latest:?}"));
        }
    }
    violations
}

/// G11: no process of a cancelled group is alive after the storm.
fn check_process_groups(entries: &[Entry]) -> Vec<String> {
    let groups: BTreeSet<i32> = entries
        .iter()
        .filter(|e| e.job.starts_with("process-group"))
        .map(|e| e.pid)
        .collect();
    let left = groups
        .into_iter()
        .filter(|group| group_has_processes(*group).unwrap_or(true));
    left.map(|group| format!("G11: processes of group {group} are left"))
        .collect()
}

/// The failovers in a scheduler's log: their times and the executors' names.
pub fn failovers_in(log: &str) -> Result<Vec<(i64, String)>> {
    let lines = log
        .lines()
        .filter(|l| l.contains("failed over an executor"));
    lines
        .map(|line| {
            let at = line.split_whitespace().next().unwrap_or_default();
            let at: jiff::Timestamp = at.parse().with_context(|| line.to_owned())?;
            let name = line.split("executor=").nth(1).context("no executor")?;
            let name = name.split_whitespace().next().unwrap_or_default();
            Ok((at.as_millisecond(), name.to_owned()))
        })
        .collect()
}
