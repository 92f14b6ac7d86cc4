//! The database is promoted or restored, with and without lost commits. No run id is issued twice, and live runs keep
//! theirs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cueline_model::{
    Actor, ActorKind, AttemptEvent, AttemptId, ExecutorId, ExecutorName, JobSpec, Outcome,
    OutcomeKind, RunId, RunState, Timestamp,
};
use cueline_store::{
    AttemptReport, DispatchRequest, ErrorKind, NodeId, Store, StoreError, TriggerRequest,
};
use cueline_store_postgres::{PgOptions, PgStore};
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::postgres_pair::PostgresPair;
use cueline_test_support::{SOON, eventually};
use tokio::time::timeout;

use crate::test_database::TestDatabase;

fn hand() -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": "hand", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
    }))
    .expect("a definition")
}

async fn open(url: &str) -> PgStore {
    PgStore::connect(url, PgOptions::default())
        .await
        .expect("opens")
}

/// The answer of a call. It is repeated, because after a restart of the server each connection of the pool fails once.
async fn answered<T>(what: &str, mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let look = async || call().await.map_err(|error| error.to_string());
    eventually(what, SOON, look).await.expect("in time")
}

async fn trigger(store: &PgStore) -> RunId {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let request = TriggerRequest {
        job: "hand".parse().expect("a name"),
        params: None,
        idempotency_key: Some(NUMBER.fetch_add(1, Ordering::Relaxed).to_string()),
        run_at: None,
        by: Actor::new(ActorKind::User, "a test"),
        condition: cueline_store::Precondition::None,
    };
    let triggered = answered("a trigger", async || store.trigger(&request).await).await;
    triggered.runs[0]
}

async fn node(store: &PgStore, name: &str) -> NodeId {
    store
        .register_node(name, 600_000)
        .await
        .expect("registers")
        .node
}

/// Claims and publishes the one run that waits.
async fn publish(store: &PgStore, node: NodeId) -> AttemptId {
    let claimed = store.claim_waiting(node, 60_000, 10).await.expect("claims");
    assert_eq!(claimed.len(), 1);
    let executor: ExecutorName = "e1".parse().expect("a name");
    let request = DispatchRequest {
        attempt: claimed[0].attempt_id(),
        job_version: claimed[0].job.version,
        executor,
        lane: None,
        limits: None,
    };
    let taken = store.begin_dispatch(node, &[request]).await;
    let taken = taken.expect("begins");
    store.confirm_dispatch(&taken).await.expect("confirms");
    taken[0]
}

fn success(attempt: AttemptId, executor: &str) -> AttemptReport {
    AttemptReport {
        attempt,
        executor: Some(ExecutorId {
            group: "default".parse().expect("a name"),
            name: executor.parse().expect("a name"),
        }),
        event: AttemptEvent::Ended {
            outcome: Outcome::new(OutcomeKind::Succeeded, Timestamp::from_millis(1)),
        },
    }
}

async fn end(store: &PgStore, attempt: AttemptId) -> RunState {
    let reports = [success(attempt, "e1")];
    answered("ingested reports", async || {
        store.ingest_reports(&reports).await
    })
    .await;
    let found = answered("the run", async || store.run(attempt.run).await).await;
    found.run.state
}

/// The part of the id that the sequence gives. The day before it may change during a test.
fn number(run: RunId) -> i64 {
    run.0 % 10_000_000_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_lost_runs_are_not_issued_again() {
    let server = Postgres::start().expect("starts");
    let database = server.create_database().expect("creates a database");
    let store = open(&server.url(&database)).await;
    store
        .apply_jobs(&[hand()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let one = node(&store, "one").await;
    let store_id = store.store_id().await.expect("an id");
    trigger(&store).await;
    let live = publish(&store, one).await;
    server.keep_copy().expect("copies");
    let mut lost = BTreeSet::new();
    // More than PostgreSQL sets aside for a crash, which is 32 numbers of a sequence.
    for _ in 0..50 {
        lost.insert(number(trigger(&store).await));
    }
    server.fail_over_to_copy().expect("fails over");
    for _ in 0..50 {
        let new = trigger(&store).await;
        assert!(!lost.contains(&number(new)), "{new} was issued before");
    }
    let present = answered("the id", async || store.store_id().await).await;
    assert_eq!(present, store_id, "workers keep what they know");
    assert_eq!(end(&store, live).await, RunState::Succeeded);
}

/// As after a failover to a synchronous standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_that_loses_nothing_changes_nothing_else() {
    let server = Postgres::start().expect("starts");
    let database = server.create_database().expect("creates a database");
    let store = open(&server.url(&database)).await;
    store
        .apply_jobs(&[hand()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let one = node(&store, "one").await;
    let before = trigger(&store).await;
    let live = publish(&store, one).await;
    server.fail_over().expect("fails over");
    let renewed = answered("a lease", async || {
        store.renew_lease(one, 600_000, None).await
    })
    .await;
    assert!(renewed.is_some());
    let after = trigger(&store).await;
    assert!(number(after) >= number(before) + 1_000_000_000, "{after}");
    assert_eq!(end(&store, live).await, RunState::Succeeded);
    // Without a further change the numbers follow each other.
    let next = trigger(&store).await;
    assert_eq!(number(next), number(after) + 1);
}

/// As when its host is cut off: nothing ends the connections to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_waits_for_a_silent_former_primary() {
    let pair = PostgresPair::start().expect("starts");
    let database = pair.create_database().expect("creates a database");
    let options = PgOptions {
        // Without a look at the promotion the test fails first.
        call_timeout: 10 * SOON,
        ..PgOptions::default()
    };
    let store = PgStore::connect(&pair.url(&database), options).await;
    let store = Arc::new(store.expect("opens"));
    store
        .apply_jobs(&[hand()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let one = node(&store, "one").await;
    // Connections of each pool are there, and were used just before.
    trigger(&store).await;
    publish(&store, one).await;
    store.stats().await.expect("reads");
    pair.pause().expect("stops");
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.renew_lease(one, 600_000, None).await })
        })
        .collect();
    pair.promote_beside_primary().expect("promotes");
    for call in calls {
        let ended = timeout(SOON, call).await.expect("in time").expect("ends");
        let Err(error) = ended else {
            // It had no connection before the promotion.
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        assert!(error.is_outcome_unknown(), "{error}");
    }
    let renewed = answered("a lease", async || {
        store.renew_lease(one, 600_000, None).await
    });
    assert!(renewed.await.is_some());
    trigger(&store).await;
}

/// A look for a promotion takes as long as a call waits for it at most, however many calls wait for the same server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_at_a_server_that_is_silent_without_a_promotion() {
    let server = Postgres::start().expect("starts");
    let database = server.create_database().expect("creates a database");
    let options = PgOptions {
        call_timeout: Duration::from_secs(4),
        // Nothing else ends them.
        acquire_timeout: 10 * SOON,
        ..PgOptions::default()
    };
    let store = PgStore::connect(&server.url(&database), options).await;
    let store = Arc::new(store.expect("opens"));
    let one = node(&store, "one").await;
    server.pause().expect("stops");
    // If each of them had a look of its own, one after the other, they would take two minutes.
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.renew_lease(one, 600_000, None).await })
        })
        .collect();
    let all = async {
        for call in calls {
            let ended = call.await.expect("ends");
            let error = ended.expect_err("the server is silent");
            assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        }
    };
    timeout(SOON, all).await.expect("in time");
    server.resume().expect("continues");
}

/// It may be a former primary, which does not know to whom the present one has given the attempt since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_its_standby_drops_no_report() {
    let server = Postgres::start().expect("starts");
    let database = server.create_database().expect("creates a database");
    let url = server.url(&database);
    let store = open(&url).await;
    store
        .apply_jobs(&[hand()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let one = node(&store, "one").await;
    trigger(&store).await;
    let live = publish(&store, one).await;
    let options = PgOptions {
        // The test waits for it.
        call_timeout: Duration::from_secs(2),
        ..PgOptions::default()
    };
    let impatient = PgStore::connect(&url, options).await.expect("opens");
    let unknown = AttemptId {
        attempt: live.attempt + 1,
        ..live
    };
    let of_others = [success(live, "e2"), success(unknown, "e1")];
    let standbys = |set: &str| {
        let set = format!("ALTER SYSTEM {set}");
        for statement in [&set, "SELECT pg_reload_conf()"] {
            server.sql("postgres", statement).expect("answers");
        }
    };
    standbys("SET synchronous_standby_names = 'gone'");
    for report in &of_others {
        let reports = std::slice::from_ref(report);
        let refused = eventually("no answer", SOON, async || {
            match impatient.ingest_reports(reports).await {
                Ok(summary) => Err(format!("{summary:?}")),
                Err(error) => Ok(error),
            }
        });
        let error = refused.await.expect("in time");
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    }
    standbys("RESET synchronous_standby_names");
    let summary = answered("the reports", async || {
        store.ingest_reports(&of_others).await
    })
    .await;
    assert_eq!(summary.foreign.len() + summary.ignored, 2, "{summary:?}");
    assert_eq!(end(&store, live).await, RunState::Succeeded);
}

/// A restore from a dump creates the tables anew. Here only their recorded identity differs.
#[tokio::test]
async fn each_process_notices_a_restore_before_it_issues_an_id() {
    let database = TestDatabase::migrated().await;
    let (one, two) = (open(&database.url()).await, open(&database.url()).await);
    one.apply_jobs(&[hand()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let first = trigger(&one).await;
    trigger(&two).await;
    database.sql("UPDATE store_identity SET history = '00000001/1'");
    let skipped = trigger(&two).await;
    assert!(
        number(skipped) >= number(first) + 1_000_000_000,
        "{skipped}"
    );
    let other = trigger(&one).await;
    assert_eq!(number(other), number(skipped) + 1, "skipped once");
    let job = database.sql("SELECT last_value >= 1000000 FROM job_id_seq");
    assert_eq!(job, "t");
}

/// The cluster's identifier is not readable everywhere.
#[tokio::test]
async fn another_cluster_counts_where_its_identifier_is_known() {
    let database = TestDatabase::migrated().await;
    let store = open(&database.url()).await;
    store
        .apply_jobs(&[hand()], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let first = trigger(&store).await;
    database.sql("UPDATE store_identity SET system_identifier = 1");
    // Read at the start of a process and with each renewed lease.
    let node = node(&store, "one").await;
    let renewed = store
        .renew_lease(node, 600_000, None)
        .await
        .expect("renews");
    assert!(renewed.is_some());
    let second = trigger(&store).await;
    assert!(number(second) >= number(first) + 1_000_000_000, "{second}");
}
