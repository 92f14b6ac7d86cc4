//! Which alarms follow from the ends of runs.

use std::collections::BTreeMap;

use super::book::{AlarmBook, Stored};
use super::event::{AlarmFacts, ConditionKind, NewAlarmEvent};
use super::rule::{AlarmRule, Condition};
use crate::job::{Job, JobId};
use crate::run::{RunId, RunState};
use crate::time::Timestamp;

/// The end of a run of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobEnd<'a> {
    /// The run.
    pub run: RunId,
    /// Its job.
    pub job: &'a Job,
    /// How it ended.
    pub state: RunState,
    /// When it ended.
    pub at: Timestamp,
    /// What it said.
    pub message: Option<&'a str>,
}

/// Failures of a job one after the other, without a success between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streak {
    /// How many runs have failed.
    pub failures: u32,
    /// The first of them.
    pub first_run: RunId,
    /// When that one ended.
    pub since: Timestamp,
}

/// What follows from ends of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndsEvaluated {
    /// The streaks that have changed; `None` if the streak has ended.
    pub streaks: BTreeMap<JobId, Option<Streak>>,
    /// What happened.
    pub events: Vec<NewAlarmEvent>,
}

/// Decides what follows from ends of runs, which are in the order in which they happened. `streaks` has those of their
/// jobs. A cancelled, discarded, covered or skipped run neither lengthens nor ends a streak. A skipped run is one that was
/// written ahead of its fire time and found too late.
pub fn evaluate_ends(
    book: &AlarmBook,
    ends: &[JobEnd<'_>],
    streaks: &BTreeMap<JobId, Streak>,
    now: Timestamp,
) -> EndsEvaluated {
    let mut evaluated = EndsEvaluated::default();
    for end in ends {
        let before = match evaluated.streaks.get(&end.job.id) {
            Some(changed) => *changed,
            None => streaks.get(&end.job.id).copied(),
        };
        let rules: Vec<&Stored<AlarmRule>> = book.about(&end.job.spec).collect();
        let needs_streak = rules
            .iter()
            .any(|rule| rule.spec.on.iter().any(|on| on.needs_streak()));
        let streak = if end.state.is_failure() {
            let first = Streak {
                failures: 0,
                first_run: end.run,
                since: end.at,
            };
            let streak = before.unwrap_or(first);
            needs_streak.then_some(Streak {
                failures: streak.failures.saturating_add(1),
                ..streak
            })
        } else if end.state == RunState::Succeeded {
            before
        } else if end.state == RunState::Skipped {
            None
        } else {
            continue;
        };
        if end.state.is_failure() && needs_streak {
            evaluated.streaks.insert(end.job.id, streak);
        } else if before.is_some() && end.state == RunState::Succeeded {
            evaluated.streaks.insert(end.job.id, None);
        }
        for rule in rules {
            evaluated.events.extend(events_of(rule, end, streak, now));
        }
    }
    evaluated
}

/// The events of one rule. A rule that names the state of a failure has no second event for the failure itself.
fn events_of(
    rule: &Stored<AlarmRule>,
    end: &JobEnd<'_>,
    streak: Option<Streak>,
    now: Timestamp,
) -> Vec<NewAlarmEvent> {
    let mut events: Vec<NewAlarmEvent> = Vec::new();
    for condition in &rule.spec.on {
        let kind = condition.kind();
        let about_run = format!("{kind}:run:{}", end.run);
        let key = match (*condition, end.state) {
            (Condition::Failed, state) if state.is_failure() => about_run,
            (Condition::TimedOut, RunState::TimedOut)
            | (Condition::Lost, RunState::Lost)
            | (Condition::Unroutable, RunState::Unroutable)
            | (Condition::Missed, RunState::Skipped) => about_run,
            (Condition::FailedInARow(n), state) if state.is_failure() => match streak {
                Some(streak) if streak.failures >= n => format!("{kind}:{n}:{}", streak.first_run),
                _ => continue,
            },
            (Condition::Recovered, RunState::Succeeded) => match streak {
                Some(streak) => format!("{kind}:{}", streak.first_run),
                None => continue,
            },
            _ => continue,
        };
        let missed = (end.state == RunState::Skipped).then_some(1);
        let facts = AlarmFacts {
            run: Some(end.run),
            state: Some(end.state),
            count: missed.or(streak.map(|streak| u64::from(streak.failures))),
            since: streak.map(|streak| streak.since),
            ..AlarmFacts::of_job(end.job)
        };
        events.push(NewAlarmEvent {
            rule_id: rule.id,
            rule: rule.spec.name.clone(),
            key,
            at: end.at.min(now),
            kind,
            send_at: now.plus_ms(rule.spec.group_interval.as_millis()),
            facts: facts.saying(end.message.unwrap_or_default()),
        });
    }
    let is_specific = |event: &NewAlarmEvent| {
        matches!(
            event.kind,
            ConditionKind::TimedOut | ConditionKind::Lost | ConditionKind::Unroutable
        )
    };
    if events.iter().any(is_specific) {
        events.retain(|event| event.kind != ConditionKind::Failed);
    }
    events
}
