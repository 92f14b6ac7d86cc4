//! Effects of the requests.

use crate::server::{DEADLINE, Server, until};
use cueline_model::{
    AttemptEvent, AttemptId, ExecutorId, LogLine, LogStream, Outcome, OutcomeKind, RunId, Timestamp,
};
use cueline_store::{AttemptReport, DispatchRequest};
use reqwest::StatusCode;
use serde_json::{Value, json};

pub(crate) async fn apply(server: &Server, name: &str) {
    let job = json!({ "name": name, "schedule": {"every": "1h"}, "handler": {"shell": "true"} });
    server
        .post("/jobs/apply", &json!({ "jobs": [job] }))
        .await
        .good();
}

/// A run of `job` that waits to be dispatched.
pub(crate) async fn triggered(server: &Server, job: &str) -> RunId {
    let answer = server
        .post(&format!("/jobs/{job}/trigger"), &json!({}))
        .await
        .good();
    RunId(answer["runs"][0].as_i64().expect("a run"))
}

/// Moves the run to `dispatching`, as the engine does.
pub(crate) async fn dispatching(server: &Server, run: RunId) -> AttemptId {
    let node = server
        .store
        .register_node("test", 60_000)
        .await
        .expect("a node")
        .node;
    let waiting = server
        .store
        .claim_waiting(node, 1_000, 10)
        .await
        .expect("runs");
    let found = waiting.iter().find(|w| w.id == run).expect("the run");
    let mark = DispatchRequest {
        attempt: found.attempt_id(),
        job_version: found.job.version,
        executor: executor().name,
        lane: None,
        limits: None,
    };
    let taken = server
        .store
        .begin_dispatch(node, &[mark])
        .await
        .expect("taken");
    assert_eq!(taken.len(), 1);
    taken[0]
}

pub(crate) fn log_line(seq: u64, at: Timestamp, text: &str) -> LogLine {
    LogLine {
        seq,
        at,
        stream: LogStream::Out,
        text: text.to_owned(),
    }
}

fn executor() -> ExecutorId {
    ExecutorId {
        group: "default".parse().expect("a name"),
        name: "worker-1".parse().expect("a name"),
    }
}

pub(crate) async fn report(server: &Server, id: AttemptId, body: AttemptEvent) {
    let executor = Some(executor());
    let reports = [AttemptReport {
        attempt: id,
        executor,
        event: body,
    }];
    server
        .store
        .ingest_reports(&reports)
        .await
        .expect("ingested");
}

#[tokio::test]
async fn a_job_lives_from_apply_to_delete() {
    let server = Server::start().await;
    let jobs = json!({ "jobs": [
        {"name": "b", "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, "handler": {"shell": "true"}},
        {"name": "a", "schedule": {"manual": true}, "handler": {"command": ["true"]}},
    ]});
    let mut dry = jobs.clone();
    dry["dry_run"] = true.into();
    let would = server.post("/jobs/apply", &dry).await.good();
    assert_eq!(would["applied"][0]["change"], "created");
    assert_eq!(server.get("/jobs").await.good()["jobs"], json!([]));

    server.post("/jobs/apply", &jobs).await.good();
    let again = server.post("/jobs/apply", &jobs).await.good();
    for one in again["applied"].as_array().expect("a list") {
        assert_eq!(one["change"], "unchanged");
    }

    let first = server.get("/jobs?limit=1").await.good();
    assert_eq!(first["jobs"][0]["name"], "a");
    let next = first["next"].as_str().expect("there are more");
    let second = server
        .get(&format!("/jobs?limit=1&after={next}"))
        .await
        .good();
    assert_eq!(second["jobs"][0]["name"], "b");
    assert_eq!(second.get("next"), None);

    server.post("/jobs/b/pause", &json!({})).await.good();
    assert_eq!(server.get("/jobs/b").await.good()["enabled"], false);
    server
        .post("/jobs/b/resume", &Value::Object(serde_json::Map::default()))
        .await
        .good();
    assert_eq!(server.get("/jobs/b").await.good()["enabled"], true);
    server.delete("/jobs/b").await.good();
    assert_eq!(server.get("/jobs/b").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/stats").await.good()["jobs"], 1);
}

#[tokio::test]
async fn a_parent_is_not_deleted_before_its_child() {
    let server = Server::start().await;
    apply(&server, "parent").await;
    let child = json!({ "name": "child", "after": "parent", "handler": {"shell": "true"} });
    server
        .post("/jobs/apply", &json!({ "jobs": [child] }))
        .await
        .good();
    let answer = server.delete("/jobs/parent").await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{answer:?}");
}

#[tokio::test]
async fn fire_times_are_told_before_anything_is_saved() {
    let server = Server::start().await;
    let body = json!({
        "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
        "from": "2027-03-27T00:00:00Z",
        "n": 3,
    });
    let next = server.post("/preview", &body).await.good();
    let times: Vec<String> = next["times"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|t| Timestamp::from_millis(t.as_i64().expect("a number")).to_string())
        .collect();
    // 02:30 does not exist on the 28th: it fires at the end of the gap.
    assert_eq!(
        times,
        [
            "2027-03-27T01:30:00.000Z",
            "2027-03-28T01:00:00.000Z",
            "2027-03-29T00:30:00.000Z"
        ]
    );
    let manual = server
        .post("/preview", &json!({"schedule": {"manual": true}}))
        .await
        .good();
    assert_eq!(
        (&manual["times"], &manual["note"]),
        (&json!([]), &json!("it never fires by itself"))
    );

    apply(&server, "a").await;
    let next = server.get("/jobs/a/next?n=2&from=0").await.good();
    assert_eq!(next["times"], json!([3_600_000, 7_200_000]));
}

#[tokio::test]
async fn the_same_key_makes_no_second_run() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let body = json!({ "idempotency_key": "k", "params": {"month": 1} });
    let first = server.post("/jobs/a/trigger", &body).await;
    assert_eq!(first.status, StatusCode::ACCEPTED);
    let second = server.post("/jobs/a/trigger", &body).await;
    assert_eq!(second.status, StatusCode::OK);
    let (first, second) = (first.json(), second.json());
    assert_eq!(first["runs"], second["runs"]);
    assert_eq!(
        (&first["duplicate"], &second["duplicate"]),
        (&json!(false), &json!(true))
    );
    let run = server
        .get(&format!("/runs/{}", first["runs"][0]))
        .await
        .good();
    assert_eq!(run["params"], "{\"month\":1}");
    let runs = server.get("/runs?job=a&state=scheduled").await.good();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn changes_wake_the_stages_of_the_engine_that_they_concern() {
    let server = Server::start().await;
    let woken = async |what: &str| {
        let waited = tokio::time::timeout(DEADLINE, server.admin.claim.woken()).await;
        assert!(waited.is_ok(), "not woken by {what}");
    };
    apply(&server, "a").await;
    woken("apply").await;
    let run = triggered(&server, "a").await;
    woken("trigger").await;
    server.post("/jobs/a/pause", &json!({})).await.good();
    server.post("/jobs/a/resume", &json!({})).await.good();
    woken("resume").await;
    server
        .post(&format!("/runs/{run}/cancel"), &json!({}))
        .await
        .good();
    let waited = tokio::time::timeout(DEADLINE, server.admin.cancellations.woken()).await;
    assert!(waited.is_ok(), "not woken by cancel");
}

#[tokio::test]
async fn pause_answers_only_when_nothing_is_being_published() {
    let server = std::sync::Arc::new(Server::start().await);
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let attempt = dispatching(&server, run).await;

    let asked = tokio::spawn({
        let server = server.clone();
        async move { server.post("/jobs/a/pause", &json!({})).await }
    });
    let name = "a".parse().expect("a name");
    until("the job is paused", async || {
        !server
            .store
            .job(&name)
            .await
            .expect("the job")
            .job
            .spec
            .is_enabled()
    })
    .await;
    for _ in 0..100 {
        server.store.now().await.expect("the time");
    }
    assert!(!asked.is_finished(), "a trigger is still being published");

    server
        .store
        .confirm_dispatch(&[attempt])
        .await
        .expect("confirmed");
    let answer = tokio::time::timeout(DEADLINE, asked)
        .await
        .expect("in time");
    answer.expect("no panic").good();
}

#[tokio::test]
async fn a_change_that_cannot_be_waited_for_says_that_it_is_made() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    dispatching(&server, run).await;
    server.stop.ask_soft();
    let answer = server.delete("/jobs/a").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    let detail = answer.json()["detail"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(detail.contains("the change is made"), "{detail}");
    assert!(detail.contains("1 trigger"), "{detail}");
    assert_eq!(server.get("/jobs/a").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_follower_gets_lines_as_they_come_and_learns_of_the_end() {
    let server = std::sync::Arc::new(Server::start().await);
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let attempt = dispatching(&server, run).await;
    server
        .store
        .confirm_dispatch(&[attempt])
        .await
        .expect("confirmed");
    let now = server.store.now().await.expect("the time");
    report(&server, attempt, AttemptEvent::Started { at: now }).await;

    let follow = |after: i64| {
        let server = server.clone();
        tokio::spawn(async move {
            let path = format!("/runs/{run}/logs?after={after}&wait_ms=30000");
            server.get(&path).await.good()
        })
    };
    let waiting = follow(0);
    let line = log_line(1, now, "hello");
    report(&server, attempt, AttemptEvent::Log { lines: vec![line] }).await;
    let page = tokio::time::timeout(DEADLINE, waiting)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(
        (&page["lines"][0]["text"], &page["ended"]),
        (&json!("hello"), &json!(false))
    );

    let waiting = follow(page["next"].as_i64().expect("a cursor"));
    let outcome = Outcome::new(OutcomeKind::Succeeded, now);
    report(&server, attempt, AttemptEvent::Ended { outcome }).await;
    let page = tokio::time::timeout(DEADLINE, waiting)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(page["lines"], json!([]));
    assert_eq!(
        (&page["ended"], &page["state"]),
        (&json!(true), &json!("succeeded"))
    );
}

#[tokio::test]
async fn a_page_that_is_full_is_not_the_end() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let attempt = dispatching(&server, run).await;
    server
        .store
        .confirm_dispatch(&[attempt])
        .await
        .expect("confirmed");
    let now = server.store.now().await.expect("the time");
    let lines = (1..=3)
        .map(|n| log_line(n, now, &format!("line {n}")))
        .collect();
    report(&server, attempt, AttemptEvent::Log { lines }).await;
    let outcome = Outcome::new(OutcomeKind::Succeeded, now);
    report(&server, attempt, AttemptEvent::Ended { outcome }).await;

    let first = server
        .get(&format!("/runs/{run}/logs?limit=2"))
        .await
        .good();
    assert_eq!(first["ended"], false, "{first}");
    let path = format!("/runs/{run}/logs?limit=2&after={}", first["next"]);
    let second = server.get(&path).await.good();
    assert_eq!(
        (&second["lines"][0]["text"], &second["ended"]),
        (&json!("line 3"), &json!(true))
    );
}

#[tokio::test]
async fn a_server_that_declares_no_executor_dead_or_claims_nothing_says_why() {
    let server = Server::start().await;
    let stats = server.get("/stats").await.good();
    let why = "failed to reach the broker: no broker in this test";
    assert_eq!(stats["executor_timeouts_paused"], why);
    assert_eq!(stats["claims_paused"], why);
}

#[tokio::test]
async fn a_server_that_is_about_to_stop_is_not_ready() {
    let server = Server::start().await;
    server.stop.ask_soft();
    let answer = server
        .send(server.bare(reqwest::Method::GET, "/readyz"))
        .await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let answer = server
        .send(server.bare(reqwest::Method::GET, "/livez"))
        .await;
    assert_eq!(answer.status, StatusCode::OK);
}
