//! Servers die and nodes stall. No answered call is lost, no call takes effect twice, and no process has to be
//! restarted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cueline_model::{Actor, ActorKind, ExecutorName, Job, JobSpec, RunId, Shard, Timestamp};
use cueline_store::{
    ErrorKind, FireDueRequest, FiredRuns, NodeId, Plan, PlannedRun, Planner, Store, StoreError,
    TriggerRequest,
};
use cueline_store_postgres::{PgOptions, PgStore};
use cueline_test_servers::postgres::Postgres;
use cueline_test_support::eventually;
use tokio::time::{Instant, sleep};

use crate::test_database::TestDatabase;

const TIME_LIMIT: Duration = Duration::from_mins(1);

fn spec(name: &str, schedule: &serde_json::Value) -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": name, "group": "default", "schedule": schedule, "handler": { "native": "noop" },
    }))
    .expect("a definition")
}

fn plan(job: &Job, due: Timestamp) -> Plan {
    Plan {
        runs: vec![PlannedRun {
            fire_at: due,
            due_at: due,
            shard: Shard::whole(),
            executor: None,
            skipped: None,
        }],
        next_fire: job.spec.next_fire(due.plus_ms(3_600_000)),
    }
}

struct Once;

impl Planner for Once {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        plan(job, due)
    }
}

/// A planner that blocks inside the transaction, which has locked the job, until the test lets it continue.
struct Stalls {
    begun: Sender<()>,
    told: Mutex<Receiver<()>>,
}

impl Planner for Stalls {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        self.begun.send(()).expect("the test waits for it");
        let told = self.told.lock().expect("no panic");
        let told = told.recv_timeout(TIME_LIMIT);
        told.expect("the others get on without it");
        plan(job, due)
    }
}

fn request(node: NodeId) -> FireDueRequest {
    FireDueRequest {
        node,
        horizon_ms: 60_000,
        limit: 100,
        max_runs: usize::MAX,
    }
}

async fn node(store: &PgStore, name: &str) -> NodeId {
    store
        .register_node(name, 600_000)
        .await
        .expect("registers")
        .node
}

/// Fires due jobs on a separate thread and runtime, because the planner blocks both.
fn stall(url: String, planner: Stalls) -> JoinHandle<Result<FiredRuns, StoreError>> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let patient = PgStore::connect(&url, PgOptions::default()).await;
            let node = node(&patient.expect("opens"), "stalls").await;
            let impatient = PgOptions {
                // Longer than a busy machine stands still before the planner is asked.
                idle_in_transaction_timeout: Duration::from_secs(8),
                ..PgOptions::default()
            };
            let store = PgStore::connect(&url, impatient).await.expect("opens");
            store.fire_due(request(node), &planner).await
        })
    })
}

/// A node that stalls in the middle of a transaction locks its jobs only until the time-out. Its later work has no
/// effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stalled_node_does_not_hold_its_jobs() {
    let database = TestDatabase::migrated().await;
    let other = PgStore::connect(&database.url(), PgOptions::default())
        .await
        .expect("opens");
    let job = spec("a", &serde_json::json!({ "every": "1s" }));
    other
        .apply_jobs(&[job], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let second = node(&other, "works").await;
    let ((go_on, told), (begun, has_begun)) = (channel(), channel());
    let told = Mutex::new(told);
    let stuck = stall(database.url(), Stalls { begun, told });
    tokio::task::block_in_place(|| has_begun.recv_timeout(TIME_LIMIT)).expect("it begins");
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        let fired = other.fire_due(request(second), &Once).await.expect("fires");
        if fired.runs.len() == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "the job is still held");
        sleep(Duration::from_millis(50)).await;
    }
    go_on.send(()).expect("it waits");
    let error = stuck.join().expect("no panic").expect_err("comes too late");
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    let runs = database.sql("SELECT count(*) FROM run");
    assert_eq!(runs, "1");
}

fn ask(key: usize) -> TriggerRequest {
    TriggerRequest {
        job: "hand".parse().expect("a name"),
        params: None,
        idempotency_key: Some(key.to_string()),
        run_at: None,
        by: Actor::new(ActorKind::User, "a test"),
        condition: cueline_store::Precondition::None,
    }
}

/// Waits until each task has more answers than now.
async fn until_each_is_answered(answers: &[std::sync::Arc<AtomicUsize>]) {
    let deadline = Instant::now() + TIME_LIMIT;
    for count in answers {
        let before = count.load(Ordering::Relaxed);
        while count.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < deadline, "a task gets no answers");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Calls while the server dies and returns. Each answered call has taken effect once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_server_comes_back() {
    let server = Postgres::start().expect("starts");
    let database = server.create_database().expect("creates a database");
    let url = server.url(&database);
    let store = PgStore::connect(&url, PgOptions::default())
        .await
        .expect("opens");
    let store = std::sync::Arc::new(store);
    let hand = spec("hand", &serde_json::json!({ "manual": true }));
    store
        .apply_jobs(&[hand], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut tasks = Vec::new();
    let answers: [_; 4] = std::array::from_fn(|_| std::sync::Arc::new(AtomicUsize::new(0)));
    for (worker, count) in answers.iter().enumerate() {
        let (store, stopped) = (std::sync::Arc::clone(&store), stopped.clone());
        let count = std::sync::Arc::clone(count);
        tasks.push(tokio::spawn(async move {
            let mut answered: Vec<(usize, RunId)> = Vec::new();
            let mut failures = 0;
            for call in 0.. {
                if *stopped.borrow() {
                    break;
                }
                let key = worker * 1_000_000 + call;
                match store.trigger(&ask(key)).await {
                    Ok(triggered) => {
                        answered.push((key, triggered.runs[0]));
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
                        failures += 1;
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            (answered, failures)
        }));
    }
    for _ in 0..2 {
        until_each_is_answered(&answers).await;
        server.kill().expect("kills");
        server.start_again().expect("starts again");
        let deadline = Instant::now() + TIME_LIMIT;
        while store.stats().await.is_err() {
            assert!(Instant::now() < deadline, "the pool does not recover");
            sleep(Duration::from_millis(50)).await;
        }
    }
    stop.send(true).expect("they listen");
    let mut failures = 0;
    for task in tasks {
        let (answered, failed) = task.await.expect("no panic");
        assert!(!answered.is_empty());
        failures += failed;
        for (key, run) in answered {
            let again = store.trigger(&ask(key)).await.expect("answers");
            assert!(again.duplicate, "run {run} of key {key} is lost");
            assert_eq!(again.runs, [run]);
        }
    }
    assert!(
        failures > 0,
        "no call was interrupted by the kill: the test proves nothing"
    );
}

/// A connection that does not answer is closed and replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_connection_without_answer_is_closed() {
    let server = Postgres::start().expect("starts");
    let database = server.create_database().expect("creates a database");
    let url = server.url(&database);
    // Creates the tables, which may take longer than a call may below.
    let patient = PgStore::connect(&url, PgOptions::default()).await;
    drop(patient.expect("opens"));
    let options = PgOptions {
        // The test waits for it.
        call_timeout: Duration::from_secs(5),
        ..PgOptions::default()
    };
    let store = eventually("the store opens", TIME_LIMIT, async || {
        PgStore::connect(&url, options.clone()).await
    });
    let store = store.await.expect("in time");
    eventually("a node is registered", TIME_LIMIT, async || {
        store.register_node("a", 1_000).await
    })
    .await
    .expect("in time");
    server.pause().expect("pauses");
    let error = store
        .register_node("a", 1_000)
        .await
        .expect_err("gets no answer");
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("no answer"), "{error}");
    server.resume().expect("resumes");
    let deadline = Instant::now() + TIME_LIMIT;
    while store.register_node("a", 1_000).await.is_err() {
        assert!(Instant::now() < deadline, "the pool does not recover");
    }
}
