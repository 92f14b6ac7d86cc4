//! The headers `If-Match` and `If-None-Match` (RFC 9110, section 13.1).
//!
//! The store compares in the transaction of the change, so of two callers with the same tag exactly one succeeds. A request
//! that would ignore such a header is refused: its caller relies on it.

use axum::Json;
use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cueline_store::{Precondition, Revision};
use serde::Serialize;

use crate::etag::{self, Tag, Tags, etag};
use crate::problem::{FieldProblem, Problem};

/// The requests that honour `If-Match`: method and route.
const IF_MATCH: [(&str, &str); 18] = [
    ("PUT", "/api/v1/alarms/channels/{name}"),
    ("DELETE", "/api/v1/alarms/channels/{name}"),
    ("PUT", "/api/v1/alarms/rules/{name}"),
    ("DELETE", "/api/v1/alarms/rules/{name}"),
    ("PUT", "/api/v1/calendars/{name}"),
    ("DELETE", "/api/v1/calendars/{name}"),
    ("PUT", "/api/v1/jobs/{name}"),
    ("DELETE", "/api/v1/jobs/{name}"),
    ("POST", "/api/v1/jobs/{name}/pause"),
    ("POST", "/api/v1/jobs/{name}/resume"),
    ("POST", "/api/v1/jobs/{name}/restore"),
    ("POST", "/api/v1/jobs/{name}/trigger"),
    ("PUT", "/api/v1/scripts/{name}"),
    ("DELETE", "/api/v1/scripts/{name}"),
    ("POST", "/api/v1/scripts/{name}/restore"),
    ("PATCH", "/api/v1/users/{name}"),
    ("DELETE", "/api/v1/users/{name}"),
    ("POST", "/api/v1/users/{name}/password"),
];

/// Those that honour `If-None-Match`, besides requests that only read.
const IF_NONE_MATCH: [(&str, &str); 5] = [
    ("PUT", "/api/v1/alarms/channels/{name}"),
    ("PUT", "/api/v1/alarms/rules/{name}"),
    ("PUT", "/api/v1/jobs/{name}"),
    ("PUT", "/api/v1/calendars/{name}"),
    ("PUT", "/api/v1/scripts/{name}"),
];

/// An answer with the tag of the object.
///
/// No cache may keep it. A response also shows what changes without a new tag, such as the last run of a job, and a cache
/// would take the old one for the present one.
pub(crate) type Tagged<T> = ([(HeaderName, String); 2], Json<T>);

/// An answer with the tag of the object.
pub(crate) fn tagged<T>(revision: Revision, body: T) -> Tagged<T> {
    (headers(revision), Json(body))
}

fn headers(revision: Revision) -> [(HeaderName, String); 2] {
    [
        (header::ETAG, etag(revision)),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ]
}

/// What `If-Match` requires of the object.
pub(crate) struct IfMatch(pub(crate) Precondition);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(match tags(&parts.headers, &header::IF_MATCH)? {
            None => Precondition::None,
            Some(Tags::Any) => Precondition::Exists,
            // A weak tag never matches.
            Some(Tags::These(tags)) => {
                let strong = tags.into_iter().filter(|tag| !tag.is_weak);
                Precondition::OneOf(strong.filter_map(|tag| tag.revision).collect())
            }
        }))
    }
}

/// What `If-Match`, or `If-None-Match: *`, requires of the object that is created or replaced.
pub(crate) struct IfMatchOrNone(pub(crate) Precondition);

impl<S: Send + Sync> FromRequestParts<S> for IfMatchOrNone {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let IfMatch(condition) = IfMatch::from_request_parts(parts, state).await?;
        let name = &header::IF_NONE_MATCH;
        match (tags(&parts.headers, name)?, condition) {
            (None, condition) => Ok(Self(condition)),
            (Some(Tags::Any), Precondition::None) => Ok(Self(Precondition::Absent)),
            (Some(Tags::Any), _) => Err(Problem::unfit_fields(vec![FieldProblem::new(
                field(name),
                "given beside If-Match, so that the request could never succeed; give one of them",
            )])),
            (Some(Tags::These(_)), _) => Err(malformed(
                name,
                "this request takes * only, for what does not exist yet; for a version that exists, give If-Match",
            )),
        }
    }
}

/// The tags of `If-None-Match` in a request that reads.
pub(crate) struct IfNoneMatch(Option<Tags>);

impl<S: Send + Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(tags(&parts.headers, &header::IF_NONE_MATCH)?))
    }
}

impl IfNoneMatch {
    /// The object with its tag; only the tag (304) if the caller has it.
    pub(crate) fn answer<T: Serialize>(&self, revision: Revision, body: T) -> Response {
        // A weak tag matches here.
        let is_known = match &self.0 {
            None => false,
            Some(Tags::Any) => true,
            Some(Tags::These(tags)) => {
                let is_this = |tag: &Tag| tag.revision == Some(revision);
                tags.iter().any(is_this)
            }
        };
        if is_known {
            (StatusCode::NOT_MODIFIED, headers(revision)).into_response()
        } else {
            tagged(revision, body).into_response()
        }
    }
}

/// The tags of a header; those of several headers of that name are one list.
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Problem> {
    let values: Vec<&[u8]> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if values.is_empty() {
        return Ok(None);
    }
    let parsed = etag::parse(&values.join(&b","[..]));
    parsed.map(Some).map_err(|error| malformed(name, error))
}

fn malformed(name: &HeaderName, message: impl Into<String>) -> Problem {
    Problem::malformed_fields(vec![FieldProblem::new(field(name), message)])
}

fn field(name: &HeaderName) -> &'static str {
    if *name == header::IF_MATCH {
        "If-Match"
    } else {
        "If-None-Match"
    }
}

/// Refuses a change with a precondition that its handler does not look at.
pub(crate) fn refuse_ignored(request: &Request) -> Result<(), Problem> {
    let route = request.extensions().get::<MatchedPath>();
    let ignored = route.and_then(|route| {
        let names = [
            (header::IF_MATCH, &IF_MATCH[..]),
            (header::IF_NONE_MATCH, &IF_NONE_MATCH[..]),
        ];
        names.into_iter().find_map(|(name, honoured)| {
            let is_honoured = honours(honoured, request.method(), route.as_str());
            (request.headers().contains_key(&name) && !is_honoured).then_some(name)
        })
    });
    match ignored {
        Some(name) => Err(malformed(
            &name,
            "this request has no such precondition; leave the header out",
        )),
        None => Ok(()),
    }
}

/// Whether a request looks at the header. One that only reads may ignore it without harm.
fn honours(honoured: &[(&str, &str)], method: &Method, route: &str) -> bool {
    method.is_safe() || honoured.contains(&(method.as_str(), route))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read<T: FromRequestParts<(), Rejection = Problem>>(
        headers: &[(&str, &str)],
    ) -> Result<T, Problem> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let (mut parts, _) = request.into_parts();
        T::from_request_parts(&mut parts, &()).await
    }

    fn one_of(revisions: &[(i64, i64)]) -> Precondition {
        let revision = |(id, version): &(i64, i64)| Revision {
            id: *id,
            version: *version,
        };
        Precondition::OneOf(revisions.iter().map(revision).collect())
    }

    #[tokio::test]
    async fn if_match_requires_one_of_the_strong_tags() {
        for (headers, expected) in [
            (&[][..], Precondition::None),
            (&[("if-match", "*")], Precondition::Exists),
            (&[("if-match", "\"1-2\"")], one_of(&[(1, 2)])),
            (
                &[("if-match", "\"1-2\", W/\"1-3\""), ("if-match", "\"1-4\"")],
                one_of(&[(1, 2), (1, 4)]),
            ),
            (&[("if-match", "W/\"1-2\"")], one_of(&[])),
        ] {
            let IfMatch(found) = read(headers).await.expect("is well formed");
            assert_eq!(found, expected, "{headers:?}");
        }
        let refused = read::<IfMatch>(&[("if-match", "1-2")]).await;
        let problem = refused.err().expect("is refused");
        assert_eq!(
            (problem.status, problem.errors[0].field.as_str()),
            (400, "If-Match")
        );
    }

    #[tokio::test]
    async fn a_replacement_has_one_of_both_headers() {
        let star = ("if-none-match", "*");
        let IfMatchOrNone(found) = read(&[star]).await.expect("is well formed");
        assert_eq!(found, Precondition::Absent);
        for headers in [
            &[star, ("if-match", "*")][..],
            &[("if-none-match", "\"1-2\"")],
            &[("if-none-match", "")],
        ] {
            let refused = read::<IfMatchOrNone>(headers).await;
            let problem = refused.err().expect("is refused");
            assert_eq!(problem.errors[0].field, "If-None-Match", "{headers:?}");
        }
    }

    #[test]
    fn a_request_that_reads_may_ignore_a_precondition() {
        let path = "/api/v1/jobs/{name}";
        assert!(honours(&IF_MATCH, &Method::GET, path));
        assert!(honours(&IF_MATCH, &Method::PUT, path));
        assert!(honours(&IF_NONE_MATCH, &Method::PUT, path));
        assert!(!honours(&IF_NONE_MATCH, &Method::DELETE, path));
        assert!(!honours(&IF_MATCH, &Method::POST, "/api/v1/jobs/apply"));
    }
}
