//! Two workers under one name (G5): the one that started later ends.

use std::sync::atomic::Ordering;

use cueline_model::{Block, OutcomeKind};
use cueline_worker::Error;

use crate::fixture::{Fixture, STORE, trigger};

#[tokio::test]
async fn a_refused_worker_returns_its_triggers_and_ends_with_an_error() {
    let fixture = Fixture::new().await;
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let worker = fixture.start();
    let incarnation = heartbeats.next().await.incarnation;
    let triggers = [1, 2].map(|run| trigger(run, "gate", Block::Serial));
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    fixture.name_conflict("another", &incarnation).await;
    assert_eq!(fixture.kinds([2]).await, [OutcomeKind::Returned]);
    fixture.publish(&[trigger(3, "noop", Block::Serial)]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.kinds([1]).await, [OutcomeKind::Succeeded]);
    let ended = worker.task.await.expect("no panic");
    let error = ended.expect_err("its name is taken");
    assert!(matches!(error, Error::NameTaken { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("process 7 on elsewhere"), "{text}");
    assert!(text.contains("--name"), "{text}");
    let last = heartbeats.received();
    assert!(
        last.iter().all(|heartbeat| !heartbeat.gone),
        "the other worker would count as stopped"
    );
    let calls = fixture.calls.load(Ordering::SeqCst);
    assert_eq!(calls, 0, "the other one runs it");
}

#[tokio::test]
async fn the_worker_that_started_first_goes_on() {
    let fixture = Fixture::new().await;
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let worker = fixture.start();
    let incarnation = heartbeats.next().await.incarnation;
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    for rival in ["another", "a third"] {
        fixture.name_conflict(&incarnation, rival).await;
        fixture.name_conflict("a fourth", rival).await;
    }
    assert_eq!(fixture.holdings(STORE, &[(1, 1)]).await.len(), 1);
    fixture.publish(&[trigger(2, "noop", Block::Serial)]).await;
    assert_eq!(fixture.kinds([2]).await, [OutcomeKind::Succeeded]);
    worker.drain().await;
}
