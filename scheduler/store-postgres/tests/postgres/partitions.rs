//! Partitions of days are created when needed, at any time of the clock, and dropped when they are old.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorName, Job, JobSpec, LogLine, LogStream,
    Outcome, OutcomeKind, RunId, Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClockOverride, DispatchRequest, FireDueRequest, FiredRuns, NodeId, Order, Plan,
    PlannedRun, Planner, RetentionStore as _, RunFilter, Store,
};
use cueline_store_postgres::{PgOptions, PgStore};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::task::JoinHandle;

use crate::test_database::TestDatabase;

pub(crate) const DAY_MS: i64 = 24 * 3_600_000;
pub(crate) const WEEK_MS: u64 = 7 * 24 * 3_600_000;
const DAYS: &str =
    "SELECT string_agg(right(c.relname, 6), ' ' ORDER BY c.relname) FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'run'::regclass";

/// 2027-03-01T12:00:00Z.
pub(crate) const START_MS: i64 = 1_803_902_400_000;

pub(crate) struct Fixture {
    pub(crate) database: TestDatabase,
    clock: Arc<AtomicI64>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self {
            database: TestDatabase::migrated().await,
            clock: Arc::new(AtomicI64::new(START_MS)),
        }
    }

    pub(crate) async fn open(&self) -> PgStore {
        self.open_with(PgOptions::default()).await
    }

    /// A store whose calls fail if they wait for a lock for longer than a retention waits.
    pub(crate) async fn open_impatient(&self) -> PgStore {
        self.open_with(PgOptions {
            // A retention waits for 200 ms, but the machine may stand still meanwhile.
            lock_timeout: Duration::from_secs(6),
            ..PgOptions::default()
        })
        .await
    }

    async fn open_with(&self, options: PgOptions) -> PgStore {
        let clock = Arc::clone(&self.clock);
        let options = PgOptions {
            clock: Some(ClockOverride::new(move || {
                Timestamp::from_millis(clock.load(Ordering::SeqCst))
            })),
            ..options
        };
        PgStore::connect(&self.database.url(), options)
            .await
            .expect("opens")
    }

    pub(crate) fn days(&self) -> String {
        self.database.sql(DAYS)
    }

    pub(crate) fn count(&self, table: &str) -> String {
        let sql = format!("SELECT count(*) FROM {table}");
        self.database.sql(&sql)
    }

    pub(crate) fn advance(&self, by_ms: i64) {
        self.clock.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// A connection of another program that has begun a transaction with this statement.
    pub(crate) async fn transaction(&self, statement: &str) -> PgConnection {
        let mut other = PgConnection::connect(&self.database.url())
            .await
            .expect("connects");
        let begin = format!("BEGIN; {statement}");
        other.execute(AssertSqlSafe(begin)).await.expect("begins");
        other
    }

    /// Waits until a call waits for a lock that the test holds.
    pub(crate) async fn until_waiting<T>(&self, call: &JoinHandle<T>) {
        self.until_waiting_beside(0, call).await;
    }

    /// The same while so many others wait for a lock.
    pub(crate) async fn until_waiting_beside<T>(&self, others: u32, call: &JoinHandle<T>) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while self.database.sql(waits) != (others + 1).to_string() {
            assert!(!call.is_finished(), "it does not wait");
            tokio::task::yield_now().await;
        }
    }

    /// The number of exclusive locks on tables of runs, held or waited for.
    pub(crate) fn exclusive_locks(&self) -> String {
        let count = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
            JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
            WHERE l.mode = 'AccessExclusiveLock' AND l.locktype = 'relation' AND c.relname LIKE 'run%'";
        self.database.sql(count)
    }

    /// A store with a run of 1 March that ended there. Now it is 9 March.
    pub(crate) async fn with_an_expired_day(&self) -> (Arc<PgStore>, NodeId, RunId) {
        let store = self.open().await;
        store
            .apply_jobs(&[spec()], false, &Actor::new(ActorKind::User, "a test"))
            .await
            .expect("applies");
        let registered = store.register_node("n", 1 << 40).await;
        let node = registered.expect("registers").node;
        self.advance(1_000);
        let run = fire(&store, node, &At(0)).await.runs.remove(0).id;
        end(&store, run, START_MS + 2_000).await;
        self.advance(8 * DAY_MS);
        (Arc::new(store), node, run)
    }

    /// Fires and dispatches a run of today.
    pub(crate) async fn fire_and_dispatch(&self, store: &PgStore, node: NodeId) -> RunId {
        self.advance(1_000);
        let run = fire(store, node, &At(0)).await.runs.remove(0);
        let request = DispatchRequest {
            attempt: run.attempt_id(),
            job_version: run.job.version,
            executor: "e1".parse().expect("a name"),
            lane: None,
            limits: None,
        };
        let begun = store.begin_dispatch(node, &[request]).await;
        assert_eq!(begun.expect("begins"), [run.attempt_id()]);
        run.id
    }
}

/// Fires at a fire time that is this far from the present.
pub(crate) struct At(pub(crate) i64);

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

pub(crate) fn spec() -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": "a", "group": "default", "schedule": { "every": "1s" }, "handler": { "native": "noop" },
    }))
    .expect("a definition")
}

/// Applies the job `a` and registers a node.
async fn with_job(store: &PgStore) -> NodeId {
    store
        .apply_jobs(&[spec()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let registered = store.register_node("n", 1 << 40).await;
    registered.expect("registers").node
}

pub(crate) async fn fire(store: &PgStore, node: NodeId, planner: &At) -> FiredRuns {
    let request = FireDueRequest {
        node,
        horizon_ms: 0,
        limit: 10,
        max_runs: usize::MAX,
    };
    store.fire_due(request, planner).await.expect("fires")
}

pub(crate) async fn end(store: &PgStore, run: RunId, now_ms: i64) {
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

/// A promotion, or a restored backup, leaves out a billion numbers or more.
#[tokio::test]
async fn lists_and_counts_skip_numbers_that_no_run_has() {
    let fixture = Fixture::new().await;
    let store = fixture.open().await;
    let node = with_job(&store).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        fixture.advance(1_000);
        ids.push(fire(&store, node, &At(0)).await.runs.remove(0).id);
        let skip = "SELECT setval('run_number', last_value + 1500000000) FROM run_number";
        fixture.database.sql(skip);
    }
    for order in [Order::Ascending, Order::Descending] {
        let filter = RunFilter {
            jobs: vec!["a".parse().expect("a name")],
            order,
            limit: 10,
            ..RunFilter::default()
        };
        let page = store.list_runs(&filter).await.expect("lists");
        let listed: BTreeSet<RunId> = page.runs.iter().map(|run| run.id).collect();
        assert_eq!(listed, ids.iter().copied().collect(), "{order:?}");
        assert_eq!(page.next, None, "{order:?}");
    }
    let job = store
        .job(&"a".parse().expect("a name"))
        .await
        .expect("finds");
    let counted: u64 = job.day.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 3);
}

#[tokio::test]
async fn a_run_is_in_the_partition_of_its_fire_day() {
    let fixture = Fixture::new().await;
    let store = fixture.open().await;
    let node = with_job(&store).await;
    let mut ids = Vec::new();
    for days in [0, -3, 2, -20_000, 20_000] {
        fixture.advance(1_000);
        let run = fire(&store, node, &At(days * DAY_MS)).await.runs.remove(0);
        assert!(store.run(run.id).await.is_ok());
        ids.push(run.id.0 / 10_000_000_000);
    }
    // A fire time further away than a month counts as a month away.
    assert_eq!(ids, [270_301, 270_226, 270_303, 270_129, 270_401]);
    assert_eq!(fixture.days(), "270129 270226 270301 270302 270303 270401");
}

/// A fire time is planned a second time, on any day.
#[tokio::test]
async fn fire_times_are_unique_across_midnight() {
    let fixture = Fixture::new().await;
    let store = fixture.open().await;
    let node = with_job(&store).await;
    fixture.advance(1_000);
    assert_eq!(fire(&store, node, &At(0)).await.runs.len(), 1);
    fixture.advance(DAY_MS);
    assert_eq!(fire(&store, node, &At(-DAY_MS)).await.runs.len(), 0);
    assert_eq!(fixture.count("run"), "1");
}

#[tokio::test]
async fn an_old_day_is_dropped_whole() {
    let fixture = Fixture::new().await;
    let store = fixture.open().await;
    let node = with_job(&store).await;
    let week = 7 * 24 * 3_600_000;
    let mut runs = Vec::new();
    for _ in 0..3 {
        fixture.advance(1_000);
        runs.push(fire(&store, node, &At(0)).await.runs.remove(0).id);
    }
    for run in &runs[..2] {
        end(&store, *run, fixture.clock.load(Ordering::SeqCst)).await;
    }
    fixture.advance(7 * DAY_MS + DAY_MS / 2);
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
    assert_eq!(fixture.days(), "270302");
    assert_eq!(
        (fixture.count("run"), fixture.count("run_log")),
        ("0".to_owned(), "0".to_owned())
    );
    assert!(store.run(runs[0]).await.is_err());
}

/// If a run keeps a day, the other runs of the day are deleted one by one.
#[tokio::test]
async fn a_long_run_does_not_keep_its_day() {
    let fixture = Fixture::new().await;
    let store = fixture.open().await;
    let node = with_job(&store).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        fixture.advance(1_000);
        runs.push(fire(&store, node, &At(0)).await.runs.remove(0).id);
    }
    for run in &runs[1..] {
        end(&store, *run, fixture.clock.load(Ordering::SeqCst)).await;
    }
    fixture.advance(9 * DAY_MS);
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
    assert_eq!(fixture.count("run"), "1");
}

/// Another node has dropped a partition that this node has cached.
#[tokio::test]
async fn a_dropped_day_is_created_again() {
    let fixture = Fixture::new().await;
    let (store, other) = (fixture.open().await, fixture.open().await);
    let node = with_job(&store).await;
    fixture.advance(1_000);
    let run = fire(&store, node, &At(0)).await.runs.remove(0).id;
    end(&store, run, START_MS + 2_000).await;
    fixture.advance(8 * DAY_MS);
    let week = 7 * 24 * 3_600_000;
    assert_eq!(
        other.delete_expired_runs(week, 9).await.expect("retires"),
        1
    );
    assert!(!fixture.days().contains("270301"));
    let late = fire(&store, node, &At(-8 * DAY_MS)).await.runs.remove(0);
    assert_eq!(late.id.0 / 10_000_000_000, 270_301);
    assert!(fixture.days().contains("270301"));
}

/// Another transaction holds a key of an old day, so the deletion of the keys takes as long as that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn others_use_the_tables_while_old_keys_are_deleted() {
    let fixture = Fixture::new().await;
    let (store, node, run) = fixture.with_an_expired_day().await;
    let insert = format!("INSERT INTO trigger_key (job_id, key, first_run) VALUES (1, 'k', {run})");
    fixture.database.sql(&insert);
    let lock_key = "SELECT FROM trigger_key FOR UPDATE";
    let mut other = fixture.transaction(lock_key).await;
    let retiring = tokio::spawn(async move { store.delete_expired_runs(WEEK_MS, 9).await });
    fixture.until_waiting(&retiring).await;

    assert_eq!(fixture.exclusive_locks(), "0");
    let impatient = fixture.open_impatient().await;
    fixture.fire_and_dispatch(&impatient, node).await;
    assert!(!retiring.is_finished(), "it still waits");

    other.execute("COMMIT").await.expect("ends");
    let deleted = retiring.await.expect("no panic");
    assert_eq!(deleted.expect("retires"), 1);
    assert!(!fixture.days().contains("270301"), "{}", fixture.days());
    assert_eq!(fixture.count("trigger_key"), "0");
}

/// Its lock on the table of all runs keeps the drop waiting. The drop gives up, and lets others pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_on_another_day_delays_only_the_drop() {
    let fixture = Fixture::new().await;
    let (store, node, _) = fixture.with_an_expired_day().await;
    let impatient = fixture.open_impatient().await;
    let today = fixture.fire_and_dispatch(&impatient, node).await;
    let reads = format!("SELECT FROM run WHERE id = {today}");
    let writes = format!("UPDATE run SET message = 'x' WHERE id = {today}");
    for statement in [reads, writes] {
        let mut other = fixture.transaction(&statement).await;
        let (deleted, _) = tokio::join!(
            store.delete_expired_runs(WEEK_MS, 9),
            fixture.fire_and_dispatch(&impatient, node),
        );
        assert_eq!(deleted.expect("gives up without an error"), 0);
        assert_eq!(fixture.exclusive_locks(), "0", "it has given up its locks");
        fixture.fire_and_dispatch(&impatient, node).await;
        assert!(fixture.days().contains("270301"), "{}", fixture.days());
        other.execute("ROLLBACK").await.expect("ends");
    }
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 1);
    assert!(!fixture.days().contains("270301"), "{}", fixture.days());
}

/// A day was examined and could not be dropped. Before the next turn, an old fire time gets its run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_written_after_the_examination_keeps_its_day() {
    let fixture = Fixture::new().await;
    let (store, node, _) = fixture.with_an_expired_day().await;
    let today = fixture.fire_and_dispatch(&store, node).await;
    let reads = format!("SELECT FROM run WHERE id = {today}");
    let mut other = fixture.transaction(&reads).await;
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("gives up"), 0);
    fixture.advance(1_000);
    let late = fire(&store, node, &At(-8 * DAY_MS)).await.runs.remove(0).id;
    assert_eq!(late.0 / 10_000_000_000, 270_301);
    other.execute("ROLLBACK").await.expect("ends");
    for _ in 0..2 {
        let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
        assert_eq!(deleted.expect("looks"), 0);
    }
    assert!(store.run(late).await.is_ok());
    end(&store, late, START_MS + 60_000).await;
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("retires"), 2);
}

/// Ids are allocated before their runs are visible. So a day is examined only while nothing writes to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_day_is_either_examined_or_written_to() {
    let fixture = Fixture::new().await;
    let (store, node, _) = fixture.with_an_expired_day().await;
    let write = "SELECT pg_advisory_xact_lock_shared(1131767116, 270301)";
    let mut other = fixture.transaction(write).await;
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("looks"), 0);
    other.execute("COMMIT").await.expect("ends");

    let examine = "SELECT pg_advisory_xact_lock(1131767116, 270301)";
    let mut other = fixture.transaction(examine).await;
    fixture.fire_and_dispatch(&store, node).await;
    fixture.advance(1_000);
    let writer = Arc::clone(&store);
    let writing = tokio::spawn(async move { fire(&writer, node, &At(-8 * DAY_MS)).await });
    fixture.until_waiting(&writing).await;
    other.execute("COMMIT").await.expect("ends");
    let late = writing.await.expect("no panic").runs.remove(0).id;
    let deleted = store.delete_expired_runs(WEEK_MS, 9).await;
    assert_eq!(deleted.expect("looks"), 0);
    assert!(store.run(late).await.is_ok());
}
