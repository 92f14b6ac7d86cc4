//! The refusals that follow from a path and its method alone. Annotations declare the others: 409 and 422.

use serde_json::{Map, Value, json};

/// A status with the name of its response in the document.
type Refusal = (u16, &'static str);

const MALFORMED: Refusal = (400, "Malformed");
const UNAUTHORIZED: Refusal = (401, "Unauthorized");
const FORBIDDEN: Refusal = (403, "Forbidden");
const NOT_FOUND: Refusal = (404, "NotFound");
const TOO_SLOW: Refusal = (408, "TooSlow");
const TOO_LARGE: Refusal = (413, "TooLarge");
const NOT_JSON: Refusal = (415, "NotJson");
const TOO_MANY: Refusal = (429, "TooMany");
const STORE_BROKEN: Refusal = (500, "StoreBroken");
const UNAVAILABLE: Refusal = (503, "Unavailable");

const DESCRIPTIONS: [(Refusal, &str); 10] = [
    (
        MALFORMED,
        "A parameter or a field is malformed. `errors` names each.",
    ),
    (
        UNAUTHORIZED,
        "The token, the session, the password or the set-up secret is missing or wrong.",
    ),
    (
        FORBIDDEN,
        "The caller has no right to this, or a request with a session has no valid `X-CSRF-Token`.",
    ),
    (
        NOT_FOUND,
        "What the path names does not exist, or the caller may not read it.",
    ),
    (TOO_SLOW, "The body did not arrive within 30 s."),
    (TOO_LARGE, "The body is over 4 MiB."),
    (NOT_JSON, "The body is not `application/json`."),
    (
        TOO_MANY,
        "A login or a password was tried too often, for this name or from this address.",
    ),
    (
        STORE_BROKEN,
        "The store is unusable. The log of the server has the reason.",
    ),
    (
        UNAVAILABLE,
        "The store or the broker is busy, or the server is stopping. With the type `cueline:still-publishing`, the \
         change is committed.",
    ),
];

/// Paths whose requests prove who sends them by the body.
const BY_BODY: [&str; 2] = ["/api/v1/login", "/api/v1/setup"];
/// Paths whose requests prove it by an identity provider. Their annotations say why it may fail.
const BY_PROVIDER: [&str; 2] = ["/api/v1/login/oidc", "/api/v1/login/oidc/callback"];
/// Paths whose attempts are limited.
const LIMITED: [&str; 3] = [
    "/api/v1/login",
    "/api/v1/login/oidc/callback",
    "/api/v1/users/{name}/password",
];

/// Whether requests to the path need a token or a session.
pub(super) fn needs_token(path: &str) -> bool {
    (is_api(path) || path == "/metrics") && !BY_BODY.contains(&path) && !BY_PROVIDER.contains(&path)
}

/// Whether the path belongs to the versioned API, which reads the store.
fn is_api(path: &str) -> bool {
    path == "/api/v1" || path.starts_with("/api/v1/")
}

/// The refusals of an operation.
pub(super) fn of(path: &str, method: &str) -> Vec<Refusal> {
    let is_probe = path == "/livez" || path == "/readyz";
    let rules: [(bool, &[Refusal]); 7] = [
        (!is_probe, &[MALFORMED]),
        (
            needs_token(path) || BY_BODY.contains(&path),
            &[UNAUTHORIZED],
        ),
        (needs_token(path), &[FORBIDDEN]),
        (LIMITED.contains(&path), &[TOO_MANY]),
        (path.contains('{'), &[NOT_FOUND]),
        // Requests that may have a body.
        (
            matches!(method, "post" | "put" | "patch"),
            &[TOO_SLOW, TOO_LARGE, NOT_JSON],
        ),
        (
            is_api(path) || path == "/readyz",
            &[STORE_BROKEN, UNAVAILABLE],
        ),
    ];
    rules
        .into_iter()
        .filter(|(applies, _)| *applies)
        .flat_map(|(_, refusals)| refusals.iter().copied())
        .collect()
}

/// The responses of all refusals, by name.
pub(super) fn responses() -> Map<String, Value> {
    let response = |((status, name), description): (Refusal, &str)| {
        let schema = json!({ "$ref": "#/components/schemas/Problem" });
        let mut response = json!({
            "description": description,
            "content": { "application/problem+json": { "schema": schema } },
        });
        if status == UNAUTHORIZED.0 {
            response["headers"]["WWW-Authenticate"] = json!({ "schema": { "type": "string" } });
        }
        if status == TOO_MANY.0 || status == UNAVAILABLE.0 {
            response["headers"]["Retry-After"] = json!({
                "description": "The time to wait, in seconds.",
                "schema": { "type": "integer", "minimum": 0 },
            });
        }
        (name.to_owned(), response)
    };
    DESCRIPTIONS.into_iter().map(response).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(path: &str, method: &str) -> Vec<u16> {
        of(path, method)
            .into_iter()
            .map(|(status, _)| status)
            .collect()
    }

    #[test]
    fn refusals_follow_from_the_path_and_the_method() {
        assert!(statuses("/livez", "get").is_empty());
        assert_eq!(statuses("/readyz", "get"), [500, 503]);
        assert_eq!(statuses("/api/openapi.json", "get"), [400]);
        assert_eq!(statuses("/metrics", "get"), [400, 401, 403]);
        assert_eq!(
            statuses("/api/v1/jobs/{name}", "get"),
            [400, 401, 403, 404, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/jobs/apply", "post"),
            [400, 401, 403, 408, 413, 415, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/login", "post"),
            [400, 401, 429, 408, 413, 415, 500, 503]
        );
        assert_eq!(statuses("/api/v1/login/oidc", "get"), [400, 500, 503]);
        assert_eq!(
            statuses("/api/v1/login/oidc/callback", "get"),
            [400, 429, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/users/{name}", "patch"),
            [400, 401, 403, 404, 408, 413, 415, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/quota", "put"),
            [400, 401, 403, 408, 413, 415, 500, 503]
        );
    }

    #[test]
    fn each_refusal_of_an_operation_has_a_response() {
        let responses = responses();
        for (_, name) in of("/api/v1/jobs/{name}/pause", "post") {
            assert!(responses.contains_key(name), "{name}");
        }
        assert_eq!(responses.len(), DESCRIPTIONS.len());
    }
}
