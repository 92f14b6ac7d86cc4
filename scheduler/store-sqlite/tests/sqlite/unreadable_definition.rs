//! An unreadable definition stops only its own job.

use cueline_model::{Actor, ActorKind, ExecutorName, Job, JobSpec, Shard, Timestamp};
use cueline_store::{FireDueRequest, Plan, PlannedRun, Planner, Store};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Connection, SqliteConnection};

struct Once;

impl Planner for Once {
    fn plan(&self, job: &Job, due: Timestamp, _now: Timestamp, _live: &[ExecutorName]) -> Plan {
        let run = PlannedRun {
            fire_at: due,
            due_at: due,
            shard: Shard::whole(),
            executor: None,
            skipped: None,
        };
        Plan {
            runs: vec![run],
            next_fire: job.spec.next_fire(due.plus_ms(3_600_000)),
        }
    }
}

fn spec(name: &str) -> JobSpec {
    serde_json::from_value(serde_json::json!({
        "name": name, "group": "default", "schedule": { "every": "1s" }, "handler": { "native": "noop" },
    }))
    .expect("a valid definition")
}

#[tokio::test]
async fn other_jobs_continue() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store.db");
    let store = SqliteStore::open(&path, SqliteOptions::default())
        .await
        .expect("opens");
    store
        .apply_jobs(
            &[spec("bad"), spec("good")],
            false,
            &Actor::new(ActorKind::User, "a test"),
        )
        .await
        .expect("applies");
    store.close().await;
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display()))
        .await
        .expect("opens");
    let unreadable =
        r#"UPDATE job SET definition = '{"handler": "of a later version"}' WHERE name = 'bad'"#;
    sqlx::raw_sql(unreadable)
        .execute(&mut conn)
        .await
        .expect("runs");
    conn.close().await.expect("closes");

    let store = SqliteStore::open(&path, SqliteOptions::default())
        .await
        .expect("opens again");
    let node = store
        .register_node("node", 60_000)
        .await
        .expect("registers")
        .node;
    let request = FireDueRequest {
        node,
        horizon_ms: 2_000,
        limit: 10,
        max_runs: usize::MAX,
    };
    let fired = store
        .fire_due(request, &Once)
        .await
        .expect("fires the others");
    let names: Vec<_> = fired
        .runs
        .iter()
        .map(|r| r.job.spec.name.as_str())
        .collect();
    assert_eq!(names, ["good"]);
}
