//! Alarms: what ends of runs and missed fire times raise, and which messages events become. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::alarm::{
    AlarmFacts, ConditionKind, EndsEvaluated, JobEnd, JobLoad, LevelFound, MessageEvent,
    NewAlarmEvent, Streak, evaluate_ends, missed,
};
use cueline_model::{AlarmBook, ChannelName, JobId, JobName, RunId, Timestamp};

use super::convert::{corrupt, parse_name, to_i64, to_u32, to_u64, without_nul};
use super::definitions::JobsById;
use super::new_run::NewRun;
use super::report_batch::BatchWrites;
use crate::{
    AfterSend, AlarmDelivery, AlarmEvent, AlarmFate, ClaimedDelivery, DeliveryState,
    MAX_ANSWER_BYTES, SendOutcome, StoreError,
};

/// The ends of a batch that may raise alarms, in the order in which they happened: failures, and successes of jobs that
/// have failed before. There are none in nearly all batches, and then nothing more is read.
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

/// Whether nothing follows from ends, whatever the streaks of their jobs are: failures without any rule.
pub fn raise_nothing(book: &AlarmBook, ends: &[JobEnd<'_>]) -> bool {
    book.rules.is_empty() && ends.iter().all(|end| end.state.is_failure())
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

/// What becomes of events, and the deliveries of their messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Event, fate, and the batch or the silence.
    pub fates: Vec<(i64, i64, Option<i64>)>,
    /// Batch, namespace, rule, channel, number of events.
    pub deliveries: Vec<(i64, String, String, String, i64)>,
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

/// How the conditions that hold have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LevelChanges {
    /// The subjects of those that hold no more.
    pub over: Vec<String>,
    /// The subjects of those that began to hold.
    pub begun: Vec<String>,
    /// The events of those. Their keys are those of this beginning.
    pub events: Vec<NewAlarmEvent>,
}

/// Compares the conditions that hold now with the subjects that are noted as holding.
pub fn level_changes(noted: Vec<String>, found: &[LevelFound], now: Timestamp) -> LevelChanges {
    let present: BTreeSet<&str> = found.iter().map(|level| level.subject.as_str()).collect();
    let known: BTreeSet<&str> = noted.iter().map(String::as_str).collect();
    let mut changes = LevelChanges::default();
    for level in found {
        if !known.contains(level.subject.as_str()) {
            let mut event = level.event.clone();
            event.key = format!("{}:{}", event.key, now.as_millis());
            changes.begun.push(level.subject.clone());
            changes.events.push(event);
        }
    }
    let is_over = |subject: &String| !present.contains(subject.as_str());
    changes.over = noted.iter().filter(|one| is_over(one)).cloned().collect();
    changes
}

/// What an attempt makes of its delivery: the code of its state, its next attempt, its end.
pub fn settled(outcome: &SendOutcome, now: Timestamp) -> (i64, Option<i64>, Option<i64>) {
    let now_ms = now.as_millis();
    let (state, next_at, ended_at) = match outcome.then {
        AfterSend::Delivered => (DeliveryState::Delivered, None, Some(now_ms)),
        AfterSend::Again(wait_ms) => {
            let next_at = now.plus_ms(wait_ms).as_millis();
            (DeliveryState::Pending, Some(next_at), None)
        }
        AfterSend::GiveUp => (DeliveryState::Failed, None, Some(now_ms)),
    };
    (i64::from(state as u8), next_at, ended_at)
}

/// A claimed delivery: id, attempt, batch, rule, channel, number of events.
pub type ClaimedRow = (i64, i64, i64, String, String, i64);

/// An event of a message: batch, time, kind, facts.
pub type MessageRow = (i64, i64, String, String);

/// The deliveries of these rows. A delivery that cannot be read is left out.
pub fn claimed_deliveries(
    book: &AlarmBook,
    rows: Vec<ClaimedRow>,
    events: &[MessageRow],
) -> Vec<ClaimedDelivery> {
    rows.into_iter()
        .filter_map(|(id, attempt, batch, rule, channel, count)| {
            let channel_name: ChannelName = channel.parse().ok()?;
            let of_batch = events.iter().filter(|row| row.0 == batch);
            Some(ClaimedDelivery {
                id,
                attempt: to_u32(attempt),
                batch,
                rule: rule.parse().ok()?,
                channel: book.channel(&channel_name).map(|c| c.spec.clone()),
                channel_name,
                count: to_u64(count),
                events: of_batch
                    .map(|(_, at, kind, facts)| MessageEvent {
                        at: Timestamp::from_millis(*at),
                        kind: ConditionKind::from_word(kind).unwrap_or(ConditionKind::Failed),
                        facts: serde_json::from_str(facts).unwrap_or_default(),
                    })
                    .collect(),
            })
        })
        .collect()
}

/// An answer as it is kept.
pub fn kept_answer(answer: &str) -> String {
    let mut end = answer.len().min(MAX_ANSWER_BYTES);
    while !answer.is_char_boundary(end) {
        end -= 1;
    }
    without_nul(&answer[..end]).into_owned()
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

/// A stored delivery: id, batch, rule, channel, events, creation, state, attempts, next time, end, answer.
pub type DeliveryRow = (
    i64,
    i64,
    String,
    String,
    i64,
    i64,
    i64,
    i64,
    Option<i64>,
    Option<i64>,
    String,
);

/// The delivery of a row.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if this program cannot read it.
pub fn delivery(row: DeliveryRow) -> Result<AlarmDelivery, StoreError> {
    let (id, batch, rule, channel, events, created_at, state, attempts, next_at, ended_at, answer) =
        row;
    Ok(AlarmDelivery {
        id,
        batch,
        rule: parse_name(&rule)?,
        channel: parse_name(&channel)?,
        events: to_u64(events),
        created_at: Timestamp::from_millis(created_at),
        state: DeliveryState::from_code(state),
        attempts: to_u32(attempts),
        next_at: next_at.map(Timestamp::from_millis),
        ended_at: ended_at.map(Timestamp::from_millis),
        answer,
    })
}

/// The name under which test messages are listed.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if the namespace has no room for it.
pub fn test_rule(channel: &ChannelName) -> Result<String, StoreError> {
    let name = JobName::in_namespace(&channel.namespace(), "test");
    let name = name.map_err(|e| corrupt("failed to name the test message", e))?;
    Ok(name.to_string())
}
