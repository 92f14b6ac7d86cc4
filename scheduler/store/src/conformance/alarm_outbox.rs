//! The outbox of alarms: events become messages, and each message is sent by one node.

use std::collections::BTreeSet;

use cueline_model::{AlarmSilence, ChannelName, Namespace, OutcomeKind, Timestamp, decode};
use serde_json::{Value, json};

use super::alarms::{channel, end_one, events, put, rule};
use super::fire_rules::actions;
use super::fixture::{Fixture, actor, by_hand, name, refused};
use crate::{
    AfterSend, AlarmDelivery, AlarmFate, AlarmFilter, AlarmName, ClaimedDelivery, CollectedAlarms,
    DeliveryState, ErrorKind, NodeId, Precondition, SendInProgress, SendOutcome, Store,
};

const LEASE_MS: u64 = 60_000;
pub(super) const INTERVAL_MS: u64 = 30_000;

/// A rule about all failures, with two channels, and jobs to fail.
pub(super) async fn prepare(fixture: &Fixture) -> NodeId {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    put(fixture, &channel("ops")).await;
    put(fixture, &channel("dev")).await;
    put(
        fixture,
        &rule(json!({ "name": "r", "on": ["failed"], "channels": ["ops", "dev"] })),
    )
    .await;
    node
}

pub(super) async fn collect(store: &dyn Store) -> CollectedAlarms {
    store.collect_alarms(1_000).await.expect("collects")
}

pub(super) async fn claim(store: &dyn Store, busy: &[ChannelName]) -> Vec<ClaimedDelivery> {
    let sending = busy.iter().map(|channel| SendInProgress {
        channel: channel.clone(),
        is_failing: false,
    });
    let sending: Vec<SendInProgress> = sending.collect();
    let claimed = store.claim_alarm_deliveries(LEASE_MS, &sending, 100).await;
    claimed.expect("claims")
}

pub(super) async fn settle(
    fixture: &Fixture,
    delivery: &ClaimedDelivery,
    answer: &str,
    then: AfterSend,
) -> bool {
    let outcome = SendOutcome {
        answer: answer.to_owned(),
        then,
    };
    let settled = fixture
        .store
        .settle_alarm_delivery(delivery.id, delivery.attempt, &outcome)
        .await;
    settled.expect("settles")
}

/// The deliveries of the namespace `default`, oldest first.
pub(super) async fn deliveries(fixture: &Fixture) -> Vec<AlarmDelivery> {
    let filter = AlarmFilter {
        limit: 100,
        ..AlarmFilter::default()
    };
    let mut listed = fixture
        .store
        .alarm_deliveries(&filter)
        .await
        .expect("lists");
    listed.reverse();
    listed
}

/// Events of a rule within its interval are one message to each channel.
pub async fn events_of_an_interval_are_one_message(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    assert_eq!(store.next_alarm_at().await.expect("reads"), None);
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    let due = fixture.now().plus_ms(INTERVAL_MS - 1);
    assert_eq!(store.next_alarm_at().await.expect("reads"), Some(due));
    fixture.clock.advance(INTERVAL_MS - 2);
    assert_eq!(collect(store).await, CollectedAlarms::default());
    end_one(fixture, node, "b", OutcomeKind::Failed).await;
    let expected = CollectedAlarms {
        events: 2,
        deliveries: 2,
        refused: 0,
        silenced: 0,
    };
    assert_eq!(collect(store).await, expected);
    assert_eq!(collect(store).await, CollectedAlarms::default());

    let claimed = claim(store, &[]).await;
    let channels: BTreeSet<&str> = claimed.iter().map(|d| d.channel_name.as_str()).collect();
    assert_eq!(channels, BTreeSet::from(["dev", "ops"]));
    for delivery in &claimed {
        assert_eq!((delivery.count, delivery.attempt), (2, 1));
        let jobs = delivery.events.iter().map(|event| event.facts.job.clone());
        assert_eq!(jobs.collect::<Vec<_>>(), [Some(name("a")), Some(name("b"))]);
        assert!(delivery.channel.is_some());
    }
    let batch = claimed[0].batch;
    let fates: Vec<AlarmFate> = events(fixture).await.into_iter().map(|e| e.fate).collect();
    assert_eq!(fates, [AlarmFate::Sent(batch), AlarmFate::Sent(batch)]);
    assert_eq!(claim(store, &[]).await, [], "both are being sent");
}

/// A delivery is sent again after a failure, and after the loss of its sender, and it keeps the last answer.
pub async fn a_delivery_is_sent_until_it_is_settled(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    fixture.clock.advance(INTERVAL_MS);
    collect(store).await;
    let first = claim(store, &[name("dev")]).await.remove(0);
    assert_eq!(first.channel_name, name("ops"));
    assert!(settle(fixture, &first, "503 busy", AfterSend::Again(5_000)).await);
    assert!(claim(store, &[name("dev")]).await.is_empty());
    fixture.clock.advance(5_000);
    // Its sender is lost: the lease passes.
    let second = claim(store, &[name("dev")]).await.remove(0);
    fixture.clock.advance(LEASE_MS);
    let third = claim(store, &[name("dev")]).await.remove(0);
    assert_eq!((second.attempt, third.attempt), (2, 3));
    assert_eq!((second.id, second.batch), (third.id, third.batch));
    assert!(!settle(fixture, &second, "late", AfterSend::Delivered).await);
    let long = format!("200 {}", "ä".repeat(4_000));
    assert!(settle(fixture, &third, &long, AfterSend::Delivered).await);
    assert!(!settle(fixture, &third, "again", AfterSend::GiveUp).await);

    let dev = claim(store, &[]).await.remove(0);
    assert!(settle(fixture, &dev, "no such host", AfterSend::GiveUp).await);
    let listed = deliveries(fixture).await;
    let states: Vec<(&str, DeliveryState, u32)> = listed
        .iter()
        .map(|d| (d.channel.as_str(), d.state, d.attempts))
        .collect();
    assert_eq!(
        states,
        [
            ("ops", DeliveryState::Delivered, 3),
            ("dev", DeliveryState::Failed, 1)
        ]
    );
    assert!(
        listed[0].answer.starts_with("200 ä") && listed[0].answer.len() <= crate::MAX_ANSWER_BYTES
    );
    assert_eq!(listed[1].answer, "no such host");
    assert!(
        listed
            .iter()
            .all(|d| d.next_at.is_none() && d.ended_at == Some(fixture.now()))
    );
    assert_eq!(store.next_alarm_at().await.expect("reads"), None);
}

fn silence(fixture: &Fixture, json: Value) -> AlarmSilence {
    let node = decode::Node::from(json);
    let decoded = decode::alarm_silence(&node, &Namespace::default(), fixture.now());
    decoded.expect("a silence")
}

/// A silence keeps alarms from being sent, and they say which one did.
pub async fn a_silence_keeps_alarms_from_being_sent(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    let by = actor("ann");
    let spec = silence(
        fixture,
        json!({ "jobs": ["a"], "for": "1m", "reason": "work" }),
    );
    let id = store.add_silence(&spec, &by).await.expect("begins");
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    end_one(fixture, node, "b", OutcomeKind::Failed).await;
    // Another node knows the silence.
    let other = fixture.harness.open().await;
    fixture.clock.advance(INTERVAL_MS);
    let collected = collect(&*other).await;
    assert_eq!((collected.silenced, collected.deliveries), (1, 2));
    assert_eq!(events(fixture).await[0].fate, AlarmFate::Silenced(id));
    let elsewhere: Namespace = name("team");
    refused(
        store.end_silence(&elsewhere, id, &by).await,
        ErrorKind::NotFound,
        "there is no silence",
    );
    let own = Namespace::default();
    store.end_silence(&own, id, &by).await.expect("ends");
    refused(
        store.end_silence(&own, id, &by).await,
        ErrorKind::NotFound,
        "there is no silence",
    );
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    fixture.clock.advance(INTERVAL_MS);
    assert_eq!(collect(store).await.silenced, 0);
    let mut actions = actions(fixture).await;
    actions.retain(|action| action.starts_with("alarm_silence"));
    assert_eq!(actions, ["alarm_silence.create", "alarm_silence.delete"]);
}

/// Silences are bounded, and those that are over make room.
pub async fn silences_are_bounded(fixture: &Fixture) {
    let (store, by) = (&*fixture.store, actor("ann"));
    for _ in 0..crate::MAX_SILENCES_OF_NAMESPACE {
        let spec = silence(fixture, json!({ "for": "1m", "reason": "work" }));
        store.add_silence(&spec, &by).await.expect("begins");
    }
    let spec = silence(fixture, json!({ "for": "10m", "reason": "work" }));
    refused(
        store.add_silence(&spec, &by).await,
        ErrorKind::Conflict,
        "end some",
    );
    fixture.clock.advance(60_000);
    store.add_silence(&spec, &by).await.expect("begins");
    assert_eq!(store.alarm_book().await.expect("reads").silences.len(), 1);
}

/// What waits of a rule that is deleted is not sent, and says so.
pub async fn alarms_of_a_deleted_rule_are_dropped(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    let own = AlarmName::Rule(name("r"));
    let deleted = store
        .delete_alarm(&own, &Precondition::None, &actor("ann"))
        .await;
    deleted.expect("deletes");
    fixture.clock.advance(INTERVAL_MS);
    assert_eq!(collect(store).await.deliveries, 0);
    assert_eq!(events(fixture).await[0].fate, AlarmFate::Dropped);
    assert_eq!(
        store.next_alarm_at().await.expect("reads"),
        None::<Timestamp>
    );
}

/// A test message is sent at once, to its channel only.
pub async fn a_channel_is_tested(fixture: &Fixture) {
    prepare(fixture).await;
    let (store, by) = (&*fixture.store, actor("ann"));
    refused(
        store.test_channel(&name("nowhere"), &by).await,
        ErrorKind::NotFound,
        "there is no alarm channel \"nowhere\"",
    );
    let id = store.test_channel(&name("ops"), &by).await.expect("writes");
    let again = store.test_channel(&name("ops"), &by).await.expect("writes");
    assert_ne!(id, again);
    let claimed = claim(store, &[]).await;
    let ids: BTreeSet<i64> = claimed.iter().map(|d| d.id).collect();
    assert_eq!(ids, BTreeSet::from([id, again]));
    assert_eq!(claimed[0].events.len(), 1);
    let last = actions(fixture).await.pop();
    assert_eq!(last.as_deref(), Some("alarm_channel.test"));
}

/// Alarms are listed by rule and job, and belong to one namespace.
pub async fn alarms_are_listed(fixture: &Fixture) {
    let node = prepare(fixture).await;
    put(
        fixture,
        &rule(json!({ "name": "lost", "on": ["lost"], "channels": ["ops"] })),
    )
    .await;
    for (job, kind) in [
        ("a", OutcomeKind::Failed),
        ("b", OutcomeKind::Lost),
        ("b", OutcomeKind::Failed),
    ] {
        end_one(fixture, node, job, kind).await;
        while let Some(run) = fixture.claim(node).await.pop() {
            // A lost run runs again, a few times.
            fixture.publish(node, &run).await;
            fixture.end(super::fixture::attempt(&run), kind).await;
        }
    }
    let count = |filter: AlarmFilter| async move {
        let listed = fixture.store.alarm_events(&filter).await.expect("lists");
        assert!(listed.is_sorted_by(|a, b| a.id > b.id));
        listed.len()
    };
    let all = AlarmFilter {
        limit: 10,
        ..AlarmFilter::default()
    };
    assert_eq!(count(all.clone()).await, 4);
    let of_lost = AlarmFilter {
        rule: Some(name("lost")),
        ..all.clone()
    };
    assert_eq!(count(of_lost).await, 1);
    let of_a = AlarmFilter {
        job: Some(name("a")),
        ..all.clone()
    };
    assert_eq!(count(of_a).await, 1);
    let elsewhere = AlarmFilter {
        namespace: name("team"),
        ..all.clone()
    };
    assert_eq!(count(elsewhere).await, 0);
    let first = events(fixture).await[0].id;
    let before = AlarmFilter {
        before: Some(first + 1),
        limit: 1,
        ..all
    };
    assert_eq!(count(before).await, 1);
}

/// Events and deliveries are deleted some time after their end.
pub async fn old_alarms_are_deleted(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    fixture.clock.advance(INTERVAL_MS);
    collect(store).await;
    let claimed = claim(store, &[]).await;
    settle(fixture, &claimed[0], "ok", AfterSend::Delivered).await;
    fixture.clock.advance(1_000_000);
    end_one(fixture, node, "b", OutcomeKind::Failed).await;
    assert_eq!(store.prune_alarms(500_000, 100).await.expect("prunes"), 1);
    assert_eq!(deliveries(fixture).await.len(), 1, "one is not settled yet");
    assert_eq!(events(fixture).await.len(), 2, "its event is kept");
    let again = claim(store, &[]).await;
    settle(fixture, &again[0], "ok", AfterSend::Delivered).await;
    fixture.clock.advance(1_000_000);
    store.prune_alarms(500_000, 100).await.expect("prunes");
    assert!(deliveries(fixture).await.is_empty());
    // The event of the second failure waits for its message.
    assert_eq!(events(fixture).await.len(), 1);
}
