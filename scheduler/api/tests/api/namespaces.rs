//! Nothing crosses a namespace.

use cueline_model::Heartbeat;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::server::Server;

async fn apply(server: &Server, base: &str, job: Value) -> (StatusCode, Value) {
    let body = json!({ "jobs": [job] });
    let answer = server.post(&format!("{base}/jobs/apply"), &body).await;
    (answer.status, answer.json())
}

fn by_hand(name: &str) -> Value {
    json!({ "name": name, "schedule": { "manual": true }, "handler": { "native": "x" } })
}

/// The same local name in `default` and `team-a`, and a run of each. Returns the ids of the runs.
async fn two_jobs(server: &Server) -> [i64; 2] {
    let mut runs = [0; 2];
    for (run, base) in runs.iter_mut().zip(["", "/namespaces/team-a"]) {
        let (status, answer) = apply(server, base, by_hand("job")).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let path = format!("{base}/jobs/job/trigger");
        let triggered = server.post(&path, &json!({})).await.good();
        *run = triggered["runs"][0].as_i64().expect("a run");
    }
    runs
}

fn names<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let list = list.as_array().expect("a list");
    list.iter().filter_map(|one| one[field].as_str()).collect()
}

#[tokio::test]
async fn a_path_without_a_namespace_is_that_of_default() {
    let server = Server::start().await;
    two_jobs(&server).await;
    for base in ["", "/namespaces/default"] {
        let job = server.get(&format!("{base}/jobs/job")).await.good();
        assert_eq!(job["name"], "job");
        assert_eq!(job.get("namespace"), None);
        let listed = server.get(&format!("{base}/jobs")).await.good();
        assert_eq!(names(&listed["jobs"], "name"), ["job"]);
    }
}

#[tokio::test]
async fn a_job_is_shown_with_its_namespace_and_local_names() {
    let server = Server::start().await;
    two_jobs(&server).await;
    let job = server.get("/namespaces/team-a/jobs/job").await.good();
    assert_eq!(job["namespace"], "team-a");
    assert_eq!(
        (&job["name"], &job["group"]),
        (&json!("job"), &json!("default"))
    );
    assert_eq!(
        server.get("/namespaces/team-b/jobs/job").await.status,
        StatusCode::NOT_FOUND
    );
    let deleted = server.delete("/namespaces/team-a/jobs/job").await.good();
    assert_eq!(deleted["name"], "team-a/job");
    server.get("/jobs/job").await.good();
}

#[tokio::test]
async fn lists_have_the_entries_of_their_namespace() {
    let server = Server::start().await;
    two_jobs(&server).await;
    let jobs = server.get("/namespaces/team-a/jobs").await.good();
    assert_eq!(names(&jobs["jobs"], "namespace"), ["team-a"]);
    let runs = server.get("/namespaces/team-a/runs").await.good();
    assert_eq!(names(&runs["runs"], "job"), ["team-a/job"]);
    assert_eq!(names(&runs["runs"], "namespace"), ["team-a"]);
    let runs = server.get("/runs").await.good();
    assert_eq!(names(&runs["runs"], "job"), ["job"]);
    let all = server.get("/runs?all_namespaces=true").await.good();
    assert_eq!(names(&all["runs"], "job"), ["team-a/job", "job"]);
    let page = server.get("/jobs?all_namespaces=true&limit=1").await.good();
    let next = page["next"].as_str().expect("there are more");
    let page = server
        .get(&format!("/jobs?all_namespaces=true&after={next}"))
        .await
        .good();
    assert_eq!(names(&page["jobs"], "namespace"), ["team-a"]);
    let empty = server.get("/namespaces/team-b/jobs").await.good();
    assert_eq!(empty["jobs"], json!([]));
    let refused = server
        .get("/namespaces/team-a/jobs?all_namespaces=true")
        .await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let refused = server.get("/jobs?all_namespaces=yes").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_run_of_another_namespace_does_not_exist() {
    let server = Server::start().await;
    let [own, other] = two_jobs(&server).await;
    for (base, run, is_found) in [
        ("", own, true),
        ("", other, false),
        ("/namespaces/team-a", other, true),
        ("/namespaces/team-a", own, false),
    ] {
        let path = format!("{base}/runs/{run}");
        let shown = server.get(&path).await;
        let logs = server.get(&format!("{path}/logs")).await;
        for answer in [&shown, &logs] {
            assert_eq!(answer.status == StatusCode::OK, is_found, "{answer:?}");
        }
        if !is_found {
            let cancelled = server.post(&format!("{path}/cancel"), &json!({})).await;
            assert_eq!(cancelled.status, StatusCode::NOT_FOUND);
        }
    }
    for (base, run) in [("", own), ("/namespaces/team-a", other)] {
        let shown = server.get(&format!("{base}/runs/{run}")).await.good();
        assert_eq!(shown["state"], "scheduled", "{shown}");
    }
}

#[tokio::test]
async fn a_definition_of_another_namespace_than_the_path_is_refused() {
    let server = Server::start().await;
    let mut job = by_hand("job");
    job["namespace"] = json!("team-b");
    for base in ["", "/namespaces/team-a"] {
        let (status, answer) = apply(&server, base, job.clone()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(answer["errors"][0]["field"], "namespace", "{answer}");
    }
    let (status, answer) = apply(&server, "/namespaces/team-b", job).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["applied"][0]["name"], "team-b/job");
    let (status, answer) = apply(&server, "", by_hand("team-b/job")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer.to_string().contains("`namespace`"), "{answer}");
}

#[tokio::test]
async fn a_name_in_a_path_cannot_leave_the_namespace() {
    let server = Server::start().await;
    two_jobs(&server).await;
    server
        .get("/namespaces/team-a/jobs/team-a%2Fjob")
        .await
        .good();
    for path in [
        "/jobs/team-a%2Fjob",
        "/namespaces/team-a/jobs/default%2Fjob",
        "/runs?job=team-a/job",
        "/queues/team-a%2Fdefault/one",
        "/worker-keys?group=team-a/default",
        "/namespaces/a%2Fb/jobs",
        "/namespaces/%FF/jobs",
    ] {
        let answer = server.get(path).await;
        // A filter is well formed, and names another namespace.
        let expected = if path.contains('?') {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::BAD_REQUEST
        };
        assert_eq!(answer.status, expected, "{path}: {answer:?}");
    }
    for path in [
        "/namespaces/team-a/namespaces/default/jobs",
        "/namespaces/team-a/nothing",
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn what_belongs_to_no_namespace_is_not_in_one() {
    let server = Server::start().await;
    for path in ["/namespaces", "/stats"] {
        let answer = server.get(&format!("/namespaces/team-a{path}")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(
            answer.text.contains("belongs to no namespace"),
            "{answer:?}"
        );
    }
    server.get("/namespaces/default/stats").await.good();
}

#[tokio::test]
async fn executors_are_listed_by_the_namespace_of_their_group() {
    let server = Server::start().await;
    let heartbeats: Vec<Heartbeat> = ["default", "team-a/default"]
        .map(|group| {
            let heartbeat = json!({
                "group": group, "name": "one", "incarnation": "1", "session": 1, "capabilities": [], "capacity": 1,
                "held": 0, "running": 0, "draining": false, "gone": false,
            });
            serde_json::from_value(heartbeat).expect("a heartbeat")
        })
        .into();
    let recorded = server.store.record_heartbeats(&heartbeats).await;
    recorded.expect("records");
    for (path, groups) in [
        ("/executors", &["default"][..]),
        ("/namespaces/team-a/executors", &["team-a/default"]),
        ("/namespaces/team-b/executors", &[]),
        (
            "/executors?all_namespaces=true",
            &["default", "team-a/default"],
        ),
    ] {
        let listed = server.get(path).await.good();
        assert_eq!(names(&listed["executors"], "group"), groups, "{path}");
    }
}

#[tokio::test]
async fn a_token_is_for_the_namespace_that_it_was_created_in() {
    let server = Server::start().await;
    let create = async |base: &str, body: Value| {
        let path = format!("{base}/enrolment-tokens");
        let answer = server.post(&path, &body).await;
        let id = answer.json()["id"].as_str().map(str::to_owned);
        (answer.status, id)
    };
    let team = "/namespaces/team-a";
    let (status, of_team) = create(team, json!({ "group": "x" })).await;
    assert_eq!(status, StatusCode::CREATED);
    let of_team = of_team.expect("an id");
    create("", json!({})).await;
    create("", json!({ "all_namespaces": true })).await;
    for (base, body) in [
        ("", json!({ "group": "team-a/x" })),
        (team, json!({ "group": "default/x" })),
        (team, json!({ "all_namespaces": true })),
        ("", json!({ "group": "x", "all_namespaces": true })),
    ] {
        assert_eq!(create(base, body).await.0, StatusCode::BAD_REQUEST);
    }
    let list = async |path: &str| {
        let listed = server.get(path).await.good();
        let tokens = listed["tokens"].as_array().expect("a list").clone();
        let namespaces = tokens.into_iter().map(|token| token["namespace"].clone());
        namespaces.collect::<Vec<_>>()
    };
    assert_eq!(list("/enrolment-tokens").await, ["default"]);
    assert_eq!(list(&format!("{team}/enrolment-tokens")).await, ["team-a"]);
    let all = list("/enrolment-tokens?all_namespaces=true").await;
    assert_eq!(all.len(), 3);
    assert!(all.contains(&json!(null)), "{all:?}");
    let path = format!("/enrolment-tokens/{of_team}");
    assert_eq!(server.delete(&path).await.status, StatusCode::NOT_FOUND);
    server.delete(&format!("{team}{path}")).await.good();
}

#[tokio::test]
async fn the_audit_log_has_the_entries_of_its_namespace() {
    let server = Server::start().await;
    two_jobs(&server).await;
    let body = json!({ "all_namespaces": true });
    let created = server.post("/enrolment-tokens", &body).await;
    assert_eq!(created.status, StatusCode::CREATED);
    let list = async |path: &str| {
        let listed = server.get(path).await.good();
        let entries = listed["entries"].as_array().expect("a list").clone();
        let namespaces = entries.iter().map(|entry| entry["namespace"].clone());
        namespaces.collect::<Vec<_>>()
    };
    assert_eq!(list("/audit").await, ["default", "default"]);
    let team = "/namespaces/team-a/audit";
    assert_eq!(list(team).await, ["team-a", "team-a"]);
    let object = format!("{team}?object=team-a/job&action=job.create");
    assert_eq!(list(&object).await, ["team-a"]);
    assert!(list("/namespaces/team-b/audit").await.is_empty());
    let all = list("/audit?all_namespaces=true").await;
    assert_eq!(all.len(), 5);
    assert_eq!(all[0], json!(null), "a token for all namespaces");
}

#[tokio::test]
async fn versions_are_those_of_the_job_in_its_namespace() {
    let server = Server::start().await;
    two_jobs(&server).await;
    let team = "/namespaces/team-a/jobs/job";
    server.delete(team).await.good();
    let shown = server.get(&format!("{team}/versions/1")).await.good();
    let definition = &shown["definition"];
    assert_eq!(definition["namespace"], "team-a");
    assert_eq!(
        (&definition["name"], &definition["group"]),
        (&json!("job"), &json!("default"))
    );
    for path in [
        "/namespaces/team-b/jobs/job/versions",
        "/namespaces/team-b/jobs/job/versions/1",
    ] {
        assert_eq!(server.get(path).await.status, StatusCode::NOT_FOUND);
    }
    let refused = server.get("/jobs/team-a%2Fjob/versions").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let body = json!({ "version": 1 });
    let path = "/namespaces/team-b/jobs/job/restore";
    let other = server.post(path, &body).await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
    let restored = server.post(&format!("{team}/restore"), &body).await.good();
    assert_eq!(restored["name"], "team-a/job");
    assert_eq!(server.get(team).await.good()["namespace"], "team-a");
}
