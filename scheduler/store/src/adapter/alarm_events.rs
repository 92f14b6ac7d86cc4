//! Alarms: what ends of runs and missed fire times raise, and which messages events become. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::alarm::{
    AlarmFacts, ConditionKind, EndsEvaluated, JobEnd, JobLoad, LevelFound, NewAlarmEvent, Streak,
    evaluate_ends, missed,
};
use cueline_model::{AlarmBook, ChannelName, JobId, RunId, RunState, Timestamp};

use super::convert::{corrupt, parse_name, to_i64, to_u32, to_u64, without_nul};
use super::definitions::JobsById;
use super::new_run::NewRun;
use super::report_batch::BatchWrites;
use crate::{AlarmEvent, AlarmFate, LEVEL_ENDS_AFTER, StoreError};

/// The ends of a batch that may raise alarms, in the order in which they happened: failures, successes of jobs that have
/// failed before, and misfires that a takeover finds. There are none in nearly all batches, and then nothing more is read.
pub fn alarming_ends<'a>(writes: &'a BatchWrites, jobs: &'a JobsById) -> Vec<JobEnd<'a>> {
    let failed: BTreeSet<i64> = writes
        .ended
        .iter()
        .filter(|(_, end)| end.state.is_failure())
        .map(|(run, _)| run.job_id)
        .collect();
    let mut ends: Vec<JobEnd<'a>> = writes
        .ended
        .iter()
        .filter(|(run, end)| {
            end.state.is_failure()
                || end.state == RunState::Skipped
                || (end.is_success() && (run.is_of_failing_job() || failed.contains(&run.job_id)))
        })
        .filter_map(|(run, end)| {
            Some(JobEnd {
                run: RunId(run.id),
                job: jobs.get(&run.job_id)?,
                state: end.state,
                at: end.ended_at?,
                message: end.message.as_deref(),
            })
        })
        .collect();
    ends.sort_by_key(|end| (end.at, end.run));
    ends
}

/// Whether nothing follows from ends, whatever the streaks of their jobs are: without any rule, only a success changes
/// something.
pub fn raise_nothing(book: &AlarmBook, ends: &[JobEnd<'_>]) -> bool {
    book.rules.is_empty() && ends.iter().all(|end| end.state != RunState::Succeeded)
}

/// A stored streak: job, failures, first run, time of its end.
pub type StreakRow = (i64, i64, i64, i64);

/// What the ends of a batch write.
#[derive(Debug, Default)]
pub struct EndWrites {
    /// Streaks that go on.
    pub streaks: Vec<StreakRow>,
    /// Jobs whose streak has ended.
    pub ended_streaks: Vec<i64>,
    /// Events.
    pub events: Vec<NewAlarmEvent>,
}

/// Decides what the ends of a batch write.
pub fn end_writes(
    book: &AlarmBook,
    ends: &[JobEnd<'_>],
    streaks: Vec<StreakRow>,
    now: Timestamp,
) -> EndWrites {
    let streaks: BTreeMap<JobId, Streak> = streaks
        .into_iter()
        .map(|(job, failures, first_run, since)| {
            let streak = Streak {
                failures: to_u32(failures),
                first_run: RunId(first_run),
                since: Timestamp::from_millis(since),
            };
            (JobId(job), streak)
        })
        .collect();
    let EndsEvaluated { streaks, events } = evaluate_ends(book, ends, &streaks, now);
    let mut writes = EndWrites {
        events,
        ..EndWrites::default()
    };
    for (job, streak) in streaks {
        match streak {
            Some(streak) => {
                writes.streaks.push((
                    job.0,
                    i64::from(streak.failures),
                    streak.first_run.0,
                    streak.since.as_millis(),
                ));
            }
            None => writes.ended_streaks.push(job.0),
        }
    }
    writes
}

/// The alarms about fire times that a call skips because it found them too late. `left_out` are the ids of runs that were
/// not written.
pub fn missed_events(
    book: &AlarmBook,
    runs: &[NewRun],
    left_out: &BTreeSet<i64>,
    now: Timestamp,
) -> Vec<NewAlarmEvent> {
    let mut events = Vec::new();
    for run in runs.iter().filter(|run| !left_out.contains(&run.id)) {
        if let Some(skipped) = run.skipped.as_ref().filter(|skipped| skipped.missed) {
            let span = (skipped.count, skipped.since, run.fire_at);
            events.extend(missed(book, &run.job, span, &skipped.reason, now));
        }
    }
    events
}

/// Whether a call skips fire times because it found them too late.
pub fn has_missed(runs: &[NewRun]) -> bool {
    let is_missed = |run: &NewRun| run.skipped.as_ref().is_some_and(|skipped| skipped.missed);
    runs.iter().any(is_missed)
}

/// The columns of a new event: time, namespace, rule number, rule, key, kind, job, facts, when it is sent.
pub type EventColumns = (
    i64,
    String,
    i64,
    String,
    String,
    &'static str,
    Option<String>,
    String,
    i64,
);

/// The columns of new events.
pub fn event_columns(events: &[NewAlarmEvent]) -> Vec<EventColumns> {
    let columns = |event: &NewAlarmEvent| {
        (
            event.at.as_millis(),
            event.rule.namespace().to_string(),
            event.rule_id,
            event.rule.to_string(),
            event.key.clone(),
            event.kind.as_str(),
            event.facts.job.as_ref().map(ToString::to_string),
            facts_text(&event.facts),
            event.send_at.as_millis(),
        )
    };
    events.iter().map(columns).collect()
}

/// Facts as they are stored.
pub fn facts_text(facts: &AlarmFacts) -> String {
    let text = serde_json::to_string(facts).unwrap_or_default();
    // A NUL in a message is written as an escape, which PostgreSQL keeps as text.
    without_nul(&text).into_owned()
}

/// An event whose time has come: id, time, rule number, rule, kind, facts.
pub type WaitingRow = (i64, i64, i64, String, String, String);

/// The code of [`AlarmFate::Sent`].
pub const FATE_SENT: i64 = 1;
/// The code of [`AlarmFate::Silenced`].
pub const FATE_SILENCED: i64 = 2;
/// The code of [`AlarmFate::Dropped`].
pub const FATE_DROPPED: i64 = 3;

/// A new delivery: batch, namespace, rule, channel, number of events, and why it is not sent; empty if it is.
pub type NewDeliveryRow = (i64, String, String, String, i64, String);

/// What becomes of events, and the deliveries of their messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Event, fate, and the batch or the silence.
    pub fates: Vec<(i64, i64, Option<i64>)>,
    /// The deliveries.
    pub deliveries: Vec<NewDeliveryRow>,
    /// How many events are silenced.
    pub silenced: usize,
}

/// Makes messages of events, which are sorted by rule and number: one for each rule.
pub fn collect(book: &AlarmBook, rows: &[WaitingRow], now: Timestamp) -> Collected {
    let mut collected = Collected::default();
    for of_rule in rows.chunk_by(|a, b| a.2 == b.2) {
        let rule = of_rule.first().and_then(|row| book.rule(row.2));
        let rule = rule.filter(|rule| rule.spec.enabled);
        let mut sent: Vec<i64> = Vec::new();
        for (id, at, _, _, _, facts) in of_rule {
            let Some(rule) = rule else {
                collected.fates.push((*id, FATE_DROPPED, None));
                continue;
            };
            let facts: AlarmFacts = serde_json::from_str(facts).unwrap_or_default();
            let at = Timestamp::from_millis(*at);
            match book.silence(&rule.spec.name, at, &facts, now) {
                Some(silence) => {
                    collected.silenced += 1;
                    collected.fates.push((*id, FATE_SILENCED, Some(silence.id)));
                }
                None => sent.push(*id),
            }
        }
        let (Some(rule), Some(batch)) = (rule, sent.first().copied()) else {
            continue;
        };
        let namespace = rule.spec.name.namespace();
        let fates = sent.iter().map(|id| (*id, FATE_SENT, Some(batch)));
        collected.fates.extend(fates);
        for channel in &rule.spec.channels {
            let Ok(channel) = ChannelName::in_namespace(&namespace, channel) else {
                continue;
            };
            collected.deliveries.push((
                batch,
                namespace.to_string(),
                rule.spec.name.to_string(),
                channel.to_string(),
                to_i64(sent.len()),
                String::new(),
            ));
        }
    }
    collected
}

/// The load of a job: job, due runs that have not started, the oldest of them, when that was due.
pub type LoadRow = (i64, i64, i64, i64);

/// The loads of jobs, by their ids.
pub fn loads(rows: Vec<LoadRow>) -> BTreeMap<i64, JobLoad> {
    let load = |(job, waiting, oldest_run, oldest_due_at)| {
        let load = JobLoad {
            waiting: to_u64(waiting),
            oldest_run: RunId(oldest_run),
            oldest_due_at: Timestamp::from_millis(oldest_due_at),
        };
        (job, load)
    };
    rows.into_iter().map(load).collect()
}

/// A condition that is noted as holding: its subject, and in how many checks in succession it has not held.
pub type LevelRow = (String, i64);

/// How the conditions that hold have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LevelChanges {
    /// The subjects of those that have ended.
    pub over: Vec<String>,
    /// The subjects of those that do not hold, and have not ended yet.
    pub absent: Vec<String>,
    /// The subjects of those that hold again before they have ended.
    pub back: Vec<String>,
    /// The subjects of those that began to hold.
    pub begun: Vec<String>,
    /// The events of those. Their keys are those of this beginning.
    pub events: Vec<NewAlarmEvent>,
    /// How many are noted afterwards.
    pub noted: usize,
}

impl LevelChanges {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        let changed = [&self.over, &self.absent, &self.back, &self.begun];
        changed.iter().all(|subjects| subjects.is_empty())
    }
}

/// Compares the conditions that hold now with those that are noted as holding.
pub fn level_changes(noted: Vec<LevelRow>, found: &[LevelFound], now: Timestamp) -> LevelChanges {
    let present: BTreeSet<&str> = found.iter().map(|level| level.subject.as_str()).collect();
    let known: BTreeSet<&str> = noted.iter().map(|(subject, _)| subject.as_str()).collect();
    let mut changes = LevelChanges::default();
    for level in found {
        if !known.contains(level.subject.as_str()) {
            let mut event = level.event.clone();
            event.key = format!("{}:{}", event.key, now.as_millis());
            changes.begun.push(level.subject.clone());
            changes.events.push(event);
        }
    }
    changes.noted = noted.len() + changes.begun.len();
    let is_present: Vec<bool> = noted
        .iter()
        .map(|(subject, _)| present.contains(subject.as_str()))
        .collect();
    for ((subject, absent_checks), is_present) in noted.into_iter().zip(is_present) {
        match (is_present, absent_checks) {
            (true, 0) => {}
            (true, _) => changes.back.push(subject),
            (false, before) if before + 1 < LEVEL_ENDS_AFTER => changes.absent.push(subject),
            (false, _) => changes.over.push(subject),
        }
    }
    changes.noted -= changes.over.len();
    changes
}

/// A stored event: id, time, rule, kind, facts, when it is sent, fate, batch or silence.
pub type EventRow = (
    i64,
    i64,
    String,
    String,
    String,
    Option<i64>,
    i64,
    Option<i64>,
);

/// The event of a row.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if this program cannot read it.
pub fn event(
    (id, at, rule, kind, facts, send_at, fate, reference): EventRow,
) -> Result<AlarmEvent, StoreError> {
    let unreadable = |e| corrupt(format!("failed to read alarm {id}"), e);
    Ok(AlarmEvent {
        id,
        at: Timestamp::from_millis(at),
        rule: parse_name(&rule)?,
        kind: ConditionKind::from_word(&kind).ok_or_else(|| {
            corrupt(
                format!("failed to read alarm {id}"),
                format!("unknown kind {kind:?}"),
            )
        })?,
        facts: serde_json::from_str(&facts).map_err(unreadable)?,
        fate: match (send_at, fate, reference) {
            (Some(at), _, _) => AlarmFate::Waiting(Timestamp::from_millis(at)),
            (None, FATE_SENT, Some(batch)) => AlarmFate::Sent(batch),
            (None, FATE_SILENCED, Some(silence)) => AlarmFate::Silenced(silence),
            _ => AlarmFate::Dropped,
        },
    })
}
