//! Requests that are sent again: the header `Idempotency-Key`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::behaviour::apply;
use crate::server::{Answer, Server, TOKEN};

const MISMATCH: &str = "cueline:idempotency-mismatch";

async fn post(server: &Server, token: &str, path: &str, key: &str, body: &Value) -> Answer {
    let path = format!("/api/v1{path}");
    let request = server.bare(Method::POST, &path).bearer_auth(token);
    let request = request.header("Idempotency-Key", key).json(body);
    server.send(request).await
}

#[track_caller]
fn refused(answer: &Answer, status: u16, kind: &str) -> Value {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["type"], kind, "{answer:?}");
    problem
}

#[tokio::test]
async fn the_header_of_a_trigger_is_the_key_of_its_body() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let path = "/jobs/a/trigger";
    let first = post(&server, TOKEN, path, "\"k 1\"", &json!({})).await;
    assert_eq!(first.status.as_u16(), 202, "{first:?}");
    let of_body = server
        .post(path, &json!({ "idempotency_key": "k 1" }))
        .await;
    let both = post(
        &server,
        TOKEN,
        path,
        "k 1",
        &json!({ "idempotency_key": "k 1" }),
    )
    .await;
    for again in [of_body, both] {
        assert_eq!(again.status.as_u16(), 200, "{again:?}");
        assert_eq!(again.json()["runs"], first.json()["runs"]);
    }
    let differ = post(
        &server,
        TOKEN,
        path,
        "k 1",
        &json!({ "idempotency_key": "k 2" }),
    )
    .await;
    let problem = refused(&differ, 422, "cueline:unfit-value");
    assert_eq!(problem["errors"][0]["field"], "idempotency_key");

    for other in [
        json!({ "params": "x" }),
        json!({ "run_at": "2100-01-01T00:00:00Z" }),
    ] {
        let answer = post(&server, TOKEN, path, "k 1", &other).await;
        refused(&answer, 422, MISMATCH);
    }
    let runs = server.get("/runs?job=a").await.good();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_malformed_key_is_refused_with_the_name_of_the_header() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let long = "k".repeat(256);
    for key in ["\"k", "\"\"", "k\"k", "k\u{e9}", long.as_str()] {
        for (path, body) in [
            ("/jobs/a/trigger", json!({})),
            ("/tokens", json!({ "name": "ci", "grants": [] })),
            ("/users", json!({ "name": "ann" })),
            ("/enrolment-tokens", json!({})),
        ] {
            let answer = post(&server, TOKEN, path, key, &body).await;
            let problem = refused(&answer, 400, "cueline:malformed");
            assert_eq!(
                problem["errors"][0]["field"], "Idempotency-Key",
                "{path} {key}"
            );
        }
    }
    assert_eq!(server.get("/tokens").await.good()["tokens"], json!([]));
}

#[tokio::test]
async fn a_token_is_created_once_and_its_id_is_known() {
    let server = Server::start().await;
    let everything = json!([{ "role": "admin", "scripts": true }]);
    let other = server.token_with(&everything).await;
    for (path, body) in [
        (
            "/tokens",
            json!({ "name": "ci", "grants": [{ "role": "viewer" }] }),
        ),
        ("/enrolment-tokens", json!({ "group": "default" })),
    ] {
        let first = post(&server, TOKEN, path, "k", &body).await;
        assert_eq!(first.status.as_u16(), 201, "{first:?}");
        let id = first.json()["id"].clone();
        let again = post(&server, TOKEN, path, "k", &body).await;
        let problem = refused(&again, 409, "cueline:already-created");
        assert_eq!(problem["id"], id);
        assert!(!again.text.contains("token\":"), "no secret: {again:?}");
        // Each caller has keys of its own.
        let others = post(&server, &other, path, "k", &body).await;
        assert_eq!(others.status.as_u16(), 201, "{others:?}");
        let unkeyed = server.post(path, &body).await;
        assert_eq!(unkeyed.status.as_u16(), 201, "{unkeyed:?}");
    }
}

#[tokio::test]
async fn a_user_is_created_once_and_shown_again() {
    let server = Server::start().await;
    let ann = json!({ "name": "ann", "grants": [{ "role": "viewer" }] });
    let first = post(&server, TOKEN, "/users", "k", &ann).await;
    assert_eq!(first.status.as_u16(), 201, "{first:?}");
    let again = post(&server, TOKEN, "/users", "k", &ann).await;
    assert_eq!(again.status.as_u16(), 200, "{again:?}");
    assert_eq!(again.json()["name"], "ann");
    let bob = post(&server, TOKEN, "/users", "k", &json!({ "name": "bob" })).await;
    refused(&bob, 422, MISMATCH);
    let without = server.post("/users", &ann).await;
    refused(&without, 409, "cueline:conflict");
    let users = server.get("/users").await.good();
    assert_eq!(users["users"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_request_that_may_be_repeated_ignores_the_header() {
    let server = Server::start().await;
    apply(&server, "a").await;
    for _ in 0..2 {
        let paused = post(&server, TOKEN, "/jobs/a/pause", "k", &json!({})).await;
        paused.good();
    }
    let resumed = post(&server, TOKEN, "/jobs/a/resume", "k", &json!({})).await;
    resumed.good();
    assert_eq!(server.get("/jobs/a").await.good()["enabled"], true);
}
