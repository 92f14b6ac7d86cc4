//! The end of a node: it releases its lease first, and ingests the last results for a limited time.

use std::time::Duration;

use cueline_broker::conformance::{Fault, Operation};
use cueline_engine::{Engine, ManualEngine};
use cueline_protocol::Trigger;
use cueline_runtime::{Ended, Lifecycle};
use cueline_test_support::SOON;
use serde_json::json;
use tokio::time::timeout;

use crate::fixture::{FakeExecutor, Fixture, eventually};

/// A stopped node with a claimed run that is due in one second, a live node, and a trigger to report about.
async fn stopped(fixture: &Fixture) -> (Engine, ManualEngine, FakeExecutor, Trigger) {
    let e1 = fixture.silent_executor("e1").await;
    let lifecycle = Lifecycle::new();
    let engine = fixture.start(&lifecycle).await;
    e1.heartbeat().await;
    fixture.apply("now", json!({})).await;
    fixture.trigger("now").await;
    let rest = json!({ "schedule": { "at": Fixture::at(1_000).to_string() } });
    fixture.apply("soon", rest).await;
    engine.admin().wake_claim();
    let mut sent = Vec::new();
    eventually("both are seen to", async || {
        sent.extend(e1.take().await);
        !sent.is_empty() && fixture.runs("soon").await.len() == 1
    })
    .await;
    assert_eq!(lifecycle.shut_down(SOON).await, Ended::Asked);
    let other = fixture.engine("other").await;
    (engine, other, e1, sent.remove(0))
}

/// The broker does not answer. The other node takes over the claims before the first one has ended.
#[tokio::test]
async fn a_stopping_node_releases_its_lease_before_it_waits_for_anything() {
    let fixture = Fixture::new().await;
    let (engine, mut other, e1, _) = stopped(&fixture).await;
    let stuck = Fault::Late(Duration::from_hours(1));
    fixture.broker_faults.always(Operation::Fetch, stuck);
    fixture.set(1_000);
    let finished = timeout(SOON, engine.finish());
    let taken_over = eventually("it is taken over", async || {
        other.claim().await.expect("claims");
        other.prepare().await.expect("prepares");
        other.publish().await.expect("publishes") == 1
    });
    let (finished, ()) = tokio::join!(finished, taken_over);
    finished.expect("in time").expect("without an error");
    fixture.broker_faults.clear();
    assert_eq!(e1.take_names().await, ["soon"]);
}

/// Executors report faster than the node ingests.
#[tokio::test]
async fn a_lasting_load_does_not_delay_the_stop() {
    let fixture = Fixture::new().await;
    let (engine, _other, e1, trigger) = stopped(&fixture).await;
    let slow = Fault::Late(Duration::from_millis(100));
    fixture.broker_faults.always(Operation::Fetch, slow);
    let load = async {
        loop {
            e1.started(&trigger, fixture.now()).await;
        }
    };
    tokio::select! {
        finished = timeout(SOON, engine.finish()) => {
            finished.expect("in time").expect("without an error");
        }
        () = load => {}
    }
}
