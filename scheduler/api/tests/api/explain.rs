//! Why runs and jobs wait, and the forecast, through the API.

use crate::behaviour::{apply, dispatching, report, triggered};
use crate::server::Server;
use cueline_model::{
    AttemptEvent, ExecutorId, ExecutorLabels, Heartbeat, Session, Timestamp, Weight,
};
use serde_json::{Value, json};

async fn heartbeat(server: &Server, capability: &str) {
    let heartbeat = Heartbeat {
        executor: ExecutorId {
            group: "default".parse().expect("a name"),
            name: "worker-1".parse().expect("a name"),
        },
        incarnation: "1".to_owned(),
        session: Session(1),
        capabilities: vec![capability.to_owned()],
        capacity: 4,
        held: 1,
        running: 1,
        draining: false,
        gone: false,
        refusal: None,
        labels: ExecutorLabels::default(),
        weight: Weight::default(),
    };
    let stored = server.store.record_heartbeats(&[heartbeat]).await;
    stored.expect("stored");
}

async fn explained(server: &Server, path: &str) -> Value {
    server.get(&format!("{path}/explain")).await.good()
}

fn assert_explained(answer: &Value, reason: &str, part: &str) {
    assert_eq!(answer["reason"], json!(reason), "{answer}");
    let sentence = answer["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains(part), "{part:?} in {sentence:?}");
}

#[tokio::test]
async fn a_job_is_explained_from_its_schedule_to_its_busy_lane() {
    let server = Server::start().await;
    apply(&server, "import").await;
    let job = "/jobs/import";
    assert_explained(&explained(&server, job).await, "next_fire", "fires next at");
    server.post("/jobs/import/pause", &json!({})).await.good();
    let paused = explained(&server, job).await;
    assert_explained(&paused, "paused", "paused by token admin since 20");
    assert_eq!(paused["look_at"], json!("cueline job history import"));

    let first = triggered(&server, "import").await;
    let waits = explained(&server, job).await;
    assert_explained(&waits, "no_executor", "the group has no executor");
    assert_eq!(waits["run"], json!(first.0));
    heartbeat(&server, "native:other").await;
    let waits = explained(&server, job).await;
    assert_explained(
        &waits,
        "no_executor",
        "worker-1 does not announce the handler",
    );
    heartbeat(&server, "shell:bash").await;
    let attempt = dispatching(&server, first).await;
    server
        .store
        .confirm_dispatch(&[attempt])
        .await
        .expect("confirmed");
    let started = AttemptEvent::Started {
        at: Timestamp::from_millis(server.store.now().await.expect("a time").as_millis() - 7_000),
    };
    report(&server, attempt, started).await;

    let second = triggered(&server, "import").await;
    let attempt = dispatching(&server, second).await;
    server
        .store
        .confirm_dispatch(&[attempt])
        .await
        .expect("confirmed");
    let busy = explained(&server, &format!("/runs/{second}")).await;
    assert_explained(&busy, "lane_busy", "lane busy on worker-1 for ");
    assert_explained(&busy, "lane_busy", "(serial), 0 triggers ahead");
    assert_eq!(explained(&server, job).await["run"], json!(second.0));
    let running = explained(&server, &format!("/runs/{first}")).await;
    assert_explained(&running, "running", "running on worker-1 for ");
}

#[tokio::test]
async fn the_forecast_counts_enabled_jobs_of_the_asked_groups() {
    let server = Server::start().await;
    let job = |name: &str, group: &str| json!({ "name": name, "group": group, "schedule": { "every": "1h" }, "handler": { "native": "x" } });
    let mut off = job("off", "a");
    off["enabled"] = json!(false);
    let jobs = [job("one", "a"), job("two", "b"), off];
    let applied = server.post("/jobs/apply", &json!({ "jobs": jobs })).await;
    applied.good();
    let all = server.get("/forecast").await.good();
    assert_eq!(all["jobs"], json!(2));
    assert_eq!(all["fires"], json!(48));
    assert_eq!(all["collisions"][0]["names"], json!(["one", "two"]));
    let one = server.get("/forecast?group=a").await.good();
    assert_eq!((&one["jobs"], &one["fires"]), (&json!(1), &json!(24)));
    // A repeated request gets the same answer without a read of the jobs.
    let applied = json!({ "jobs": [job("three", "a")] });
    server.post("/jobs/apply", &applied).await.good();
    assert_eq!(server.get("/forecast?group=a").await.good(), one);
}
