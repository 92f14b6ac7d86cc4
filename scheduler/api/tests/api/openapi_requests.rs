//! The server accepts what the schemas of requests accept, and refuses what they refuse.

use cueline_api::instant;
use cueline_model::{DurationMs, decode};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::openapi::{by_name, document, operations, validator};
use crate::raw::{Raw, request};
use crate::server::{Answer, Server, TOKEN};

/// The longest duration of a definition and of a token: 3650d.
const LONGEST_MS: u64 = 3_650 * 86_400_000;

/// The schema with this name.
pub(crate) fn schema(name: &str) -> jsonschema::Validator {
    validator(&document(), &by_name(name))
}

#[test]
fn instants_are_accepted_as_by_the_schema() {
    let document = document();
    let number = &document["components"]["schemas"]["InstantText"]["anyOf"][1];
    let bound = |name: &str| number[name].as_i64().expect("a bound");
    let (first, last) = (bound("minimum"), bound("maximum"));
    let schema = schema("InstantText");
    for (millis, is_good) in [
        (first, true),
        (last, true),
        (first - 1, false),
        (last + 1, false),
    ] {
        assert_eq!(schema.is_valid(&json!(millis)), is_good, "{millis}");
        assert_eq!(instant(&millis.to_string()).is_ok(), is_good, "{millis}");
    }
    for (text, is_good) in [
        ("2027-01-31T12:00:00Z", true),
        ("2027-01-31t12:00:00.123456789z", true),
        ("0000-01-01T00:00:00+23:59", true),
        ("9999-12-28T23:59:59.999-23:59", true),
        ("9998-12-31T23:59:59-23:59", true),
        ("9999-12-31T23:59:59Z", false),
        ("2027-01-31T12:00:00.1234567890Z", false),
        ("2027-01-31T12:00:00", false),
        ("2027-01-31", false),
        ("tomorrow", false),
    ] {
        assert_eq!(schema.is_valid(&json!(text)), is_good, "{text}");
        assert_eq!(instant(text).is_ok(), is_good, "{text}");
    }
}

#[test]
fn durations_are_accepted_as_by_the_schema() {
    let duration = schema("Duration");
    let lifetime = schema("Lifetime");
    let (limit, period) = (schema("TimeLimit"), schema("Period"));
    for ms in [
        0,
        1,
        99,
        100,
        999,
        1_000,
        5_400_000,
        86_399_999,
        100 * 86_400_000 + 1,
        LONGEST_MS - 1,
        LONGEST_MS,
        LONGEST_MS + 1,
    ] {
        let text = json!(DurationMs::millis(ms).to_string());
        assert_eq!(duration.is_valid(&text), ms <= LONGEST_MS, "{text}");
        let least = |least_ms: u64| (least_ms..=LONGEST_MS).contains(&ms);
        assert_eq!(limit.is_valid(&text), least(1), "{text}");
        assert_eq!(period.is_valid(&text), least(100), "{text}");
        assert_eq!(lifetime.is_valid(&text), least(1_000), "{text}");
    }
    // Other spellings that the schema accepts.
    for text in [
        "604800s",
        "2592000000ms",
        "79999h",
        "1h 30m",
        " 5m ",
        "2999d 999h99999m",
        "99d99d99d99d99d",
        "007s",
    ] {
        assert!(duration.is_valid(&json!(text)), "{text}");
        let read: DurationMs = text.parse().expect(text);
        assert!(read.as_millis() <= LONGEST_MS, "{text}");
    }
    for text in [
        "", " ", "10", "5 m", "1y", "-1s", "1.5h", "3651d", "\u{1c}5s",
    ] {
        assert!(!duration.is_valid(&json!(text)), "{text:?}");
    }
    assert!(lifetime.is_valid(&json!("never")));
    assert!(!duration.is_valid(&json!("never")));
}

/// A definition with this value at a path such as `retry/max`.
fn definition(path: &str, value: &Value) -> Value {
    let mut job = json!({ "name": "a", "schedule": {"manual": true}, "handler": {"native": "x"} });
    match path.split_once('/') {
        Some((field, key)) => job[field] = json!({ key: value }),
        None => job[path] = value.clone(),
    }
    job
}

#[test]
fn bounds_of_definitions_are_those_of_the_schema() {
    let schema = schema("JobDefinition");
    let whole = [
        -1, 0, 1, 9, 10, 100, 101, 1_000, 1_001, 10_000, 10_001, 100_000, 100_001,
    ]
    .map(|number| json!(number));
    let numbers = [
        "backlog",
        "priority",
        "retry",
        "retry/max",
        "retry/jitter_percent",
        "misfire/catch_up_limit",
        "route/sharded",
        "block/parallel",
    ];
    let lengths = ["0s", "1ms", "99ms", "100ms", "3650d", "3650d1ms"].map(|text| json!(text));
    let durations = [
        "jitter",
        "timeout",
        "kill_grace",
        "dispatch_deadline",
        "schedule/every",
        "schedule/after",
        "retry/first",
        "retry/cap",
        "misfire/grace",
    ];
    for (paths, values) in [(&numbers[..], &whole[..]), (&durations[..], &lengths[..])] {
        for path in paths {
            let accepted = values.iter().filter(|value| {
                let job = definition(path, value);
                let is_good = decode::job(&decode::Node::from(job.clone())).is_ok();
                assert_eq!(schema.is_valid(&job), is_good, "{job}");
                is_good
            });
            let accepted = accepted.count();
            assert!((1..values.len()).contains(&accepted), "{path}: {accepted}");
        }
    }
}

#[test]
fn bounds_of_accounts_are_those_of_the_store() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let bound = |pointer: &str| schemas.pointer(pointer).and_then(Value::as_u64);
    for (pointer, most) in [
        ("/LoginName/maxLength", cueline_store::MAX_LOGIN_NAME_BYTES),
        (
            "/AccountText/maxLength",
            cueline_store::MAX_DISPLAY_NAME_BYTES,
        ),
        (
            "/AccountText/maxLength",
            cueline_store::MAX_TOKEN_NAME_BYTES,
        ),
        (
            "/NewUser/properties/grants/maxItems",
            cueline_store::MAX_GRANTS,
        ),
        (
            "/UserChange/properties/grants/maxItems",
            cueline_store::MAX_GRANTS,
        ),
        (
            "/NewApiToken/properties/grants/maxItems",
            cueline_store::MAX_GRANTS,
        ),
        ("/ApplyRequest/properties/jobs/maxItems", decode::MAX_JOBS),
        ("/Name/maxLength", cueline_model::name::MAX_NAME_BYTES),
        (
            "/GivenNamespace/maxLength",
            cueline_model::name::MAX_NAMESPACE_BYTES,
        ),
    ] {
        assert_eq!(bound(pointer), u64::try_from(most).ok(), "{pointer}");
    }
}

#[tokio::test]
async fn a_whole_number_is_accepted_in_each_spelling() {
    let server = Server::start().await;
    let job = json!({
        "name": "a", "schedule": {"every": "1h", "anchor": 3_909.0}, "retry": 2.0, "priority": 9.0,
        "route": {"sharded": 2.0}, "labels": {"tier": 1.0}, "params": {"month": 3.0, "part": 0.5},
        "end_at": 1_893_456_000_000.0,
        "handler": {"http": {"url": "http://localhost/", "expect": [204.0]}},
    });
    assert!(schema("JobDefinition").is_valid(&job));
    let apply = json!({ "jobs": [job] });
    server.post("/jobs/apply", &apply).await.good();
    let shown = server.get("/jobs/a").await.good();
    assert_eq!(shown["retry"]["max"], 2);
    assert_eq!(shown["priority"], 9);
    assert_eq!(shown["labels"]["tier"], "1");
    assert_eq!(shown["params"], r#"{"month":3,"part":0.5}"#);
    assert_eq!(shown["end_at"], "2030-01-01T00:00:00.000Z");
    for (path, body) in [
        (
            "/preview",
            json!({ "schedule": {"every": "10s"}, "n": 2.0, "from": 3_909.0 }),
        ),
        ("/jobs/a/restore", json!({ "version": 1.0 })),
        ("/dead/delete", json!({ "ids": [1.0] })),
        ("/enrolment-tokens", json!({ "uses": 3.0 })),
    ] {
        server.post(path, &body).await.good();
    }
    for (path, body) in [
        (
            "/preview",
            json!({ "schedule": {"every": "10s"}, "n": 1.5 }),
        ),
        // Beyond 2^53, several texts have the same floating-point number.
        ("/dead/delete", json!({ "ids": [9_007_199_254_740_992.0] })),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {answer:?}");
    }
}

async fn change_user(server: &Server, body: Option<&Value>) -> Answer {
    server
        .by(TOKEN, Method::PATCH, "/api/v1/users/ann", body)
        .await
}

#[tokio::test]
async fn a_change_of_a_user_has_to_change_something() {
    let server = Server::start().await;
    let ann = json!({ "name": "ann", "grants": [{"role": "viewer"}] });
    server.post("/users", &ann).await.good();
    let schema = schema("UserChange");
    for (body, is_good) in [
        (json!({}), false),
        (json!({ "if_version": 1 }), false),
        (json!({ "display_name": null }), false),
        (json!({ "display_name": "Ann", "if_version": 1 }), true),
        (json!({ "grants": [] }), true),
        (json!({ "enabled": false }), true),
    ] {
        assert_eq!(schema.is_valid(&body), is_good, "{body}");
        let answer = change_user(&server, Some(&body)).await;
        assert_eq!(answer.status.is_success(), is_good, "{body}: {answer:?}");
    }
    let answer = change_user(&server, None).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.text.contains("nothing to change"), "{answer:?}");
}

#[tokio::test]
async fn the_lifetime_of_a_token_and_its_scope_are_those_of_the_schema() {
    let server = Server::start().await;
    let schema = schema("NewEnrolmentToken");
    for (body, is_good) in [
        (json!({}), true),
        (json!({ "valid": "1s" }), true),
        (json!({ "valid": "1000ms" }), true),
        (json!({ "valid": "never" }), true),
        (json!({ "valid": "3650d" }), true),
        (json!({ "valid": "250ms" }), false),
        (json!({ "valid": "3651d" }), false),
        (json!({ "all_namespaces": true }), true),
        (json!({ "all_namespaces": true, "group": "a" }), false),
        (json!({ "executor": "one" }), false),
        (json!({ "executor": "one", "group": "a" }), true),
    ] {
        assert_eq!(schema.is_valid(&body), is_good, "{body}");
        let answer = server.post("/enrolment-tokens", &body).await;
        assert_eq!(answer.status.is_success(), is_good, "{body}: {answer:?}");
    }
}

#[tokio::test]
async fn the_password_of_another_user_may_be_set_with_the_old_one_beside_it() {
    let server = Server::start().await;
    let ann = json!({ "name": "ann", "password": "correct horse battery" });
    server.post("/users", &ann).await.good();
    let body = json!({ "password": "another long password", "old_password": "not looked at" });
    assert!(schema("NewPassword").is_valid(&body));
    server.post("/users/ann/password", &body).await.good();
    let longer = json!({ "password": "another long password", "old_password": "x".repeat(257) });
    assert!(!schema("NewPassword").is_valid(&longer));
    let answer = server.post("/users/ann/password", &longer).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    let login = json!({ "name": "ann", "password": "another long password" });
    server.post("/login", &login).await.good();
}

#[tokio::test]
async fn an_empty_window_has_no_fire_times() {
    let server = Server::start().await;
    let job = json!({ "name": "a", "schedule": {"every": "1s"}, "handler": {"native": "x"} });
    server
        .post("/jobs/apply", &json!({ "jobs": [job] }))
        .await
        .good();
    let page = server.get("/jobs/a/ledger?from=1000&to=1000").await.good();
    assert_eq!(
        (&page["entries"], &page["more"]),
        (&json!([]), &json!(false))
    );
    let unknown = server.get("/jobs/none/ledger?from=1000&to=1000").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_answered_without_a_body_as_declared() {
    let server = Server::start().await;
    let lines: Vec<String> = (0..150).map(|i| format!("X-{i}: 1")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut raw = Raw::connect(&server).await;
    raw.send(&request("GET /livez HTTP/1.1", &lines, b"")).await;
    let reply = raw.reply().await.expect("a reply");
    assert_eq!((reply.status, reply.text().as_str()), (431, ""));
    let document = document();
    assert!(document["components"]["responses"]["LargeHead"]["content"].is_null());
    for (path, method, operation) in operations(&document) {
        for status in ["414", "431"] {
            let declared = &operation["responses"][status];
            assert!(declared["$ref"].is_string(), "{method} {path} {status}");
        }
    }
}

#[test]
fn parameters_of_the_provider_are_declared_as_free() {
    let document = document();
    let operation = &document["paths"]["/api/v1/login/oidc/callback"]["get"];
    let parameters = operation["parameters"].as_array().expect("parameters");
    let others = parameters.iter().find(|one| one["name"] == "others");
    let others = others.expect("a parameter");
    assert_eq!(
        (&others["style"], &others["explode"]),
        (&json!("form"), &json!(true))
    );
    let schema = schema("ProviderParameters");
    assert!(schema.is_valid(&json!({ "session_state": "0a1b" })));
    assert!(!schema.is_valid(&json!({ "code": "c" })));
}
