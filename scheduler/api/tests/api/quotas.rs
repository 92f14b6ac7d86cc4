//! Namespaces and their quotas.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server, TOKEN};

const TEAM: &str = "/namespaces/team-a";

fn job(name: &str) -> Value {
    json!({ "name": name, "schedule": { "manual": true }, "handler": { "native": "x" } })
}

async fn apply(server: &Server, base: &str, names: &[String]) -> Answer {
    let jobs: Vec<Value> = names.iter().map(|name| job(name)).collect();
    let path = format!("{base}/jobs/apply");
    server.post(&path, &json!({ "jobs": jobs })).await
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("job-{n}")).collect()
}

async fn put(server: &Server, token: &str, body: &Value) -> Answer {
    let path = format!("/api/v1{TEAM}/quota");
    server.by(token, Method::PUT, &path, Some(body)).await
}

#[tokio::test]
async fn quotas_are_set_shown_and_deleted() {
    let server = Server::start().await;
    let unused = server.get(&format!("{TEAM}/quota")).await.good();
    let expected =
        json!({ "namespace": "team-a", "quotas": {}, "version": 0, "jobs": 0, "waiting_runs": 0 });
    assert_eq!(unused, expected);
    let wanted = json!({ "max_jobs": 5, "max_waiting_runs": 7 });
    let set = put(&server, TOKEN, &wanted).await.good();
    assert_eq!((&set["quotas"], &set["version"]), (&wanted, &json!(1)));
    apply(&server, TEAM, &names(2)).await.good();
    let path = format!("{TEAM}/jobs/job-0/trigger");
    server.post(&path, &json!({})).await.good();
    let used = server.get(&format!("{TEAM}/quota")).await.good();
    assert_eq!(
        (&used["jobs"], &used["waiting_runs"]),
        (&json!(2), &json!(1))
    );
    // It replaces all quotas, and only of the version that is named.
    let other = json!({ "max_triggers_per_minute": 60, "if_version": 1 });
    let set = put(&server, TOKEN, &other).await.good();
    assert_eq!(set["quotas"], json!({ "max_triggers_per_minute": 60 }));
    let late = put(&server, TOKEN, &other).await;
    assert_eq!(late.status, StatusCode::CONFLICT, "{late:?}");
    let deleted = server.delete(&format!("{TEAM}/quota")).await.good();
    assert_eq!(
        (&deleted["quotas"], &deleted["version"]),
        (&json!({}), &json!(0))
    );
    let path = format!("{TEAM}/audit?action=quota.set");
    let log = server.get(&path).await.good();
    let entries = log["entries"].as_array().expect("a list");
    assert_eq!(entries.len(), 2, "{log}");
    let newest = entries[0].to_string();
    assert!(newest.contains("max_triggers_per_minute"), "{newest}");
    assert!(newest.contains("max_waiting_runs"), "{newest}");
    assert_eq!(entries[0]["object"], "team-a");
    let path = format!("{TEAM}/audit?action=quota.delete");
    let log = server.get(&path).await.good();
    assert_eq!(log["entries"].as_array().map(Vec::len), Some(1), "{log}");
}

#[tokio::test]
async fn wrong_quotas_are_named() {
    let server = Server::start().await;
    for (body, words) in [
        (json!({ "max_jobs": -1 }), "max_jobs"),
        (
            json!({ "max_waiting_runs": 1_000_000_001 }),
            "max_waiting_runs",
        ),
        (
            json!({ "max_triggers_per_minute": "x" }),
            "max_triggers_per_minute",
        ),
        (json!({ "max_running": 1 }), "max_running"),
    ] {
        let answer = put(&server, TOKEN, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
        assert!(answer.text.contains(words), "{words}: {answer:?}");
    }
}

#[tokio::test]
async fn jobs_beyond_the_quota_are_refused_as_a_whole() {
    let server = Server::start().await;
    let quota = json!({ "max_jobs": 3 });
    put(&server, TOKEN, &quota).await.good();
    apply(&server, TEAM, &names(2)).await.good();
    let refused = apply(&server, TEAM, &names(4)).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    for word in ["max_jobs", "team-a", "is 3", "has 2 jobs", "2 more"] {
        assert!(refused.text.contains(word), "{word}: {refused:?}");
    }
    let listed = server.get(&format!("{TEAM}/jobs")).await.good();
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(2), "{listed}");
    // Present jobs may be applied again, and other namespaces have no quota.
    apply(&server, TEAM, &names(2)).await.good();
    apply(&server, "", &names(4)).await.good();
    apply(&server, TEAM, &names(3)).await.good();
    // A deleted job cannot come back while there is no room for it.
    server.delete(&format!("{TEAM}/jobs/job-0")).await.good();
    apply(&server, TEAM, &["other".to_owned()]).await.good();
    let path = format!("{TEAM}/jobs/job-0/restore");
    let restored = server.post(&path, &json!({ "version": 1 })).await;
    assert_eq!(restored.status, StatusCode::CONFLICT, "{restored:?}");
}

/// Many jobs are written in several transactions. None is written if all together are too many.
#[tokio::test]
async fn many_jobs_beyond_the_quota_leave_nothing() {
    let server = Server::start().await;
    let quota = json!({ "max_jobs": 600 });
    put(&server, TOKEN, &quota).await.good();
    let refused = apply(&server, TEAM, &names(601)).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    let used = server.get(&format!("{TEAM}/quota")).await.good();
    assert_eq!(used["jobs"], 0);
    apply(&server, TEAM, &names(600)).await.good();
}

#[tokio::test]
async fn administrators_of_all_namespaces_change_quotas() {
    let server = Server::start().await;
    let in_team = json!([{ "namespace": "team-a", "role": "admin", "scripts": true }]);
    let in_team = server.token_with(&in_team).await;
    let everywhere = server.token_with(&json!([{ "role": "admin" }])).await;
    let quota = json!({ "max_jobs": 3 });
    let refused = put(&server, &in_team, &quota).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    put(&server, &everywhere, &quota).await.good();
    let path = format!("/api/v1{TEAM}/quota");
    let shown = server.by(&in_team, Method::GET, &path, None).await.good();
    assert_eq!(shown["quotas"], quota);
    let refused = server.by(&in_team, Method::DELETE, &path, None).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
}

#[tokio::test]
async fn a_caller_sees_the_namespaces_that_they_may_read() {
    let server = Server::start().await;
    for base in ["", TEAM, "/namespaces/team-b"] {
        apply(&server, base, &names(1)).await.good();
    }
    put(&server, TOKEN, &json!({ "max_jobs": 9 })).await.good();
    let page = server.get("/namespaces?limit=2").await.good();
    let listed = |page: &Value| -> Vec<String> {
        let entries = page["namespaces"].as_array().expect("a list");
        let name = |entry: &Value| entry["namespace"].as_str().expect("a name").to_owned();
        entries.iter().map(name).collect()
    };
    assert_eq!(listed(&page), ["default", "team-a"]);
    assert_eq!(page["namespaces"][1]["quotas"], json!({ "max_jobs": 9 }));
    let next = page["next"].as_str().expect("there are more");
    let page = server
        .get(&format!("/namespaces?after={next}"))
        .await
        .good();
    assert_eq!(listed(&page), ["team-b"]);
    assert_eq!(page.get("next"), None);
    let grants = json!([
        { "namespace": "team-b", "role": "viewer" },
        { "group": "team-a/billing", "role": "viewer" },
        { "namespace": "unused", "role": "viewer" },
    ]);
    let token = server.token_with(&grants).await;
    let path = "/api/v1/namespaces";
    let page = server.by(&token, Method::GET, path, None).await.good();
    assert_eq!(listed(&page), ["team-a", "team-b", "unused"]);
    // The numbers of a namespace are about all of its groups.
    assert_eq!(page["namespaces"][0], json!({ "namespace": "team-a" }));
    assert_eq!(page["namespaces"][1]["jobs"], 1);
    assert_eq!(page["namespaces"][2]["jobs"], 0);
}
