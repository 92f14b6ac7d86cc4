//! G10: two nodes fail over one executor at the same time.
//!
//! No node claims the executor. The broker delivers each trigger to one of them, and the store applies the end of an
//! attempt once. Attempts that may have started wait until no node holds a trigger of the queue.

use cueline_broker::Coverage;
use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunState};
use serde_json::json;

use crate::fixture::{FakeExecutor, Fault, Fixture, eventually, tick};

/// Three triggers in the queue of e1, which has been silent for long enough. e2 is alive.
async fn given() -> (Fixture, [ManualEngine; 2], [FakeExecutor; 2]) {
    let fixture = Fixture::new().await;
    let mut nodes = [fixture.engine("one").await, fixture.engine("two").await];
    let executors = [fixture.executor("e1").await, fixture.executor("e2").await];
    fixture.apply("job", json!({ "route": "first" })).await;
    for _ in 0..3 {
        fixture.trigger("job").await;
    }
    let mut published = 0;
    for second in 0..=31 {
        fixture.set(second * 1_000);
        executors[1].heartbeat().await;
        for node in &mut nodes {
            node.receive_loopback_heartbeat();
            published += tick(node).await;
        }
    }
    assert_eq!(published, 3);
    (fixture, nodes, executors)
}

/// Node one has fetched the triggers and not ended their attempts. Node two finds the queue empty. With the start log, it
/// routes the attempts again, and what node one writes later changes nothing. Without the log, it waits for node one.
/// Some brokers do not count what another node has fetched.
#[tokio::test]
async fn attempts_whose_triggers_another_node_has_fetched_are_routed_again_once() {
    for (is_log_kept, coverage) in [
        (true, Coverage::All),
        (true, Coverage::OwnDeliveries),
        (false, Coverage::All),
        (false, Coverage::OwnDeliveries),
    ] {
        let what = format!("log kept: {is_log_kept}, {coverage:?}");
        let (fixture, [mut one, mut two], [e1, e2]) = Box::pin(given()).await;
        if !is_log_kept {
            let deleted = fixture.broker.delete_log(&e1.start_log()).await;
            deleted.expect("deletes");
        }
        let counted = BrokerFault::Coverage(coverage);
        fixture.broker_faults.always(Operation::Stats, counted);
        fixture.store.fail_next("ingest_reports", Fault::Held);
        let calls = fixture.store.calls("ingest_reports");
        let (held, ()) = tokio::join!(one.fail_over(), async {
            let is_held = async || fixture.store.calls("ingest_reports") > calls;
            eventually("node one has fetched the triggers", is_held).await;
            let moved = two.fail_over().await.expect("fails over");
            // Without the log, node two does not know that they have not started.
            assert_eq!(moved, if is_log_kept { 3 } else { 0 }, "{what}");
            assert_eq!(tick(&mut two).await, moved, "{what}");
            fixture.store.release_call();
        });
        assert_eq!(held.expect("fails over"), 3, "{what}");
        for node in [&mut one, &mut two] {
            tick(node).await;
        }
        let routed = e2.take().await;
        let attempts: Vec<u32> = routed.iter().map(|t| t.attempt).collect();
        assert_eq!(attempts, [2, 2, 2], "{what}");
        assert!(e1.accept().await.is_empty(), "{what}");
        for trigger in &routed {
            let now = fixture.now();
            e2.ended(trigger, OutcomeKind::Succeeded, now).await;
        }
        tick(&mut one).await;
        for run in fixture.runs("job").await {
            let end = (run.state, run.attempt);
            assert_eq!(end, (RunState::Succeeded, 2), "{what}");
        }
    }
}
