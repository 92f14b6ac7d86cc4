//! Who may do what: each route with each role.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::Server;

/// The callers of the table, in the order of its columns. All grants are in group `a`, but those of the last two.
const CALLERS: [&str; 7] = [
    "viewer",
    "operator",
    "author",
    "author with scripts",
    "admin",
    "admin of group b",
    "nothing",
];

fn grants(caller: &str) -> Value {
    match caller {
        "author with scripts" => json!([{ "group": "a", "role": "author", "scripts": true }]),
        "admin of group b" => json!([{ "group": "b", "role": "admin", "scripts": true }]),
        "nothing" => json!([]),
        role => json!([{ "group": "a", "role": role }]),
    }
}

fn job(name: &str, group: &str, handler: &Value) -> Value {
    json!({ "name": name, "group": group, "schedule": { "manual": true }, "handler": handler })
}

fn shell() -> Value {
    json!({ "shell": "true" })
}

fn native() -> Value {
    json!({ "native": "x" })
}

/// A definition without a name.
fn definition(handler: &Value, group: &str) -> Value {
    json!({ "group": group, "schedule": { "manual": true }, "handler": handler })
}

fn dry_run(job: &Value) -> Value {
    json!({ "dry_run": true, "jobs": [job] })
}

/// A server with a job in each of two groups. The one in group `a` has a child, so that it cannot be deleted. Returns the
/// run of each.
async fn two_groups() -> (Server, u64, u64) {
    let server = Server::start().await;
    let mut child = job("child", "a", &native());
    child["after"] = json!("in-a");
    child.as_object_mut().expect("an object").remove("schedule");
    let jobs = [
        job("in-a", "a", &shell()),
        job("in-b", "b", &shell()),
        job("native-in-a", "a", &native()),
        child,
    ];
    let applied = server.post("/jobs/apply", &json!({ "jobs": jobs })).await;
    applied.good();
    let mut runs = Vec::new();
    for name in ["in-a", "in-b"] {
        let path = format!("/jobs/{name}/trigger");
        let triggered = server.post(&path, &json!({})).await.good();
        runs.push(triggered["runs"][0].as_u64().expect("a run"));
    }
    (server, runs[0], runs[1])
}

type Row = (Method, String, Option<Value>, [u16; 7]);

#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn table(run: u64) -> Vec<Row> {
    let get = |path: &str, expected| (Method::GET, format!("/api/v1{path}"), None, expected);
    let post = |path: &str, body: Value, expected| {
        (Method::POST, format!("/api/v1{path}"), Some(body), expected)
    };
    let put = |path: &str, body: Value, expected| {
        (Method::PUT, format!("/api/v1{path}"), Some(body), expected)
    };
    let key = "/worker-keys/a/one/0123456789abcdef";
    // The broker of this test cannot be reached: 503 means that the request was admitted.
    let mut rows = vec![
        get("", [200; 7]),
        get("/session", [200; 7]),
        get("/tokens", [200; 7]),
        get("/nonsense", [404; 7]),
        get("/jobs", [200, 200, 200, 200, 200, 200, 403]),
        get("/runs", [200, 200, 200, 200, 200, 200, 403]),
        get("/executors", [200, 200, 200, 200, 200, 200, 403]),
        get("/queues", [503, 503, 503, 503, 503, 503, 403]),
        get("/jobs/in-a", [200, 200, 200, 200, 200, 404, 404]),
        get("/jobs/in-a/next", [200, 200, 200, 200, 200, 404, 404]),
        get("/jobs/in-a/explain", [200, 200, 200, 200, 200, 404, 404]),
        get("/forecast", [200, 200, 200, 200, 200, 200, 403]),
        get("/jobs/in-a/ledger", [200, 200, 200, 200, 200, 404, 404]),
        get("/jobs/in-a/retention", [200, 200, 200, 200, 200, 404, 404]),
        get("/limits", [200, 200, 200, 200, 200, 200, 403]),
        get("/retention", [200, 200, 200, 200, 200, 200, 403]),
        get("/jobs/in-a/versions", [200, 200, 200, 200, 200, 404, 404]),
        get("/jobs/in-a/versions/1", [200, 200, 200, 200, 200, 404, 404]),
        get("/jobs/none", [404; 7]),
        get("/jobs/none/versions", [404; 7]),
        get("/runs?job=in-a", [200, 200, 200, 200, 200, 404, 403]),
        get(&format!("/runs/{run}"), [200, 200, 200, 200, 200, 404, 404]),
        get(
            &format!("/runs/{run}/explain"),
            [200, 200, 200, 200, 200, 404, 404],
        ),
        get(
            &format!("/runs/{run}/logs"),
            [200, 200, 200, 200, 200, 404, 404],
        ),
        get("/runs/999999", [404; 7]),
        get("/flows", [200, 200, 200, 200, 200, 200, 403]),
        get(
            &format!("/flows/{run}"),
            [200, 200, 200, 200, 200, 404, 404],
        ),
        get("/queues/a/one", [503, 503, 503, 503, 503, 404, 404]),
        get("/dead", [403; 7]),
        get("/dead/1", [403; 7]),
        get("/stats", [403; 7]),
        get("/quota", [403; 7]),
        get("/namespaces", [200, 200, 200, 200, 200, 200, 403]),
        // It needs the right in the whole namespace.
        get("/audit", [403; 7]),
        get("/audit?all_namespaces=true", [403; 7]),
        get("/worker-keys", [403, 403, 403, 403, 200, 200, 403]),
        get("/enrolment-tokens", [403, 403, 403, 403, 200, 200, 403]),
        get("/users", [403, 403, 403, 403, 200, 200, 403]),
        get("/users/none", [403, 403, 403, 403, 404, 404, 403]),
    ];
    let operated = [403, 200, 200, 200, 200, 404, 404];
    let reached = [403, 503, 503, 503, 503, 404, 404];
    rows.extend([
        post(
            "/preview",
            json!({ "schedule": { "every": "1h" } }),
            [200, 200, 200, 200, 200, 200, 403],
        ),
        post("/jobs/in-a/pause", json!({}), operated),
        post("/jobs/in-a/resume", json!({}), operated),
        post(
            "/jobs/in-a/trigger",
            json!({}),
            [403, 202, 202, 202, 202, 404, 404],
        ),
        post(&format!("/runs/{run}/cancel"), json!({}), operated),
        post(&format!("/flows/{run}/cancel"), json!({}), operated),
        post(
            "/runs/prune",
            json!({ "runs": [] }),
            [403, 403, 200, 200, 200, 200, 403],
        ),
        post("/queues/a/one/drain", json!({}), reached),
        post("/queues/a/one/purge", json!({}), reached),
        post("/queues/a/one/replay", json!({}), reached),
        post("/dead/replay", json!({ "ids": [] }), [403; 7]),
        post("/dead/delete", json!({ "ids": [] }), [403; 7]),
        post(
            "/jobs/apply",
            dry_run(&job("new", "a", &native())),
            [403, 403, 200, 200, 200, 403, 403],
        ),
        post(
            "/jobs/apply",
            dry_run(&job("new", "a", &shell())),
            [403, 403, 403, 200, 403, 403, 403],
        ),
        // From a script to native code: the script's right is needed too.
        post(
            "/jobs/apply",
            dry_run(&job("in-a", "a", &native())),
            [403, 403, 403, 200, 403, 403, 403],
        ),
        post(
            "/jobs/apply",
            dry_run(&job("native-in-a", "b", &native())),
            [403; 7],
        ),
        post(
            "/enrolment-tokens",
            json!({ "group": "a" }),
            [403, 403, 403, 403, 201, 403, 403],
        ),
        post("/enrolment-tokens", json!({}), [403; 7]),
        post(
            &format!("{key}/revoke"),
            json!({}),
            [403, 403, 403, 403, 404, 404, 404],
        ),
        post(
            &format!("{key}/allow"),
            json!({}),
            [403, 403, 403, 403, 404, 404, 404],
        ),
        post(
            "/users",
            json!({ "colour": "red" }),
            [403, 403, 403, 403, 400, 400, 403],
        ),
        post("/users", json!({ "name": "x" }), [403; 7]),
        post(
            "/tokens",
            json!({ "name": "x", "grants": [{ "group": "a", "role": "viewer" }] }),
            [403, 403, 403, 403, 201, 403, 403],
        ),
        post(
            "/tokens",
            json!({ "name": "x", "grants": [{ "role": "viewer" }] }),
            [403; 7],
        ),
        // The version has a script.
        post(
            "/jobs/in-a/restore",
            json!({ "version": 1 }),
            [403, 403, 403, 200, 403, 404, 404],
        ),
        post("/logout", json!({}), [409; 7]),
        // In use by a child.
        (
            Method::DELETE,
            "/api/v1/jobs/in-a".to_owned(),
            None,
            [403, 403, 409, 409, 409, 404, 404],
        ),
        (
            Method::DELETE,
            "/api/v1/tokens/none".to_owned(),
            None,
            [404; 7],
        ),
        (
            Method::PATCH,
            "/api/v1/jobs/in-a".to_owned(),
            None,
            [405; 7],
        ),
        put(
            "/limits/a",
            json!({ "count": 5, "per": "hour" }),
            [403, 403, 200, 200, 200, 403, 403],
        ),
        (
            Method::DELETE,
            "/api/v1/limits/a".to_owned(),
            None,
            [403, 403, 200, 200, 200, 403, 403],
        ),
        put(
            "/retention/a",
            json!({ "runs": 5 }),
            [403, 403, 200, 200, 200, 403, 403],
        ),
        (
            Method::DELETE,
            "/api/v1/retention/a".to_owned(),
            None,
            [403, 403, 200, 200, 200, 403, 403],
        ),
        // The rights are those of an apply. The first author creates the job.
        put(
            "/jobs/replaced",
            definition(&native(), "a"),
            [403, 403, 201, 200, 200, 403, 403],
        ),
        put(
            "/jobs/in-a",
            definition(&shell(), "a"),
            [403, 403, 403, 200, 403, 403, 403],
        ),
        put(
            "/jobs/in-a",
            definition(&native(), "a"),
            [403, 403, 403, 200, 200, 403, 403],
        ),
        put(
            "/jobs/in-b",
            definition(&native(), "a"),
            [403, 403, 403, 403, 403, 403, 403],
        ),
        (Method::GET, "/metrics".to_owned(), None, [403; 7]),
        (Method::GET, "/api/openapi.json".to_owned(), None, [200; 7]),
        (Method::GET, "/api/docs".to_owned(), None, [200; 7]),
    ]);
    rows
}

/// The method and the path of each row.
pub(crate) fn routes() -> Vec<(String, String)> {
    let rows = table(1).into_iter();
    rows.map(|(method, path, ..)| (method.to_string(), path))
        .collect()
}

#[tokio::test]
async fn each_role_gets_what_the_table_says_and_the_admin_token_everything() {
    let (server, run, _) = two_groups().await;
    let mut tokens = Vec::new();
    for caller in CALLERS {
        tokens.push(server.token_with(&grants(caller)).await);
    }
    let mut wrong = Vec::new();
    for (method, path, body, expected) in table(run) {
        for ((caller, token), expected) in CALLERS.iter().zip(&tokens).zip(expected) {
            let answer = server.by(token, method.clone(), &path, body.as_ref()).await;
            if answer.status.as_u16() != expected {
                wrong.push(format!(
                    "{method} {path} as {caller}: {answer:?}, not {expected}"
                ));
            }
            let is_problem = answer.content_type == "application/problem+json";
            assert_eq!(is_problem, answer.status.as_u16() >= 400, "{answer:?}");
        }
        let admin = server.by(crate::server::TOKEN, method.clone(), &path, body.as_ref());
        let status = admin.await.status.as_u16();
        if matches!(status, 401 | 403) {
            wrong.push(format!("{method} {path} with the admin token: {status}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn an_object_that_may_not_be_read_has_the_answer_of_an_unknown_one() {
    let (server, _, run) = two_groups().await;
    let token = server.token_with(&grants("admin")).await;
    let text = async |path: String| {
        let answer = server.by(&token, Method::GET, &path, None).await;
        assert_eq!(answer.status.as_u16(), 404, "{answer:?}");
        answer.text
    };
    for (hidden, unknown) in [
        ("/api/v1/jobs/in-b", "/api/v1/jobs/in-c"),
        ("/api/v1/jobs/in-b/ledger", "/api/v1/jobs/in-c/ledger"),
        ("/api/v1/runs?job=in-b", "/api/v1/runs?job=in-c"),
    ] {
        let unknown = text(unknown.to_owned()).await.replace("in-c", "in-b");
        assert_eq!(text(hidden.to_owned()).await, unknown);
    }
    let unknown = text("/api/v1/runs/999999".to_owned()).await;
    let hidden = text(format!("/api/v1/runs/{run}")).await;
    assert_eq!(hidden, unknown.replace("999999", &run.to_string()));
}

#[tokio::test]
async fn lists_leave_out_what_may_not_be_read() {
    let (server, run_a, run_b) = two_groups().await;
    for (caller, jobs, runs) in [
        ("viewer", &["child", "in-a", "native-in-a"][..], vec![run_a]),
        ("admin of group b", &["in-b"], vec![run_b]),
    ] {
        let token = server.token_with(&grants(caller)).await;
        let list = async |path: &str, field: &str, key: &str| {
            let listed = server.by(&token, Method::GET, path, None).await.good();
            let listed = listed[field].as_array().expect("a list").clone();
            listed
                .iter()
                .map(|one| one[key].clone())
                .collect::<Vec<_>>()
        };
        let expected: Vec<Value> = jobs.iter().map(|name| json!(name)).collect();
        assert_eq!(list("/api/v1/jobs", "jobs", "name").await, expected);
        let expected: Vec<Value> = runs.iter().map(|id| json!(id)).collect();
        assert_eq!(list("/api/v1/runs", "runs", "id").await, expected);
    }
}

#[tokio::test]
async fn pages_of_a_filtered_list_lead_to_all_of_it() {
    let (server, _, _) = two_groups().await;
    let token = server.token_with(&grants("viewer")).await;
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/jobs?limit=1{after}");
        let page = server.by(&token, Method::GET, &path, None).await.good();
        let jobs = page["jobs"].as_array().expect("a list");
        names.extend(jobs.iter().map(|job| job["name"].clone()));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
    }
    assert_eq!(names, [json!("child"), json!("in-a"), json!("native-in-a")]);
}

#[tokio::test]
async fn a_refusal_names_the_missing_right_and_where() {
    let (server, _, _) = two_groups().await;
    let token = server.token_with(&grants("viewer")).await;
    let nothing = json!({});
    let path = "/api/v1/jobs/in-a/pause";
    let pause = server.by(&token, Method::POST, path, Some(&nothing));
    let problem = pause.await.json();
    assert_eq!(problem["type"], "cueline:forbidden");
    let detail = "you may not trigger, pause and cancel in group a";
    assert_eq!(problem["detail"], detail);
    let token = server.token_with(&grants("author")).await;
    let body = dry_run(&job("new", "a", &shell()));
    let apply = server.by(&token, Method::POST, "/api/v1/jobs/apply", Some(&body));
    let problem = apply.await.json();
    assert_eq!(problem["errors"][0]["job"], "new");
    assert_eq!(problem["errors"][0]["field"], "handler");
}

#[tokio::test]
async fn an_http_job_with_a_secret_needs_the_right_to_edit_scripts() {
    let server = Server::start().await;
    let http = |headers: Value, body: Value| {
        let handler = json!({ "url": "https://a.example", "method": "POST", "headers": headers, "body": body });
        job("call", "a", &json!({ "http": handler }))
    };
    let secret = json!({ "secret": "report-token" });
    let plain = http(json!({ "X-A": "b" }), json!("text"));
    let in_header = http(json!({ "X-A": "b", "X-B": secret }), json!("text"));
    let in_body = http(json!({}), secret);
    let author = server.token_with(&grants("author")).await;
    let trusted = server.token_with(&grants("author with scripts")).await;
    let apply = async |token: &str, job: &Value| {
        let body = json!({ "jobs": [job] });
        server
            .by(token, Method::POST, "/api/v1/jobs/apply", Some(&body))
            .await
    };
    let refused = async |job: &Value| {
        let answer = apply(&author, job).await;
        assert_eq!(answer.status.as_u16(), 403, "{answer:?}");
        assert_eq!(answer.json()["errors"][0]["field"], "handler");
    };
    refused(&in_header).await;
    refused(&in_body).await;
    apply(&author, &plain).await.good();
    apply(&trusted, &in_header).await.good();
    // To another URL, or without the secret: the present definition counts too.
    refused(&plain).await;
    apply(&trusted, &plain).await.good();
    let other = http(json!({ "X-A": "c" }), json!("text"));
    apply(&author, &other).await.good();
    let restored = json!({ "version": 2 });
    let path = "/api/v1/jobs/call/restore";
    let restore = server.by(&author, Method::POST, path, Some(&restored));
    assert_eq!(restore.await.status.as_u16(), 403, "it has the secret");
}

#[tokio::test]
async fn a_job_of_another_group_is_neither_taken_over_nor_made_a_parent() {
    let (server, _, _) = two_groups().await;
    let token = server.token_with(&grants("author with scripts")).await;
    let apply = async |job: Value| {
        let body = json!({ "jobs": [job] });
        server
            .by(&token, Method::POST, "/api/v1/jobs/apply", Some(&body))
            .await
    };
    let refused = apply(job("in-b", "a", &shell())).await;
    assert_eq!(refused.status.as_u16(), 403, "{refused:?}");
    assert!(refused.text.contains("use another name"), "{refused:?}");
    let mut child = job("new-child", "a", &native());
    child.as_object_mut().expect("an object").remove("schedule");
    child["after"] = json!("in-b");
    let hidden = apply(child.clone()).await;
    assert_eq!(hidden.status.as_u16(), 422, "{hidden:?}");
    child["after"] = json!("in-c");
    let unknown = apply(child).await;
    assert_eq!(hidden.text, unknown.text.replace("in-c", "in-b"));
    let shown = server.get("/jobs/in-b").await.good();
    assert_eq!(shown["group"], "b");
}
