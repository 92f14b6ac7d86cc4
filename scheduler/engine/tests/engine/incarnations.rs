//! G5: two workers under one name do not answer for each other.

use cueline_engine::ManualEngine;
use cueline_protocol::{HeartbeatMessage, HeartbeatSender, WorkerProcess};
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, tick};

/// A heartbeat of the process `incarnation` that started `started` ms after the start of the test.
fn of(
    incarnation: &'static str,
    started: i64,
    sent: i64,
    capability: &'static str,
) -> impl FnOnce(&mut HeartbeatMessage) {
    move |message| {
        incarnation.clone_into(&mut message.heartbeat.incarnation);
        message.heartbeat.capabilities = vec![capability.to_owned()];
        message.sender = Some(HeartbeatSender {
            process: WorkerProcess {
                host: Some("machine".to_owned()),
                pid: 7,
                started_at: Fixture::at(started),
            },
            sent_at: Fixture::at(sent),
            number: 0,
        });
    }
}

/// Its heartbeat at `now`, which the engine receives at once.
async fn receive(
    (fixture, engine, e1): (&Fixture, &mut ManualEngine, &FakeExecutor),
    (incarnation, started): (&'static str, i64),
    now: i64,
    capability: &'static str,
) {
    fixture.set(now);
    e1.heartbeat_message(of(incarnation, started, now, capability))
        .await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
}

const FIRST: (&str, i64) = ("first", 0);
const SECOND: (&str, i64) = ("second", 1_000);

#[tokio::test]
async fn the_later_of_two_workers_with_one_name_is_told_to_stop_and_does_not_count() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.silent_executor("e1").await;
    fixture.apply("job", json!({})).await;
    receive((&fixture, &mut engine, &e1), FIRST, 900, "native:work").await;
    receive((&fixture, &mut engine, &e1), SECOND, 1_100, "native:other").await;
    assert!(e1.received_name_conflicts().is_empty(), "a restart");
    receive((&fixture, &mut engine, &e1), FIRST, 5_900, "native:work").await;
    let conflict = ("first".to_owned(), "second".to_owned());
    assert_eq!(
        e1.received_name_conflicts(),
        std::slice::from_ref(&conflict)
    );
    // It has not received the refusal.
    receive((&fixture, &mut engine, &e1), SECOND, 6_100, "native:other").await;
    assert_eq!(e1.received_name_conflicts(), [conflict]);
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1, "the first one runs it");
    let known = fixture.real().executors().await.expect("reads");
    assert_eq!(known[0].heartbeat.incarnation, "first");
}

#[tokio::test]
async fn a_restarted_worker_is_not_refused() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.silent_executor("e1").await;
    fixture.apply("job", json!({})).await;
    receive((&fixture, &mut engine, &e1), FIRST, 900, "native:other").await;
    for now in [1_100, 6_100, 11_100] {
        receive((&fixture, &mut engine, &e1), SECOND, now, "native:work").await;
    }
    assert!(e1.received_name_conflicts().is_empty());
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1);
}
