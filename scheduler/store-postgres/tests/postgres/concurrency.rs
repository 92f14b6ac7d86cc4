//! Two nodes work on the same rows at once. Follow-ups of runs happen once, and no caller sees a deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorName, Job, JobSpec, Outcome, OutcomeKind,
    Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClaimedRun, ClockOverride, DispatchRequest, FireDueRequest, IngestSummary,
    NodeId, Plan, PlannedRun, Planner, Store, StoreError, TriggerRequest,
};
use cueline_store_postgres::{PgOptions, PgStore};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::task::JoinHandle;

use crate::test_database::TestDatabase;

const ROUNDS: usize = 25;
const SHARDS: u32 = 4;

/// Fires all shards of due jobs. A fixed delay waits for the end.
struct AllShards;

impl Planner for AllShards {
    fn plan(&self, _job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        let run = |index| PlannedRun {
            fire_at: due,
            due_at: due,
            shard: Shard {
                index,
                total: SHARDS,
                item: None,
            },
            executor: None,
            skipped: None,
        };
        Plan {
            runs: (0..SHARDS).map(run).collect(),
            next_fire: None,
        }
    }
}

fn spec(value: serde_json::Value) -> JobSpec {
    serde_json::from_value(value).expect("a definition")
}

fn jobs() -> Vec<JobSpec> {
    vec![
        spec(serde_json::json!({
            "name": "parent", "group": "default", "schedule": { "after": "1s" }, "handler": { "native": "noop" },
        })),
        spec(serde_json::json!({
            "name": "child", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
            "after": { "all": ["parent"] },
        })),
    ]
}

fn request() -> TriggerRequest {
    TriggerRequest {
        job: "job".parse().expect("a name"),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: Actor::new(ActorKind::User, "a test"),
        condition: cueline_store::Precondition::None,
    }
}

struct Fixture {
    database: TestDatabase,
    stores: [Arc<PgStore>; 2],
    node: NodeId,
    clock: Arc<AtomicI64>,
}

impl Fixture {
    async fn new() -> Self {
        let database = TestDatabase::migrated().await;
        let clock = Arc::new(AtomicI64::new(1_800_000_000_000));
        let open = || async {
            let shown = Arc::clone(&clock);
            let options = PgOptions {
                clock: Some(ClockOverride::new(move || {
                    Timestamp::from_millis(shown.load(Ordering::SeqCst))
                })),
                ..PgOptions::default()
            };
            Arc::new(
                PgStore::connect(&database.url(), options)
                    .await
                    .expect("opens"),
            )
        };
        let stores = [open().await, open().await];
        let node = stores[0]
            .register_node("n", 1 << 40)
            .await
            .expect("registers")
            .node;
        Self {
            database,
            stores,
            node,
            clock,
        }
    }

    /// Fires the jobs that are due within a minute, and publishes their runs, so that they can end.
    async fn out(&self) -> Vec<AttemptId> {
        self.clock.fetch_add(60_000, Ordering::SeqCst);
        let request = FireDueRequest {
            node: self.node,
            horizon_ms: 0,
            limit: 1_000,
            max_runs: usize::MAX,
        };
        let fired = self.stores[0]
            .fire_due(request, &AllShards)
            .await
            .expect("fires");
        let mark = |run: &ClaimedRun| DispatchRequest {
            attempt: run.attempt_id(),
            job_version: run.job.version,
            executor: "e1".parse().expect("a name"),
            lane: None,
            limits: None,
        };
        let marks: Vec<DispatchRequest> = fired.runs.iter().map(mark).collect();
        self.stores[0]
            .begin_dispatch(self.node, &marks)
            .await
            .expect("begins")
    }

    fn success(&self, id: AttemptId) -> AttemptReport {
        let now = Timestamp::from_millis(self.clock.load(Ordering::SeqCst));
        AttemptReport {
            attempt: id,
            executor: None,
            event: AttemptEvent::Ended {
                outcome: Outcome::new(OutcomeKind::Succeeded, now),
            },
        }
    }

    /// Waits until a call waits for a lock that the test holds.
    async fn until_waiting<T>(&self, call: &JoinHandle<T>) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while self.database.sql(waits) == "0" {
            assert!(!call.is_finished(), "it does not wait");
            tokio::task::yield_now().await;
        }
    }

    /// Ingests several lists at the same time, each at another node.
    async fn report(
        &self,
        lists: Vec<Vec<AttemptReport>>,
    ) -> Vec<Result<IngestSummary, StoreError>> {
        let mut tasks = Vec::new();
        for (reports, store) in lists.into_iter().zip(self.stores.iter().cycle()) {
            let store = Arc::clone(store);
            tasks.push(tokio::spawn(
                async move { store.ingest_reports(&reports).await },
            ));
        }
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.expect("no panic"));
        }
        results
    }
}

/// The last shard of a fire creates the child run and the next fixed-delay fire time, whichever shard is last.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shards_that_end_at_once_have_one_child() {
    let fixture = Fixture::new().await;
    fixture.stores[0]
        .apply_jobs(&jobs(), false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    for round in 0..ROUNDS {
        let out = fixture.out().await;
        assert_eq!(
            out.len(),
            SHARDS as usize,
            "round {round}: the next fire time was not set"
        );
        let lists = out.iter().map(|id| vec![fixture.success(*id)]).collect();
        let mut children = 0;
        for result in fixture.report(lists).await {
            children += result.expect("ingests").child_runs;
        }
        assert_eq!(children, 1, "round {round}");
    }
    let count = "SELECT count(*) FROM run WHERE kind = 2";
    let children = fixture.database.sql(count);
    assert_eq!(children, ROUNDS.to_string());
}

/// The same reports reach two nodes in different orders while the broker's confirmations arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ends_race_with_confirmations_and_each_other() {
    let fixture = Fixture::new().await;
    let many: Vec<JobSpec> = (0..50)
        .map(|n| {
            spec(serde_json::json!({
                "name": format!("job-{n}"), "group": "default", "schedule": { "after": "1s" },
                "handler": { "native": "noop" },
            }))
        })
        .collect();
    fixture.stores[0]
        .apply_jobs(&many, false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    for round in 0..ROUNDS {
        let mut out = fixture.out().await;
        assert_eq!(out.len(), 50 * SHARDS as usize, "round {round}");
        let forth: Vec<AttemptReport> = out.iter().map(|id| fixture.success(*id)).collect();
        let back: Vec<AttemptReport> = forth.iter().rev().cloned().collect();
        out.reverse();
        let store = Arc::clone(&fixture.stores[1]);
        let confirm = tokio::spawn(async move { store.confirm_dispatch(&out).await });
        let mut ended = 0;
        for result in fixture.report(vec![forth, back]).await {
            ended += result.expect("ingests").ended;
        }
        confirm.await.expect("no panic").expect("confirms");
        assert_eq!(ended, 50 * SHARDS as usize, "round {round}");
    }
    let live = "SELECT count(*) FROM run_live";
    assert_eq!(fixture.database.sql(live), "0");
}

/// `begin_dispatch` waits for a row that an edit has locked. Meanwhile the node claims the run again, with the new
/// definition.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mark_of_an_older_definition_is_refused() {
    let fixture = Fixture::new().await;
    let store = Arc::clone(&fixture.stores[0]);
    let by_hand = spec(serde_json::json!({
        "name": "job", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
    }));
    let applied = store
        .apply_jobs(&[by_hand], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let triggered = store.trigger_claimed(Some(fixture.node), &request()).await;
    let run = triggered.expect("triggers").1.remove(0);
    let mark = DispatchRequest {
        attempt: run.attempt_id(),
        job_version: run.job.version,
        executor: "e1".parse().expect("a name"),
        lane: None,
        limits: None,
    };

    let mut editor = PgConnection::connect(&fixture.database.url())
        .await
        .expect("connects");
    let (node, id) = (fixture.node.0, run.id.0);
    let edit = format!("BEGIN; SELECT FROM run_live WHERE id = {id} FOR UPDATE");
    editor.execute(AssertSqlSafe(edit)).await.expect("holds it");
    let (marking, node_id) = (Arc::clone(&store), fixture.node);
    let marking = tokio::spawn(async move { marking.begin_dispatch(node_id, &[mark]).await });
    fixture.until_waiting(&marking).await;
    let edit = format!(
        "UPDATE job_due SET version = version + 1; UPDATE run_live SET claimed_by = NULL WHERE id = {id};
         UPDATE run_live SET claimed_by = {node} WHERE id = {id}; COMMIT"
    );
    editor.execute(AssertSqlSafe(edit)).await.expect("edits");

    let taken = marking.await.expect("no panic").expect("marks");
    assert!(taken.is_empty(), "{taken:?}");
    let job = applied[0].id.expect("it was applied");
    assert_eq!(store.dispatching_attempts(&[job]).await.expect("lists"), []);
    let waiting = store.claim_waiting(fixture.node, 0, 10).await;
    assert_eq!(waiting.expect("claims").len(), 1);
}

/// A run that the broker refused is released while its job is being paused. The pause sees the run as `dispatching` and
/// does not end it. So the release has to see the pause and end the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_release_waits_for_a_pause_in_progress() {
    let fixture = Fixture::new().await;
    let store = Arc::clone(&fixture.stores[0]);
    let each_second = spec(serde_json::json!({
        "name": "job", "group": "default", "schedule": { "every": "1s" }, "handler": { "native": "noop" },
    }));
    store
        .apply_jobs(
            &[each_second],
            false,
            &Actor::new(ActorKind::User, "a test"),
        )
        .await
        .expect("applies");
    let marked = fixture.out().await;
    assert_eq!(marked.len(), SHARDS as usize);

    let mut pausing = PgConnection::connect(&fixture.database.url())
        .await
        .expect("connects");
    let pause =
        "BEGIN; UPDATE job_due SET enabled = false, version = version + 1, next_fire_at = NULL;
        DELETE FROM run_live WHERE state = 0";
    pausing.execute(pause).await.expect("begins to pause");
    let (releasing, node) = (Arc::clone(&store), fixture.node);
    let releasing =
        tokio::spawn(async move { releasing.release_claims(node, &marked, None).await });
    fixture.until_waiting(&releasing).await;
    pausing.execute("COMMIT").await.expect("pauses");
    releasing.await.expect("no panic").expect("releases");
    let claimed = store.claim_waiting(fixture.node, 0, 10).await;
    assert_eq!(claimed.expect("claims").len(), 0);
}

/// The job is edited while a claim that has read the old definition is in progress. The edit has to end the claim.
/// Otherwise no node would ever claim the run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_edit_waits_for_a_claim_in_progress() {
    let fixture = Fixture::new().await;
    let store = Arc::clone(&fixture.stores[0]);
    let by_hand = |priority| {
        spec(serde_json::json!({
            "name": "job", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
            "priority": priority,
        }))
    };
    let applied = store
        .apply_jobs(&[by_hand(1)], false, &Actor::new(ActorKind::User, "a test"))
        .await;
    applied.expect("applies");
    let triggered = store.trigger(&request()).await.expect("triggers");

    let mut claiming = PgConnection::connect(&fixture.database.url())
        .await
        .expect("connects");
    let (node, id) = (fixture.node.0, triggered.runs[0].0);
    let claim = format!("BEGIN; UPDATE run_live SET claimed_by = {node} WHERE id = {id}");
    claiming
        .execute(AssertSqlSafe(claim))
        .await
        .expect("claims");
    let editor = Arc::clone(&store);
    let editing = tokio::spawn(async move {
        editor
            .apply_jobs(&[by_hand(2)], false, &Actor::new(ActorKind::User, "a test"))
            .await
    });
    fixture.until_waiting(&editing).await;
    claiming.execute("COMMIT").await.expect("has claimed");
    editing.await.expect("no panic").expect("edits");
    let claimed = store.claim_waiting(fixture.node, 0, 10).await;
    let claimed = claimed.expect("claims");
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].job.spec.priority, 2);
}

/// A scheduler was stopped while it held the row of a limit. The jobs without that limit go on.
#[tokio::test]
async fn a_held_limit_delays_no_job_without_limits() {
    let fixture = Fixture::new().await;
    let store = &fixture.stores[0];
    let job = |name: &str, more: serde_json::Value| {
        let mut job = serde_json::json!({
            "name": name, "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
            "block": { "parallel": 9 },
        });
        job.as_object_mut()
            .expect("fields")
            .extend(more.as_object().expect("fields").clone());
        spec(job)
    };
    let limit = serde_json::json!({ "concurrency": { "key": "db", "limit": 9 } });
    let jobs = [job("job", limit), job("free", serde_json::json!({}))];
    let by = Actor::new(ActorKind::User, "a test");
    store.apply_jobs(&jobs, false, &by).await.expect("applies");
    let run_of = async |name: &str| {
        let request = TriggerRequest {
            job: name.parse().expect("a name"),
            ..request()
        };
        let triggered = store.trigger_claimed(Some(fixture.node), &request).await;
        triggered.expect("triggers").1.remove(0)
    };
    let mark = |run: &ClaimedRun| DispatchRequest {
        attempt: run.attempt_id(),
        job_version: run.job.version,
        executor: "e1".parse().expect("a name"),
        lane: run.lane(),
        limits: run.limits(None),
    };
    let begin = async |runs: &[&ClaimedRun]| {
        let requests: Vec<_> = runs.iter().map(|run| mark(run)).collect();
        let begun = store.begin_dispatch_in_lanes(fixture.node, &requests).await;
        begun.expect("begins")
    };
    let (first, limited, free) = (
        run_of("job").await,
        run_of("job").await,
        run_of("free").await,
    );
    assert_eq!(begin(&[&first]).await.accepted, [first.attempt_id()]);

    let mut stopped = PgConnection::connect(&fixture.database.url())
        .await
        .expect("connects");
    let hold = "BEGIN; SELECT FROM run_limit FOR UPDATE";
    stopped.execute(hold).await.expect("holds it");
    let of_both = begin(&[&limited, &free]).await;
    assert_eq!(of_both.accepted, [free.attempt_id()]);
    let reasons: Vec<_> = of_both.limit_waits.iter().map(|wait| wait.reason).collect();
    assert_eq!(reasons, [cueline_store::LimitWaitReason::Contested]);
    stopped.execute("ROLLBACK").await.expect("ends");
    assert_eq!(begin(&[&limited]).await.accepted, [limited.attempt_id()]);
}
