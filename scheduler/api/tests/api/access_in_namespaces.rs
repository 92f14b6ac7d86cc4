//! Who may do what in which namespace, and what the audit log says about refusals.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server};

const TEAM: &str = "/namespaces/team-a";

fn native(name: &str) -> Value {
    json!({ "name": name, "schedule": { "manual": true }, "handler": { "native": "x" } })
}

/// A server with the job `job` in the group `default` of two namespaces. Returns the run of each: `default`, `team-a`.
async fn two_namespaces() -> (Server, u64, u64) {
    let server = Server::start().await;
    let mut runs = Vec::new();
    for base in ["", TEAM] {
        let body = json!({ "jobs": [native("job")] });
        let applied = server.post(&format!("{base}/jobs/apply"), &body).await;
        applied.good();
        let path = format!("{base}/jobs/job/trigger");
        let triggered = server.post(&path, &json!({})).await.good();
        runs.push(triggered["runs"][0].as_u64().expect("a run"));
    }
    (server, runs[0], runs[1])
}

async fn of_team(server: &Server, role: &str) -> String {
    let grants = json!([{ "namespace": "team-a", "role": role }]);
    server.token_with(&grants).await
}

async fn get(server: &Server, token: &str, path: &str) -> Answer {
    let path = format!("/api/v1{path}");
    server.by(token, Method::GET, &path, None).await
}

async fn post(server: &Server, token: &str, path: &str, body: &Value) -> Answer {
    let path = format!("/api/v1{path}");
    server.by(token, Method::POST, &path, Some(body)).await
}

/// Method, path, body, and the statuses for the administrator and the viewer of `team-a`: first under the path of
/// `default`, then under that of `team-a`.
type Row = (Method, String, Option<Value>, [u16; 2], [u16; 2]);

/// The broker of this test cannot be reached: 503 means that the request was admitted. `runs` are the runs of the
/// namespace of the path and of the other one.
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn table(runs: [u64; 2]) -> Vec<Row> {
    let [own, other] = runs;
    let get = |path: &str, default, team| (Method::GET, path.to_owned(), None, default, team);
    let post = |path: &str, body, default, team| {
        (Method::POST, path.to_owned(), Some(body), default, team)
    };
    let key = "/worker-keys/default/one/0123456789abcdef";
    let dry_run = json!({ "dry_run": true, "jobs": [native("new")] });
    vec![
        get("/jobs", [403; 2], [200; 2]),
        get("/runs", [403; 2], [200; 2]),
        get("/executors", [403; 2], [200; 2]),
        get("/queues", [403; 2], [503; 2]),
        get("/jobs/job", [404; 2], [200; 2]),
        get("/jobs/job/next", [404; 2], [200; 2]),
        get("/jobs/job/explain", [404; 2], [200; 2]),
        get("/forecast", [403; 2], [200; 2]),
        get("/jobs/job/ledger", [404; 2], [200; 2]),
        get("/jobs/job/versions", [404; 2], [200; 2]),
        get("/jobs/job/versions/1", [404; 2], [200; 2]),
        get("/jobs/none", [404; 2], [404; 2]),
        get(&format!("/runs/{own}"), [404; 2], [200; 2]),
        get(&format!("/runs/{own}/explain"), [404; 2], [200; 2]),
        get(&format!("/runs/{other}/explain"), [404; 2], [404; 2]),
        get(&format!("/runs/{own}/logs"), [404; 2], [200; 2]),
        get(&format!("/runs/{other}"), [404; 2], [404; 2]),
        get("/queues/default/one", [404; 2], [503; 2]),
        get("/worker-keys", [403; 2], [200, 403]),
        get("/enrolment-tokens", [403; 2], [200, 403]),
        get("/audit", [403; 2], [200, 403]),
        get("/dead", [403; 2], [200; 2]),
        get("/dead/1", [403; 2], [404; 2]),
        get("/quota", [403; 2], [200; 2]),
        (
            Method::PUT,
            "/quota".to_owned(),
            Some(json!({})),
            [403; 2],
            [403; 2],
        ),
        (
            Method::DELETE,
            "/quota".to_owned(),
            None,
            [403; 2],
            [403; 2],
        ),
        // What belongs to no namespace.
        get("/namespaces", [200; 2], [404; 2]),
        get("/dead?all_namespaces=true", [403; 2], [400; 2]),
        get("/stats", [403; 2], [403; 2]),
        get("/users", [200, 403], [404, 403]),
        post("/jobs/job/pause", json!({}), [404; 2], [200, 403]),
        post("/jobs/job/resume", json!({}), [404; 2], [200, 403]),
        post("/jobs/job/trigger", json!({}), [404; 2], [202, 403]),
        post(
            "/jobs/job/restore",
            json!({ "version": 1 }),
            [404; 2],
            [200, 403],
        ),
        post("/jobs/apply", dry_run, [403; 2], [200, 403]),
        (
            Method::PUT,
            "/jobs/replaced".to_owned(),
            Some(json!({ "schedule": { "manual": true }, "handler": { "native": "x" } })),
            [403; 2],
            [201, 403],
        ),
        get(&format!("/flows/{own}"), [404; 2], [200; 2]),
        get(&format!("/flows/{other}"), [404; 2], [404; 2]),
        post(
            &format!("/flows/{other}/retry"),
            json!({}),
            [404; 2],
            [404; 2],
        ),
        post(
            &format!("/runs/{own}/cancel"),
            json!({}),
            [404; 2],
            [200, 403],
        ),
        post(
            &format!("/runs/{other}/cancel"),
            json!({}),
            [404; 2],
            [404; 2],
        ),
        post("/dead/replay", json!({ "ids": [] }), [403; 2], [503, 403]),
        post("/dead/delete", json!({ "ids": [] }), [403; 2], [200, 403]),
        post(
            "/dead/delete",
            json!({ "ids": [], "all_namespaces": true }),
            [403; 2],
            [400, 403],
        ),
        post("/queues/default/one/drain", json!({}), [404; 2], [503, 403]),
        post(&format!("{key}/revoke"), json!({}), [404; 2], [404, 403]),
        post("/enrolment-tokens", json!({}), [403; 2], [201, 403]),
        post(
            "/enrolment-tokens",
            json!({ "group": "default" }),
            [403; 2],
            [201, 403],
        ),
    ]
}

/// The method and the path of each row.
pub(crate) fn routes() -> Vec<(String, String)> {
    let rows = table([1, 2]).into_iter();
    rows.map(|(method, path, ..)| (method.to_string(), format!("/api/v1{path}")))
        .collect()
}

#[tokio::test]
async fn a_role_in_a_namespace_counts_under_its_path_only() {
    let (server, run_default, run_team) = two_namespaces().await;
    let tokens = [
        of_team(&server, "admin").await,
        of_team(&server, "viewer").await,
    ];
    let mut wrong = Vec::new();
    for (base, runs) in [
        ("", [run_default, run_team]),
        (TEAM, [run_team, run_default]),
    ] {
        for (method, path, body, default, team) in table(runs) {
            let expected = if base.is_empty() { default } else { team };
            for (token, expected) in tokens.iter().zip(expected) {
                let path = format!("/api/v1{base}{path}");
                let answer = server.by(token, method.clone(), &path, body.as_ref()).await;
                if answer.status.as_u16() != expected {
                    wrong.push(format!("{method} {path}: {answer:?}, not {expected}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_list_of_all_namespaces_has_what_the_caller_may_read() {
    let (server, _, run) = two_namespaces().await;
    let token = of_team(&server, "viewer").await;
    let all = "all_namespaces=true";
    let jobs = get(&server, &token, &format!("/jobs?{all}")).await.good();
    let jobs = jobs["jobs"].as_array().expect("a list");
    let namespaces: Vec<&Value> = jobs.iter().map(|job| &job["namespace"]).collect();
    assert_eq!(namespaces, ["team-a"]);
    let runs = get(&server, &token, &format!("/runs?{all}")).await.good();
    let runs = runs["runs"].as_array().expect("a list");
    let ids: Vec<&Value> = runs.iter().map(|run| &run["id"]).collect();
    assert_eq!(ids, [&json!(run)]);
    let admin = of_team(&server, "admin").await;
    for path in [format!("/audit?{all}"), format!("/worker-keys?{all}")] {
        let status = get(&server, &token, &path).await.status;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
    }
    let audit = get(&server, &admin, &format!("/audit?{all}")).await;
    assert_eq!(audit.status, StatusCode::FORBIDDEN, "{audit:?}");
}

/// Whether the schedules of both jobs are running: `default`, `team-a`.
async fn running(server: &Server) -> [bool; 2] {
    let mut running = [false; 2];
    for (running, base) in running.iter_mut().zip(["", TEAM]) {
        let job = server.get(&format!("{base}/jobs/job")).await.good();
        *running = job["enabled"] != json!(false);
    }
    running
}

#[tokio::test]
async fn a_caller_who_may_pause_one_job_pauses_no_other_of_the_same_local_name() {
    let (server, _, _) = two_namespaces().await;
    let in_default = json!([{ "group": "default", "role": "operator" }]);
    let in_default = server.token_with(&in_default).await;
    let in_team = json!([{ "group": "team-a/default", "role": "operator" }]);
    let in_team = server.token_with(&in_team).await;
    let whole_team = of_team(&server, "operator").await;
    let body = json!({});
    for (token, path, expected) in [
        (&in_default, "/namespaces/team-a/jobs/job/pause", 404),
        (&in_default, "/namespaces/team%2Da/jobs/job/pause", 404),
        (
            &in_default,
            "/namespaces/team-a/jobs/default%2Fjob/pause",
            400,
        ),
        (&in_default, "/jobs/team-a%2Fjob/pause", 400),
        (&in_team, "/jobs/job/pause", 404),
        (&in_team, "/jobs/team-a%2Fjob/pause", 400),
        (&in_team, "/namespaces/default/jobs/job/pause", 404),
        (&whole_team, "/jobs/job/pause", 404),
        (
            &whole_team,
            "/namespaces/team-a/jobs/default%2Fjob/pause",
            400,
        ),
        (
            &whole_team,
            "/namespaces/team-a/namespaces/default/jobs/job/pause",
            404,
        ),
    ] {
        let answer = post(&server, token, path, &body).await;
        assert_eq!(answer.status.as_u16(), expected, "{path}: {answer:?}");
        assert_eq!(running(&server).await, [true, true], "{path}");
    }
    let path = "/namespaces/team-a/jobs/team-a%2Fjob/pause";
    post(&server, &in_team, path, &body).await.good();
    assert_eq!(running(&server).await, [true, false]);
    post(&server, &in_default, "/jobs/default%2Fjob/pause", &body)
        .await
        .good();
    assert_eq!(running(&server).await, [false, false]);
}

#[tokio::test]
async fn a_token_for_all_namespaces_is_managed_by_administrators_of_all_namespaces() {
    let server = Server::start().await;
    let admin = of_team(&server, "admin").await;
    let body = json!({ "all_namespaces": true });
    let refused = post(&server, &admin, "/enrolment-tokens", &body).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    let created = server.post("/enrolment-tokens", &body).await.good();
    let id = created["id"].as_str().expect("an id");
    let all = "/enrolment-tokens?all_namespaces=true";
    let listed = get(&server, &admin, all).await.good();
    assert_eq!(listed["tokens"], json!([]));
    let path = format!("/enrolment-tokens/{id}");
    let everywhere = format!("{path}?all_namespaces=true");
    let target = format!("/api/v1{everywhere}");
    let refused = server.by(&admin, Method::DELETE, &target, None).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND, "{refused:?}");
    assert_eq!(server.delete(&path).await.status, StatusCode::NOT_FOUND);
    server.delete(&everywhere).await.good();
}

#[tokio::test]
async fn a_version_of_another_group_is_not_shown() {
    let server = Server::start().await;
    for group in ["b", "a"] {
        let mut job = native("job");
        job["group"] = json!(group);
        let body = json!({ "jobs": [job] });
        server.post("/jobs/apply", &body).await.good();
    }
    let token = |group: &str, role: &str| json!([{ "group": group, "role": role }]);
    let author = server.token_with(&token("a", "author")).await;
    let other = server.token_with(&token("b", "author")).await;
    server.delete("/jobs/job").await.good();
    // The newest version says whose job the deleted one was.
    let numbers = async |path: &str| {
        let listed = get(&server, &author, path).await.good();
        let versions = listed["versions"].as_array().expect("a list").iter();
        let numbers: Vec<Value> = versions.map(|one| one["version"].clone()).collect();
        (numbers, listed["next"].clone())
    };
    let (listed, _) = numbers("/jobs/job/versions").await;
    assert_eq!(listed, [json!(2)], "the other one does not exist for them");
    let oldest = "/jobs/job/versions?sort=version";
    let (listed, next) = numbers(&format!("{oldest}&limit=1")).await;
    assert_eq!(listed, Vec::<Value>::new());
    let next = next.as_str().expect("it may have more");
    let page = numbers(&format!("{oldest}&after={next}")).await;
    assert_eq!(page, (vec![json!(2)], Value::Null));
    get(&server, &author, "/jobs/job/versions/2").await.good();
    let hidden = get(&server, &author, "/jobs/job/versions/1").await;
    let unknown = get(&server, &author, "/jobs/job/versions/7").await;
    assert_eq!(hidden.status, StatusCode::NOT_FOUND, "{hidden:?}");
    assert_eq!(
        hidden.text.replace("version 1", "version 7"),
        unknown.text,
        "as if unknown"
    );
    let gone = get(&server, &other, "/jobs/job/versions").await;
    let never = get(&server, &other, "/jobs/jab/versions").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "{gone:?}");
    assert_eq!(gone.text, never.text.replace("jab", "job"));
    let restore = async |token: &str, version: u64| {
        let body = json!({ "version": version });
        let answer = post(&server, token, "/jobs/job/restore", &body).await;
        answer.status.as_u16()
    };
    assert_eq!(restore(&other, 1).await, 404);
    assert_eq!(restore(&author, 1).await, 404);
    assert_eq!(restore(&author, 2).await, 200);
}

#[tokio::test]
async fn a_refusal_for_want_of_a_right_is_in_the_audit_log() {
    let (server, _, run) = two_namespaces().await;
    let token = of_team(&server, "viewer").await;
    let author = of_team(&server, "author").await;
    let pause = format!("{TEAM}/jobs/job/pause");
    let mut script = native("new");
    script["handler"] = json!({ "shell": "true" });
    let apply = json!({ "jobs": [script] });
    for (token, path, body) in [
        (&token, pause, json!({})),
        (&token, format!("{TEAM}/runs/{run}/cancel"), json!({})),
        (
            &token,
            format!("{TEAM}/queues/default/one/purge"),
            json!({}),
        ),
        // Refused by the handler.
        (&author, format!("{TEAM}/jobs/apply"), apply),
    ] {
        let answer = post(&server, token, &path, &body).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}: {answer:?}");
    }
    let stats = get(&server, &token, "/stats").await;
    assert_eq!(stats.status, StatusCode::FORBIDDEN);
    // What may not be read does not exist, and leaves no entry.
    let unknown = post(&server, &token, "/jobs/job/pause", &json!({})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);

    let list = async |path: &str| {
        let listed = server.get(path).await.good();
        let entries = listed["entries"].as_array().expect("a list");
        let text = |entry: &Value, field: &str| entry[field].as_str().map(str::to_owned);
        let row = |entry: &Value| (text(entry, "action"), text(entry, "object"));
        (entries.iter().map(row).collect::<Vec<_>>(), listed)
    };
    let row = |action: &str, object: &str| (Some(action.to_owned()), Some(object.to_owned()));
    let (rows, listed) = list(&format!("{TEAM}/audit?result=refused")).await;
    assert_eq!(
        rows,
        [
            row("job.apply", ""),
            row("queue.purge", "team-a/default/one"),
            row("run.cancel", &run.to_string()),
            row("job.pause", "team-a/job"),
        ],
        "newest first"
    );
    let [apply, purge, _, pause] = [0_usize, 1, 2, 3].map(|i| &listed["entries"][i]);
    let detail = apply["detail"].as_str().expect("a text");
    assert!(detail.contains("job new: handler: you may not"), "{detail}");
    assert_eq!(purge["group"], "team-a/default");
    let detail = "you may not trigger, pause and cancel in group team-a/default";
    assert_eq!(pause["detail"], detail);
    let actor = pause["actor"].as_str().expect("a text");
    let id = token.split('_').nth(1).expect("an id");
    assert_eq!(actor, format!("token {id} a test"));
    assert!(pause["address"].is_string(), "{pause}");
    let (rows, _) = list("/audit?result=refused").await;
    assert!(rows.is_empty(), "{rows:?}");
    let (rows, listed) = list("/audit?result=refused&all_namespaces=true").await;
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[0], row("server.stats", ""));
    assert_eq!(listed["entries"][0].get("namespace"), None);
}
