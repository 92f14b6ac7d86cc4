//! What operators do to queues is in the audit log before it happens (G19).

use cueline_broker::QueueId;
use cueline_model::RunState;
use cueline_store::AuditFilter;
use serde_json::json;

use crate::fixture::{Fault, Fixture, actor, tick};

/// The actions in the audit log with their objects, oldest first.
async fn actions(fixture: &Fixture) -> Vec<(String, String)> {
    let filter = AuditFilter {
        limit: 100,
        ..AuditFilter::default()
    };
    let mut found = fixture.real().audit_entries(&filter).await.expect("lists");
    found.reverse();
    found
        .into_iter()
        .map(|entry| (entry.entry.action, entry.entry.object))
        .collect()
}

#[tokio::test]
async fn each_action_on_a_queue_leaves_one_entry() {
    let fixture = Fixture::new().await;
    let engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    let (admin, by) = (engine.admin(), actor("ann"));
    admin.drain(&e1.id(), &by).await.expect("drains");
    admin.purge(&e1.id(), &by).await.expect("purges");
    let refused = admin.replay(&e1.id(), &by).await;
    assert!(refused.is_err(), "it is not alive");
    let object = || "default/e1".to_owned();
    assert_eq!(
        actions(&fixture).await,
        [
            ("queue.drain".to_owned(), object()),
            ("queue.purge".to_owned(), object())
        ]
    );
}

#[tokio::test]
async fn nothing_is_purged_without_an_entry() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    fixture.store.fail_next("record", Fault::Before);
    let purged = engine.admin().purge(&e1.id(), &actor("ann")).await;
    assert!(purged.is_err(), "{purged:?}");
    assert_eq!(fixture.state(run).await, RunState::Queued);
    assert_eq!(e1.take().await.len(), 1);
}

/// The sender's name is what the message says.
#[tokio::test]
async fn a_message_that_triggers_a_job_is_its_actor() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({})).await;
    for text in [
        r#"{"v":1,"job":"job","by":"billing"}"#,
        r#"{"v":1,"job":"job"}"#,
    ] {
        fixture.put(&QueueId::Requests, text).await;
    }
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 2);
    let filter = AuditFilter {
        actions: vec!["job.trigger".to_owned()],
        limit: 9,
        ..AuditFilter::default()
    };
    let found = fixture.real().audit_entries(&filter).await.expect("lists");
    let actors: Vec<String> = found.iter().map(|e| e.entry.actor.to_string()).collect();
    assert_eq!(actors, ["message unnamed", "message billing"]);
}
