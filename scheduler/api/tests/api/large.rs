//! Large requests.

use serde_json::{Value, json};

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
