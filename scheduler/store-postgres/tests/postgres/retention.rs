//! Retention by rules: runs that are kept longer than their day, prunes, and what the ledger says.

use std::sync::Arc;

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, DurationMs, LogLine, LogStream, Retention, RunId,
    Timestamp,
};
use cueline_store::{AttemptReport, NodeId, PruneRequest, RetentionStore as _, Store as _};
use cueline_store_postgres::PgStore;
use sqlx::Executor as _;

use crate::partitions::{At, DAY_MS, Fixture, START_MS, WEEK_MS, end, fire, spec};

/// A job named `long` that keeps its runs for 30 days, beside the usual one.
async fn with_a_longer_rule(fixture: &Fixture) -> (PgStore, NodeId, Vec<RunId>) {
    let store = fixture.open().await;
    let mut long = spec();
    long.name = "long".parse().expect("a name");
    long.retention.age = Some(DurationMs::millis(30 * DAY_MS.unsigned_abs()));
    let by = Actor::new(ActorKind::User, "a test");
    let applied = store.apply_jobs(&[spec(), long], false, &by).await;
    applied.expect("applies");
    let registered = store.register_node("n", 1 << 40).await;
    let node = registered.expect("registers").node;
    fixture.advance(1_000);
    let fired = fire(&store, node, &At(0)).await.runs;
    assert_eq!(fired.len(), 2);
    for run in &fired {
        end(&store, run.id, START_MS + 2_000).await;
    }
    let is_long = |run: &&cueline_store::ClaimedRun| run.job.spec.name.as_str() == "long";
    let (long, usual): (Vec<_>, Vec<_>) = fired.iter().partition(is_long);
    (store, node, vec![usual[0].id, long[0].id])
}

/// Its day is dropped once the last of them has expired.
#[tokio::test]
async fn a_run_that_is_kept_longer_outlives_the_others_of_its_day() {
    let fixture = Fixture::new().await;
    let (store, _, runs) = with_a_longer_rule(&fixture).await;
    fixture.advance(9 * DAY_MS + DAY_MS / 2);
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 1);
    assert!(store.run(runs[0]).await.is_err());
    assert!(store.run(runs[1]).await.is_ok());
    assert_eq!(fixture.count("run_log"), "1");
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("looks"), 0);
    assert!(fixture.days().contains("270301"), "{}", fixture.days());
    fixture.advance(21 * DAY_MS);
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 1);
    assert!(!fixture.days().contains("270301"), "{}", fixture.days());
}

/// A rule that has become longer counts, although the day was examined before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_longer_rule_counts_for_a_day_that_was_examined() {
    let fixture = Fixture::new().await;
    let (store, node, _) = fixture.with_an_expired_day().await;
    let today = fixture.fire_and_dispatch(&store, node).await;
    let reads = format!("SELECT FROM run WHERE id = {today}");
    let mut other = fixture.transaction(&reads).await;
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("gives up"), 0);
    other.execute("ROLLBACK").await.expect("ends");
    let rule = Retention {
        age: Some(DurationMs::millis(30 * DAY_MS.unsigned_abs())),
        ..Retention::default()
    };
    let (group, by) = (
        "default".parse().expect("a name"),
        Actor::new(ActorKind::User, "a test"),
    );
    let set = store.set_retention(&group, &rule, &by).await;
    assert!(set.expect("sets"));
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("looks"), 0);
    assert!(fixture.days().contains("270301"), "{}", fixture.days());
    let set = store
        .set_retention(&group, &Retention::default(), &by)
        .await;
    assert!(set.expect("sets"));
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 1);
    assert!(!fixture.days().contains("270301"), "{}", fixture.days());
}

/// Its fire times are not lost ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_ledger_knows_a_dropped_day() {
    let fixture = Fixture::new().await;
    let (store, ..) = fixture.with_an_expired_day().await;
    let first = Timestamp::from_millis(START_MS + 1_000);
    let ledger = async || {
        let entries = store
            .ledger(&"a".parse().expect("a name"), first, first.plus_ms(1), 9)
            .await;
        entries.expect("reads").remove(0)
    };
    let before = ledger().await;
    assert!(before.run.is_some() && !before.pruned);
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 1);
    let after = ledger().await;
    assert!(after.run.is_none() && after.pruned, "{after:?}");
}

/// Another transaction holds the run, so the prune takes as long as that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn others_fire_while_runs_are_pruned() {
    let fixture = Fixture::new().await;
    let (store, node, run) = fixture.with_an_expired_day().await;
    let lock = format!("SELECT FROM run WHERE id = {run} FOR UPDATE");
    let mut other = fixture.transaction(&lock).await;
    let request = PruneRequest {
        runs: vec![run],
        ..PruneRequest::default()
    };
    let by = Actor::new(ActorKind::User, "a test");
    let pruning = tokio::spawn(async move { store.prune_runs(&request, &by).await });
    fixture.until_waiting(&pruning).await;

    assert_eq!(fixture.exclusive_locks(), "0");
    let impatient = fixture.open_impatient().await;
    fixture.fire_and_dispatch(&impatient, node).await;
    assert!(!pruning.is_finished(), "it still waits");

    other.execute("COMMIT").await.expect("ends");
    let pruned = pruning.await.expect("no panic").expect("prunes");
    assert_eq!(pruned.count(), 1);
}

/// Many usual runs beside one that is kept for longer. Now it is 9 March.
async fn with_many_expired_runs(fixture: &Fixture) -> (Arc<PgStore>, NodeId, RunId) {
    let (store, node, runs) = with_a_longer_rule(fixture).await;
    let many = format!(
        "INSERT INTO run (id, job_id, fire_key, fire_at, created_at, sequence, kind, state, due_at, ended_at)
         SELECT r.id + 100 + n, r.job_id, r.fire_key + n, r.fire_at + n, r.created_at, r.sequence, r.kind, r.state, r.due_at,
             r.ended_at
         FROM run r, generate_series(1, 1500) n WHERE r.id = {}",
        runs[0]
    );
    fixture.database.sql(&many);
    fixture.advance(8 * DAY_MS);
    (Arc::new(store), node, runs[1])
}

/// A day with few runs that are kept longer gets new partitions that have only these.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_day_with_few_kept_runs_is_replaced() {
    let fixture = Fixture::new().await;
    let (store, node, kept) = with_many_expired_runs(&fixture).await;
    let before = store.run(kept).await.expect("exists");
    let deleted = store.delete_expired_runs(WEEK_MS, 1).await;
    assert_eq!(deleted.expect("retires"), 1_501);
    assert_eq!(
        (fixture.count("run"), fixture.count("run_log")),
        ("1".into(), "1".into())
    );
    assert!(fixture.days().contains("270301"), "{}", fixture.days());
    assert_eq!(store.run(kept).await.expect("exists"), before);
    assert_eq!(store.log_lines(kept, 0, 9).await.expect("reads").len(), 1);
    let left = "SELECT count(*) FROM pg_class WHERE relname LIKE '%_kept'";
    assert_eq!(fixture.database.sql(left), "0");
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("looks"), 0);
    // A late fire time is still unique, and its run keeps the day.
    let late = fire(&store, node, &At(-8 * DAY_MS)).await.runs;
    assert!(late.iter().all(|run| run.id.0 / 10_000_000_000 == 270_301));
    for run in &late {
        end(&store, run.id, START_MS + 2_000).await;
    }
    fixture.advance(23 * DAY_MS);
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 1 + late.len() as u64);
    assert!(!fixture.days().contains("270301"), "{}", fixture.days());
}

/// Another transaction keeps the copy waiting. Fires go on. A late report about a run that is being copied waits, and is not
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn others_fire_while_a_day_is_replaced() {
    let fixture = Fixture::new().await;
    let (store, node, kept) = with_many_expired_runs(&fixture).await;
    let lock = "LOCK TABLE run_event_270301 IN ACCESS EXCLUSIVE MODE";
    let mut other = fixture.transaction(lock).await;
    let replacing = Arc::clone(&store);
    let replacing = tokio::spawn(async move { replacing.delete_expired_runs(WEEK_MS, 9).await });
    fixture.until_waiting(&replacing).await;

    let impatient = fixture.open_impatient().await;
    fixture.fire_and_dispatch(&impatient, node).await;
    let line = LogLine {
        seq: 7,
        at: Timestamp::from_millis(START_MS + 3_000),
        stream: LogStream::Out,
        text: "late".to_owned(),
    };
    let late = AttemptReport {
        attempt: AttemptId {
            run: kept,
            attempt: 1,
        },
        executor: None,
        event: AttemptEvent::Log { lines: vec![line] },
    };
    let reporting = Arc::clone(&store);
    let reporting = tokio::spawn(async move { reporting.ingest_reports(&[late]).await });
    fixture.until_waiting_beside(1, &reporting).await;
    assert!(!replacing.is_finished(), "it still waits");

    other.execute("COMMIT").await.expect("ends");
    let deleted = replacing.await.expect("no panic");
    assert_eq!(deleted.expect("retires"), 1_501);
    reporting.await.expect("no panic").expect("ingests");
    assert_eq!(store.log_lines(kept, 0, 9).await.expect("reads").len(), 2);
    assert_eq!(fixture.count("run_log_270301"), "2");
}
