//! Forgetting and repairing.

use cueline_model::{AttemptEvent, DurationMs, JobName, Route, Schedule};

use super::world::{
    EachFireTime, World, ask, attempt, by_hand, each_second, job_with, log_line, name, report,
};
use crate::{FireDueRequest, Plan, Planner};

/// Ended long enough ago, with everything that belongs to them, at most so many.
pub async fn old_runs_are_retired(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        let run = w.fire_one(node).await;
        runs.push(run);
    }
    let lives = runs.remove(0);
    for run in &runs {
        let line = log_line(0, w.now(), "text");
        w.succeed(node, run).await;
        w.ingest(&[report(
            attempt(run),
            AttemptEvent::Log { lines: vec![line] },
        )])
        .await;
        w.clock.advance(10_000);
    }
    assert_eq!(
        w.store
            .delete_expired_runs(40_000, 10)
            .await
            .expect("retires"),
        0
    );
    assert_eq!(
        w.store
            .delete_expired_runs(15_000, 1)
            .await
            .expect("retires"),
        1
    );
    assert!(w.store.run(runs[0].id).await.is_err());
    assert!(w.store.log_lines(runs[0].id, 0, 10).await.is_err());
    assert_eq!(
        w.store
            .delete_expired_runs(15_000, 10)
            .await
            .expect("retires"),
        1
    );
    assert_eq!(
        w.store
            .delete_expired_runs(15_000, 10)
            .await
            .expect("retires"),
        0
    );
    w.run(runs[2].id).await;
    assert_eq!(
        w.store.delete_expired_runs(0, 10).await.expect("retires"),
        1
    );
    w.run(lives.id).await;
}

/// What follows from the end of the last shard depends on all.
pub async fn a_shard_is_kept_for_its_siblings(w: &World) {
    let node = w.node().await;
    let mut sharded = each_second("a");
    sharded.route = Route::Sharded(vec![String::new(); 2]);
    w.apply(&[sharded]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    assert_eq!(runs.len(), 2);
    w.succeed(node, &runs[0]).await;
    w.clock.advance(10_000);
    assert_eq!(
        w.store
            .delete_expired_runs(5_000, 10)
            .await
            .expect("retires"),
        0
    );
    w.run(runs[0].id).await;
    w.succeed(node, &runs[1]).await;
    w.clock.advance(10_000);
    assert_eq!(
        w.store
            .delete_expired_runs(5_000, 10)
            .await
            .expect("retires"),
        2
    );
}

/// The identity of a trigger must stay its own.
pub async fn retired_ids_are_not_used_again(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.succeed(node, &run).await;
    w.clock.advance(1);
    assert_eq!(
        w.store.delete_expired_runs(0, 10).await.expect("retires"),
        1
    );
    let again = w.harness.open().await;
    drop(again);
    w.clock.advance(5_000);
    let next = w.fire(node).await.runs.remove(0);
    assert!(next.id > run.id);
}

/// Once its runs are forgotten, a key can be used again.
pub async fn key_lives_as_long_as_its_runs(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    w.store.trigger(&request).await.expect("triggers");
    let run = w.claim(node).await.remove(0);
    w.succeed(node, &run).await;
    w.clock.advance(1);
    assert!(w.store.trigger(&request).await.expect("answers").duplicate);
    w.store.delete_expired_runs(0, 10).await.expect("retires");
    assert!(!w.store.trigger(&request).await.expect("triggers").duplicate);
}

/// Plans nothing at all: what should not happen.
struct Nothing;

impl Planner for Nothing {
    fn plan(
        &self,
        _job: &cueline_model::Job,
        _due: cueline_model::Timestamp,
        _now: cueline_model::Timestamp,
        _live: &[cueline_model::ExecutorName],
    ) -> Plan {
        Plan::default()
    }
}

/// A fixed-delay job that neither runs nor is due would rest for ever.
pub async fn resting_fixed_delay_is_repaired(w: &World) {
    let node = w.node().await;
    let after = DurationMs::secs(10);
    let spec = job_with("d", Schedule::FixedDelay { after });
    let mut over = job_with("over", Schedule::FixedDelay { after });
    over.end_at = Some(w.now().plus_ms(11_000));
    w.apply(&[spec, over, by_hand("hand"), each_second("a")])
        .await;
    let d: JobName = name("d");
    assert_eq!(w.store.repair_fixed_delay_jobs().await.expect("looks"), 0);
    w.clock.advance(10_000);
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
    };
    w.store.fire_due(request, &Nothing).await.expect("fires");
    assert_eq!(w.store.job(&d).await.expect("exists").next_fire, None);
    assert_eq!(w.store.repair_fixed_delay_jobs().await.expect("repairs"), 1);
    assert_eq!(w.next_fire("d").await, Some(w.now().plus_ms(10_000)));
    assert_eq!(w.next_fire("over").await, None, "its end has passed");
    assert_eq!(w.store.repair_fixed_delay_jobs().await.expect("looks"), 0);
    w.clock.advance(10_000);
    let fired = w.store.fire_due(request, &EachFireTime).await;
    let run = fired.expect("fires").runs.remove(0);
    assert_eq!(
        w.store.repair_fixed_delay_jobs().await.expect("looks"),
        0,
        "its run lives"
    );
    w.succeed(node, &run).await;
    assert_eq!(w.store.repair_fixed_delay_jobs().await.expect("looks"), 0);
}
