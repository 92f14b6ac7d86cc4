//! Partitions of days are created when needed, at any time of the clock, and dropped when they are old.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cueline_model::{
    AttemptEvent, AttemptId, ExecutorName, Job, JobSpec, LogLine, LogStream, Outcome, OutcomeKind,
    RunId, Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClockOverride, FireDueRequest, FiredRuns, NodeId, Plan, PlannedRun, Planner,
    Store,
};
use cueline_store_postgres::{PgOptions, PgStore};

use crate::test_database::TestDatabase;

const DAY_MS: i64 = 24 * 3_600_000;
const DAYS: &str =
    "SELECT string_agg(right(c.relname, 6), ' ' ORDER BY c.relname) FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'run'::regclass";

/// 2027-03-01T12:00:00Z.
const START_MS: i64 = 1_803_902_400_000;

struct Scene {
    database: TestDatabase,
    clock: Arc<AtomicI64>,
}

impl Scene {
    async fn new() -> Self {
        Self {
            database: TestDatabase::migrated().await,
            clock: Arc::new(AtomicI64::new(START_MS)),
        }
    }

    async fn open(&self) -> PgStore {
        let clock = Arc::clone(&self.clock);
        let options = PgOptions {
            clock: Some(ClockOverride::new(move || {
                Timestamp::from_millis(clock.load(Ordering::SeqCst))
            })),
            ..PgOptions::default()
        };
        PgStore::connect(&self.database.url(), options)
            .await
            .expect("opens")
    }

    fn days(&self) -> String {
        self.database.sql(DAYS)
    }

    fn count(&self, table: &str) -> String {
        let sql = format!("SELECT count(*) FROM {table}");
        self.database.sql(&sql)
    }

    fn advance(&self, by_ms: i64) {
        self.clock.fetch_add(by_ms, Ordering::SeqCst);
    }
}

/// Fires at a fire time that is this far from the present.
struct At(i64);

impl Planner for At {
    fn plan(&self, job: &Job, _due: Timestamp, now: Timestamp, _live: &[ExecutorName]) -> Plan {
        let at = Timestamp::from_millis(now.as_millis() + self.0);
        Plan {
            runs: vec![PlannedRun {
                fire_at: at,
                due_at: now,
                shard: Shard::whole(),
                executor: None,
                skipped: None,
            }],
            next_fire: job.spec.next_fire(now),
        }
    }
}

fn spec() -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": "a", "group": "default", "schedule": { "every": "1s" }, "handler": { "native": "noop" },
    }))
    .expect("a definition")
}

async fn fire(store: &PgStore, node: NodeId, planner: &At) -> FiredRuns {
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
        max_runs: usize::MAX,
    };
    store.fire_due(request, planner).await.expect("fires")
}

async fn end(store: &PgStore, run: RunId, now_ms: i64) {
    let id = AttemptId { run, attempt: 1 };
    let outcome = Outcome::new(OutcomeKind::Cancelled, Timestamp::from_millis(now_ms));
    let ended = AttemptReport {
        attempt: id,
        executor: None,
        event: AttemptEvent::Ended { outcome },
    };
    let line = LogLine {
        seq: 0,
        at: Timestamp::from_millis(now_ms),
        stream: LogStream::Out,
        text: "text".to_owned(),
    };
    let log = AttemptReport {
        attempt: id,
        executor: None,
        event: AttemptEvent::Log { lines: vec![line] },
    };
    let done = store.ingest_reports(&[log, ended]).await.expect("ingests");
    assert_eq!(done.ended, 1);
}

#[tokio::test]
async fn a_run_is_in_the_partition_of_its_fire_day() {
    let scene = Scene::new().await;
    let store = scene.open().await;
    store.apply_jobs(&[spec()], false).await.expect("applies");
    let node = store
        .register_node("n", 1 << 40)
        .await
        .expect("registers")
        .node;
    let mut ids = Vec::new();
    for days in [0, -3, 2, -20_000, 20_000] {
        scene.advance(1_000);
        let run = fire(&store, node, &At(days * DAY_MS)).await.runs.remove(0);
        assert!(store.run(run.id).await.is_ok());
        ids.push(run.id.0 / 10_000_000_000);
    }
    // A fire time further away than a month counts as a month away.
    assert_eq!(ids, [270_301, 270_226, 270_303, 270_129, 270_401]);
    assert_eq!(scene.days(), "270129 270226 270301 270302 270303 270401");
}

/// A fire time is planned a second time, on any day.
#[tokio::test]
async fn fire_times_are_unique_across_midnight() {
    let scene = Scene::new().await;
    let store = scene.open().await;
    store.apply_jobs(&[spec()], false).await.expect("applies");
    let node = store
        .register_node("n", 1 << 40)
        .await
        .expect("registers")
        .node;
    scene.advance(1_000);
    assert_eq!(fire(&store, node, &At(0)).await.runs.len(), 1);
    scene.advance(DAY_MS);
    assert_eq!(fire(&store, node, &At(-DAY_MS)).await.runs.len(), 0);
    assert_eq!(scene.count("run"), "1");
}

#[tokio::test]
async fn an_old_day_is_dropped_whole() {
    let scene = Scene::new().await;
    let store = scene.open().await;
    store.apply_jobs(&[spec()], false).await.expect("applies");
    let node = store
        .register_node("n", 1 << 40)
        .await
        .expect("registers")
        .node;
    let week = 7 * 24 * 3_600_000;
    let mut runs = Vec::new();
    for _ in 0..3 {
        scene.advance(1_000);
        runs.push(fire(&store, node, &At(0)).await.runs.remove(0).id);
    }
    for run in &runs[..2] {
        end(&store, *run, scene.clock.load(Ordering::SeqCst)).await;
    }
    scene.advance(7 * DAY_MS + DAY_MS / 2);
    assert_eq!(
        store.delete_expired_runs(week, 500).await.expect("retires"),
        0,
        "one of them lives"
    );
    end(&store, runs[2], START_MS + 60_000).await;
    assert_eq!(
        store.delete_expired_runs(week, 1).await.expect("retires"),
        3
    );
    assert_eq!(scene.days(), "270302");
    assert_eq!(
        (scene.count("run"), scene.count("run_log")),
        ("0".to_owned(), "0".to_owned())
    );
    assert!(store.run(runs[0]).await.is_err());
}

/// If a run keeps a day, the other runs of the day are deleted one by one.
#[tokio::test]
async fn a_long_run_does_not_keep_its_day() {
    let scene = Scene::new().await;
    let store = scene.open().await;
    store.apply_jobs(&[spec()], false).await.expect("applies");
    let node = store
        .register_node("n", 1 << 40)
        .await
        .expect("registers")
        .node;
    let mut runs = Vec::new();
    for _ in 0..3 {
        scene.advance(1_000);
        runs.push(fire(&store, node, &At(0)).await.runs.remove(0).id);
    }
    for run in &runs[1..] {
        end(&store, *run, scene.clock.load(Ordering::SeqCst)).await;
    }
    scene.advance(9 * DAY_MS);
    let week = 7 * 24 * 3_600_000;
    assert_eq!(
        store.delete_expired_runs(week, 1).await.expect("retires"),
        1
    );
    assert_eq!(
        store.delete_expired_runs(week, 9).await.expect("retires"),
        1
    );
    assert!(store.run(runs[0]).await.is_ok());
    assert_eq!(scene.count("run"), "1");
}

/// Another node has dropped a partition that this node has cached.
#[tokio::test]
async fn a_dropped_day_is_created_again() {
    let scene = Scene::new().await;
    let (store, other) = (scene.open().await, scene.open().await);
    store.apply_jobs(&[spec()], false).await.expect("applies");
    let node = store
        .register_node("n", 1 << 40)
        .await
        .expect("registers")
        .node;
    scene.advance(1_000);
    let run = fire(&store, node, &At(0)).await.runs.remove(0).id;
    end(&store, run, START_MS + 2_000).await;
    scene.advance(8 * DAY_MS);
    let week = 7 * 24 * 3_600_000;
    assert_eq!(
        other.delete_expired_runs(week, 9).await.expect("retires"),
        1
    );
    assert!(!scene.days().contains("270301"));
    let late = fire(&store, node, &At(-8 * DAY_MS)).await.runs.remove(0);
    assert_eq!(late.id.0 / 10_000_000_000, 270_301);
    assert!(scene.days().contains("270301"));
}
