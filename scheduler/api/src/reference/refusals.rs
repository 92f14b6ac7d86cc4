//! The refusals that follow from a path and its method alone, and from the parameters of a list. Annotations declare the
//! others: 409, 412 and 422.

use serde_json::{Map, Value, json};

/// A status with the name of its response in the document.
pub(super) type Refusal = (u16, &'static str);

const MALFORMED: Refusal = (400, "Malformed");
const UNAUTHORIZED: Refusal = (401, "Unauthorized");
const FORBIDDEN: Refusal = (403, "Forbidden");
const NOT_FOUND: Refusal = (404, "NotFound");
const TOO_SLOW: Refusal = (408, "TooSlow");
const TOO_LARGE: Refusal = (413, "TooLarge");
/// The refusal of a list whose parameters do not fit each other, or have a cursor that no page has given.
pub(super) const UNFIT_VALUE: Refusal = (422, "UnfitValue");
const LONG_URI: Refusal = (414, "LongUri");
const NOT_JSON: Refusal = (415, "NotJson");
const TOO_MANY: Refusal = (429, "TooMany");
const LARGE_HEAD: Refusal = (431, "LargeHead");
const STORE_BROKEN: Refusal = (500, "StoreBroken");
const UNAVAILABLE: Refusal = (503, "Unavailable");

/// Refusals of requests that are not read to the end of their headers. They have no body.
const OF_HEADS: [Refusal; 2] = [LONG_URI, LARGE_HEAD];

const DESCRIPTIONS: [(Refusal, &str); 13] = [
    (
        MALFORMED,
        "A parameter or a field is malformed. `errors` names each. What is no HTTP request gets this status without a body.",
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
    (
        TOO_LARGE,
        "The body is over 4 MiB, or over 64 KiB on a path that needs no token.",
    ),
    (
        LONG_URI,
        "The URI is too long. There is no body, and the connection is closed.",
    ),
    (
        NOT_JSON,
        "The body is not `application/json`, or has a `Content-Encoding`.",
    ),
    (
        UNFIT_VALUE,
        "A value is well formed, and does not fit the others or what the server knows: `after` is not the `next` of this list \
         in this order, or the time ends before it begins. `errors` names each.",
    ),
    (
        TOO_MANY,
        "A login or a password was tried too often, for this name or from this address.",
    ),
    (
        LARGE_HEAD,
        "The request line and the headers have more than 32 KiB, or there are more than 100 headers. There is no body, and \
         the connection is closed.",
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
    let rules: [(bool, &[Refusal]); 8] = [
        (true, &OF_HEADS),
        (!is_probe, &[MALFORMED]),
        (
            needs_token(path) || BY_BODY.contains(&path),
            &[UNAUTHORIZED],
        ),
        (needs_token(path), &[FORBIDDEN]),
        (LIMITED.contains(&path), &[TOO_MANY]),
        // A replacement creates what does not exist.
        (path.contains('{') && method != "put", &[NOT_FOUND]),
        // Requests that may have a body.
        (
            matches!(method, "post" | "put" | "patch"),
            &[TOO_SLOW, TOO_LARGE, NOT_JSON],
        ),
        // Tokens are in the store, so `/metrics` needs it too.
        (
            is_api(path) || path == "/readyz" || path == "/metrics",
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
        let mut response = json!({ "description": description });
        if !OF_HEADS.contains(&(status, name)) {
            let schema = json!({ "$ref": "#/components/schemas/Problem" });
            response["content"]["application/problem+json"]["schema"] = schema;
        }
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
        assert_eq!(statuses("/livez", "get"), [414, 431]);
        assert_eq!(statuses("/readyz", "get"), [414, 431, 500, 503]);
        assert_eq!(statuses("/api/openapi.json", "get"), [414, 431, 400]);
        assert_eq!(
            statuses("/metrics", "get"),
            [414, 431, 400, 401, 403, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/jobs/{name}", "get"),
            [414, 431, 400, 401, 403, 404, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/jobs/apply", "post"),
            [414, 431, 400, 401, 403, 408, 413, 415, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/jobs/{name}", "put"),
            [414, 431, 400, 401, 403, 408, 413, 415, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/login", "post"),
            [414, 431, 400, 401, 429, 408, 413, 415, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/login/oidc", "get"),
            [414, 431, 400, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/login/oidc/callback", "get"),
            [414, 431, 400, 429, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/users/{name}", "patch"),
            [414, 431, 400, 401, 403, 404, 408, 413, 415, 500, 503]
        );
        assert_eq!(
            statuses("/api/v1/quota", "put"),
            [414, 431, 400, 401, 403, 408, 413, 415, 500, 503]
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

    #[test]
    fn a_response_has_a_problem_unless_the_headers_were_not_read() {
        for (name, response) in responses() {
            let has_problem = response["content"]["application/problem+json"].is_object();
            let of_heads = name == "LongUri" || name == "LargeHead";
            assert_eq!(has_problem, !of_heads, "{name}");
        }
    }

    #[test]
    fn the_description_has_the_limits_of_heads() {
        let kib = cueline_http::MAX_HEAD_BYTES / 1_024;
        let (_, text) = DESCRIPTIONS
            .into_iter()
            .find(|(refusal, _)| *refusal == LARGE_HEAD)
            .expect("a description");
        assert!(text.contains(&format!("{kib} KiB")), "{text}");
        let headers = cueline_http::MAX_HEADERS;
        assert!(text.contains(&format!("{headers} headers")), "{text}");
    }
}
