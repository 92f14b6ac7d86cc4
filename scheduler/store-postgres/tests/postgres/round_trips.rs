//! The number of statements of a hot call does not depend on the size of its batch, and no row is read once for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorId, ExecutorName, Job, JobSpec, Outcome,
    OutcomeKind, Shard, Timestamp,
};
use cueline_store::{
    AttemptReport, ClaimedRun, ClockOverride, DispatchRequest, FireDueRequest, LanePlace, NodeId,
    Plan, PlannedRun, Planner, Store, TriggerRequest,
};
use cueline_store_postgres::{PgOptions, PgStore};
use cueline_test_support::{SOON, eventually};

use crate::test_database::TestDatabase;

struct EachFireTime;

impl Planner for EachFireTime {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        Plan {
            runs: vec![PlannedRun {
                fire_at: due,
                due_at: due,
                shard: Shard::whole(),
                executor: None,
                skipped: None,
            }],
            next_fire: job.spec.next_fire(due),
        }
    }
}

fn spec(number: usize) -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": format!("job-{number}"), "group": "default", "schedule": { "every": "1s" },
        "handler": { "native": "noop" }, "retry": { "max": 1 },
    }))
    .expect("a definition")
}

struct Fixture {
    database: TestDatabase,
    store: PgStore,
    node: NodeId,
    clock: Arc<AtomicI64>,
}

impl Fixture {
    async fn new() -> Self {
        let database = TestDatabase::migrated().await;
        let all = format!("ALTER DATABASE {} SET log_statement = 'all'", database.name);
        database.server.sql("postgres", &all).expect("sets");
        let clock = Arc::new(AtomicI64::new(1_800_000_000_000));
        let shown = Arc::clone(&clock);
        let options = PgOptions {
            clock: Some(ClockOverride::new(move || {
                Timestamp::from_millis(shown.load(Ordering::SeqCst))
            })),
            writers: 1,
            ..PgOptions::default()
        };
        let store = PgStore::connect(&database.url(), options)
            .await
            .expect("opens");
        let specs: Vec<JobSpec> = (0..500).map(spec).collect();
        store
            .apply_jobs(&specs, false, &Actor::new(ActorKind::User, "a test"))
            .await
            .expect("applies");
        let node = store
            .register_node("n", 1 << 40)
            .await
            .expect("registers")
            .node;
        Self {
            database,
            store,
            node,
            clock,
        }
    }

    /// Statements of this database in the server's log.
    fn statements(&self) -> usize {
        let prefix = format!("{} LOG:  ", self.database.name);
        let said = self.database.server.log();
        let lines = said.lines().filter_map(|line| line.strip_prefix(&prefix));
        // The pool tests connections with an empty statement, which is not logged.
        lines
            .filter(|line| line.starts_with("execute") || line.starts_with("statement:"))
            .count()
    }

    async fn fire(&self, limit: usize) -> Vec<ClaimedRun> {
        let request = FireDueRequest {
            node: self.node,
            horizon_ms: 0,
            limit,
            max_runs: usize::MAX,
        };
        let fired = self
            .store
            .fire_due(request, &EachFireTime)
            .await
            .expect("fires");
        assert_eq!(fired.runs.len(), limit);
        fired.runs
    }

    /// The fewest statements of each stage in three tries. A connection that the pool opens meanwhile adds its own
    /// statements.
    async fn fewest(&self, size: usize, kind: OutcomeKind) -> Vec<usize> {
        let mut fewest = self.pipeline(size, kind).await;
        for _ in 0..2 {
            let counts = self.pipeline(size, kind).await;
            for (fewest, count) in fewest.iter_mut().zip(counts) {
                *fewest = count.min(*fewest);
            }
        }
        fewest
    }

    /// The statements of each stage for a batch of this size.
    async fn pipeline(&self, size: usize, kind: OutcomeKind) -> Vec<usize> {
        let executor = ExecutorId {
            group: "default".parse().expect("a name"),
            name: "e1".parse().expect("a name"),
        };
        let mut counts = vec![self.statements()];
        let runs = self.fire(size).await;
        counts.push(self.statements());
        let mark = |run: &ClaimedRun| DispatchRequest {
            attempt: run.attempt_id(),
            job_version: run.job.version,
            executor: executor.name.clone(),
            // Runs of earlier batches still wait. This one comes before them.
            lane: run.lane().map(|place| LanePlace {
                at: Timestamp::default(),
                ..place
            }),
            limits: None,
        };
        let marks: Vec<DispatchRequest> = runs.iter().map(mark).collect();
        let taken = self
            .store
            .begin_dispatch(self.node, &marks)
            .await
            .expect("begins");
        assert_eq!(taken.len(), size);
        counts.push(self.statements());
        self.store.confirm_dispatch(&taken).await.expect("confirms");
        counts.push(self.statements());
        let report = |id: &AttemptId| AttemptReport {
            attempt: *id,
            executor: Some(executor.clone()),
            event: AttemptEvent::Ended {
                outcome: Outcome::new(kind, runs[0].due_at),
            },
        };
        let reports: Vec<AttemptReport> = taken.iter().map(report).collect();
        let done = self.store.ingest_reports(&reports).await.expect("ingests");
        assert_eq!(done.ended + done.rescheduled, size);
        counts.push(self.statements());
        self.clock.fetch_add(60_000, Ordering::SeqCst);
        let claimed = self
            .store
            .claim_waiting(self.node, 0, size)
            .await
            .expect("claims");
        assert_eq!(claimed.len(), done.rescheduled);
        counts.push(self.statements());
        counts.windows(2).map(|w| w[1] - w[0]).collect()
    }
}

/// A user waits for a trigger. A plain one for a job that was triggered before is one statement, any other one begin, read,
/// write and commit.
#[tokio::test]
async fn a_trigger_takes_one_statement() {
    let fixture = Fixture::new().await;
    let mut request = TriggerRequest {
        job: "job-0".parse().expect("a name"),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: Actor::new(ActorKind::User, "a test"),
        condition: cueline_store::Precondition::None,
    };
    let statements = async |request: &TriggerRequest| {
        let before = fixture.statements();
        let asked = fixture
            .store
            .trigger_claimed(Some(fixture.node), request)
            .await;
        let (triggered, claimed) = asked.expect("triggers");
        assert_eq!((triggered.runs.len(), claimed.len()), (1, 1));
        fixture.statements() - before
    };
    // The first calls create the partitions of the day, read the definition and open connections.
    let fewest = async |request: &TriggerRequest| {
        let mut fewest = usize::MAX;
        for _ in 0..6 {
            fewest = fewest.min(statements(request).await);
        }
        fewest
    };
    assert_eq!(fewest(&request).await, 1);
    request.condition = cueline_store::Precondition::Exists;
    assert_eq!(fewest(&request).await, 4);
}

#[tokio::test]
async fn statements_do_not_grow_with_the_batch() {
    let fixture = Fixture::new().await;
    fixture.clock.fetch_add(60_000, Ordering::SeqCst);
    // The first calls create the partitions of the day, read definitions and open connections.
    fixture.fire(500).await;
    fixture.pipeline(5, OutcomeKind::Succeeded).await;
    for kind in [OutcomeKind::Succeeded, OutcomeKind::Failed] {
        let small = fixture.fewest(5, kind).await;
        let large = fixture.fewest(400, kind).await;
        assert_eq!(small, large, "{kind:?}");
        // Begin and commit are two of them. A dispatch tries idle lanes, then looks at the others before and after the mark,
        // and reads what waits there.
        let most = [9, 5, 3, 8, 6];
        assert!(
            small
                .iter()
                .zip(most)
                .all(|(count, most)| (1..=most).contains(count)),
            "{small:?}, at most {most:?}"
        );
    }
}

/// The rows of `run_live` that were read for the dispatch of a batch, all of whose runs are in one lane.
async fn rows_read_for_lane_of(runs: usize) -> i64 {
    let fixture = Fixture::new().await;
    let request = TriggerRequest {
        job: "job-0".parse().expect("a name"),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: Actor::new(ActorKind::User, "a test"),
        condition: cueline_store::Precondition::None,
    };
    let mut marks = Vec::new();
    for _ in 0..runs {
        let node = Some(fixture.node);
        let asked = fixture.store.trigger_claimed(node, &request).await;
        let (_, claimed) = asked.expect("triggers");
        marks.extend(claimed.iter().map(|run| DispatchRequest {
            attempt: run.attempt_id(),
            job_version: run.job.version,
            executor: "e1".parse().expect("a name"),
            lane: run.lane(),
            limits: None,
        }));
    }
    let begun = fixture
        .store
        .begin_dispatch_in_lanes(fixture.node, &marks)
        .await
        .expect("begins");
    assert_eq!(begun.accepted.len(), runs);
    // A connection counts its reads at its end.
    fixture.store.close().await;
    let database = &fixture.database;
    let others = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'",
        database.name
    );
    eventually("all connections end", SOON, async || {
        match database
            .server
            .sql("postgres", &others)
            .expect("answers")
            .as_str()
        {
            "0" => Ok(()),
            open => Err(format!("{open} are open")),
        }
    })
    .await
    .expect("in time");
    let read = database.sql(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'run_live'",
    );
    read.parse().expect("a number")
}

/// Marks that each read their whole lane would hold back all other jobs for seconds.
#[tokio::test]
async fn a_lane_is_not_read_once_for_each_of_its_runs() {
    let few = rows_read_for_lane_of(50).await;
    let many = rows_read_for_lane_of(200).await;
    assert!(few >= 50, "{few} rows were counted");
    // Four times as many. It would be 16 times.
    assert!(many <= 6 * few, "{few} rows for 50 runs, {many} for 200");
}
