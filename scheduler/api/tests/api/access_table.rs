//! Who may do what: the routes that the tables in `access` and `access_in_namespaces` leave out, and a check that no route
//! is without a row.

use reqwest::Method;
use serde_json::{Value, json};

use crate::openapi::{document, operations};
use crate::server::{Server, TOKEN};
use crate::{access, access_in_namespaces};

const TEAM: &str = "/namespaces/team-a";

/// The callers of the table, in the order of its columns. All grants but the last one are for the namespace `team-a`.
const CALLERS: [&str; 6] = [
    "nothing",
    "viewer",
    "operator",
    "author",
    "admin",
    "admin of a group",
];

fn grants(caller: &str) -> Value {
    match caller {
        "nothing" => json!([]),
        "admin of a group" => json!([{ "group": "team-a/a", "role": "admin" }]),
        role => json!([{ "namespace": "team-a", "role": role }]),
    }
}

/// Method, path, body and the status for each caller. The path is one of `team-a` if `{team}` begins it.
type Row = (Method, &'static str, Option<Value>, [u16; 6]);

#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn table() -> Vec<Row> {
    let reader = [403, 200, 200, 200, 200, 403];
    let get = |path, expected| (Method::GET, path, None, expected);
    let delete = |path, expected| (Method::DELETE, path, None, expected);
    let post = |path, body, expected| (Method::POST, path, Some(body), expected);
    let put = |path, body, expected| (Method::PUT, path, Some(body), expected);
    let of_job = [404, 200, 200, 200, 200, 404];
    let operated = [404, 403, 404, 404, 404, 404];
    let unknown = [403, 404, 404, 404, 404, 403];
    let script = json!({ "language": "sh", "text": "true" });
    let weekends = json!({ "weekdays": ["sat", "sun"] });
    let apply = json!({ "calendars": [{ "name": "used", "weekdays": ["sun"] }], "dry_run": true });
    let times = json!({ "start": "2027-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z" });
    let mut everywhere = times.clone();
    everywhere["all_namespaces"] = json!(true);
    let password = json!({ "password": "correct horse battery" });
    vec![
        get("{team}/calendars", reader),
        get("{team}/calendars/used", reader),
        put(
            "{team}/calendars/new",
            weekends.clone(),
            [403, 403, 403, 200, 200, 403],
        ),
        post(
            "{team}/calendars/apply",
            apply.clone(),
            [403, 403, 403, 200, 200, 403],
        ),
        delete("{team}/calendars/none", [403, 403, 403, 404, 404, 403]),
        get("{team}/windows", reader),
        post(
            "{team}/windows",
            times.clone(),
            [403, 403, 201, 201, 201, 403],
        ),
        post("{team}/windows", everywhere.clone(), [403; 6]),
        delete("{team}/windows/999999", [403, 403, 404, 404, 404, 403]),
        get("{team}/jobs/job/retention", of_job),
        get("{team}/jobs/job/backfills", of_job),
        post(
            "{team}/jobs/job/backfills",
            json!({ "colour": "red" }),
            [404, 403, 400, 400, 400, 404],
        ),
        get("{team}/jobs/job/backfills/999999", [404; 6]),
        post(
            "{team}/jobs/job/backfills/999999/pause",
            json!({}),
            operated,
        ),
        post(
            "{team}/jobs/job/backfills/999999/resume",
            json!({}),
            operated,
        ),
        post(
            "{team}/jobs/job/backfills/999999/cancel",
            json!({}),
            operated,
        ),
        get("{team}/backfills", reader),
        get("{team}/scripts", reader),
        get("{team}/scripts/none", unknown),
        get("{team}/scripts/none/versions", unknown),
        get("{team}/scripts/none/versions/1", unknown),
        // To save a script needs the right to edit scripts, which no role includes.
        put("{team}/scripts/new", script, [403; 6]),
        post("{team}/scripts/apply", json!({ "scripts": [] }), [403; 6]),
        post(
            "{team}/scripts/none/restore",
            json!({ "version": 1 }),
            [403; 6],
        ),
        delete("{team}/scripts/none", [403; 6]),
        get("{team}/flows", [403, 200, 200, 200, 200, 200]),
        get("{team}/flows?job=job", [403, 200, 200, 200, 200, 404]),
        get("{team}/flows/999999", [404; 6]),
        post("{team}/flows/999999/cancel", json!({}), [404; 6]),
        post("{team}/flows/999999/retry", json!({}), [404; 6]),
        get("{team}/alarms", reader),
        get("{team}/alarms/rules", reader),
        get("{team}/alarms/rules/none", unknown),
        put(
            "{team}/alarms/rules/new",
            json!({ "on": ["failed"], "channels": ["none"] }),
            [403, 403, 403, 409, 409, 403],
        ),
        delete("{team}/alarms/rules/none", [403, 403, 403, 404, 404, 403]),
        get("{team}/alarms/channels", reader),
        get("{team}/alarms/channels/none", unknown),
        put(
            "{team}/alarms/channels/new",
            json!({ "colour": "red" }),
            [403, 403, 403, 403, 422, 403],
        ),
        delete(
            "{team}/alarms/channels/none",
            [403, 403, 403, 403, 404, 403],
        ),
        post(
            "{team}/alarms/channels/none/test",
            json!({}),
            [403, 403, 404, 404, 404, 403],
        ),
        get("{team}/alarms/silences", reader),
        post(
            "{team}/alarms/silences",
            json!({ "colour": "red" }),
            [403, 403, 422, 422, 422, 403],
        ),
        delete(
            "{team}/alarms/silences/999999",
            [403, 403, 404, 404, 404, 403],
        ),
        get("{team}/alarms/deliveries", reader),
        get("{team}/alarms/deliveries/999999", unknown),
        get("{team}/pauses", reader),
        post(
            "{team}/pauses",
            json!({ "colour": "red" }),
            [403, 403, 422, 422, 422, 403],
        ),
        delete("{team}/pauses/999999", [403, 403, 404, 404, 404, 403]),
        // A role in one namespace is none in another.
        get("/calendars", [403; 6]),
        get("/calendars/used", [403; 6]),
        put("/calendars/new", weekends, [403; 6]),
        post("/calendars/apply", apply, [403; 6]),
        delete("/calendars/none", [403; 6]),
        get("/windows", [403; 6]),
        post("/windows", times, [403; 6]),
        post("/windows", everywhere, [403; 6]),
        delete("/windows/999999", [403; 6]),
        // Users belong to no namespace.
        (
            Method::PATCH,
            "/users/none",
            Some(json!({ "enabled": false })),
            [403, 403, 403, 403, 404, 404],
        ),
        delete("/users/none", [403, 403, 403, 403, 404, 404]),
        post("/users/none/password", password, [404; 6]),
        delete("/enrolment-tokens/none", [403, 403, 403, 403, 404, 404]),
    ]
}

#[tokio::test]
async fn each_role_in_a_namespace_gets_what_the_table_says() {
    let server = Server::start().await;
    for base in ["", TEAM] {
        let path = format!("/api/v1{base}/calendars/used");
        let calendar = json!({ "dates": ["12-25"] });
        let put = server.by(TOKEN, Method::PUT, &path, Some(&calendar));
        put.await.good();
    }
    let job =
        json!({ "name": "job", "schedule": { "manual": true }, "handler": { "native": "x" } });
    let (path, jobs) = (format!("{TEAM}/jobs/apply"), json!({ "jobs": [job] }));
    server.post(&path, &jobs).await.good();
    let mut tokens = Vec::new();
    for caller in CALLERS {
        tokens.push(server.token_with(&grants(caller)).await);
    }
    let mut wrong = Vec::new();
    for (method, path, body, expected) in table() {
        let path = format!("/api/v1{}", path.replace("{team}", TEAM));
        for ((caller, token), expected) in CALLERS.iter().zip(&tokens).zip(expected) {
            let answer = server.by(token, method.clone(), &path, body.as_ref()).await;
            if answer.status.as_u16() != expected {
                wrong.push(format!(
                    "{method} {path} as {caller}: {answer:?}, not {expected}"
                ));
            }
        }
        let admin = server.by(TOKEN, method.clone(), &path, body.as_ref());
        let status = admin.await.status.as_u16();
        if matches!(status, 401 | 403) {
            wrong.push(format!("{method} {path} with the admin token: {status}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Routes whose tests of rights are elsewhere.
const ELSEWHERE: [(&str, &str, &str); 8] = [
    ("get", "/livez", "behaviour"),
    ("get", "/readyz", "behaviour"),
    ("post", "/api/v1/login", "logins"),
    ("post", "/api/v1/setup", "logins"),
    ("get", "/api/v1/login/oidc", "openid"),
    ("get", "/api/v1/login/oidc/callback", "openid"),
    // Streams have no end to wait for.
    ("get", "/api/v1/events", "events"),
    ("get", "/api/v1/runs/{id}/logs/events", "events"),
];

fn fits(template: &str, path: &str) -> bool {
    let path = path
        .split('?')
        .next()
        .unwrap_or_default()
        .trim_end_matches('/');
    let (template, path) = (template.split('/'), path.split('/'));
    template.clone().count() == path.clone().count()
        && template
            .zip(path)
            .all(|(expected, given)| expected.starts_with('{') || expected == given)
}

#[test]
fn each_route_has_a_row_in_a_table() {
    let mut rows: Vec<(String, String)> = access::routes();
    rows.extend(access_in_namespaces::routes());
    rows.extend(table().into_iter().map(|(method, path, ..)| {
        (
            method.to_string(),
            format!("/api/v1{}", path.replace("{team}", "")),
        )
    }));
    let document = document();
    let all = operations(&document);
    let mut missing = Vec::new();
    for (template, method, _) in &all {
        // `/jobs/apply` has the form of `/jobs/{name}`.
        let is_nearest = |path: &str| {
            let parameters = |template: &str| template.matches('{').count();
            let fitting = all
                .iter()
                .filter(|(other, its_method, _)| its_method == method && fits(other, path));
            fitting.map(|(other, ..)| parameters(other)).min() == Some(parameters(template))
        };
        let has_row = rows.iter().any(|(its_method, path)| {
            its_method.eq_ignore_ascii_case(method) && fits(template, path) && is_nearest(path)
        });
        let is_elsewhere = ELSEWHERE
            .iter()
            .any(|(its_method, path, _)| its_method == method && path == template);
        if has_row == is_elsewhere {
            missing.push(format!(
                "{method} {template}: row {has_row}, elsewhere {is_elsewhere}"
            ));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(all.len() > 70, "{}", all.len());
}
