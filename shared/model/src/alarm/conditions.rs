//! Which alarms follow from missed fire times, and which conditions hold at present.

use std::collections::{BTreeMap, BTreeSet};

use super::book::AlarmBook;
use super::event::{AlarmFacts, NewAlarmEvent};
use super::rule::Condition;
use crate::job::Job;
use crate::name::GroupName;
use crate::run::RunId;
use crate::time::Timestamp;

/// The alarms that follow from `count` fire times of a job from `since` to `last` that were found too late and skipped.
pub fn missed<'a>(
    book: &'a AlarmBook,
    job: &'a Job,
    (count, since, last): (u64, Timestamp, Timestamp),
    reason: &'a str,
    now: Timestamp,
) -> impl Iterator<Item = NewAlarmEvent> + 'a {
    let with_condition = book
        .about(&job.spec)
        .filter(|rule| rule.spec.on.contains(&Condition::Missed));
    with_condition.map(move |rule| {
        let facts = AlarmFacts {
            count: Some(count),
            since: Some(since),
            ..AlarmFacts::of_job(job)
        };
        let kind = Condition::Missed.kind();
        NewAlarmEvent {
            rule_id: rule.id,
            rule: rule.spec.name.clone(),
            key: format!("{kind}:{}:{}", job.id, last.as_millis()),
            at: now,
            kind,
            send_at: now.plus_ms(rule.spec.group_interval.as_millis()),
            facts: facts.saying(reason),
        }
    })
}

/// The runs of a job that are due and have not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLoad {
    /// How many, up to a bound.
    pub waiting: u64,
    /// The one that has been due for the longest time.
    pub oldest_run: RunId,
    /// Since when it has been due.
    pub oldest_due_at: Timestamp,
}

/// A condition of a rule that holds at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelFound {
    /// The rule, the condition and what it is about. It is the same as long as the condition holds.
    pub subject: String,
    /// The alarm, if the condition did not hold before. The store completes its key.
    pub event: NewAlarmEvent,
}

/// The groups of these jobs for which a rule wants to know whether an executor is live.
pub fn groups_to_watch<'a>(
    book: &AlarmBook,
    jobs: impl IntoIterator<Item = &'a Job>,
) -> BTreeSet<GroupName> {
    let wants = |job: &&Job| {
        let mut rules = book.about(&job.spec);
        rules.any(|rule| {
            let mut conditions = rule.spec.on.iter();
            conditions.any(|on| matches!(on, Condition::NoExecutor(_)))
        })
    };
    let groups = jobs.into_iter().filter(wants);
    groups.map(|job| job.spec.group.clone()).collect()
}

/// The conditions of all rules that hold at `now`. `loads` has the jobs with runs that wait, and `absent` the groups without
/// a live executor, with the time since when.
pub fn levels<'a>(
    book: &AlarmBook,
    jobs: impl IntoIterator<Item = &'a Job>,
    loads: &BTreeMap<i64, JobLoad>,
    absent: &BTreeMap<GroupName, Timestamp>,
    now: Timestamp,
) -> Vec<LevelFound> {
    let mut found: BTreeMap<String, LevelFound> = BTreeMap::new();
    for job in jobs {
        let load = loads.get(&job.id.0);
        for rule in book.about(&job.spec) {
            for condition in &rule.spec.on {
                let Some((about, facts)) = holds(*condition, job, load, absent, now) else {
                    continue;
                };
                let kind = condition.kind();
                // A rule may have the kind with several values.
                let key = format!("{kind}:{}:{about}", condition.value());
                let subject = format!("{}:{key}", rule.id);
                let event = NewAlarmEvent {
                    rule_id: rule.id,
                    rule: rule.spec.name.clone(),
                    key,
                    at: now,
                    kind,
                    send_at: now.plus_ms(rule.spec.group_interval.as_millis()),
                    facts,
                };
                let level = LevelFound {
                    subject: subject.clone(),
                    event,
                };
                found.entry(subject).or_insert(level);
            }
        }
    }
    found.into_values().collect()
}

/// If the condition holds, what it is about, and the facts.
fn holds(
    condition: Condition,
    job: &Job,
    load: Option<&JobLoad>,
    absent: &BTreeMap<GroupName, Timestamp>,
    now: Timestamp,
) -> Option<(String, AlarmFacts)> {
    let about_job = |load: &JobLoad| {
        let facts = AlarmFacts {
            run: Some(load.oldest_run),
            count: Some(load.waiting),
            since: Some(load.oldest_due_at),
            ..AlarmFacts::of_job(job)
        };
        (format!("job:{}", job.id), facts)
    };
    match condition {
        Condition::Late(after) => load
            .filter(|load| load.oldest_due_at.plus_ms(after.as_millis()) < now)
            .map(about_job),
        Condition::Backlog(most) => load
            .filter(|load| load.waiting > u64::from(most))
            .map(about_job),
        Condition::NoExecutor(after) => {
            let group = &job.spec.group;
            let since = absent.get(group)?;
            let facts = AlarmFacts {
                group: Some(group.clone()),
                since: Some(*since),
                ..AlarmFacts::default()
            };
            let is_long = since.plus_ms(after.as_millis()) <= now;
            is_long.then(|| (format!("group:{group}"), facts))
        }
        _ => None,
    }
}
