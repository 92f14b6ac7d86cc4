//! Changes of others between the check of a request and its write.

use std::sync::Arc;

use cueline_http::ServerLimits;
use cueline_model::JobSpec;
use cueline_store::UserChange;
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::busy_store::{BusyAccounts, BusyStore};
use crate::server::{Answer, Server, TOKEN};

fn job(name: &str, group: &str, priority: u8) -> Value {
    json!({
        "name": name, "group": group, "schedule": { "manual": true }, "handler": { "native": "x" }, "priority": priority,
    })
}

fn spec(job: &Value) -> JobSpec {
    serde_json::from_value(job.clone()).expect("a definition")
}

async fn with_busy_store() -> (Server, Arc<BusyStore>) {
    let mut busy = None;
    let server = Server::with_state(ServerLimits::of_connections(100), |state| {
        let store = Arc::new(BusyStore::new(state.store.clone()));
        state.store = store.clone();
        busy = Some(store);
    })
    .await;
    (server, busy.expect("is made"))
}

async fn author_in_a(server: &Server) -> String {
    let grants = json!([{ "group": "a", "role": "author" }]);
    server.token_with(&grants).await
}

async fn apply(server: &Server, token: &str, job: &Value) -> Answer {
    let body = json!({ "jobs": [job] });
    server
        .by(token, Method::POST, "/api/v1/jobs/apply", Some(&body))
        .await
}

async fn put(server: &Server, token: &str, job: &Value) -> Answer {
    let name = job["name"].as_str().expect("a name");
    let path = format!("/api/v1/jobs/{name}");
    server.by(token, Method::PUT, &path, Some(job)).await
}

#[track_caller]
fn is(answer: &Answer, status: u16, says: &str) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert!(answer.text.contains(says), "{says}: {answer:?}");
}

/// The group and the priority of a job.
async fn stored(server: &Server, name: &str) -> (Value, Value) {
    let job = server.get(&format!("/jobs/{name}")).await.good();
    (job["group"].clone(), job["priority"].clone())
}

/// The caller may not change it there. The dry run that the rights follow from has seen it in the other group.
#[tokio::test]
async fn a_job_that_has_moved_since_the_check_is_not_changed() {
    let (server, store) = with_busy_store().await;
    let author = author_in_a(&server).await;
    let moved = job("report", "b", 1);
    // A definition that differs is looked at after the dry run. One that is the same is not.
    for (priority, after) in [(2, "definitions"), (1, "apply_jobs_if")] {
        let edited = job("report", "a", priority);
        for is_put in [false, true] {
            apply(&server, TOKEN, &job("report", "a", 1)).await.good();
            store.apply_after(after, spec(&moved));
            let answer = if is_put {
                put(&server, &author, &edited).await
            } else {
                apply(&server, &author, &edited).await
            };
            is(&answer, 403, "use another name");
            let found = stored(&server, "report").await;
            assert_eq!(found, (json!("b"), json!(1)), "{after}, {is_put}");
        }
    }
}

#[tokio::test]
async fn a_job_that_was_created_since_the_check_is_not_taken_over() {
    let (server, store) = with_busy_store().await;
    let author = author_in_a(&server).await;
    store.apply_after("apply_jobs_if", spec(&job("report", "b", 1)));
    let answer = apply(&server, &author, &job("report", "a", 2)).await;
    is(&answer, 403, "use another name");
    let found = stored(&server, "report").await;
    assert_eq!(found, (json!("b"), json!(1)));
}

/// A dry run would say how the job has changed.
#[tokio::test]
async fn a_dry_run_says_nothing_of_a_job_that_has_moved() {
    let (server, store) = with_busy_store().await;
    let author = author_in_a(&server).await;
    let same = job("report", "a", 1);
    apply(&server, TOKEN, &same).await.good();
    store.apply_after("apply_jobs_if", spec(&job("report", "b", 1)));
    let body = json!({ "jobs": [same], "dry_run": true });
    let path = "/api/v1/jobs/apply";
    let answer = server.by(&author, Method::POST, path, Some(&body)).await;
    is(&answer, 403, "use another name");
}

#[tokio::test]
async fn the_check_is_repeated_once() {
    let (server, store) = with_busy_store().await;
    let author = author_in_a(&server).await;
    apply(&server, TOKEN, &job("report", "a", 1)).await.good();
    let edited = job("report", "a", 9);
    store.apply_after("definitions", spec(&job("report", "a", 2)));
    let answer = apply(&server, &author, &edited).await.good();
    assert_eq!(answer["applied"][0]["version"], 3);

    let edited = job("report", "a", 8);
    for priority in [3, 4] {
        store.apply_after("definitions", spec(&job("report", "a", priority)));
    }
    let answer = apply(&server, &author, &edited).await;
    is(&answer, 409, "others changed them");
    assert_eq!(answer.json()["type"], "cueline:conflict");
    assert_eq!(stored(&server, "report").await.1, 4);
    apply(&server, &author, &edited).await.good();
    assert_eq!(stored(&server, "report").await.1, 8);
}

/// It holds for what was checked, and what was checked holds for the write.
#[tokio::test]
async fn a_named_version_and_the_check_both_hold() {
    let (server, store) = with_busy_store().await;
    let author = author_in_a(&server).await;
    apply(&server, TOKEN, &job("report", "a", 1)).await.good();
    let apply_if = async |version: u8| {
        let edited = job("report", "a", 9);
        let body = json!({ "jobs": [edited], "if_versions": { "report": version } });
        let path = "/api/v1/jobs/apply";
        server.by(&author, Method::POST, path, Some(&body)).await
    };
    let wrong = apply_if(7).await;
    is(&wrong, 412, "it has version 1");
    assert_eq!(wrong.json()["errors"][0]["field"], "if_versions");
    store.apply_after("definitions", spec(&job("report", "a", 2)));
    is(&apply_if(1).await, 412, "it has version 2");
    assert_eq!(stored(&server, "report").await.1, 2);
    apply_if(2).await.good();
    assert_eq!(stored(&server, "report").await.1, 9);
}

/// The caller may change the user as it was read. Another one may have given them more rights since.
#[tokio::test]
async fn a_user_who_was_changed_since_the_check_stays_as_they_are() {
    let mut busy = None;
    let server = Server::with_state(ServerLimits::of_connections(100), |state| {
        let accounts = Arc::new(BusyAccounts::new(state.accounts.clone()));
        state.accounts = accounts.clone();
        busy = Some(accounts);
    })
    .await;
    let accounts = busy.expect("is made");
    let password = "correct horse battery";
    let ann = json!({ "name": "ann", "password": password, "grants": [{ "role": "viewer" }] });
    server.post("/users", &ann).await.good();
    let change_by_others = |display_name: &str| {
        let change = UserChange {
            display_name: Some(display_name.to_owned()),
            ..UserChange::default()
        };
        accounts.change_after("user", "ann", change);
    };
    let send = async |method: Method, path: &str, tag: Option<&str>, body: Option<&Value>| {
        let mut request = server.bare(method, path).bearer_auth(TOKEN);
        if let Some(tag) = tag {
            request = request.header(header::IF_MATCH, tag);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        server.send(request).await
    };
    let path = "/api/v1/users/ann";
    change_by_others("Ann 1");
    let deleted = send(Method::DELETE, path, None, None).await;
    is(&deleted, 409, "cueline:conflict");
    change_by_others("Ann 2");
    let off = json!({ "enabled": false });
    let changed = send(Method::PATCH, path, None, Some(&off)).await;
    is(&changed, 409, "cueline:conflict");
    // The name is looked up before the rights are checked.
    change_by_others("Ann 3");
    change_by_others("Ann 4");
    let new = json!({ "password": "another long password" });
    let set = format!("{path}/password");
    let set = send(Method::POST, &set, None, Some(&new)).await;
    is(&set, 409, "cueline:conflict");

    let shown = server.bare(Method::GET, path).bearer_auth(TOKEN);
    let shown = shown.send().await.expect("an answer");
    let tag = shown.headers()[header::ETAG].to_str().expect("a text");
    change_by_others("Ann 5");
    let deleted = send(Method::DELETE, path, Some(tag), None).await;
    is(&deleted, 412, "cueline:precondition-failed");
    let stored = server.get("/users/ann").await.good();
    assert_eq!(stored["display_name"], "Ann 5");
    assert_eq!(stored["enabled"], true);
    let deleted = send(Method::DELETE, path, None, None).await;
    is(&deleted, 200, "ann");
}
