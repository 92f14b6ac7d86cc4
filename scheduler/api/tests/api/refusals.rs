//! The answer to any wrong request says what is wrong and what would be right. The server continues.

use crate::server::{Answer, Server, TOKEN};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// A problem has all members, the status of the answer, and mentions each of `words`.
#[track_caller]
fn assert_problem(answer: &Answer, status: u16, words: &[&str]) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert_eq!(
        answer.content_type, "application/problem+json",
        "{answer:?}"
    );
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{problem}");
    for member in ["type", "title", "detail"] {
        assert!(
            problem[member].as_str().is_some_and(|t| !t.is_empty()),
            "{problem}"
        );
    }
    for word in words {
        assert!(answer.text.contains(word), "no {word:?} in {problem:#}");
    }
}

#[tokio::test]
async fn the_token_is_asked_for_everywhere_but_at_the_probes() {
    let server = Server::start().await;
    for path in ["/livez", "/readyz"] {
        let answer = server.send(server.bare(Method::GET, path)).await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (StatusCode::OK, "ok\n")
        );
    }
    for path in [
        "/api/v1/jobs",
        "/api/v1",
        "/api/v1/nonsense",
        "/api/v1/runs/1/logs",
    ] {
        let without = server.send(server.bare(Method::GET, path)).await;
        assert_problem(&without, 401, &["Authorization: Bearer"]);
        let wrong = server.bare(Method::GET, path).bearer_auth("wrong");
        assert_problem(&server.send(wrong).await, 401, &["the token is wrong"]);
        let longer = server
            .bare(Method::GET, path)
            .bearer_auth(format!("{TOKEN}0"));
        assert_problem(&server.send(longer).await, 401, &[]);
        let basic = server
            .bare(Method::GET, path)
            .basic_auth("admin", Some(TOKEN));
        assert_problem(&server.send(basic).await, 401, &["Bearer TOKEN"]);
    }
    let other_case = server.bare(Method::GET, "/api/v1/jobs");
    let other_case = other_case.header("Authorization", format!("bearer {TOKEN}"));
    assert_eq!(server.send(other_case).await.status, StatusCode::OK);
}

#[tokio::test]
async fn wrong_paths_methods_and_parameters_are_named() {
    let server = Server::start().await;
    for (path, status, words) in [
        ("/nonsense", 404, &["/api/v1"][..]),
        ("/jobs/a/b/c", 404, &[]),
        ("/jobs/none", 404, &["no job", "none"]),
        ("/jobs/none/next", 404, &["none"]),
        ("/jobs/none/ledger", 404, &["none"]),
        ("/jobs/none/explain", 404, &["no job", "none"]),
        ("/jobs/none/explain?n=1", 400, &["takes none"]),
        ("/runs/7/explain", 404, &["no run 7"]),
        ("/runs/first/explain", 400, &["first"]),
        ("/forecast?hours=3", 400, &["hours", "group"]),
        ("/forecast?group=a%20b", 400, &["group", "not allowed"]),
        ("/jobs/a%20b", 400, &["name", "not allowed"]),
        ("/jobs/%ff", 400, &[]),
        ("/jobs/apply", 405, &["GET"]),
        ("/jobs/none/pause", 405, &["GET"]),
        ("/jobs?colour=red", 400, &["colour", "sort, limit, after"]),
        ("/jobs?limit=0", 400, &["limit", "1 to 1000"]),
        ("/jobs?limit=1001", 400, &["limit", "1 to 1000"]),
        ("/jobs?limit=ten", 400, &["limit", "ten"]),
        ("/jobs?limit=1&limit=2", 400, &["limit", "more than once"]),
        ("/jobs?after=a/b", 400, &["after", "previous page"]),
        ("/jobs/none?x=1", 400, &["takes none"]),
        ("/jobs/none/next?n=0", 400, &["1 to 1000"]),
        (
            "/jobs/none/next?from=tomorrow",
            400,
            &["from", "2027-01-31T12:00:00Z"],
        ),
        (
            "/jobs/none/ledger?from=2027-01-02T00:00:00Z&to=2027-01-01T00:00:00Z",
            422,
            &["from", "is after"],
        ),
        ("/runs/0", 400, &["whole numbers"]),
        ("/runs/-1", 400, &["whole numbers"]),
        ("/runs/first", 400, &["first"]),
        ("/runs/99999999999999999999", 400, &["whole numbers"]),
        ("/runs/7", 404, &["no run 7"]),
        ("/runs/7/logs", 404, &["no run 7"]),
        ("/runs?state=done", 400, &["state", "succeeded"]),
        ("/runs?before=x", 400, &["before", "unknown parameter"]),
        ("/runs?after=x", 422, &["after", "previous page"]),
        (
            "/runs/7/logs?wait_ms=30001",
            400,
            &["wait_ms", "0 to 30000"],
        ),
        ("/runs/7/logs?after=-1", 400, &["after"]),
        (
            "/executors?colour=red",
            400,
            &["colour", "takes name, group, label, state, all_namespaces"],
        ),
        ("/stats?x", 400, &["takes none"]),
    ] {
        assert_problem(&server.get(path).await, status, words);
    }
    let answer = server.send(server.bare(Method::GET, "/elsewhere")).await;
    assert_problem(&answer, 404, &["/elsewhere"]);
    let answer = server.send(server.bare(Method::POST, "/livez")).await;
    assert_problem(&answer, 405, &["POST"]);
    let both = server.get("/jobs?limit=0&colour=red").await;
    assert_eq!(
        both.json()["errors"].as_array().map(Vec::len),
        Some(2),
        "{both:?}"
    );
}

fn job(change: &Value) -> Value {
    let mut job = json!({ "name": "a", "schedule": {"every": "1h"}, "handler": {"shell": "true"} });
    for (key, value) in change.as_object().expect("an object") {
        job[key] = value.clone();
    }
    json!({ "jobs": [job] })
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
#[tokio::test]
async fn bodies_that_do_not_fit_are_refused_field_by_field() {
    let server = Server::start().await;
    for (path, body, status, words) in [
        ("/jobs/apply", json!({}), 400, &["jobs", "missing"][..]),
        (
            "/jobs/apply",
            json!({"jobs": {}}),
            400,
            &["jobs", "an object", "list"],
        ),
        (
            "/jobs/apply",
            json!({"jobs": [], "dry_run": "yes"}),
            400,
            &["dry_run", "true or false"],
        ),
        (
            "/jobs/apply",
            json!({"jobs": [], "dryrun": true}),
            400,
            &["dryrun", "jobs, dry_run"],
        ),
        ("/jobs/apply", json!([]), 400, &["a list", "object"]),
        ("/jobs/apply", json!({"jobs": ["a"]}), 422, &["jobs[0]"]),
        (
            "/jobs/apply",
            job(&json!({"schedule": {"cron": "61 * * * *"}})),
            422,
            &["schedule.cron", "61", "0–59"],
        ),
        (
            "/jobs/apply",
            job(&json!({"schedule": {"every": "1"}})),
            422,
            &["schedule.every", "10s"],
        ),
        (
            "/jobs/apply",
            job(&json!({"schedule": {"cron": "0 0 * * *", "timezone": "Mars"}})),
            422,
            &["timezone", "Mars"],
        ),
        (
            "/jobs/apply",
            job(&json!({"route": "robin"})),
            422,
            &["route", "round"],
        ),
        (
            "/jobs/apply",
            job(&json!({"priority": 10})),
            422,
            &["priority"],
        ),
        (
            "/jobs/apply",
            job(&json!({"retry": {"max": -1}})),
            422,
            &["retry.max"],
        ),
        (
            "/jobs/apply",
            job(&json!({"handler": {}})),
            422,
            &["handler"],
        ),
        (
            "/jobs/apply",
            job(&json!({"name": "a b"})),
            422,
            &["name", "not allowed"],
        ),
        (
            "/jobs/apply",
            job(&json!({"colour": "red"})),
            422,
            &["colour"],
        ),
        (
            "/jobs/apply",
            job(&json!({"after": "absent-parent"})),
            422,
            &["absent-parent"],
        ),
        ("/preview", json!({}), 400, &["schedule", "missing"]),
        (
            "/preview",
            json!({"schedule": {"every": "1s"}, "job": {}}),
            400,
            &["schedule", "one of the two"],
        ),
        (
            "/preview",
            json!({"schedule": {"every": "1s"}, "n": 0}),
            400,
            &["n", "1 to 1000"],
        ),
        (
            "/preview",
            json!({"schedule": {"every": "1s"}, "from": "x"}),
            400,
            &["from", "instant"],
        ),
        (
            "/preview",
            json!({"schedule": {"cron": "* * *"}}),
            422,
            &["schedule.cron"],
        ),
        ("/preview", json!({"schedule": 7}), 422, &["schedule"]),
        ("/jobs/none/trigger", json!({}), 404, &["none"]),
        (
            "/jobs/none/trigger",
            json!({"param": "x"}),
            400,
            &["param", "params"],
        ),
        (
            "/jobs/none/trigger",
            json!({"params": "x".repeat(70_000)}),
            400,
            &["params", "65536"],
        ),
        (
            "/jobs/none/trigger",
            json!({"idempotency_key": 7}),
            400,
            &["idempotency_key", "a number", "text"],
        ),
        (
            "/jobs/none/trigger",
            json!({"idempotency_key": ""}),
            400,
            &["idempotency_key", "empty"],
        ),
        (
            "/jobs/none/trigger",
            json!({"run_at": "soon"}),
            400,
            &["run_at", "2027-01-31T12:00:00Z"],
        ),
        (
            "/jobs/none/trigger",
            json!({"run_at": 1e30}),
            400,
            &["run_at"],
        ),
        ("/jobs/none/pause", json!({}), 404, &["none"]),
        (
            "/jobs/none/pause",
            json!({"by": "me"}),
            400,
            &["by", "takes none"],
        ),
        ("/jobs/none/resume", json!({}), 404, &["none"]),
        ("/runs/7/cancel", json!({}), 404, &["no run 7"]),
        (
            "/runs/7/cancel",
            json!({"why": "x"}),
            400,
            &["why", "takes none"],
        ),
    ] {
        assert_problem(&server.post(path, &body).await, status, words);
    }
    assert_problem(&server.delete("/jobs/none").await, 404, &["none"]);
    let jobs = server.get("/jobs").await.good();
    assert_eq!(jobs["jobs"], json!([]), "nothing came of it");
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused_with_their_place() {
    let server = Server::start().await;
    let deep = "[".repeat(100_000);
    for (content_type, body, status, words) in [
        (
            Some("application/json"),
            "{\n  \"jobs\": [,]\n}",
            400,
            &["line 2, column 12"][..],
        ),
        (
            Some("application/json"),
            "{\"jobs\": [",
            400,
            &["line 1, column 10", "EOF"],
        ),
        (Some("application/json"), "\u{feff}{}", 400, &["line 1"]),
        (Some("application/json"), &deep, 400, &["recursion"]),
        (
            Some("application/json; charset=utf-8"),
            "null",
            400,
            &["null", "object"],
        ),
        (
            Some("text/plain"),
            "{}",
            415,
            &["text/plain", "application/json"],
        ),
        (
            Some("application/toml"),
            "[[job]]",
            415,
            &["application/json"],
        ),
        (None, "{}", 415, &["Content-Type"]),
        (None, "", 400, &["jobs", "missing"]),
    ] {
        let mut request = server
            .bare(Method::POST, "/api/v1/jobs/apply")
            .bearer_auth(TOKEN)
            .body(body.to_owned());
        if let Some(content_type) = content_type {
            request = request.header("Content-Type", content_type);
        }
        assert_problem(&server.send(request).await, status, words);
    }
    let bytes = server
        .bare(Method::POST, "/api/v1/jobs/apply")
        .bearer_auth(TOKEN)
        .header("Content-Type", "application/json")
        .body(vec![b'{', 0xff, b'}']);
    assert_problem(&server.send(bytes).await, 400, &["line 1"]);
}

#[tokio::test]
async fn bodies_over_the_limit_are_refused() {
    let server = Server::start().await;
    let text = "x".repeat(cueline_api::MAX_BODY_BYTES);
    let answer = server.post("/jobs/apply", &json!({ "jobs": text })).await;
    assert_problem(&answer, 413, &["4194304"]);
    assert_eq!(server.get("/stats").await.status, StatusCode::OK);
}
