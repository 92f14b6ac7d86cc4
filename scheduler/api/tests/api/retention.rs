//! Rules for what is kept, and prunes.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server, TOKEN};

fn job(name: &str, group: &str, retention: &Value) -> Value {
    json!({
        "name": name, "group": group, "schedule": { "manual": true }, "handler": { "native": "x" }, "retention": retention,
    })
}

async fn put(server: &Server, group: &str, body: &Value) -> Answer {
    let path = format!("/api/v1/retention/{group}");
    server.by(TOKEN, Method::PUT, &path, Some(body)).await
}

/// A run of the job that has ended.
async fn ended(server: &Server, job: &str) -> u64 {
    let run = live(server, job).await;
    let path = format!("/runs/{run}/cancel");
    server.post(&path, &json!({})).await.good();
    run
}

async fn live(server: &Server, job: &str) -> u64 {
    let path = format!("/jobs/{job}/trigger");
    let triggered = server.post(&path, &json!({})).await.good();
    triggered["runs"][0].as_u64().expect("a run")
}

#[tokio::test]
async fn a_job_shows_what_is_kept_and_what_says_so() {
    let server = Server::start().await;
    let jobs = [
        job("plain", "a", &Value::Null),
        job("own", "a", &json!({ "age": "30d", "logs": "3d" })),
    ];
    server
        .post("/jobs/apply", &json!({ "jobs": jobs }))
        .await
        .good();
    let shown = async |job: &str| server.get(&format!("/jobs/{job}/retention")).await.good();
    let week = json!({ "time": "7d", "by": "server" });
    let expected = json!({ "job": "plain", "age": week, "logs": week, "outputs": week });
    assert_eq!(shown("plain").await, expected);
    let rule = json!({ "runs": 100, "outputs": "1d" });
    let set = put(&server, "a", &rule).await.good();
    assert_eq!(set, json!({ "group": "a", "runs": 100, "outputs": "1d" }));
    let expected = json!({
        "job": "own", "age": { "time": "30d", "by": "job" }, "runs": { "number": 100, "by": "group" },
        "logs": { "time": "3d", "by": "job" }, "outputs": { "time": "1d", "by": "group" },
    });
    assert_eq!(shown("own").await, expected);
    let all = server.get("/retention").await.good();
    let expected = json!({ "age": "7d", "audit": "400d", "dead_letters": "90d", "groups": [set] });
    assert_eq!(all, expected);
    let elsewhere = server.get("/namespaces/team-a/retention").await.good();
    assert_eq!(elsewhere["groups"], json!([]));
    server.delete("/retention/a").await.good();
    assert_eq!(shown("plain").await["age"], week);
    let log = server.get("/audit?action=retention").await.good();
    assert_eq!(log["entries"].as_array().map(Vec::len), Some(2), "{log}");
}

#[tokio::test]
async fn wrong_rules_are_named() {
    let server = Server::start().await;
    for (body, says) in [
        (json!({ "age": 7 }), "age"),
        (json!({ "age": "1s" }), "at least 1m"),
        (json!({ "runs": 0 }), "runs"),
        (json!({ "days": 1 }), "days"),
        (json!({ "age": "1d", "logs": "2d" }), "longer than age"),
    ] {
        let answer = put(&server, "a", &body).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{answer:?}"
        );
        assert!(answer.text.contains(says), "{says}: {answer:?}");
    }
    let elsewhere = put(&server, "team-a%2Fx", &json!({ "runs": 1 })).await;
    assert_eq!(elsewhere.status, StatusCode::BAD_REQUEST, "{elsewhere:?}");
    for (body, says) in [
        (json!({}), "missing"),
        (json!({ "runs": 7 }), "a number is given"),
        (json!({ "runs": ["x"] }), "not a run's id"),
        (json!({ "runs": vec![1; 501] }), "at most 500"),
    ] {
        let answer = server.post("/runs/prune", &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
        assert!(answer.text.contains(says), "{says}: {answer:?}");
    }
}

#[tokio::test]
async fn ended_runs_are_pruned_where_the_caller_may() {
    let server = Server::start().await;
    let jobs = [
        job("in-a", "a", &Value::Null),
        job("in-b", "b", &Value::Null),
    ];
    server
        .post("/jobs/apply", &json!({ "jobs": jobs }))
        .await
        .good();
    let (a, b) = (ended(&server, "in-a").await, ended(&server, "in-b").await);
    let waits = live(&server, "in-a").await;
    let body = json!({ "runs": [a, b, waits, 999_999] });
    let grants = json!([{ "group": "a", "role": "author" }]);
    let token = server.token_with(&grants).await;
    let path = "/api/v1/runs/prune";
    let pruned = server
        .by(&token, Method::POST, path, Some(&body))
        .await
        .good();
    let expected = json!({ "deleted": 1, "jobs": [{ "job": "in-a", "runs": 1 }], "live": [waits] });
    assert_eq!(pruned, expected);
    let gone = server.get(&format!("/runs/{a}")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    server.get(&format!("/runs/{b}")).await.good();
    server.get(&format!("/runs/{waits}")).await.good();
    let elsewhere = server
        .post("/namespaces/team-a/runs/prune", &body)
        .await
        .good();
    assert_eq!(elsewhere["deleted"], 0);
    let log = server.get("/audit?action=run.prune").await.good();
    let entry = &log["entries"][0];
    assert_eq!(
        (&entry["object"], &entry["group"]),
        (&json!("in-a"), &json!("a"))
    );
}
