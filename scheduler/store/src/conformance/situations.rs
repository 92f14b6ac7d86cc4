//! What explanations read.

use cueline_model::RunState;

use super::fire_rules::add;
use super::fixture::{Fixture, actor, each_second, name, refused};
use crate::{ErrorKind, NewBackfill, Precondition, Quotas, Subject};

/// One call has the job, its runs, its executors, and what may hold it back.
pub async fn a_situation_is_complete(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.heartbeats(&["e1", "e2"]).await;
    fixture.clock.advance(100_000);
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    let store = &fixture.store;
    fixture.clock.advance(1_000);
    let fired = fixture.fire(node).await.runs;
    let of_a = |run: &&crate::ClaimedRun| run.job.spec.name.as_str() == "a";
    let first = fired.iter().find(of_a).expect("a run").clone();
    fixture.publish(node, &first).await;
    fixture.clock.advance(1_000);
    let second = fixture.fire(node).await.runs;
    let second = second.iter().find(of_a).expect("a run").id;
    let job = name("a");
    let situation = store.situation(Subject::Job(&job)).await.expect("reads");
    let live: Vec<_> = situation.live.iter().map(|run| run.id).collect();
    assert_eq!(live, [first.id, second]);
    // The trigger of the first one is in a queue, and no start is known.
    assert_eq!(situation.run.expect("waits").run.id, first.id);
    assert_eq!(situation.executors.len(), 2);
    assert!(situation.versions.is_empty() && situation.backfill.is_none());
    assert_eq!(situation.now, fixture.now());
    let quotas = Quotas {
        max_waiting_runs: Some(1),
        ..Quotas::default()
    };
    store
        .set_quotas(&name("default"), &quotas, None, &actor("ann"))
        .await
        .expect("sets");
    store
        .set_job_enabled(&job, false, &actor("bob"))
        .await
        .expect("pauses");
    let window = serde_json::json!({ "paused_at": 1, "reason": "x" });
    add(&**store, &serde_json::from_value(window).expect("a pause")).await;
    let new = NewBackfill {
        job: job.clone(),
        condition: Precondition::None,
        from: fixture.now().minus_ms(10_000),
        to: fixture.now(),
        parallel: 1,
        include_excluded: false,
        total: 10,
        by: actor("ann"),
    };
    store.start_backfill(&new).await.expect("starts");
    let situation = store.situation(Subject::Run(second)).await.expect("reads");
    let run = situation.run.expect("is asked for");
    assert_eq!((run.run.id, run.run.state), (second, RunState::Skipped));
    assert!(!run.timeline.is_empty());
    assert_eq!(situation.versions[0].by, "user bob");
    assert_eq!(situation.rules.windows.len(), 1);
    assert_eq!(situation.backfill.expect("runs").total, 10);
    let load = situation.quotas.expect("is limited");
    assert_eq!(load.quotas.max_waiting_runs, Some(1));
    store
        .delete_job(&job, &actor("ann"))
        .await
        .expect("deletes");
    let missing = store.situation(Subject::Job(&job)).await;
    refused(missing, ErrorKind::NotFound, "\"a\"");
    let situation = store
        .situation(Subject::Run(first.id))
        .await
        .expect("reads");
    assert!(situation.job.is_none());
    assert_eq!(situation.live.len(), 1);
}
