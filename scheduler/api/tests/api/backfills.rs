//! Backfills of past windows.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::Server;

async fn apply(server: &Server, job: &str, schedule: &Value) {
    let definition = json!({ "name": job, "schedule": schedule, "handler": { "native": "work" } });
    let jobs = json!({ "jobs": [definition] });
    server.post("/jobs/apply", &jobs).await.good();
}

fn window() -> Value {
    json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-02T00:00:00Z" })
}

#[tokio::test]
async fn a_backfill_is_counted_started_and_shown() {
    let server = Server::start().await;
    apply(&server, "a", &json!({ "cron": "0 * * * *" })).await;
    let mut request = window();
    request["dry_run"] = true.into();
    let counted = server.post("/jobs/a/backfills", &request).await.good();
    assert_eq!(
        counted,
        json!({ "dry_run": true, "fires": 24, "excluded": 0 })
    );
    assert_eq!(
        server.get("/backfills").await.good()["backfills"],
        json!([])
    );
    request["dry_run"] = false.into();
    request["expected_fires"] = 23.into();
    let other = server.post("/jobs/a/backfills", &request).await;
    assert_eq!(other.status, StatusCode::CONFLICT, "{other:?}");
    request["expected_fires"] = 24.into();
    let started = server.post("/jobs/a/backfills", &request).await.good();
    let backfill = &started["backfill"];
    assert_eq!(
        (&backfill["state"], &backfill["total"]),
        (&json!("running"), &json!(24))
    );
    let again = server.post("/jobs/a/backfills", &window()).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{again:?}");
    let path = format!("/jobs/a/backfills/{}", backfill["id"]);
    assert_eq!(server.get(&path).await.good()["runs"], json!({}));
    for (verb, state) in [
        ("pause", "paused"),
        ("resume", "running"),
        ("cancel", "cancelled"),
    ] {
        let changed = server
            .post(&format!("{path}/{verb}"), &json!({}))
            .await
            .good();
        assert_eq!(changed["state"], state, "{changed}");
    }
    let ended = server.post(&format!("{path}/resume"), &json!({})).await;
    assert_eq!(ended.status, StatusCode::CONFLICT, "{ended:?}");
    let listed = server.get("/jobs/a/backfills").await.good();
    assert_eq!(listed["backfills"][0]["id"], backfill["id"]);
}

#[tokio::test]
async fn a_backfill_says_what_is_wrong_with_it() {
    let server = Server::start().await;
    apply(&server, "a", &json!({ "every": "100ms" })).await;
    apply(&server, "m", &json!({ "manual": true })).await;
    let cases = [
        ("a", json!({}), "from"),
        (
            "a",
            json!({ "from": "2025-01-02T00:00:00Z", "to": "2025-01-01T00:00:00Z" }),
            "is not after from",
        ),
        (
            "a",
            json!({ "from": "2025-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z" }),
            "in the future",
        ),
        (
            "a",
            json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-02T00:00:00Z", "parallel": 0 }),
            "from 1 to 100",
        ),
        ("a", window(), "more than 100000 fire times"),
        ("m", window(), "no fire times of its own"),
    ];
    for (job, request, says) in cases {
        let refused = server
            .post(&format!("/jobs/{job}/backfills"), &request)
            .await;
        let status = refused.status;
        assert!([StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY].contains(&status));
        let text = format!("{refused:?}");
        assert!(text.contains(says), "{request}: {text}");
    }
    let discards = json!({
        "name": "d", "schedule": { "cron": "0 * * * *" }, "block": "discard", "handler": { "native": "work" },
    });
    let jobs = json!({ "jobs": [discards] });
    server.post("/jobs/apply", &jobs).await.good();
    let mut wide = window();
    wide["parallel"] = 2.into();
    let refused = server.post("/jobs/d/backfills", &wide).await;
    assert!(
        format!("{refused:?}").contains("so 1 is expected"),
        "{refused:?}"
    );
    let missing = server.post("/jobs/x/backfills", &window()).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND, "{missing:?}");
    let missing = server.get("/jobs/a/backfills/7").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND, "{missing:?}");
    let malformed = server.get("/jobs/a/backfills/x").await;
    assert_eq!(malformed.status, StatusCode::BAD_REQUEST, "{malformed:?}");
}

#[tokio::test]
async fn a_backfill_needs_the_right_for_its_job() {
    let server = Server::start().await;
    apply(&server, "a", &json!({ "cron": "0 * * * *" })).await;
    apply(&server, "b", &json!({ "cron": "0 * * * *" })).await;
    let path = "/api/v1/jobs/a/backfills";
    let viewer = server.token_with(&json!([{ "role": "viewer" }])).await;
    let refused = server
        .by(&viewer, Method::POST, path, Some(&window()))
        .await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    let grants = json!([{ "role": "operator", "namespace": "default", "group": "default" }]);
    let operator = server.token_with(&grants).await;
    let started = server
        .by(&operator, Method::POST, path, Some(&window()))
        .await
        .good();
    let id = &started["backfill"]["id"];
    let shown = server
        .by(&viewer, Method::GET, &format!("{path}/{id}"), None)
        .await
        .good();
    assert_eq!(shown["job"], "a");
    let refused = server
        .by(&viewer, Method::POST, &format!("{path}/{id}/cancel"), None)
        .await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    // The right was checked for another job.
    let other = server.get(&format!("/jobs/b/backfills/{id}")).await;
    assert_eq!(other.status, StatusCode::NOT_FOUND, "{other:?}");
    let elsewhere = server.get("/namespaces/team-a/backfills").await.good();
    assert_eq!(elsewhere["backfills"], json!([]));
}
