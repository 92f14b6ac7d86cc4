//! The OpenAPI document: committed, and complete.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Server, TOKEN};

const COMMITTED: &str = include_str!("../../../../docs/openapi.json");
const ROUTER: &str = include_str!("../../src/lib.rs");

/// Every field that a definition can have.
pub(crate) fn whole_definition() -> Value {
    json!({
        "name": "whole", "namespace": "default", "group": "default", "description": "all fields",
        "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "dst": "both"},
        "calendars": ["holidays"], "start_at": "2027-01-01T00:00:00Z", "end_at": 1_893_456_000_000_i64, "jitter": "10s",
        "misfire": {"policy": "catch_up", "grace": "1m"}, "route": {"sharded": ["0=Beijing", "1=Shanghai"]},
        "block": {"parallel": 4}, "scope": "executor", "backlog": 10, "timeout": "1h 30m", "kill_grace": "1s",
        "rate_limit": {"count": 10, "per": "second", "key": "smtp"}, "concurrency": {"key": "db", "limit": 3},
        "retry": {"max": 2, "backoff": "exponential", "on": ["failed"]}, "on_lost": "rerun", "fence": "keep",
        "dispatch_deadline": "10m", "priority": 9, "params": {"month": 3}, "labels": {"team": "billing", "tier": 1},
        "enabled": true,
        "handler": {"shell": {"script": "true", "interpreter": "sh", "env": {"A": {"secret": "a"}, "B": 1}, "stdin": "x"}},
    })
}

pub(crate) fn document() -> Value {
    serde_json::from_str(cueline_api::openapi_json()).expect("JSON")
}

/// The path, the method and the operation of each entry.
pub(crate) fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            found.push((path.as_str(), method.as_str(), operation));
        }
    }
    found
}

/// The schemas by name. Objects accept no field that they do not declare, so that undeclared fields are found.
fn closed_schemas(document: &Value) -> Value {
    let mut schemas = document["components"]["schemas"].clone();
    let open = schemas.clone();
    for schema in schemas.as_object_mut().expect("schemas").values_mut() {
        if let Some(reference) = schema["allOf"][0]["$ref"].as_str() {
            let base = &open[reference.rsplit('/').next().expect("a name")];
            for (name, property) in base["properties"].as_object().expect("properties") {
                schema["properties"][name] = property.clone();
            }
            schema.as_object_mut().expect("an object").remove("allOf");
        }
        if schema["properties"].is_object() && schema["additionalProperties"].is_null() {
            schema["additionalProperties"] = json!(false);
        }
    }
    schemas
}

/// A validator of this schema of the document. Making one takes much longer than using it.
pub(crate) fn validator(document: &Value, schema: &Value) -> jsonschema::Validator {
    let root = json!({ "allOf": [schema], "$defs": closed_schemas(document) });
    let text = root
        .to_string()
        .replace("#/components/schemas/", "#/$defs/");
    let root: Value = serde_json::from_str(&text).expect("JSON");
    jsonschema::validator_for(&root).expect("a valid schema")
}

/// What is wrong with `value` by this schema of the document.
pub(crate) fn errors(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    validator(document, schema)
        .iter_errors(value)
        .map(|error| error.to_string())
        .collect()
}

/// A reference to the schema with this name.
pub(crate) fn by_name(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

#[test]
fn the_committed_document_is_the_generated_one() {
    assert!(
        COMMITTED == cueline_api::openapi_json(),
        "docs/openapi.json is out of date; write it with: cargo run -p cueline -- openapi > docs/openapi.json"
    );
}

/// The routes in the text of the router, as `(path, method)`.
fn routes() -> BTreeSet<(String, String)> {
    let mut routes = BTreeSet::new();
    for route in ROUTER.split(".route(").skip(1) {
        let mut parts = route.splitn(3, '"');
        let path = parts.nth(1).expect("a path");
        let handlers = parts.next().expect("handlers");
        let path = match path {
            "/livez" | "/readyz" | "/metrics" => path.to_owned(),
            whole if whole.starts_with("/api/") => whole.to_owned(),
            // The others are nested.
            "/" => "/api/v1".to_owned(),
            other => format!("/api/v1{other}"),
        };
        for method in ["get", "post", "put", "patch", "delete"] {
            let call = format!("{method}(");
            let mut calls = handlers.match_indices(&call);
            let is_call = calls.any(|(at, _)| {
                let before = handlers[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
            });
            if is_call {
                routes.insert((path.clone(), method.to_owned()));
            }
        }
    }
    routes
}

#[test]
fn the_document_has_each_route_of_the_router_and_no_other() {
    let document = document();
    let documented: BTreeSet<(String, String)> = operations(&document)
        .into_iter()
        .map(|(path, method, _)| (path.to_owned(), method.to_owned()))
        .collect();
    assert_eq!(documented, routes());
    assert!(documented.len() > 30, "{documented:?}");
}

#[tokio::test]
async fn a_handler_answers_each_documented_operation() {
    let server = Server::start().await;
    for (path, method, _) in operations(&document()) {
        let path: Vec<&str> = path
            .split('/')
            .map(|part| if part.starts_with('{') { "7" } else { part })
            .collect();
        let path = path.join("/");
        let verb: Method = method.to_uppercase().parse().expect("a method");
        let request = server.bare(verb, &path).bearer_auth(TOKEN);
        let answer = request.send().await.expect("an answer");
        assert_ne!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        // A stream has no end to wait for.
        if answer.status() != StatusCode::OK {
            let text = answer.text().await.expect("a body");
            assert!(!text.contains("there is nothing at"), "{path}");
        }
    }
}

#[tokio::test]
async fn the_index_links_each_documented_path() {
    let server = Server::start().await;
    let index = server.get("").await.good();
    let links = index["links"].as_object().expect("links");
    // One link is the form of all paths of a namespace, which the document does not repeat.
    let links: BTreeSet<&str> = links
        .iter()
        .filter(|(name, _)| *name != "namespace")
        .filter_map(|(_, link)| link.as_str())
        .collect();
    let document = document();
    let unlinked = ["/api/v1", "/livez", "/readyz", "/metrics"];
    let paths: BTreeSet<&str> = operations(&document)
        .into_iter()
        .map(|(path, ..)| path)
        .filter(|path| !unlinked.contains(path))
        .collect();
    assert_eq!(links, paths);
}

#[test]
fn operation_ids_are_unique_words() {
    let document = document();
    let mut seen = BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        let id = operation["operationId"].as_str().expect("an id");
        assert!(
            id.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{id}"
        );
        assert!(seen.insert(id), "{method} {path}: {id} is given twice");
        assert!(operation["summary"].is_string(), "{id} has no summary");
        assert!(operation["tags"][0].is_string(), "{id} has no tag");
    }
}

fn references<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            for field in fields.values() {
                references(field, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                references(item, found);
            }
        }
        _ => {}
    }
}

#[test]
fn each_reference_resolves() {
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 100, "{}", found.len());
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a local reference");
        let target = document.pointer(pointer);
        // Only the placeholder of a schema without a text would be empty.
        let is_described = target
            .and_then(Value::as_object)
            .is_some_and(|t| !t.is_empty());
        assert!(is_described, "{reference}");
    }
}

#[test]
fn each_example_fits_its_schema() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object();
    for (name, schema) in schemas.expect("schemas") {
        for example in schema["examples"].as_array().into_iter().flatten() {
            let errors = errors(&document, &by_name(name), example);
            assert!(errors.is_empty(), "{name}: {example}: {errors:?}");
        }
    }
}

#[test]
fn bodies_of_requests_refuse_unknown_fields() {
    let document = document();
    for name in [
        "ApplyRequest",
        "PreviewRequest",
        "TriggerRequest",
        "RestoreRequest",
        "DeadLetterSelection",
        "NewEnrolmentToken",
        "LoginRequest",
        "SetupRequest",
        "NewUser",
        "UserChange",
        "NewPassword",
        "NewApiToken",
        "NewQuotas",
        "NewGrant",
        "JobDefinition",
        "JobReplacement",
        "ScriptDefinition",
        "ScriptReplacement",
        "ScriptRestore",
    ] {
        let schema = &document["components"]["schemas"][name];
        assert_eq!(schema["additionalProperties"], false, "{name}");
    }
}

#[test]
fn definitions_are_accepted_and_refused_as_by_the_server() {
    let document = document();
    let definition = |change: fn(&mut Value)| {
        let mut job = whole_definition();
        change(&mut job);
        errors(&document, &by_name("JobDefinition"), &job).is_empty()
    };
    assert!(definition(|_| {}));
    assert!(definition(|job| job["misfire"] = json!("skip")));
    assert!(definition(|job| job["retry"] = json!(3)));
    assert!(definition(|job| job["route"] = Value::Null));
    assert!(definition(
        |job| job["schedule"] = json!({"startup": true, "cron": null})
    ));
    assert!(definition(|job| {
        job["schedule"] = Value::Null;
        job["after"] = json!("parent");
    }));
    assert!(!definition(|job| job["unknown"] = json!(1)));
    assert!(!definition(|job| job["name"] = json!("a b")));
    assert!(!definition(|job| job["namespace"] = json!("a/b")));
    assert!(!definition(|job| job["namespace"] = json!("n".repeat(64))));
    assert!(!definition(
        |job| job["schedule"] = json!({"every": "1h", "dst": "both"})
    ));
    assert!(!definition(|job| job["schedule"] = Value::Null));
    assert!(!definition(
        |job| job["handler"] = json!({"shell": "a", "native": "b"})
    ));
    assert!(definition(|job| job["handler"] = json!({"script": "a"})));
    assert!(definition(
        |job| job["handler"] = json!({"script": "a", "version": 2})
    ));
    assert!(definition(
        |job| job["handler"] = json!({"script": {"name": "a", "version": 2, "env": {"A": 1}}})
    ));
    assert!(!definition(
        |job| job["handler"] = json!({"script": {"name": "a"}, "version": 2})
    ));
    assert!(!definition(
        |job| job["handler"] = json!({"shell": "a", "version": 2})
    ));
    assert!(!definition(
        |job| job["handler"] = json!({"script": "a", "version": 0})
    ));
    assert!(!definition(|job| job["timeout"] = json!(10)));
    assert!(!definition(|job| job["priority"] = json!(10)));
    assert!(!definition(|job| job["block"] = json!({"parallel": 0})));
}

#[tokio::test]
async fn the_document_and_its_page_need_no_token() {
    let server = Server::start().await;
    let request = server.bare(Method::GET, "/api/openapi.json");
    let answer = server.send(request).await;
    assert_eq!(answer.content_type, "application/json");
    assert_eq!(answer.text, cueline_api::openapi_json());
    let page = server.bare(Method::GET, "/api/docs").send().await;
    let page = page.expect("an answer");
    assert_eq!(page.status(), StatusCode::OK);
    let policy = page.headers()["content-security-policy"].to_str();
    let policy = policy.expect("a text").to_owned();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let text = page.text().await.expect("a body");
    assert!(text.contains("fetch(\"openapi.json\")"), "{text}");
    let wrong = server.bare(Method::GET, "/api/docs?theme=dark");
    assert_eq!(server.send(wrong).await.status, StatusCode::BAD_REQUEST);
}
