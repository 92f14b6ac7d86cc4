//! Alarms: definitions, and what raises an alarm in the transaction of its cause.

use cueline_model::alarm::{AlarmFacts, ConditionKind, LevelFound, NewAlarmEvent};
use cueline_model::{ChannelName, Namespace, OutcomeKind, RuleName, decode};
use serde_json::{Value, json};

use super::fire_due::Skips;
use super::fire_rules::actions;
use super::fixture::{Fixture, actor, attempt, by_hand, each_second, name, refused};
use crate::{
    AlarmDefinition, AlarmEvent, AlarmFate, AlarmFilter, AlarmName, AppliedAlarm, Change,
    ClaimedRun, ErrorKind, FireDueRequest, NodeId, Precondition, Revision, StoreError,
};

pub(super) fn rule(definition: Value) -> AlarmDefinition {
    let node = decode::Node::from(definition);
    AlarmDefinition::Rule(decode::alarm_rule(&node, &Namespace::default()).expect("a rule"))
}

pub(super) fn channel(local: &str) -> AlarmDefinition {
    let node = json!({ "name": local, "webhook": { "url": "https://example.com/hook" } });
    let node = decode::Node::from(node);
    AlarmDefinition::Channel(
        decode::alarm_channel(&node, &Namespace::default()).expect("a channel"),
    )
}

pub(super) async fn put(fixture: &Fixture, definition: &AlarmDefinition) -> AppliedAlarm {
    let put = put_if(fixture, definition, &Precondition::None).await;
    put.expect("is written")
}

async fn put_if(
    fixture: &Fixture,
    definition: &AlarmDefinition,
    condition: &Precondition,
) -> Result<AppliedAlarm, StoreError> {
    let store = &fixture.store;
    store.put_alarm(definition, condition, &actor("ann")).await
}

/// The events of the namespace `default`, oldest first.
pub(super) async fn events(fixture: &Fixture) -> Vec<AlarmEvent> {
    let filter = AlarmFilter {
        limit: 10_000,
        ..AlarmFilter::default()
    };
    let mut events = fixture.store.alarm_events(&filter).await.expect("lists");
    events.reverse();
    events
}

async fn kinds(fixture: &Fixture) -> Vec<ConditionKind> {
    let events = events(fixture).await;
    events.into_iter().map(|event| event.kind).collect()
}

/// Runs a job by hand, and ends the run.
pub(super) async fn end_one(
    fixture: &Fixture,
    node: NodeId,
    job: &str,
    kind: OutcomeKind,
) -> ClaimedRun {
    fixture.trigger(job).await;
    let run = fixture.claim(node).await.remove(0);
    fixture.publish(node, &run).await;
    fixture.end(attempt(&run), kind).await;
    fixture.clock.advance(1);
    run
}

/// Rules and channels have versions, belong together, and their changes are in the audit log.
pub async fn alarm_definitions_are_kept_in_versions(fixture: &Fixture) {
    let alone = rule(json!({ "name": "r", "on": ["failed"], "channels": ["ops"] }));
    refused(
        put_if(fixture, &alone, &Precondition::None).await,
        ErrorKind::Conflict,
        "there is no alarm channel \"ops\"",
    );
    put(fixture, &channel("ops")).await;
    let created = put(fixture, &alone).await;
    assert_eq!(
        (created.change, created.revision.version),
        (Change::Created, 1)
    );
    assert_eq!(put(fixture, &alone).await.change, Change::Unchanged);
    let changed = rule(json!({ "name": "r", "on": ["lost"], "channels": ["ops"] }));
    refused(
        put_if(fixture, &changed, &Precondition::Absent).await,
        ErrorKind::Precondition,
        "it exists, in version 1",
    );
    let updated = put_if(fixture, &changed, &Precondition::Version(1)).await;
    let updated = updated.expect("is written");
    let revision = Revision {
        id: created.revision.id,
        version: 2,
    };
    assert_eq!(
        (updated.change, updated.revision),
        (Change::Updated, revision)
    );

    // Another node reads them.
    let other = fixture.harness.open().await;
    let book = other.alarm_book().await.expect("reads");
    assert_eq!((book.rules.len(), book.channels.len()), (1, 1));
    assert_eq!(book.rules[0].version, 2);

    let (by, any) = (actor("ann"), Precondition::None);
    let ops = AlarmName::Channel(name::<ChannelName>("ops"));
    let own = AlarmName::Rule(name::<RuleName>("r"));
    let store = &fixture.store;
    refused(
        store.delete_alarm(&ops, &any, &by).await,
        ErrorKind::Conflict,
        "it is used by the rules r",
    );
    refused(
        store
            .delete_alarm(&own, &Precondition::Version(1), &by)
            .await,
        ErrorKind::Precondition,
        "it has version 2",
    );
    store.delete_alarm(&own, &any, &by).await.expect("deletes");
    store.delete_alarm(&ops, &any, &by).await.expect("deletes");
    refused(
        store.delete_alarm(&ops, &any, &by).await,
        ErrorKind::NotFound,
        "there is no alarm channel \"ops\"",
    );
    let book = other.alarm_book().await.expect("reads");
    assert_eq!((book.rules.len(), book.channels.len()), (0, 0));
    assert_eq!(
        actions(fixture).await,
        [
            "alarm_channel.create",
            "alarm_rule.create",
            "alarm_rule.update",
            "alarm_rule.delete",
            "alarm_channel.delete"
        ]
    );
}

/// G9: the end of a run and its alarm are one. A repeated report, another node and a further failure raise it no second time.
pub async fn failures_in_a_row_raise_one_alarm(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    put(fixture, &channel("ops")).await;
    let definition = json!({ "name": "r", "jobs": ["a"], "on": [{ "failed_in_a_row": 3 }, "recovered"], "channels": ["ops"] });
    put(fixture, &rule(definition)).await;
    let mut last = None;
    for _ in 0..3 {
        assert_eq!(kinds(fixture).await, []);
        last = Some(end_one(fixture, node, "a", OutcomeKind::Failed).await);
        end_one(fixture, node, "b", OutcomeKind::Failed).await;
        end_one(fixture, node, "a", OutcomeKind::Cancelled).await;
    }
    let last = last.expect("a run");
    let row = [ConditionKind::FailedInARow];
    assert_eq!(kinds(fixture).await, row);
    fixture.end(attempt(&last), OutcomeKind::Failed).await;
    end_one(fixture, node, "a", OutcomeKind::TimedOut).await;
    let event = events(fixture).await.remove(0);
    let facts = &event.facts;
    assert_eq!((facts.run, facts.count), (Some(last.id), Some(3)));
    assert_eq!(facts.job, Some(name("a")));
    assert!(matches!(event.fate, AlarmFate::Waiting(at) if at > fixture.now()));
    assert_eq!(kinds(fixture).await, row);

    end_one(fixture, node, "a", OutcomeKind::Succeeded).await;
    end_one(fixture, node, "a", OutcomeKind::Succeeded).await;
    let both = [ConditionKind::FailedInARow, ConditionKind::Recovered];
    assert_eq!(kinds(fixture).await, both);
    for _ in 0..3 {
        end_one(fixture, node, "a", OutcomeKind::Lost).await;
    }
    assert_eq!(kinds(fixture).await.len(), 3, "a new streak");
}

/// Retries come first: only the end of a run raises an alarm.
pub async fn a_failure_that_is_retried_raises_no_alarm(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut retried = by_hand("a");
    retried.retry.max = 1;
    fixture.apply(&[retried]).await;
    put(fixture, &channel("ops")).await;
    put(
        fixture,
        &rule(json!({ "name": "r", "on": ["failed", "lost"], "channels": ["ops"] })),
    )
    .await;
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    assert_eq!(kinds(fixture).await, []);
    fixture.clock.advance(3_600_000);
    let again = fixture.claim(node).await.remove(0);
    assert_eq!(again.attempt, 2);
    fixture.publish(node, &again).await;
    fixture.end(attempt(&again), OutcomeKind::Failed).await;
    assert_eq!(kinds(fixture).await, [ConditionKind::Failed]);
}

/// Ends in one batch follow each other in time, whatever their order in the batch.
pub async fn alarms_follow_the_times_of_a_batch(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    put(fixture, &channel("ops")).await;
    put(
        fixture,
        &rule(json!({ "name": "r", "on": ["recovered"], "channels": ["ops"] })),
    )
    .await;
    for _ in 0..2 {
        fixture.trigger("a").await;
    }
    let runs = fixture.claim(node).await;
    for run in &runs {
        fixture.publish(node, run).await;
    }
    let end = |run: &ClaimedRun, kind, after_ms| {
        let outcome = cueline_model::Outcome::new(kind, fixture.now().plus_ms(after_ms));
        super::fixture::report(attempt(run), cueline_model::AttemptEvent::Ended { outcome })
    };
    let reports = [
        end(&runs[0], OutcomeKind::Succeeded, 20),
        end(&runs[1], OutcomeKind::Failed, 10),
    ];
    fixture.ingest(&reports).await;
    assert_eq!(kinds(fixture).await, [ConditionKind::Recovered]);
    end_one(fixture, node, "a", OutcomeKind::Succeeded).await;
    assert_eq!(kinds(fixture).await.len(), 1);
}

/// G9: fire times that are skipped because they were found too late, and their alarm, are one.
pub async fn missed_fire_times_raise_one_alarm(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    put(fixture, &channel("ops")).await;
    put(
        fixture,
        &rule(json!({ "name": "r", "on": ["missed"], "channels": ["ops"] })),
    )
    .await;
    fixture.clock.advance(10_000);
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 100,
        max_runs: usize::MAX,
    };
    fixture
        .store
        .fire_due(request, &Skips)
        .await
        .expect("fires");
    let events = events(fixture).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].kind, ConditionKind::Missed);
    assert_eq!(events[0].facts.count, Some(9));
    assert_eq!(events[0].facts.message, "missed by 12 s");
}

/// A run that was written ahead, and that a takeover finds too late, raises the same alarm with its end.
pub async fn a_run_that_is_skipped_as_a_misfire_raises_an_alarm(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    put(fixture, &channel("ops")).await;
    put(
        fixture,
        &rule(json!({ "name": "r", "on": ["missed"], "channels": ["ops"] })),
    )
    .await;
    let run = fixture.fire_ahead(node, 1_000).await.runs.remove(0);
    fixture.clock.advance(60_000);
    let outcome = cueline_model::Outcome::new(OutcomeKind::Skipped, fixture.now());
    let report = crate::AttemptReport {
        attempt: attempt(&run),
        executor: None,
        event: cueline_model::AttemptEvent::Ended {
            outcome: outcome.because("too late"),
        },
    };
    for _ in 0..2 {
        fixture.ingest(std::slice::from_ref(&report)).await;
        let event = events(fixture).await;
        assert_eq!(event.len(), 1);
        assert_eq!(event[0].kind, ConditionKind::Missed);
        let facts = &event[0].facts;
        assert_eq!((facts.run, facts.count), (Some(run.id), Some(1)));
        assert_eq!(facts.message, "too late");
    }
}

fn level(rule_id: i64, about: &str, fixture: &Fixture) -> LevelFound {
    LevelFound {
        subject: format!("{rule_id}:backlog:{about}"),
        event: NewAlarmEvent {
            rule_id,
            rule: name("r"),
            key: format!("backlog:{about}"),
            at: fixture.now(),
            kind: ConditionKind::Backlog,
            send_at: fixture.now().plus_ms(1_000),
            facts: AlarmFacts::default(),
        },
    }
}

/// A condition that goes on raises no further alarm; one that comes back does.
pub async fn a_condition_raises_an_alarm_when_it_begins(fixture: &Fixture) {
    put(fixture, &channel("ops")).await;
    let definition = json!({ "name": "r", "on": [{ "backlog": 1 }], "channels": ["ops"] });
    let id = put(fixture, &rule(definition)).await.revision.id;
    let store = &fixture.store;
    let note = |levels: Vec<LevelFound>| async move {
        let noted = store.note_alarm_levels(&levels).await;
        noted.expect("notes").raised
    };
    let (a, b) = (level(id, "a", fixture), level(id, "b", fixture));
    assert_eq!(note(vec![a.clone()]).await, 1);
    fixture.clock.advance(1_000);
    assert_eq!(note(vec![a.clone(), b.clone()]).await, 1);
    assert_eq!(note(vec![a.clone(), b.clone()]).await, 0);
    for _ in 0..3 {
        assert_eq!(note(vec![b.clone()]).await, 0);
    }
    fixture.clock.advance(1_000);
    assert_eq!(note(vec![a, b]).await, 1);
    assert_eq!(kinds(fixture).await.len(), 3);

    // Very many events of one rule that wait are not kept.
    let many: Vec<LevelFound> = (0..1_000)
        .map(|n| level(id, &format!("j{n}"), fixture))
        .collect();
    note(many).await;
    let more: Vec<LevelFound> = (0..5)
        .map(|n| level(id, &format!("k{n}"), fixture))
        .collect();
    assert_eq!(note(more).await, 0);
}

/// A condition that is away for a check or two has not ended.
pub async fn a_condition_ends_after_several_checks(fixture: &Fixture) {
    put(fixture, &channel("ops")).await;
    let definition = json!({ "name": "r", "on": [{ "backlog": 1 }], "channels": ["ops"] });
    let id = put(fixture, &rule(definition)).await.revision.id;
    let store = &fixture.store;
    let a = level(id, "a", fixture);
    let note = |levels: Vec<LevelFound>| async move {
        fixture.clock.advance(1_000);
        let noted = store.note_alarm_levels(&levels).await;
        noted.expect("notes").raised
    };
    assert_eq!(note(vec![a.clone()]).await, 1);
    for _ in 0..3 {
        assert_eq!(note(vec![]).await, 0);
        assert_eq!(note(vec![]).await, 0);
        assert_eq!(note(vec![a.clone()]).await, 0);
    }
    for _ in 0..3 {
        assert_eq!(note(vec![]).await, 0);
    }
    assert_eq!(note(vec![a]).await, 1);
}

/// One scheduler looks at conditions, until it is gone.
pub async fn one_node_checks_alarms(fixture: &Fixture) {
    let hold = |holder: &'static str| async move {
        let held = fixture.store.hold_alarm_checks(holder, 10_000).await;
        held.expect("answers")
    };
    assert!(hold("one").await);
    assert!(!hold("two").await);
    fixture.clock.advance(9_000);
    assert!(hold("one").await);
    fixture.clock.advance(9_000);
    assert!(!hold("two").await);
    fixture.clock.advance(1_000);
    assert!(hold("two").await);
    assert!(!hold("one").await);
}
