//! Puts the document together: annotations, schemas, refusals, security.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::refusals;
use crate::openapi;
use crate::query::MAX_VALUES;

/// The document as JSON. Keys are sorted, so the same annotations always give the same text.
pub(super) fn document(annotations: &OpenApi) -> Value {
    // Annotations always have a JSON form. Without one, the tests of the document would fail.
    let mut document = serde_json::to_value(annotations).unwrap_or_default();
    document["info"] = info();
    document["servers"] = json!([{ "url": "/" }]);
    document["tags"] = tags();
    let components = &mut document["components"];
    components["securitySchemes"] = security_schemes();
    components["responses"] = Value::Object(refusals::responses());
    for (name, schema) in openapi::schemas() {
        components["schemas"][name] = schema;
    }
    let paths = document["paths"].as_object_mut();
    for (path, item) in paths.into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            complete(path, method, operation);
        }
    }
    document
}

fn info() -> Value {
    json!({
        "title": "Cueline",
        "version": env!("CARGO_PKG_VERSION"),
        "summary": "The REST API of a Cueline scheduler",
        "description": "Responses have instants in milliseconds since 1970-01-01T00:00:00Z. Requests with unknown \
                        fields or parameters are refused. Errors are `application/problem+json` (RFC 9457) and list \
                        all mistakes at once. Each path `/api/v1/…` is for the namespace `default`; \
                        `/api/v1/namespaces/{namespace}/…` is the same path for another namespace.",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    })
}

fn tags() -> Value {
    json!([
        { "name": "jobs", "description": "Definitions of jobs, their fire times, and triggers." },
        { "name": "calendars", "description": "Calendars, which exclude fire times of jobs." },
        { "name": "windows", "description": "Maintenance windows, in which jobs do not fire." },
        { "name": "pauses", "description": "Pauses of all jobs, of a namespace, of a group, or of jobs with labels." },
        { "name": "backfills", "description": "Runs for the fire times of past windows." },
        { "name": "alarms", "description": "Alarms: their rules, channels and silences, and the deliveries of messages." },
        { "name": "runs", "description": "Runs of jobs, with their logs." },
        { "name": "flows", "description": "Flow runs: fires without a parent, with all that follows from them." },
        { "name": "queues", "description": "The queues of executors." },
        { "name": "dead letters", "description": "Messages that were refused." },
        { "name": "worker keys", "description": "Keys that seal the messages of workers, and the tokens that enrol them." },
        { "name": "namespaces", "description": "Namespaces and their quotas." },
        { "name": "accounts", "description": "Users, sessions and API tokens." },
        { "name": "audit log", "description": "Who changed what." },
        { "name": "server", "description": "The server, its executors and this document." },
    ])
}

fn security_schemes() -> Value {
    json!({
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The header `Authorization: Bearer TOKEN`, with the admin token of the server or an API token.",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": "cueline_session",
            "description": "The session of a browser, which a login has begun.",
        },
        "csrf": {
            "type": "apiKey",
            "in": "header",
            "name": "X-CSRF-Token",
            "description": "The `csrf` of the session. Requests with a session need it, unless they only read.",
        },
    })
}

/// What a request with a session needs.
fn session(method: &str) -> Value {
    if method == "get" {
        json!({ "session": [] })
    } else {
        json!({ "session": [], "csrf": [] })
    }
}

/// Adds to one operation what its annotation does not say.
fn complete(path: &str, method: &str, operation: &mut Value) {
    operation["security"] = if refusals::needs_token(path) {
        json!([{ "token": [] }, session(method)])
    } else {
        json!([])
    };
    let of_list = has_page_cursor(operation).then_some(refusals::UNFIT_VALUE);
    for (status, name) in refusals::of(path, method).into_iter().chain(of_list) {
        let reference = format!("#/components/responses/{name}");
        operation["responses"][status.to_string()] = json!({ "$ref": reference });
    }
    let parameters = operation.get_mut("parameters");
    for parameter in parameters
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let schema = &mut parameter["schema"];
        refuse_null(schema);
        if schema["type"] == "array" {
            schema["maxItems"] = MAX_VALUES.into();
        }
    }
    let body = operation.get_mut("requestBody");
    let content = body.and_then(|body| body.get_mut("content"));
    for media_type in content
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(Map::values_mut)
    {
        refuse_null(&mut media_type["schema"]);
    }
}

/// Whether the operation is a list with pages.
fn has_page_cursor(operation: &Value) -> bool {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let mut parameters = parameters.into_iter().flatten();
    parameters.any(|parameter| parameter["schema"].to_string().contains("PageCursor"))
}

/// An optional parameter or body may be absent. The annotation `Option<…>` would also allow `null`.
fn refuse_null(schema: &mut Value) {
    let kinds: Vec<Value> = match &schema["type"] {
        Value::Array(kinds) => kinds
            .iter()
            .filter(|kind| *kind != "null")
            .cloned()
            .collect(),
        _ => Vec::new(),
    };
    if let [kind] = &kinds[..] {
        schema["type"] = kind.clone();
    }
    let only = match schema["oneOf"].as_array().map(Vec::as_slice) {
        Some([null, other] | [other, null]) if null["type"] == "null" => Some(other.clone()),
        _ => None,
    };
    if let Some(only) = only {
        *schema = only;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_with_a_session_needs_the_header() {
        assert_eq!(session("get"), json!({ "session": [] }));
        for method in ["post", "patch", "delete"] {
            assert_eq!(session(method), json!({ "session": [], "csrf": [] }));
        }
    }

    #[test]
    fn a_list_with_pages_refuses_what_does_not_fit() {
        let cursor = json!({ "$ref": "#/components/schemas/PageCursor" });
        let mut list =
            json!({ "parameters": [{ "name": "after", "schema": cursor }], "responses": {} });
        complete("/api/v1/runs", "get", &mut list);
        let mut other = json!({ "parameters": [{ "name": "n", "schema": {} }], "responses": {} });
        complete("/api/v1/jobs/{name}/next", "get", &mut other);
        assert!(list["responses"]["422"].is_object());
        assert!(other["responses"]["422"].is_null());
    }

    #[test]
    fn an_optional_parameter_does_not_accept_null() {
        let reference = json!({ "$ref": "#/components/schemas/Name" });
        let nothing = json!({ "type": "null" });
        for (given, expected) in [
            (json!({ "oneOf": [nothing, reference] }), reference.clone()),
            (json!({ "oneOf": [reference, nothing] }), reference.clone()),
            (
                json!({ "type": ["array", "null"] }),
                json!({ "type": "array" }),
            ),
            (json!({ "type": "string" }), json!({ "type": "string" })),
        ] {
            let mut schema = given.clone();
            refuse_null(&mut schema);
            assert_eq!(schema, expected, "{given}");
        }
    }
}
