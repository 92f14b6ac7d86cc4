//! The OpenAPI document is true for the answers of a server, and for those in `docs/api.md`.

use serde_json::{Value, json};

use crate::openapi::{document, errors, operations, whole_definition};
use crate::server::{Answer, Server};

const API_PAGE: &str = include_str!("../../../../docs/api.md");

/// Whether a path fits a template such as `/api/v1/jobs/{name}`.
fn fits(template: &str, path: &str) -> bool {
    let (template, path) = (template.split('/'), path.split('/'));
    template.clone().count() == path.clone().count()
        && template
            .zip(path)
            .all(|(expected, given)| expected.starts_with('{') || expected == given)
}

/// The schema of an answer with this status. A template without parameters goes before one with parameters.
fn answer_schema(document: &Value, method: &str, path: &str, status: &str) -> Option<Value> {
    let mut found: Vec<_> = operations(document)
        .into_iter()
        .filter(|(template, its_method, _)| *its_method == method && fits(template, path))
        .collect();
    found.sort_by_key(|(template, ..)| template.matches('{').count());
    let (.., operation) = found.first()?;
    let mut response = &operation["responses"][status];
    if let Some(reference) = response["$ref"].as_str() {
        let name = reference.rsplit('/').next().expect("a name");
        response = &document["components"]["responses"][name];
    }
    let content = response["content"].as_object()?;
    content.values().next().map(|media| media["schema"].clone())
}

/// A call in an example of the page: its method and its path.
fn call(line: &str) -> Option<(&'static str, String)> {
    let command = line.strip_prefix("$ curl ")?;
    // The output of these is not the whole answer.
    if command.contains("| jq") {
        return None;
    }
    let method = if command.contains("-X DELETE") {
        "delete"
    } else if command.contains("-X PUT") {
        "put"
    } else if command.contains("-X POST") || command.contains(" -d ") {
        "post"
    } else {
        "get"
    };
    let (_, path) = command.split_once("$URL")?;
    let end = path.find(['"', ' ', '?']).unwrap_or(path.len());
    Some((method, path[..end].to_owned()))
}

#[test]
fn each_answer_on_the_page_of_the_api_fits_its_schema() {
    let document = document();
    let mut present: Option<(&str, String)> = None;
    let mut checked = 0;
    for line in API_PAGE.lines() {
        if line.starts_with('$') || line.starts_with("```") {
            present = call(line);
        }
        let Some((method, path)) = present.as_ref().filter(|_| line.starts_with('{')) else {
            continue;
        };
        let answer: Value = serde_json::from_str(line).expect(line);
        let statuses = match answer["status"].as_u64() {
            Some(status) => vec![status.to_string()],
            None => ["200", "201", "202"].map(str::to_owned).to_vec(),
        };
        let schema = statuses
            .iter()
            .find_map(|status| answer_schema(&document, method, path, status));
        let schema = schema.unwrap_or_else(|| panic!("{method} {path} has no {statuses:?}"));
        let errors = errors(&document, &schema, &answer);
        assert!(errors.is_empty(), "{line}: {errors:?}");
        checked += 1;
    }
    assert!(checked >= 15, "{checked}");
}

/// Checks that the document declares the answer, and that its body fits.
#[track_caller]
fn fits_document(document: &Value, method: &str, path: &str, answer: &Answer) {
    let status = answer.status.as_str();
    let schema = answer_schema(document, method, path, status);
    let schema = schema.unwrap_or_else(|| panic!("{method} {path} does not declare {answer:?}"));
    let errors = errors(document, &schema, &answer.json());
    assert!(errors.is_empty(), "{method} {path}: {errors:?} {answer:?}");
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
async fn answers_of_a_server_fit_the_document() {
    let document = document();
    let server = Server::start().await;
    let apply = json!({ "jobs": [whole_definition(), {"name": "plain", "schedule": {"manual": true}, "handler": {"native": "x"}}] });
    let grant = json!({ "group": "team-a/billing", "role": "author", "scripts": true });
    let window = json!({ "start": "2027-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z", "reason": "upgrade", "labels": { "tier": "2" } });
    let posts = [
        (
            "/calendars/apply",
            json!({ "calendars": [{ "name": "holidays", "timezone": "Europe/Berlin", "dates": ["12-25"] }] }),
        ),
        (
            "/calendars/apply",
            json!({ "calendars": [{ "name": "holidays" }] }),
        ),
        (
            "/scripts/apply",
            json!({ "scripts": [{ "name": "backup", "language": "sh", "text": "true" }] }),
        ),
        (
            "/scripts/apply",
            json!({ "scripts": [{ "name": "backup" }] }),
        ),
        (
            "/scripts/backup/restore",
            json!({ "version": 1, "remark": "again" }),
        ),
        ("/scripts/backup/restore", json!({ "version": 9 })),
        ("/windows", window),
        ("/windows", json!({ "cron": "0 1 * * *", "duration": "1h" })),
        ("/windows", json!({})),
        ("/jobs/apply", apply),
        ("/jobs/apply", json!({ "jobs": [{"name": "a b"}] })),
        (
            "/jobs/plain/trigger",
            json!({ "params": [1], "idempotency_key": "k" }),
        ),
        (
            "/jobs/plain/trigger",
            json!({ "params": [1], "idempotency_key": "k" }),
        ),
        ("/jobs/plain/trigger", json!({ "idempotency_key": "k" })),
        ("/jobs/plain/trigger", json!({ "unknown": 1 })),
        ("/jobs/nothing/trigger", json!({})),
        ("/preview", json!({ "schedule": {"every": "10s"}, "n": 2 })),
        (
            "/preview",
            json!({ "schedule": [{"every": "10s"}, {"cron": "0 1 * * *"}], "n": 2 }),
        ),
        ("/alarms/channels/ops/test", json!({})),
        ("/alarms/channels/nothing/test", json!({})),
        (
            "/alarms/silences",
            json!({ "for": "1h", "reason": "work", "jobs": ["whole"] }),
        ),
        ("/alarms/silences", json!({})),
        ("/runs/1/cancel", json!({})),
        ("/runs/1/cancel", json!({})),
        ("/jobs/whole/pause", json!({})),
        ("/jobs/whole/resume", json!({})),
        ("/jobs/whole/restore", json!({ "version": 1 })),
        ("/jobs/whole/restore", json!({ "version": 99 })),
        ("/enrolment-tokens", json!({ "group": "default" })),
        ("/dead/delete", json!({ "all": true })),
        (
            "/users",
            json!({ "name": "ann", "password": "correct horse battery", "grants": [grant] }),
        ),
        ("/users", json!({ "name": "ann" })),
        (
            "/login",
            json!({ "name": "ann", "password": "correct horse battery" }),
        ),
        ("/login", json!({ "name": "ann", "password": "wrong" })),
        ("/tokens", json!({ "name": "program", "grants": [grant] })),
        ("/queues/default/worker-1/drain", json!({})),
    ];
    let hook = json!({ "webhook": { "url": "https://example.com", "secret": { "secret": "x" } }, "title": "{job}" });
    let rule = json!({ "on": ["failed", { "late": "5m" }], "channels": ["ops"], "labels": { "tier": "2" } });
    for (path, body) in [
        ("/alarms/channels/ops", hook),
        ("/alarms/channels/ops", json!({})),
        ("/alarms/rules/all", rule),
        ("/alarms/rules/all", json!({})),
    ] {
        let answer = server.put(path, &body).await;
        fits_document(&document, "put", &format!("/api/v1{path}"), &answer);
    }
    for (path, body) in posts {
        let answer = server.post(path, &body).await;
        fits_document(&document, "post", &format!("/api/v1{path}"), &answer);
    }
    for path in [
        "",
        "/jobs",
        "/jobs?limit=0",
        "/jobs/whole",
        "/jobs/nothing",
        "/jobs/whole/next",
        "/jobs/whole/ledger",
        "/jobs/whole/versions",
        "/jobs/whole/versions/1",
        "/audit",
        "/calendars",
        "/calendars/holidays",
        "/calendars/nothing",
        "/scripts",
        "/scripts/backup",
        "/scripts/nothing",
        "/scripts/backup/versions",
        "/scripts/backup/versions/1",
        "/windows",
        "/alarms",
        "/alarms/rules",
        "/alarms/rules/all",
        "/alarms/channels",
        "/alarms/channels/ops",
        "/alarms/silences",
        "/alarms/deliveries",
        "/alarms/deliveries/1",
        "/alarms/deliveries/99",
        "/forecast",
        "/forecast?group=team-a/billing",
        "/jobs/whole/explain",
        "/runs/1/explain",
        "/runs",
        "/runs/1",
        "/runs/1/logs",
        "/executors",
        "/stats",
        "/queues",
        "/dead",
        "/dead/1",
        "/namespaces",
        "/quota",
        "/enrolment-tokens",
        "/worker-keys",
        "/session",
        "/login/oidc",
        "/login/oidc/callback",
        "/users",
        "/users/ann",
        "/users/bob",
        "/tokens",
    ] {
        let answer = server.get(path).await;
        let template = path.split('?').next().unwrap_or_default();
        fits_document(&document, "get", &format!("/api/v1{template}"), &answer);
    }
    let answer = server.delete("/jobs/whole").await;
    fits_document(&document, "delete", "/api/v1/jobs/whole", &answer);
}
