//! The checker: what the database says of a storm, against what handlers wrote down, people were promised, and faults there were.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result};

use super::faults::{How, Past, Target};
use super::kinds::{Kind, kinds};
use super::people::{self, Cancelled, Phase, Promise};
use crate::books::{self, Run};
use crate::cluster::lease;
use crate::witness::{Note, What};

/// All that is known of a storm.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What the database says.
    pub runs: Vec<Run>,
    /// What handlers wrote down.
    pub notes: Vec<Note>,
    /// What happened.
    pub past: Vec<Past>,
    /// What people were promised.
    pub promises: Vec<Promise>,
    /// What people cancelled.
    pub cancelled: Vec<Cancelled>,
    /// When schedulers failed over an executor, and which.
    pub failovers: Vec<(i64, String)>,
    /// When nothing on the whole machine went on.
    pub standstills: Vec<(i64, i64)>,
}

/// What it comes to.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What should not be.
    pub wrong: Vec<String>,
    /// Overlaps with an attempt whose worker was stopped or killed just then, and starts that such an attempt noted late.
    pub excused: usize,
    /// The latest start while a scheduler was away, in milliseconds.
    pub latest_ms: i64,
}

type Ended = HashMap<(i64, u32), Vec<(What, i64)>>;

/// Compares the books.
pub fn audit(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let kinds = kinds();
    let mut ends = Ended::new();
    for note in &evidence.notes {
        if !matches!(note.what, What::Start | What::Overlap) {
            let id = (note.run, note.attempt);
            ends.entry(id).or_default().push((note.what, note.at));
        }
    }
    verdict
        .wrong
        .extend(attempts(evidence, &ends, &mut verdict.excused));
    for kind in &kinds {
        for name in kind.names() {
            let shards = if kind.prefix == "broadcast" {
                1
            } else {
                kind.shards
            };
            for shard in 0..shards {
                let times = books::grid_of(&evidence.runs, &name, shard as u64, kind.every_ms, 5);
                verdict.wrong.extend(times);
            }
        }
    }
    verdict.wrong.extend(truth(evidence, &kinds));
    verdict.wrong.extend(children(&evidence.runs));
    let created: HashMap<i64, i64> = evidence.runs.iter().map(|r| (r.id, r.created_at)).collect();
    let created_at = |run: i64| created.get(&run).copied();
    verdict.wrong.extend(people::broken(
        &evidence.promises,
        &evidence.notes,
        created_at,
    ));
    verdict.wrong.extend(cancels(evidence, &ends));
    if evidence.past.len() > 3 && !evidence.cancelled.iter().any(|c| c.strict.is_some()) {
        verdict
            .wrong
            .push("G11: nothing was cancelled in calm".to_owned());
    }
    verdict.wrong.extend(failovers(evidence));
    verdict.wrong.extend(graceful(evidence, &ends));
    verdict
        .wrong
        .extend(node_loss(evidence, &kinds, &mut verdict.latest_ms));
    verdict.wrong.extend(left_behind(&evidence.notes));
    verdict
}

fn is_start(note: &Note) -> bool {
    matches!(note.what, What::Start | What::Overlap)
}

fn is_program(job: &str) -> bool {
    job.starts_with("program") || job.starts_with("group")
}

fn name_of(target: Target) -> Option<String> {
    match target {
        Target::Worker(n) => Some(format!("worker-{}", n + 1)),
        _ => None,
    }
}

/// G4, G5, G6, G8, G10: no attempt starts twice, attempts of a run start in order, nothing overlaps, wherever it runs.
fn attempts(evidence: &Evidence, ends: &Ended, excused: &mut usize) -> Vec<String> {
    let mut wrong = books::known(&evidence.runs, &evidence.notes);
    for (late, before) in books::out_of_order(&evidence.notes) {
        if noted_late(evidence, late, before, ends) {
            *excused += 1;
        } else {
            wrong.push(format!("G5: {late:?} after {before:?}"));
        }
    }
    for note in &evidence.notes {
        if note.what != What::Overlap {
            continue;
        }
        match excuse(evidence, note, ends) {
            Ok(()) => *excused += 1,
            Err(why) => wrong.push(format!("G6, G10: overlap{why}: {note:?}")),
        }
    }
    wrong
}

/// What a stopped process was doing is cut short so long after it goes on.
const CUT_SHORT_MS: i64 = 1_000;

/// Whether an attempt was begun before the later one of its run was, and before its worker was stopped, and got to noting that only when its worker went on.
/// It must have come to nothing.
fn noted_late(evidence: &Evidence, note: &Note, later: &Note, ends: &Ended) -> bool {
    let in_order = note.run == later.run
        && note.attempt < later.attempt
        && note.begun < later.begun
        && note.executor != later.executor;
    let stopped = evidence.past.iter().find(|past| {
        let ours = name_of(past.fault.target).as_ref() == Some(&note.executor);
        let within = |until: i64| {
            // Nothing is begun while it is stopped.
            note.begun < until && (until..=until + CUT_SHORT_MS).contains(&note.at)
        };
        ours && past.stood_until.is_some_and(within)
    });
    let Some(past) = stopped.filter(|_| in_order) else {
        return false;
    };
    let id = (note.run, note.attempt);
    // The handler asks, right after it has noted its start, whether it has to stop. A program cannot.
    let has_ended = ends
        .get(&id)
        .is_some_and(|ends| ends.iter().any(|(what, _)| *what != What::Stop));
    !went_on(ends, id, past) && (is_program(&note.job) || !has_ended)
}

/// Whether an attempt went on for long after its worker had been set going.
fn went_on(ends: &Ended, attempt: (i64, u32), past: &Past) -> bool {
    let late = |(what, at): &(What, i64)| *what != What::Stop && *at > past.over + CUT_SHORT_MS;
    ends.get(&attempt).is_some_and(|ends| ends.iter().any(late))
}

/// The guard of a killed worker has ended its programs after this, on a busy machine.
const ENDED_BY_GUARD_MS: i64 = 2_000;

/// Whether one of the two was an attempt that could not be stopped, because its whole worker was, or was killed: it must have been of another executor,
/// and have come to nothing. That is the one which was there, or the one whose start was noted late.
fn excuse(evidence: &Evidence, note: &Note, ends: &Ended) -> Result<(), String> {
    let Some((executor, run, attempt)) = &note.other else {
        return Err(" with whom is not known".to_owned());
    };
    if *executor == note.executor {
        return Err(" on one executor".to_owned());
    }
    let mut notes = evidence.notes.iter();
    let other = notes
        .find(|n| is_start(n) && (n.run, n.attempt, &n.executor) == (*run, *attempt, executor));
    if other.is_some_and(|other| noted_late(evidence, note, other, ends)) {
        return Ok(());
    }
    if *run != note.run || *attempt >= note.attempt {
        return Err(" with none that came before it".to_owned());
    }
    let program = is_program(&note.job);
    let when = evidence.past.iter().find(|past| {
        let window = match past.fault.how {
            // Its worker's guard ends a program, unless it stands still itself.
            How::Stop(_, whole) if whole || !program => past.began..=past.over + CUT_SHORT_MS,
            How::Kill(_) if program => past.began..=past.began + ENDED_BY_GUARD_MS,
            _ => return false,
        };
        name_of(past.fault.target).as_ref() == Some(executor) && window.contains(&note.at)
    });
    let Some(past) = when else {
        return Err(String::new());
    };
    if matches!(past.fault.how, How::Stop(..)) && went_on(ends, (*run, *attempt), past) {
        return Err(" with one that went on long after its worker did".to_owned());
    }
    Ok(())
}

/// G4, G7, G8: each run's end is what its handler saw.
fn truth(evidence: &Evidence, kinds: &[Kind]) -> Vec<String> {
    let seen = books::seen(&evidence.notes);
    let nothing = BTreeSet::new();
    let mut wrong = Vec::new();
    for run in &evidence.runs {
        let kind = kinds.iter().find(|kind| kind.has(&run.job));
        let by_people = run.job.starts_with("edited-") || kind.is_none();
        let block = kind.map_or("serial", Kind::block);
        let witnessed = seen.get(&(run.id, run.attempt)).unwrap_or(&nothing);
        let ever_started = (1..=run.attempt).any(|a| seen.contains_key(&(run.id, a)));
        // The pause at the end met it before its trigger had gone out, while that was going out and then did not, or while it waited for another
        // attempt.
        let by_the_pause =
            run.message.contains("paused") || run.message.contains("stopped meanwhile");
        let is_true = match run.state.as_str() {
            "succeeded" => witnessed.contains("start") && witnessed.contains("end"),
            // After so many reruns it comes to rest.
            "lost" => !kind.is_some_and(Kind::reruns) || run.attempt > 3,
            "discarded" => block == "discard" && !witnessed.contains("start"),
            "covered" => block == "cover",
            "skipped" => !ever_started && (by_people || by_the_pause),
            "cancelled" => by_people || by_the_pause,
            "failed" => kind.is_some_and(Kind::fails) && witnessed.contains("fail"),
            _ => false,
        };
        if !is_true {
            wrong.push(format!(
                "G4: {run:?} is said to be {}, its handler noted {witnessed:?}",
                run.state
            ));
        }
    }
    wrong
}

/// G9: what follows from a success follows once.
fn children(runs: &[Run]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut children = BTreeMap::<i64, usize>::new();
    for child in runs.iter().filter(|r| r.job.starts_with("child-")) {
        *children.entry(child.parent.unwrap_or(-1)).or_default() += 1;
    }
    for parent in runs.iter().filter(|r| r.job.starts_with("parent-")) {
        let expected = usize::from(parent.state == "succeeded");
        let found = children.remove(&parent.id).unwrap_or(0);
        if found != expected {
            wrong.push(format!(
                "G9: {parent:?} has {found} child runs, not {expected}"
            ));
        }
    }
    if !children.is_empty() {
        wrong.push(format!("G9: child runs of no parent: {children:?}"));
    }
    wrong
}

/// An order reaches an executor within this, when nothing is in its way; it is repeated every second.
const TOLD_MS: i64 = 3_000;

/// G11: a scheduled run is never published, a queued one never starts, a running one is stopped.
fn cancels(evidence: &Evidence, ends: &Ended) -> Vec<String> {
    let mut wrong = Vec::new();
    let runs: HashMap<i64, &Run> = evidence.runs.iter().map(|r| (r.id, r)).collect();
    let mut starts = HashMap::<i64, Vec<&Note>>::new();
    for note in evidence.notes.iter().filter(|n| is_start(n)) {
        starts.entry(note.run).or_default().push(note);
    }
    for cancelled in &evidence.cancelled {
        let Some(run) = runs.get(&cancelled.run) else {
            wrong.push(format!("G11: no such run: {cancelled:?}"));
            continue;
        };
        let started = starts.get(&cancelled.run).map_or(&[][..], Vec::as_slice);
        let done = cancelled.answer == "done";
        if done && (run.state != "cancelled" || !started.is_empty()) {
            wrong.push(format!("G11: {cancelled:?}: {run:?}, {started:?}"));
        }
        // Where nothing was in the way of the order.
        let late = started.iter().find(|start| {
            let from = cancelled.at - TOLD_MS;
            start.at > cancelled.at + TOLD_MS && is_calm(evidence, from, start.at)
        });
        if let Some(late) = late {
            wrong.push(format!("G11: started long after {cancelled:?}: {late:?}"));
        }
        let Some(phase) = cancelled.strict else {
            continue;
        };
        let stopped = || {
            let ends = ends.get(&(run.id, run.attempt));
            ends.is_some_and(|ends| ends.iter().any(|(what, _)| *what == What::Stop))
        };
        let good = match phase {
            Phase::Scheduled => done,
            Phase::Queued => started.is_empty(),
            Phase::Running => stopped(),
            Phase::Group => !ends.contains_key(&(run.id, run.attempt)),
        };
        if !good || run.state != "cancelled" {
            wrong.push(format!("G11: {cancelled:?}: {run:?}, {started:?}"));
        }
    }
    wrong
}

/// Whether the whole machine stood still meanwhile.
fn stood_still(evidence: &Evidence, past: &Past) -> bool {
    let mut all = evidence.standstills.iter();
    all.any(|(from, to)| *from <= past.healed && past.began <= *to)
}

/// Whether nothing happened between the two.
fn is_calm(evidence: &Evidence, from: i64, to: i64) -> bool {
    let faults = evidence.past.iter().map(|p| (p.began, p.healed));
    let mut all = faults.chain(evidence.standstills.iter().copied());
    !all.any(|(began, over)| began <= to && from <= over)
}

/// A log line follows what it tells of.
const LOG_MS: i64 = 1_000;

/// G10: whoever is silent for long is failed over, and nobody is because somebody else could not hear.
fn failovers(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    for past in &evidence.past {
        let window = past.began..=past.healed + LOG_MS;
        let mut found = evidence
            .failovers
            .iter()
            .filter(|(at, _)| window.contains(at));
        let long = match past.fault.how {
            How::Stop(..) | How::CutOff(..) => true,
            How::Kill(away) => !away.is_zero(),
            How::End => false,
        };
        match name_of(past.fault.target) {
            None => {
                if let Some(found) = found.next() {
                    wrong.push(format!("G10: {found:?} was failed over at {past:?}"));
                }
            }
            Some(name) => {
                if let Some(other) = found.clone().find(|(_, n)| *n != name) {
                    wrong.push(format!("G10: {other:?} was failed over at {past:?}"));
                }
                let still = stood_still(evidence, past);
                if long && !still && !found.any(|(_, n)| *n == name) {
                    wrong.push(format!("G10: nothing was failed over at {past:?}"));
                }
            }
        }
    }
    wrong
}

/// G12: what runs on a worker that is asked to end comes to its end.
fn graceful(evidence: &Evidence, ends: &Ended) -> Vec<String> {
    let mut wrong = Vec::new();
    for past in evidence.past.iter().filter(|p| p.fault.how == How::End) {
        let Some(name) = name_of(past.fault.target) else {
            continue;
        };
        let same = |p: &&Past| p.fault.target == past.fault.target && p.healed < past.began;
        let since = evidence.past.iter().filter(same).map(|p| p.healed).max();
        for start in evidence.notes.iter().filter(|n| is_start(n)) {
            // What is covered is stopped at any time, and a program then notes nothing.
            let odd = start.job.starts_with("program-cover") || start.job.starts_with("group");
            let there = start.executor == name
                && start.at > since.unwrap_or(0)
                && start.at <= past.over
                && !odd;
            let ended = ends.get(&(start.run, start.attempt));
            let there = there && !stood_still(evidence, past);
            if there && !ended.is_some_and(|e| e.iter().any(|(_, at)| *at <= past.over)) {
                wrong.push(format!(
                    "G12: {start:?} had not ended when {name} had, at {past:?}"
                ));
            }
        }
    }
    wrong
}

/// Beyond the lease: finding out, claiming, publishing, on a busy machine.
const SLACK_MS: i64 = 4_000;

/// G13: what a scheduler had claimed is started within its lease, by the other.
fn node_loss(evidence: &Evidence, kinds: &[Kind], latest_ms: &mut i64) -> Vec<String> {
    let mut wrong = Vec::new();
    let lease_ms = i64::try_from(lease().as_millis()).unwrap_or(i64::MAX);
    for past in &evidence.past {
        if !matches!(past.fault.target, Target::Scheduler(_)) || stood_still(evidence, past) {
            continue;
        }
        let due = past.began - 500..=past.healed;
        let prompt = |n: &&Note| {
            is_start(n)
                && n.attempt == 1
                && due.contains(&n.fire_at)
                && kinds
                    .iter()
                    .any(|k| k.is_prompt() && k.has(&n.job) && k.prefix != "parent")
        };
        let latest = evidence
            .notes
            .iter()
            .filter(prompt)
            .max_by_key(|n| n.at - n.fire_at);
        let Some(latest) = latest else {
            wrong.push(format!("G13: nothing was started at {past:?}"));
            continue;
        };
        let late_ms = latest.at - latest.fire_at;
        *latest_ms = late_ms.max(*latest_ms);
        if late_ms > lease_ms + SLACK_MS {
            wrong.push(format!("G13: {late_ms} ms late at {past:?}: {latest:?}"));
        }
    }
    wrong
}

/// G11: no process of what was stopped is left.
fn left_behind(notes: &[Note]) -> Vec<String> {
    let groups: BTreeSet<i32> = notes
        .iter()
        .filter(|n| n.job.starts_with("group"))
        .map(|n| n.pid)
        .collect();
    let left = groups
        .into_iter()
        .filter(|g| people::has_members(*g).unwrap_or(true));
    left.map(|g| format!("G11: processes of group {g} are left"))
        .collect()
}

/// When a scheduler says in its log that it failed over an executor, and which.
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
