//! Rate limits of groups, and the limits of jobs in their definitions.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server, TOKEN};

async fn put(server: &Server, group: &str, body: &Value) -> Answer {
    let path = format!("/api/v1/limits/{group}");
    server.by(TOKEN, Method::PUT, &path, Some(body)).await
}

#[tokio::test]
async fn the_rate_of_a_group_is_set_listed_and_deleted() {
    let server = Server::start().await;
    assert_eq!(server.get("/limits").await.good(), json!({ "groups": [] }));
    let rate = json!({ "count": 100, "per": "minute" });
    let set = put(&server, "mail", &rate).await.good();
    assert_eq!(set, json!({ "group": "mail", "rate_limit": rate }));
    assert_eq!(server.get("/limits").await.good()["groups"], json!([set]));
    let elsewhere = server.get("/namespaces/team-a/limits").await.good();
    assert_eq!(elsewhere["groups"], json!([]));
    let deleted = server.delete("/limits/mail").await.good();
    assert_eq!(deleted, json!({ "group": "mail" }));
    assert_eq!(server.get("/limits").await.good()["groups"], json!([]));
    let log = server.get("/audit?action=limit").await.good();
    assert_eq!(log["entries"].as_array().map(Vec::len), Some(2), "{log}");
}

#[tokio::test]
async fn wrong_limits_are_named() {
    let server = Server::start().await;
    for (body, says) in [
        (
            json!({ "count": 5 }),
            "the interval (second, minute or hour)",
        ),
        (json!({ "per": "hour" }), "the number of dispatches"),
        (
            json!({ "count": 0, "per": "hour" }),
            "out of range 1–1000000",
        ),
        (
            json!({ "count": 1, "per": "day" }),
            "one of second, minute, hour",
        ),
        (json!({ "count": 1, "per": "hour", "key": "x" }), "key"),
    ] {
        let answer = put(&server, "mail", &body).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{answer:?}"
        );
        assert!(answer.text.contains(says), "{says}: {answer:?}");
    }
}

#[tokio::test]
async fn a_definition_keeps_its_limits() {
    let server = Server::start().await;
    let job = json!({
        "name": "mail", "schedule": { "manual": true }, "handler": { "native": "x" },
        "rate_limit": { "count": 10, "per": "second", "key": "smtp" }, "concurrency": { "key": "db", "limit": 3 },
    });
    let applied = server.post("/jobs/apply", &json!({ "jobs": [job] })).await;
    applied.good();
    let shown = server.get("/jobs/mail").await.good();
    for field in ["rate_limit", "concurrency"] {
        assert_eq!(shown[field], job[field], "{shown}");
    }
}
