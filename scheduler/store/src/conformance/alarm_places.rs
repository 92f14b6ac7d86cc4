//! How many messages of alarms are sent at once and wait: of a channel, and of a namespace.

use cueline_model::{ChannelName, OutcomeKind};
use serde_json::json;

use super::alarm_outbox::{INTERVAL_MS, claim, collect, deliveries, prepare, settle};
use super::alarms::{channel, end_one, put, rule};
use super::fixture::{Fixture, actor, name, refused};
use crate::{AfterSend, AlarmFilter, DeliveryState, ErrorKind};

/// Several nodes collect and claim at the same time, and each delivery has one sender.
pub async fn nodes_share_deliveries(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let other = fixture.harness.open().await;
    for job in ["a", "b", "a"] {
        end_one(fixture, node, job, OutcomeKind::Failed).await;
    }
    fixture.clock.advance(INTERVAL_MS);
    let (one, two) = (&*fixture.store, &*other);
    let (first, second) = tokio::join!(collect(one), collect(two));
    assert_eq!(first.deliveries + second.deliveries, 2);
    let (first, second) = tokio::join!(claim(one, &[]), claim(two, &[]));
    let ids = first.iter().chain(&second).map(|delivery| delivery.id);
    let ids: Vec<i64> = ids.collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
}

/// A channel with many deliveries leaves room for others, and one that is busy is left out.
pub async fn a_channel_takes_some_places_only(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    for _ in 0..6 {
        end_one(fixture, node, "a", OutcomeKind::Failed).await;
        fixture.clock.advance(INTERVAL_MS);
        collect(store).await;
    }
    let claimed = claim(store, &[]).await;
    for channel in ["ops", "dev"] {
        let of_channel = claimed
            .iter()
            .filter(|d| d.channel_name.as_str() == channel);
        assert_eq!(of_channel.count(), 4);
    }
    let rest = claim(store, &[name("ops")]).await;
    assert!(rest.iter().all(|d| d.channel_name.as_str() == "dev"));
    assert_eq!(rest.len(), 2);
}

/// A channel with a message that is to be sent again gets one message at a time, those that were never sent first.
pub async fn a_failing_channel_gets_one_place(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    for _ in 0..3 {
        end_one(fixture, node, "a", OutcomeKind::Failed).await;
        fixture.clock.advance(INTERVAL_MS);
        collect(store).await;
    }
    let mut first = claim(store, &[]).await;
    first.sort_by_key(|d| (d.channel_name.clone(), d.id));
    assert_eq!(first.len(), 6);
    for delivery in &first {
        let then = match delivery.channel_name.as_str() {
            "dev" => AfterSend::Delivered,
            _ => AfterSend::Again(1_000),
        };
        assert!(settle(fixture, delivery, "answer", then).await);
    }
    for _ in 0..2 {
        end_one(fixture, node, "a", OutcomeKind::Failed).await;
        fixture.clock.advance(INTERVAL_MS);
        collect(store).await;
    }
    let mut claimed = claim(store, &[]).await;
    claimed.sort_by_key(|d| (d.channel_name.clone(), d.id));
    let places: Vec<(&str, u32)> = claimed
        .iter()
        .map(|d| (d.channel_name.as_str(), d.attempt))
        .collect();
    assert_eq!(places, [("dev", 1), ("dev", 1), ("ops", 1)]);
    let failing: Vec<bool> = claimed.iter().map(|d| d.is_failing).collect();
    assert_eq!(failing, [false, false, true]);
    // It accepts messages again, and gets all places back once nothing is to be repeated.
    let mut ops = claimed.pop().expect("one of ops");
    let mut attempts = Vec::new();
    loop {
        assert!(settle(fixture, &ops, "ok", AfterSend::Delivered).await);
        let mut next = claim(store, &[name("dev")]).await;
        attempts.extend(next.iter().map(|d| d.attempt));
        match next.pop() {
            Some(delivery) => ops = delivery,
            None => break,
        }
        assert_eq!(next, []);
    }
    assert_eq!(attempts, [1, 2, 2, 2]);
}

/// A namespace whose channels all hang leaves places to the others.
pub async fn a_namespace_takes_some_places_only(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    for name in &names {
        put(fixture, &channel(name)).await;
    }
    for (name, channels) in [("many", &names[..10]), ("more", &names[10..])] {
        let many = json!({ "name": name, "on": ["failed"], "channels": channels });
        put(fixture, &rule(many)).await;
    }
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    fixture.clock.advance(INTERVAL_MS);
    assert_eq!(collect(store).await.deliveries, 22);
    let claimed = claim(store, &[]).await;
    assert_eq!(claimed.len(), 16);
    let busy: Vec<ChannelName> = claimed.iter().map(|d| d.channel_name.clone()).collect();
    assert_eq!(claim(store, &busy).await, []);
    assert_eq!(claim(store, &busy[1..]).await.len(), 1);
}

/// A message that was tried is given up when it is old, however few its attempts were.
pub async fn old_messages_are_given_up(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    fixture.clock.advance(INTERVAL_MS);
    collect(store).await;
    let first = claim(store, &[name("dev")]).await.remove(0);
    assert!(settle(fixture, &first, "503 busy", AfterSend::Again(60_000)).await);
    fixture.clock.advance(2 * 3_600_000 - 1);
    let second = claim(store, &[name("dev")]).await.remove(0);
    assert!(settle(fixture, &second, "503 busy", AfterSend::Again(1)).await);
    fixture.clock.advance(1);
    let rest = claim(store, &[]).await;
    let channels: Vec<&str> = rest.iter().map(|d| d.channel_name.as_str()).collect();
    assert_eq!(channels, ["dev"], "it was never sent");
    let given_up = deliveries(fixture).await.remove(0);
    assert_eq!(
        (given_up.state, given_up.attempts, given_up.next_at),
        (DeliveryState::Failed, 2, None)
    );
    assert_eq!(given_up.ended_at, Some(fixture.now()));
    assert_eq!(
        given_up.answer,
        "given up 2 h after it was written; the last answer: 503 busy"
    );
}

/// Very many messages of one channel that wait: further ones are listed as failed, and the others stay.
pub async fn waiting_messages_of_a_channel_are_bounded(fixture: &Fixture) {
    let node = prepare(fixture).await;
    let store = &*fixture.store;
    fixture
        .harness
        .sql(
            "INSERT INTO alarm_delivery (batch, namespace, rule, channel, events, created_at, next_at)
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
             SELECT 0, 'default', 'r', 'ops', 1, 1800000000000, 1900000000000 FROM n",
        )
        .await;
    end_one(fixture, node, "a", OutcomeKind::Failed).await;
    fixture.clock.advance(INTERVAL_MS);
    collect(store).await;
    let filter = AlarmFilter {
        limit: 2,
        ..AlarmFilter::default()
    };
    let mut newest = store.alarm_deliveries(&filter).await.expect("lists");
    newest.sort_by_key(|d| d.channel.clone());
    assert_eq!(newest[0].state, DeliveryState::Pending);
    assert_eq!(newest[1].channel.as_str(), "ops");
    assert_eq!(
        (newest[1].state, newest[1].attempts, newest[1].next_at),
        (DeliveryState::Failed, 0, None)
    );
    assert_eq!(newest[1].ended_at, Some(fixture.now()));
    assert_eq!(
        newest[1].answer,
        "not sent: 500 messages of the channel wait"
    );
    // Tests have a few places more.
    for _ in 0..10 {
        let tested = store.test_channel(&name("ops"), &actor("ann")).await;
        tested.expect("is written");
    }
    refused(
        store.test_channel(&name("ops"), &actor("ann")).await,
        ErrorKind::Conflict,
        "510 messages of alarm channel \"ops\" wait",
    );
}
