//! Retention and repair.

use cueline_model::{AttemptEvent, DurationMs, JobName, Route, Schedule};

use super::fixture::{
    EachFireTime, Fixture, ask, attempt, by_hand, each_second, job_with, log_line, name, report,
};
use crate::{FireDueRequest, Plan, Planner};

/// Runs that ended before the limit are deleted with all that belongs to them, up to the limit of the call.
pub async fn old_runs_are_deleted(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        let run = fixture.fire_one(node).await;
        runs.push(run);
    }
    let lives = runs.remove(0);
    for run in &runs {
        let line = log_line(0, fixture.now(), "text");
        fixture.succeed(node, run).await;
        fixture
            .ingest(&[report(
                attempt(run),
                AttemptEvent::Log { lines: vec![line] },
            )])
            .await;
        fixture.clock.advance(10_000);
    }
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(40_000, 10)
            .await
            .expect("retires"),
        0
    );
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(15_000, 1)
            .await
            .expect("retires"),
        1
    );
    assert!(fixture.store.run(runs[0].id).await.is_err());
    assert!(fixture.store.log_lines(runs[0].id, 0, 10).await.is_err());
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(15_000, 10)
            .await
            .expect("retires"),
        1
    );
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(15_000, 10)
            .await
            .expect("retires"),
        0
    );
    fixture.run(runs[2].id).await;
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(0, 10)
            .await
            .expect("retires"),
        1
    );
    fixture.run(lives.id).await;
}

/// The follow-ups of the last shard depend on all shards.
pub async fn a_shard_is_kept_for_its_siblings(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut sharded = each_second("a");
    sharded.route = Route::Sharded(vec![String::new(); 2]);
    fixture.apply(&[sharded]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    assert_eq!(runs.len(), 2);
    fixture.succeed(node, &runs[0]).await;
    fixture.clock.advance(10_000);
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(5_000, 10)
            .await
            .expect("retires"),
        0
    );
    fixture.run(runs[0].id).await;
    fixture.succeed(node, &runs[1]).await;
    fixture.clock.advance(10_000);
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(5_000, 10)
            .await
            .expect("retires"),
        2
    );
}

/// The identity of a trigger stays unique.
pub async fn ids_of_deleted_runs_are_not_used_again(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.succeed(node, &run).await;
    fixture.clock.advance(1);
    assert_eq!(
        fixture
            .store
            .delete_expired_runs(0, 10)
            .await
            .expect("retires"),
        1
    );
    let again = fixture.harness.open().await;
    drop(again);
    fixture.clock.advance(5_000);
    let next = fixture.fire(node).await.runs.remove(0);
    assert!(next.id > run.id);
}

/// A key can be used again after its runs were deleted.
pub async fn a_key_lives_as_long_as_its_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    fixture.store.trigger(&request).await.expect("triggers");
    let run = fixture.claim(node).await.remove(0);
    fixture.succeed(node, &run).await;
    fixture.clock.advance(1);
    assert!(
        fixture
            .store
            .trigger(&request)
            .await
            .expect("answers")
            .duplicate
    );
    fixture
        .store
        .delete_expired_runs(0, 10)
        .await
        .expect("retires");
    assert!(
        !fixture
            .store
            .trigger(&request)
            .await
            .expect("triggers")
            .duplicate
    );
}

/// Plans nothing, which a real planner never does.
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

/// A fixed-delay job that neither runs nor is due would never run again.
pub async fn a_fixed_delay_job_without_a_next_fire_time_is_repaired(fixture: &Fixture) {
    let node = fixture.node().await;
    let after = DurationMs::secs(10);
    let spec = job_with("d", Schedule::FixedDelay { after });
    let mut over = job_with("over", Schedule::FixedDelay { after });
    over.end_at = Some(fixture.now().plus_ms(11_000));
    fixture
        .apply(&[spec, over, by_hand("hand"), each_second("a")])
        .await;
    let d: JobName = name("d");
    assert_eq!(
        fixture
            .store
            .repair_fixed_delay_jobs()
            .await
            .expect("looks"),
        0
    );
    fixture.clock.advance(10_000);
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
        max_runs: usize::MAX,
    };
    fixture
        .store
        .fire_due(request, &Nothing)
        .await
        .expect("fires");
    assert_eq!(fixture.store.job(&d).await.expect("exists").next_fire, None);
    assert_eq!(
        fixture
            .store
            .repair_fixed_delay_jobs()
            .await
            .expect("repairs"),
        1
    );
    assert_eq!(
        fixture.next_fire("d").await,
        Some(fixture.now().plus_ms(10_000))
    );
    assert_eq!(fixture.next_fire("over").await, None, "its end has passed");
    assert_eq!(
        fixture
            .store
            .repair_fixed_delay_jobs()
            .await
            .expect("looks"),
        0
    );
    fixture.clock.advance(10_000);
    let fired = fixture.store.fire_due(request, &EachFireTime).await;
    let run = fired.expect("fires").runs.remove(0);
    assert_eq!(
        fixture
            .store
            .repair_fixed_delay_jobs()
            .await
            .expect("looks"),
        0,
        "its run lives"
    );
    fixture.succeed(node, &run).await;
    assert_eq!(
        fixture
            .store
            .repair_fixed_delay_jobs()
            .await
            .expect("looks"),
        0
    );
}
