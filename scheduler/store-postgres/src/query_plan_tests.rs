//! Checks PostgreSQL's plans of the hot statements over some thousand runs of four days. Each statement uses its index,
//! and a statement about runs of one day reads no other day.
//!
//! The tests of statements are in the files below; this one has the databases that they look at.

mod alarms;
mod limits;
mod pipeline;
mod reads;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorName, Job, JobSpec, Outcome, OutcomeKind,
    Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClockOverride, FireDueRequest, NodeId, Plan, PlannedRun, Planner, Store as _,
};
use cueline_test_servers::postgres::Postgres;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgArguments, PgConnection, Postgres as Db};
use sqlx::query::Query;

use crate::{PgOptions, PgStore};

/// 2027-03-01T12:00:00Z.
const START_MS: i64 = 1_803_902_400_000;
const DAY_MS: i64 = 24 * 3_600_000;
const JOBS: usize = 500;
const ROUNDS: usize = 8;

struct EachFireTime;

impl Planner for EachFireTime {
    fn plan(&self, job: &Job, _due: Timestamp, now: Timestamp, _live: &[ExecutorName]) -> Plan {
        let run = PlannedRun {
            fire_at: now,
            due_at: now,
            shard: Shard::whole(),
            executor: None,
            skipped: None,
        };
        Plan {
            runs: vec![run],
            next_fire: job.spec.next_fire(now),
        }
    }
}

struct Fixture {
    _server: Arc<Postgres>,
    store: PgStore,
    node: NodeId,
    /// Live runs of the last day.
    live: Vec<i64>,
}

/// Four days with two rounds of runs each; all but the last round have ended.
async fn fixture() -> Fixture {
    let (fixture, server, name) = loaded(JOBS).await;
    server.sql(&name, "VACUUM ANALYZE").expect("analyzes");
    fixture
}

/// The same before any table was analyzed.
async fn loaded(jobs: usize) -> (Fixture, Arc<Postgres>, String) {
    let server = Postgres::shared().expect("PostgreSQL starts");
    let name = server.create_database().expect("creates a database");
    let clock = Arc::new(AtomicI64::new(START_MS));
    let shown = Arc::clone(&clock);
    let options = PgOptions {
        clock: Some(ClockOverride::new(move || {
            Timestamp::from_millis(shown.load(Ordering::SeqCst))
        })),
        ..PgOptions::default()
    };
    let store = PgStore::connect(&server.url(&name), options)
        .await
        .expect("opens");
    let specs: Vec<JobSpec> = (0..jobs)
        .map(|n| {
            serde_json::from_value(serde_json::json!({
                "name": format!("job-{n}"), "group": "default", "schedule": { "every": "1s" },
                "handler": { "native": "noop" },
            }))
            .expect("a definition")
        })
        .collect();
    store
        .apply_jobs(&specs, false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let node = store
        .register_node("n", 1 << 40)
        .await
        .expect("registers")
        .node;
    let mut live = Vec::new();
    for round in 0..ROUNDS {
        clock.fetch_add(DAY_MS / 2, Ordering::SeqCst);
        let request = FireDueRequest {
            node,
            horizon_ms: 0,
            limit: jobs,
            max_runs: usize::MAX,
        };
        let runs = store
            .fire_due(request, &EachFireTime)
            .await
            .expect("fires")
            .runs;
        live = runs.iter().map(|r| r.id.0).collect();
        if round + 1 < ROUNDS {
            let cancelled = |run| AttemptReport {
                attempt: AttemptId { run, attempt: 1 },
                executor: None,
                event: AttemptEvent::Ended {
                    outcome: Outcome::new(OutcomeKind::Cancelled, runs[0].due_at),
                },
            };
            let reports: Vec<AttemptReport> = runs.iter().map(|r| cancelled(r.id)).collect();
            store.ingest_reports(&reports).await.expect("ingests");
        }
    }
    let fixture = Fixture {
        _server: Arc::clone(&server),
        store,
        node,
        live,
    };
    (fixture, server, name)
}

type Explained<'q> = Query<'q, Db, PgArguments>;

async fn explain(
    conn: &mut PgConnection,
    sql: &str,
    bind: impl FnOnce(Explained<'_>) -> Explained<'_>,
) -> String {
    let explained = format!("EXPLAIN (COSTS OFF) {sql}");
    let query = bind(sqlx::query(AssertSqlSafe(explained)));
    let rows = query.fetch_all(conn).await;
    let rows = rows.unwrap_or_else(|e| panic!("{sql}\n{e}"));
    let lines: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, 0)).collect();
    lines.join("\n")
}

/// Checks that the plan has all of `parts` and none of `bad`.
#[track_caller]
fn assert_plan(text: &str, parts: &[&str], bad: &[&str], about: &str) {
    for part in parts {
        assert!(text.contains(part), "{about}: no {part} in\n{text}");
    }
    for part in bad {
        assert!(!text.contains(part), "{about}: {part} in\n{text}");
    }
}

/// What the planner knows of the tables that a test fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Statistics {
    Analyzed,
    /// No table was analyzed yet.
    Missing,
    /// The tables had pages and no row when they were analyzed.
    OfEmptyTables,
}

impl Statistics {
    const ALL: [Self; 3] = [Self::Analyzed, Self::Missing, Self::OfEmptyTables];
    /// For tables that grow slowly. The server analyzes them soon after they are empty no longer.
    const USUAL: [Self; 2] = [Self::Analyzed, Self::Missing];
}

/// The fixture, with rows of `fill` in `tables`.
async fn filled(jobs: usize, fill: &str, tables: &[&str], statistics: Statistics) -> Fixture {
    let (fixture, server, name) = loaded(jobs).await;
    let run = |sql: &str| server.sql(&name, sql).expect("runs");
    let tables = tables.join(", ");
    if statistics == Statistics::OfEmptyTables {
        run(fill);
        for table in tables.split(", ") {
            run(&format!("DELETE FROM {table}"));
        }
        run(&format!("ANALYZE {tables}"));
    }
    run(fill);
    if statistics == Statistics::Analyzed {
        run("VACUUM ANALYZE");
    }
    fixture
}

impl Fixture {
    /// The plan of a statement of the scheduler.
    async fn plan(&self, sql: &str, bind: impl FnOnce(Explained<'_>) -> Explained<'_>) -> String {
        let mut tx = self.store.db.write().await.expect("begins");
        explain(&mut tx, sql, bind).await
    }

    /// The plan of a statement on the connections that serve lists. They may scan whole tables.
    async fn plan_of_list(
        &self,
        sql: &str,
        bind: impl FnOnce(Explained<'_>) -> Explained<'_>,
    ) -> String {
        let mut conn = self.store.db.read().await.expect("connects");
        explain(&mut conn, sql, bind).await
    }

    /// The plan of a statement that is planned once.
    async fn plan_of_all(&self, sql: &str, parameters: usize) -> String {
        let begun = self.store.db.begin_generic_plan().await;
        let mut tx = begun.expect("begins");
        let values = vec!["NULL"; parameters].join(", ");
        let prepare = format!("PREPARE planned AS {sql}");
        let explain = format!("EXPLAIN (COSTS OFF) EXECUTE planned ({values})");
        let prepared = sqlx::raw_sql(AssertSqlSafe(prepare))
            .execute(&mut *tx)
            .await;
        prepared.unwrap_or_else(|e| panic!("{sql}\n{e}"));
        let rows = sqlx::raw_sql(AssertSqlSafe(explain))
            .fetch_all(&mut *tx)
            .await
            .expect("explains");
        sqlx::raw_sql("DEALLOCATE planned")
            .execute(&mut *tx)
            .await
            .expect("forgets");
        let lines: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, 0)).collect();
        lines.join("\n")
    }

    /// Some runs of the last day, and the bounds of their ids.
    fn some(&self) -> (Vec<i64>, i64, i64) {
        let ids = self.live[..10].to_vec();
        let (low, high) = crate::columns::id_range(ids.iter().copied());
        (ids, low, high)
    }

    /// Checks that the statement uses `index`, scans no whole table, and reads only the last day, 5 March.
    async fn check(
        &self,
        sql: &str,
        index: &str,
        bind: impl FnOnce(Explained<'_>) -> Explained<'_>,
    ) {
        let text = self.plan(sql, bind).await;
        assert!(
            text.contains(index),
            "no {index} in the plan of {sql}\n{text}"
        );
        for whole in ["Seq Scan on run", "Seq Scan on job"] {
            assert!(
                !text.contains(whole),
                "{whole} in the plan of {sql}\n{text}"
            );
        }
        for other in ["_270301", "_270302", "_270303", "_270304", "_270306"] {
            assert!(
                !text.contains(other),
                "day {other} in the plan of {sql}\n{text}"
            );
        }
    }
}
