//! One syntax for all lists.

use std::collections::BTreeSet;

use cueline_model::{Heartbeat, Namespace, Timestamp};
use cueline_store::NewDeadLetter;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Server, TOKEN};

/// Each list with the field of its entries, and an order that is not its default.
const LISTS: [(&str, &str, &str); 11] = [
    ("/jobs", "jobs", "-next_fire"),
    ("/jobs/a/versions", "versions", "version"),
    ("/runs", "runs", "id"),
    ("/executors", "executors", "-last_heartbeat_at"),
    ("/dead", "letters", "id"),
    ("/audit", "entries", "id"),
    ("/users", "users", "-created_at"),
    ("/tokens", "tokens", "id"),
    ("/worker-keys", "keys", "changed_at"),
    ("/enrolment-tokens", "tokens", "-created_at"),
    ("/namespaces", "namespaces", "name"),
];

fn by_hand(name: &str, group: &str) -> Value {
    json!({
        "name": name, "group": group, "schedule": { "manual": true }, "handler": { "native": "x" },
        "labels": { "team": group },
    })
}

async fn apply(server: &Server, jobs: &[Value]) {
    let body = json!({ "jobs": jobs });
    server.post("/jobs/apply", &body).await.good();
}

async fn dead_letters(server: &Server, numbers: std::ops::Range<i64>) {
    let letters: Vec<NewDeadLetter> = numbers
        .map(|n| NewDeadLetter {
            key: format!("key-{n}"),
            queue: "results".to_owned(),
            topic: format!("job-{n}"),
            reason: "a test".to_owned(),
            at: Timestamp::from_millis(n),
            payload: vec![1],
            origin: Some("executor g/e1".to_owned()),
            namespace: Some(Namespace::default()),
        })
        .collect();
    let stored = server.store.insert_dead_letters(&letters).await;
    stored.expect("stores");
}

async fn executors(server: &Server, names: &[&str]) {
    let heartbeat = |name: &&str| -> Heartbeat {
        let heartbeat = json!({
            "group": "g", "name": name, "incarnation": "1", "session": 1, "capabilities": [], "capacity": 1, "held": 0,
            "running": 0, "draining": *name == "e1", "gone": false,
        });
        serde_json::from_value(heartbeat).expect("a heartbeat")
    };
    let heartbeats: Vec<Heartbeat> = names.iter().map(heartbeat).collect();
    let recorded = server.store.record_heartbeats(&heartbeats).await;
    recorded.expect("records");
}

/// A server with several entries in each list, but for keys of workers.
async fn filled() -> Server {
    let server = Server::start().await;
    let names = ["a", "b", "c", "d", "e"];
    apply(&server, &names.map(|name| by_hand(name, "g"))).await;
    for priority in 1..5 {
        let mut job = by_hand("a", "g");
        job["priority"] = json!(priority);
        apply(&server, &[job]).await;
    }
    for name in names {
        let path = format!("/jobs/{name}/trigger");
        server.post(&path, &json!({})).await.good();
        let user = json!({ "name": format!("user-{name}"), "grants": [{ "group": "g", "role": "viewer" }] });
        server.post("/users", &user).await.good();
        server.token_with(&json!([{ "role": "viewer" }])).await;
        server.post("/enrolment-tokens", &json!({})).await.good();
        let path = format!("/api/v1/namespaces/team-{name}/quota");
        let quota = server.bare(Method::PUT, &path).bearer_auth(TOKEN);
        let quota = quota.json(&json!({ "max_jobs": 9 }));
        server.send(quota).await.good();
    }
    dead_letters(&server, 0..5).await;
    executors(&server, &["e1", "e2", "e3", "e4", "e5"]).await;
    server
}

fn joined(path: &str, query: &str) -> String {
    format!("{path}?{query}")
}

/// What tells an entry from the others.
fn identity(entry: &Value) -> String {
    for field in ["id", "name", "version"] {
        if !entry[field].is_null() {
            return entry[field].to_string();
        }
    }
    entry.to_string()
}

async fn all_pages(server: &Server, path: &str, key: &str, query: &str) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = server
            .get(&joined(path, &format!("{query}{after}")))
            .await
            .good();
        assert!(page["now"].is_i64(), "{path}: {page}");
        found.extend(page[key].as_array().expect("a list").iter().map(identity));
        let Some(next) = page["next"].as_str() else {
            assert_eq!(page.get("next"), None, "{path}");
            return found;
        };
        after = format!("&after={next}");
    }
}

#[tokio::test]
async fn pages_have_each_entry_once_in_each_order() {
    let server = filled().await;
    for (path, key, other) in LISTS {
        let whole = all_pages(&server, path, key, "limit=1000").await;
        let distinct: BTreeSet<&String> = whole.iter().collect();
        assert_eq!(distinct.len(), whole.len(), "{path}");
        assert!(
            whole.len() >= 5 || path == "/worker-keys",
            "{path}: {whole:?}"
        );
        for limit in [1, 2] {
            let paged = all_pages(&server, path, key, &format!("limit={limit}")).await;
            assert_eq!(paged, whole, "{path} by {limit}");
            let query = format!("limit={limit}&sort={other}");
            let sorted: BTreeSet<String> = all_pages(&server, path, key, &query)
                .await
                .into_iter()
                .collect();
            assert_eq!(
                sorted,
                whole.iter().cloned().collect(),
                "{path} sorted by {other}"
            );
        }
    }
}

#[tokio::test]
async fn each_list_refuses_what_does_not_fit_alike() {
    let server = filled().await;
    let letters = server.get("/dead?limit=1").await.good();
    let of_letters = letters["next"].as_str().expect("there are more");
    for (path, _, other) in LISTS {
        for (query, words) in [
            ("colour=red".to_owned(), "unknown parameter"),
            ("before=1".to_owned(), "unknown parameter"),
            ("limit=0".to_owned(), "1 to 1000"),
            ("limit=1001".to_owned(), "1 to 1000"),
            ("limit=9223372036854775808".to_owned(), "1 to 1000"),
            ("sort=colour".to_owned(), "is not an order of this list"),
            (format!("sort={other}&sort={other}"), "more than once"),
            ("after=x".to_owned(), "previous page"),
            ("after=".to_owned(), "previous page"),
        ] {
            let answer = server.get(&joined(path, &query)).await;
            // A text that looks like a cursor is well formed.
            let expected = match query.as_str() {
                "after=x" => StatusCode::UNPROCESSABLE_ENTITY,
                _ => StatusCode::BAD_REQUEST,
            };
            assert_eq!(answer.status, expected, "{path}?{query}: {answer:?}");
            assert!(answer.text.contains(words), "{path}?{query}: {answer:?}");
        }
        let query = format!("after={of_letters}");
        let answer = server.get(&joined(path, &query)).await;
        let is_own = path == "/dead";
        assert_eq!(
            answer.status == StatusCode::OK,
            is_own,
            "{path}: {answer:?}"
        );
    }
    let answer = server
        .get(&format!("/dead?sort=id&after={of_letters}"))
        .await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer.text.contains("sort=-id"), "{answer:?}");
    assert!(answer.text.contains("cueline:unfit-value"), "{answer:?}");
    let answer = server.get("/runs?since=2&until=1&after=x").await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    let answer = server.get("/runs?since=2&until=1&after=x&limit=0").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    let many = "state=failed&".repeat(21);
    let answer = server.get(&format!("/runs?{many}limit=1")).await;
    assert!(answer.text.contains("more than 20 times"), "{answer:?}");
}

#[tokio::test]
async fn a_list_goes_on_while_entries_come_and_go() {
    let server = filled().await;
    let first = server.get("/jobs?limit=2").await.good();
    server.delete("/jobs/b").await.good();
    apply(&server, &[by_hand("aa", "g"), by_hand("f", "g")]).await;
    let next = first["next"].as_str().expect("there are more");
    let rest = all_pages(
        &server,
        "/jobs",
        "jobs",
        &format!("after={next}&limit=1000"),
    )
    .await;
    assert_eq!(rest.len(), 4, "c, d, e and f: {rest:?}");

    let first = server.get("/dead?limit=2").await.good();
    let id = &first["letters"][1]["id"];
    server
        .post("/dead/delete", &json!({ "ids": [id] }))
        .await
        .good();
    dead_letters(&server, 5..7).await;
    let next = first["next"].as_str().expect("there are more");
    let rest = server.get(&format!("/dead?after={next}")).await.good();
    assert_eq!(rest["letters"].as_array().map(Vec::len), Some(3), "{rest}");

    let first = server.get("/executors?limit=2").await.good();
    executors(&server, &["e0", "e6"]).await;
    let next = first["next"].as_str().expect("there are more");
    let rest = server.get(&format!("/executors?after={next}")).await.good();
    assert_eq!(
        rest["executors"].as_array().map(Vec::len),
        Some(4),
        "{rest}"
    );
}

#[tokio::test]
async fn filters_are_alternatives_and_different_ones_hold_together() {
    let server = filled().await;
    apply(&server, &[by_hand("x", "h")]).await;
    server.post("/jobs/b/pause", &json!({})).await.good();
    for (path, key, count) in [
        ("/jobs?group=h", "jobs", 1),
        ("/jobs?group=g&group=h", "jobs", 6),
        ("/jobs?group=g&state=paused", "jobs", 1),
        ("/jobs?state=active&state=paused", "jobs", 6),
        ("/jobs?label=team=h", "jobs", 1),
        ("/jobs?label=team&label=none", "jobs", 0),
        ("/jobs?name=*", "jobs", 6),
        ("/jobs?name=x&name=a*", "jobs", 2),
        ("/runs?job=a&job=b", "runs", 2),
        ("/runs?group=h", "runs", 0),
        ("/runs?label=team=g&kind=manual", "runs", 5),
        ("/runs?kind=child", "runs", 0),
        ("/runs?since=2020-01-01T00:00:00Z", "runs", 5),
        ("/runs?until=2020-01-01T00:00:00Z", "runs", 0),
        ("/executors?state=draining", "executors", 1),
        ("/executors?state=draining&name=e2", "executors", 0),
        ("/executors?group=h", "executors", 0),
        ("/executors?name=e*&state=alive", "executors", 4),
        ("/dead?topic=job-1&topic=job-2", "letters", 2),
        ("/dead?group=g&since=1&until=3", "letters", 2),
        ("/dead?origin=scheduler", "letters", 0),
        ("/dead?all_namespaces=true&group=g", "letters", 5),
        ("/dead?all_namespaces=true&group=team-a/g", "letters", 0),
        ("/namespaces/team-a/dead?group=g", "letters", 0),
        ("/namespaces?limit=3", "namespaces", 3),
        (
            "/audit?action=job.pause&action=user&all_namespaces=true",
            "entries",
            6,
        ),
        ("/audit?group=h", "entries", 1),
        ("/users?name=USER-a", "users", 1),
        ("/users?group=g&state=enabled", "users", 5),
        ("/users?state=disabled", "users", 0),
        ("/tokens?name=a*&state=valid", "tokens", 5),
        ("/tokens?owner=user-a", "tokens", 0),
        ("/enrolment-tokens?state=used_up&state=expired", "tokens", 0),
        ("/worker-keys?state=revoked&group=g", "keys", 0),
    ] {
        let page = server.get(path).await.good();
        let found = page[key].as_array().map(Vec::len);
        assert_eq!(found, Some(count), "{path}: {page}");
    }
}
