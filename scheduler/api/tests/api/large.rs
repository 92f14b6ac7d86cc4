//! Large requests.

use std::time::Duration;

use cueline_api::MAX_SMALL_BODY_BYTES;
use cueline_http::ServerLimits;
use serde_json::{Value, json};

use crate::raw::Raw;
use crate::server::Server;

fn job(name: &str) -> Value {
    json!({ "name": name, "schedule": { "manual": true }, "handler": { "native": "x" } })
}

#[tokio::test]
async fn many_jobs_are_applied_in_the_order_of_the_request() {
    let server = Server::start().await;
    let mut jobs: Vec<Value> = (0..1_201).map(|i| job(&format!("j{i}"))).collect();
    // A child before its parent, and one in the middle.
    let child = |name: &str, parent: &str| json!({ "name": name, "after": parent, "handler": { "native": "x" } });
    jobs.insert(0, child("first", "j1200"));
    jobs.insert(600, child("middle", "first"));
    let names: Vec<Value> = jobs.iter().map(|job| job["name"].clone()).collect();
    let body = json!({ "jobs": jobs });
    for change in ["created", "unchanged"] {
        let applied = server.post("/jobs/apply", &body).await.good();
        let applied = applied["applied"].as_array().expect("a list").clone();
        let order: Vec<Value> = applied.iter().map(|one| one["name"].clone()).collect();
        assert_eq!(order, names);
        assert!(
            applied.iter().all(|one| one["change"] == change),
            "{change}"
        );
    }
}

#[tokio::test]
async fn many_jobs_of_which_one_cannot_be_applied_change_nothing() {
    let server = Server::start().await;
    let mut jobs: Vec<Value> = (0..1_201).map(|i| job(&format!("j{i}"))).collect();
    jobs.push(json!({ "name": "child", "after": "none", "handler": { "native": "x" } }));
    let refused = server.post("/jobs/apply", &json!({ "jobs": jobs })).await;
    assert_eq!(refused.status.as_u16(), 422, "{refused:?}");
    assert!(refused.text.contains("none"), "{refused:?}");
    let listed = server.get("/jobs?limit=1000").await.good();
    assert_eq!(listed["jobs"], json!([]));
}

#[tokio::test]
async fn thousands_of_wrong_time_zones_are_reported_up_to_the_limit() {
    let server = Server::start().await;
    let jobs: Vec<Value> = (0..4_000)
        .map(|i| {
            let mut job = job(&format!("j{i}"));
            job["schedule"] = json!({ "cron": "@daily", "timezone": format!("Europe/Berln{i}") });
            job
        })
        .collect();
    let body = json!({ "jobs": jobs });
    let (first, second) = tokio::join!(
        server.post("/jobs/apply", &body),
        server.post("/jobs/apply", &body)
    );
    for answer in [first, second] {
        assert_eq!(answer.status.as_u16(), 422, "{}", answer.status);
        let problem = answer.json();
        let errors = problem["errors"].as_array().expect("a list");
        assert_eq!(errors.len(), 1_001);
        let suggested = errors.iter().filter(|error| {
            let message = error["message"].as_str();
            message.is_some_and(|message| message.contains("did you mean"))
        });
        assert_eq!(suggested.count(), 20);
    }
}

/// Longer than any test.
const LONG: Duration = Duration::from_hours(1);

/// The head of a request without a token.
fn public(path: &str, headers: &[&str]) -> Vec<u8> {
    let mut head = format!(
        "POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    );
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

#[tokio::test]
async fn a_client_without_a_token_takes_no_place_of_a_large_request() {
    let server = Server::with(ServerLimits {
        body_timeout: LONG,
        ..ServerLimits::of_connections(100)
    })
    .await;
    let mut unfinished = Vec::new();
    for path in ["/login", "/login", "/setup", "/setup"] {
        let mut raw = Raw::connect(&server).await;
        let headers = ["Transfer-Encoding: chunked", "Expect: 100-continue"];
        raw.begin_with(&public(path, &headers)).await;
        raw.send(b"3e8\r\n{").await;
        unfinished.push(raw);
    }
    // Over 64 KiB, so it needs a place.
    let jobs: Vec<Value> = (0..1_500).map(|i| job(&format!("j{i}"))).collect();
    let body = json!({ "jobs": jobs, "dry_run": true });
    assert!(body.to_string().len() > MAX_SMALL_BODY_BYTES);
    server.post("/jobs/apply", &body).await.good();
    for raw in &unfinished {
        assert!(!raw.is_closed(), "its request is still in progress");
    }
}

#[tokio::test]
async fn a_large_body_without_a_token_is_refused() {
    let server = Server::start().await;
    for path in ["/login", "/setup"] {
        let mut declared = Raw::connect(&server).await;
        // Nothing of the body is waited for.
        declared
            .send(&public(path, &["Content-Length: 102400"]))
            .await;
        let mut chunked = Raw::connect(&server).await;
        let mut bytes = public(path, &["Transfer-Encoding: chunked"]);
        bytes.extend_from_slice(format!("{:x}\r\n", MAX_SMALL_BODY_BYTES + 1).as_bytes());
        bytes.resize(bytes.len() + MAX_SMALL_BODY_BYTES + 1, b' ');
        chunked.send(&bytes).await;
        for (name, raw) in [("declared", &mut declared), ("chunked", &mut chunked)] {
            let reply = raw.reply().await.expect("a reply");
            assert_eq!(reply.status, 413, "{path} {name}: {}", reply.text());
            assert!(
                reply.text().contains("at most 65536 bytes"),
                "{path} {name}"
            );
        }
    }
}
