//! What a worker tells the health page of its process.

use std::time::Duration;

use cueline_worker::{Readiness, Stop};

use crate::fixture::{Fixture, RunningWorker};

/// Waits for a problem that contains `text`.
async fn wait_for(fixture: &Fixture, readiness: &Readiness, text: &str) {
    let expected = format!("the problem: {text}");
    let found = || readiness.problem().filter(|problem| problem.contains(text));
    fixture.wait(&expected, found).await;
}

/// As for a user without the right to publish proofs, or behind a server without the majority.
#[tokio::test]
async fn a_worker_whose_heartbeats_are_not_stored_is_not_ready_and_says_why() {
    let fixture = Fixture::new().await;
    fixture.link.cut_off_from_majority(true);
    let builder = fixture.builder().broker(fixture.link.broker());
    let builder = builder.heartbeat_every(Duration::from_millis(50));
    let worker = builder.build().expect("a worker");
    let readiness = worker.readiness();
    assert!(readiness.problem().is_some(), "it does not run");
    let stop = Stop::new();
    let task = tokio::spawn(worker.run(stop.clone()));
    wait_for(&fixture, &readiness, "there is no majority").await;
    fixture.link.cut_off_from_majority(false);
    let ready = || readiness.problem().is_none().then_some(());
    fixture.wait("the worker to be ready", ready).await;
    let counts = readiness.counts();
    assert!(counts.heartbeats > 0 && !counts.draining, "{counts:?}");
    assert_eq!((counts.held, counts.running), (0, 0));
    RunningWorker { stop, task }.drain().await;
    wait_for(&fixture, &readiness, "stopped").await;
    assert!(readiness.counts().draining);
}
