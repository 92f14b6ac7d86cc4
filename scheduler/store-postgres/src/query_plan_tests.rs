//! Checks PostgreSQL's plans of the hot statements over some thousand runs of four days. Each statement uses its index,
//! and a statement about runs of one day reads no other day.
//!
//! All tests are in one file, because they share a database full of runs, which takes long to create.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorName, Job, JobSpec, Outcome, OutcomeKind,
    Shard, Timestamp,
};
use cueline_store::adapter::audit_query::{AuditQuery, Bound};
use cueline_store::{
    AttemptReport, AuditFilter, AuditResult, ClockOverride, FireDueRequest, NodeId, Plan,
    PlannedRun, Planner, RunFilter, Store as _,
};
use cueline_test_servers::postgres::Postgres;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgArguments, Postgres as Db};
use sqlx::query::Query;

use crate::partitions::Day;
use crate::{
    PgOptions, PgStore, accounts, audit, cancel, changes, claim, definitions, dispatch, drop_day,
    executors, fire_due, follow_ups, ingest, jobs, ledger, log_lines, maintenance, new_runs,
    oldest_queued, runs, summaries, trigger, waiting_runs,
};

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

impl Fixture {
    /// The plan of a statement of the scheduler.
    async fn plan(&self, sql: &str, bind: impl FnOnce(Explained<'_>) -> Explained<'_>) -> String {
        let mut tx = self.store.db.write().await.expect("begins");
        let explained = format!("EXPLAIN (COSTS OFF) {sql}");
        let query = bind(sqlx::query(AssertSqlSafe(explained)));
        let rows = query.fetch_all(&mut *tx).await;
        let rows = rows.unwrap_or_else(|e| panic!("{sql}\n{e}"));
        let lines: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, 0)).collect();
        lines.join("\n")
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

#[tokio::test]
async fn claims_use_their_indexes() {
    let s = fixture().await;
    let far = START_MS + 100 * DAY_MS;
    s.check(fire_due::DUE, "job_due_next", |q| q.bind(far).bind(10_i64))
        .await;
    s.check(fire_due::ADVANCE, "job_due_pkey", |q| {
        q.bind(vec![1_i64; 50])
            .bind(vec![2_i64; 50])
            .bind(vec![3_i64; 50])
    })
    .await;
    s.check(claim::CLAIM, "run_live_waiting", |q| {
        q.bind(far).bind(10_i64).bind(s.node.0)
    })
    .await;
    let text = s.plan(claim::NEXT_DUE, |q| q.bind(START_MS)).await;
    for part in ["job_due_next", "run_live_waiting", "SubPlan"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let (ids, low, high) = s.some();
    s.check(claim::READ, "run_270305_pkey", |q| {
        q.bind(&ids).bind(low).bind(high)
    })
    .await;
    let text = s.plan(fire_due::DUE, |q| q.bind(far).bind(10_i64)).await;
    assert!(!text.contains("Sort"), "{text}");
    let text = s
        .plan(claim::CLAIM, |q| q.bind(far).bind(10_i64).bind(1_i64))
        .await;
    assert!(!text.contains("Sort"), "{text}");
}

#[tokio::test]
async fn dispatch_uses_the_primary_key() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let ones = vec![1_i32; ids.len()];
    let names = vec!["e1"; ids.len()];
    s.check(dispatch::BEGIN, "run_live_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(vec![1_i64; ids.len()])
            .bind(&ones)
            .bind(vec!["e1"])
            .bind(s.node.0)
            .bind(1_i64)
    })
    .await;
    s.check(dispatch::CHANGED, "run_live_pkey", |q| {
        q.bind(&ids).bind(vec![1_i64; ids.len()]).bind(s.node.0)
    })
    .await;
    s.check(dispatch::ACCEPTED, "run_live_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(&names).bind(s.node.0)
    })
    .await;
    s.check(dispatch::CONFIRM, "run_live_pkey", |q| {
        q.bind(&ids).bind(1_i32).bind(1_i64)
    })
    .await;
    s.check(dispatch::RELEASE, "run_live_pkey", |q| {
        q.bind(&ids).bind(1_i32).bind(s.node.0).bind(Some(1_i64))
    })
    .await;
    s.check(dispatch::JOBS_OF_RELEASED, "run_live_pkey", |q| {
        q.bind(&ids).bind(s.node.0)
    })
    .await;
    s.check(dispatch::END_RELEASED, "run_270305_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(s.node.0)
            .bind(1_i64)
            .bind("x")
            .bind(low)
            .bind(high)
    })
    .await;
    s.check(dispatch::END_STOPPED, "run_270305_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(1_i64)
            .bind("x")
            .bind(low)
            .bind(high)
    })
    .await;
    s.check(dispatch::RECLAIM, "run_live_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(s.node.0)
    })
    .await;
}

/// These plans must be right for all values, and without statistics.
#[tokio::test]
async fn generic_plans_use_their_indexes() {
    let analyzed = fixture().await;
    let (new, ..) = loaded(JOBS).await;
    // A plan that was made for a table of one row is also used when there are many.
    let (one, server, name) = loaded(1).await;
    server.sql(&name, "VACUUM ANALYZE").expect("analyzes");
    for s in [analyzed, new, one] {
        for (sql, index, parameters) in [
            (dispatch::BEGIN, "using run_live_pkey", 7),
            (dispatch::CHANGED, "using run_live_pkey", 3),
            (dispatch::CONFIRM, "using run_live_pkey", 3),
            (trigger::LOCK_JOB, "Index Cond: (name = $1)", 3),
            (trigger::LOCK_JOB, "using job_due_pkey", 3),
            (trigger::FIND_KEY, "using trigger_key_pkey", 2),
            (definitions::LOAD, "Index Cond: (id = ANY ($1))", 1),
            (trigger::WRITE, "using job_due_pkey", 23),
        ] {
            let text = s.plan_of_all(sql, parameters).await;
            assert!(
                text.contains(index),
                "no {index} in the plan of {sql}\n{text}"
            );
            for bad in ["Seq Scan", "Join", "Nested Loop"] {
                assert!(!text.contains(bad), "{bad} in the plan of {sql}\n{text}");
            }
        }
    }
}

#[tokio::test]
async fn reports_use_the_primary_key() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let n = ids.len();
    let ones = vec![1_i32; n];
    for facts in [ingest::SNAPSHOTS, ingest::SNAPSHOTS_LOCKED] {
        s.check(facts, "run_live_pkey", |q| q.bind(&ids)).await;
    }
    s.check(ingest::SNAPSHOTS_OF_ENDED, "run_270305_pkey", |q| {
        q.bind(&ids)
    })
    .await;
    s.check(ingest::START, "run_live_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(vec![1_i64; n]).bind(1_i64)
    })
    .await;
    s.check(ingest::NEXT_ATTEMPT, "run_live_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(&ones)
            .bind(&ones)
            .bind(&ones)
            .bind(vec![1_i64; n])
            .bind(vec![1_i64; n])
            .bind(&ones)
            .bind(vec!["x"; n])
    })
    .await;
    for index in ["run_live_pkey", "run_270305_pkey"] {
        s.check(ingest::END, index, |q| {
            q.bind(&ids)
                .bind(&ones)
                .bind(vec![10_i16; n])
                .bind(vec![1_i64; n])
                .bind(vec![1_i64; n])
                .bind(&ones)
                .bind(vec!["x"; n])
                .bind(vec!["x"; n])
                .bind(low)
                .bind(high)
        })
        .await;
    }
    s.check(ingest::INSERT_EVENTS, "run_event_270305_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(vec!["x"; n])
            .bind(vec!["x"; n])
            .bind(1_i64)
            .bind(low)
            .bind(high)
            .bind(vec!["x"; n])
            .bind(vec!["x"; n])
    })
    .await;
    s.check(ingest::EXECUTORS_OF_EARLIER, "run_event_270305_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(low).bind(high)
    })
    .await;
    s.check(log_lines::READ, "run_log_270305_pkey", |q| {
        q.bind(low).bind(0_i64).bind(9_i64)
    })
    .await;
}

/// Runs of a batch lie close together. While a day has no statistics, the planner expects hardly any row within their
/// bounds. It would then compare each run with each of these rows.
#[tokio::test]
async fn on_a_day_without_statistics_runs_are_not_compared_with_each_other() {
    let (s, ..) = loaded(2_000).await;
    let ids = &s.live;
    let (low, high) = crate::columns::id_range(ids.iter().copied());
    let n = ids.len();
    let ones = vec![1_i32; n];
    let end = s.plan(ingest::END, |q| {
        q.bind(ids)
            .bind(&ones)
            .bind(vec![10_i16; n])
            .bind(vec![1_i64; n])
            .bind(vec![1_i64; n])
            .bind(&ones)
            .bind(vec!["x"; n])
            .bind(vec!["x"; n])
            .bind(low)
            .bind(high)
    });
    let read = s.plan(claim::READ, |q| q.bind(ids).bind(low).bind(high));
    let runs = s.plan(runs::BY_ID, |q| q.bind(ids));
    let ended = s.plan(ingest::SNAPSHOTS_OF_ENDED, |q| q.bind(ids));
    for text in [end.await, read.await, runs.await, ended.await] {
        assert!(!text.contains("Join Filter"), "{text}");
    }
}

#[tokio::test]
async fn follow_ups_use_their_indexes() {
    let s = fixture().await;
    let (ids, _, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    s.check(follow_ups::LOCK_JOBS, "job_due_pkey", |q| {
        q.bind(vec![1_i64, 2])
    })
    .await;
    s.check(follow_ups::IDLE, "run_live_delays_next_fire", |q| {
        q.bind(vec![1_i64, 2])
    })
    .await;
    s.check(follow_ups::SET_NEXT_FIRE, "job_due_pkey", |q| {
        q.bind(vec![1_i64]).bind(vec![1_i64])
    })
    .await;
    s.check(follow_ups::SUCCEEDED_FIRES, "run_270305_fire", |q| {
        q.bind(&ids).bind(first).bind(end - 1)
    })
    .await;
    s.check(follow_ups::CHILDREN, "job_children", |q| {
        q.bind(vec![1_i64, 2])
    })
    .await;
    s.check(trigger::RUNS_OF_REQUEST, "run_270305_fire", |q| {
        q.bind(high).bind(1_i64).bind(first).bind(end)
    })
    .await;
    let n = ids.len();
    s.check(new_runs::WRITTEN, "run_270305_fire", |q| {
        q.bind(&ids)
            .bind(&ids)
            .bind(&ids)
            .bind(vec![0_i16; n])
            .bind(vec![0_i32; n])
            .bind(first)
            .bind(end - 1)
    })
    .await;
    s.check(jobs::DISPATCHING, "run_live_job", |q| q.bind(vec![1_i64]))
        .await;
    let now = START_MS;
    s.check(cancel::END, "run_live_pkey", |q| {
        q.bind(high).bind(now).bind("x")
    })
    .await;
    let text = s
        .plan(waiting_runs::END, |q| {
            q.bind(vec![1_i64]).bind(now).bind("x")
        })
        .await;
    assert!(
        text.contains("run_live_job") && !text.contains("Seq Scan on run"),
        "{text}"
    );
    let text = s
        .plan(waiting_runs::DELETE_AHEAD, |q| {
            q.bind(vec![1_i64]).bind(now)
        })
        .await;
    assert!(
        text.contains("run_live_job") && !text.contains("Seq Scan on run"),
        "{text}"
    );
}

#[tokio::test]
async fn retention_uses_indexes() {
    let s = fixture().await;
    let (_, _, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    s.check(maintenance::EXPIRED, "run_270305_pkey", |q| {
        q.bind(first).bind(end).bind(50_i64).bind(1_i64).bind(first)
    })
    .await;
    s.check(drop_day::CHECK_WINDOW, "run_270305_pkey", |q| {
        q.bind(first).bind(end).bind(1_i64).bind(50_i64)
    })
    .await;
    for index in ["run_270305_pkey", "run_live_pkey"] {
        s.check(drop_day::NEWEST, index, |q| q.bind(first).bind(end))
            .await;
    }
    s.check(drop_day::DELETE_KEYS, "trigger_key_run", |q| {
        q.bind(first).bind(end).bind(50_i64)
    })
    .await;
}

#[tokio::test]
async fn reads_use_their_indexes() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    for executor in [None, Some("e1")] {
        s.check(executors::OUTSTANDING, "run_live_pkey", |q| {
            q.bind(1_i64)
                .bind(low)
                .bind(5_i64)
                .bind(executor)
                .bind(executor)
        })
        .await;
    }
    let text = s
        .plan(executors::OVERDUE, |q| q.bind(START_MS).bind(5_i64))
        .await;
    assert!(
        text.contains("run_live_overdue") && !text.contains("Sort"),
        "{text}"
    );
    s.check(runs::BY_ID, "run_270305_pkey", |q| q.bind(&ids))
        .await;
    s.check(runs::OF_JOBS, "run_270305_expr_job_id_idx", |q| {
        q.bind(vec![high >> runs::BLOCK_BITS])
            .bind(vec![1_i64])
            .bind(first)
            .bind(end - 1)
            .bind(true)
            .bind(Vec::<i16>::new())
            .bind(false)
            .bind(5_i64)
    })
    .await;
    s.check(summaries::COUNT_DAY, "run_270305_expr_job_id_idx", |q| {
        q.bind(vec![high >> runs::BLOCK_BITS])
            .bind(vec![1_i64])
            .bind(first)
            .bind(end - 1)
            .bind(1_i64)
    })
    .await;
    s.check(ledger::RUNS_AT, "run_270305_fire", |q| {
        q.bind(vec![START_MS]).bind(1_i64).bind(first).bind(end)
    })
    .await;
    let text = s.plan(runs::ALL, |q| q.bind(i64::MAX).bind(5_i64)).await;
    assert!(
        text.contains("run_270305_pkey") && !text.contains("Sort"),
        "{text}"
    );
    let text = s
        .plan(runs::IN_RARE_STATES, |q| {
            q.bind(i64::MAX).bind(vec![11_i16]).bind(5_i64)
        })
        .await;
    assert!(
        text.contains("unsuccessful_state") && !text.contains("Seq Scan on run_27"),
        "{text}"
    );
    let text = s.plan(oldest_queued::OLDEST, |q| q).await;
    assert!(
        text.contains("run_live") && !text.contains("run_27"),
        "only live runs: {text}"
    );
    let listed = s
        .store
        .runs(&RunFilter {
            limit: 5,
            ..RunFilter::default()
        })
        .await;
    assert_eq!(listed.expect("lists").len(), 5);
}

/// Filters of the audit log with the index that each one uses.
fn audit_filters() -> Vec<(AuditFilter, &'static str)> {
    let text = || Some("none".to_owned());
    let any = || AuditFilter {
        limit: 5,
        ..AuditFilter::default()
    };
    vec![
        (any(), "audit_pkey"),
        (
            AuditFilter {
                result: Some(AuditResult::Refused),
                ..any()
            },
            "audit_refused",
        ),
        (
            AuditFilter {
                actor: text(),
                ..any()
            },
            "audit_actor",
        ),
        (
            AuditFilter {
                action: Some("job.pause".to_owned()),
                ..any()
            },
            "audit_action",
        ),
        (
            AuditFilter {
                action: text(),
                ..any()
            },
            "audit_action_object",
        ),
        (
            AuditFilter {
                object: text(),
                ..any()
            },
            "audit_object",
        ),
        (
            AuditFilter {
                namespace: Some("none".parse().expect("a name")),
                ..any()
            },
            "audit_namespace",
        ),
        (
            AuditFilter {
                from: Some(Timestamp::from_millis(START_MS)),
                ..any()
            },
            "audit_at",
        ),
        (
            AuditFilter {
                to: Some(Timestamp::from_millis(START_MS)),
                ..any()
            },
            "audit_at",
        ),
    ]
}

/// The fixture's jobs have left an entry each. Every filter finds its few entries by its index, in the order of the list.
#[tokio::test]
async fn the_audit_log_uses_its_indexes() {
    let s = fixture().await;
    for (filter, index) in audit_filters() {
        let AuditQuery { sql, parameters } = AuditQuery::new(&filter, '$');
        let text = s
            .plan(&sql, |query| {
                parameters
                    .into_iter()
                    .fold(query, |query, parameter| match parameter {
                        Bound::Number(number) => query.bind(number),
                        Bound::Text(text) => query.bind(text),
                    })
            })
            .await;
        assert!(text.contains(index), "no {index} in {text}");
        assert!(!text.contains("Seq Scan"), "{text}");
    }
    s.check(audit::PRUNE, "audit_at", |q| q.bind(START_MS).bind(5_i64))
        .await;
    s.check(audit::VERSIONS, "job_version_pkey", |q| {
        q.bind("job-1").bind(5_i64).bind(5_i64)
    })
    .await;
    s.check(audit::TRIM_VERSIONS, "job_version_pkey", |q| {
        q.bind(vec![1_i64, 2]).bind(1_000_i64)
    })
    .await;
    s.check(audit::DELETED_JOBS, "job_keeps_versions", |q| {
        q.bind(START_MS).bind(5_i64)
    })
    .await;
    s.check(audit::PRUNE_VERSIONS, "job_version_pkey", |q| {
        q.bind(vec![1_i64, 2]).bind(5_i64)
    })
    .await;
    // Of the jobs that ever had the name, only the last one before is read.
    for part in ["job_version_pkey", "job_ever_named", "(id < "] {
        s.check(audit::FORGET_VERSIONS, part, |q| q.bind(vec![1_i64, 2]))
            .await;
    }
}

/// Each request to the API finds its session or its token.
#[tokio::test]
async fn sessions_and_tokens_are_found_by_their_hashes() {
    let (s, ..) = loaded(1).await;
    for (sql, index, validity) in [
        (accounts::sessions::FIND, "session_pkey", None),
        (accounts::api_tokens::FIND, "api_token_hash", Some(1_i64)),
    ] {
        let text = s
            .plan(sql, |q| {
                let q = q.bind(vec![0_u8; 32]).bind(None::<i64>);
                match validity {
                    Some(validity) => q.bind(validity),
                    None => q,
                }
            })
            .await;
        for index in [index, "account_user_pkey"] {
            assert!(text.contains(index), "no {index} in\n{text}");
        }
        assert!(!text.contains("Seq Scan"), "{text}");
    }
    let text = s
        .plan(accounts::api_tokens::LIST_OF_OWNER, |q| {
            q.bind("").bind(5_i64).bind(1_i64)
        })
        .await;
    assert!(text.contains("api_token_of_owner"), "{text}");
}

#[tokio::test]
async fn changes_are_read_by_their_indexes() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let n = ids.len();
    let text = s
        .plan(changes::SEARCH, |q| {
            q.bind(vec![low, high])
                .bind(vec![high, high])
                .bind(vec![5_i64, 5])
        })
        .await;
    for part in ["run_270305_pkey", "Index Cond: ((id >= e.first) AND"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("Seq Scan on run"), "{text}");
    s.check(changes::LIVE, "run_live_pkey", |q| q.bind(5_i64))
        .await;
    s.check(changes::CHANGED, "run_live_pkey", |q| {
        q.bind(&ids).bind(vec![0_i16; n]).bind(vec![1_i32; n])
    })
    .await;
    s.check(changes::BRIEFS, "run_270305_pkey", |q| q.bind(&ids))
        .await;
}
