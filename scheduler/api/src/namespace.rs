//! The namespace of a request.
//!
//! Each path under `/api/v1/namespaces/{namespace}` is the path under `/api/v1` without that part. It is taken out before
//! the request is routed, so that each route is in the table once, and [`axum::extract::MatchedPath`] never has a namespace.
//! Handlers read names with [`InNamespace`], which refuses those of another namespace.

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::middleware::map_request;
use cueline_model::{GroupName, JobName, NameError, Namespace};
use cueline_store::{RunDetail, StoreError};

use crate::ApiState;
use crate::problem::{FieldProblem, Problem};
use crate::query::Params;

const BASE: &str = "/api/v1";
const PREFIX: &str = "/api/v1/namespaces/";

/// The parameter with which lists have the entries of all namespaces.
pub(crate) const ALL: &str = "all_namespaces";

/// The namespace that the path of a request names. Requests without one have no such extension.
#[derive(Debug, Clone)]
struct Named(Result<Namespace, String>);

/// Puts the namespace of a path into the request's extensions, and routes the rest of the path with `inner`.
pub(crate) fn route(inner: Router) -> Router {
    // A fallback has no route. The layer around it runs before `inner` looks at the path.
    Router::new()
        .fallback_service(inner)
        .layer(map_request(take_out))
}

async fn take_out(mut request: Request) -> Request {
    if let Some((named, uri)) = split(request.uri()) {
        *request.uri_mut() = uri;
        request.extensions_mut().insert(named);
    }
    request
}

/// The namespace of a path, and the path without it.
fn split(uri: &Uri) -> Option<(Named, Uri)> {
    let rest = uri.path().strip_prefix(PREFIX)?;
    let (segment, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let named = decoded(segment)
        .ok_or_else(|| format!("{segment:?} is not percent-encoded UTF-8"))
        .and_then(|text| {
            let parsed = text.parse::<Namespace>();
            parsed.map_err(|error| format!("{text:?}: {error}"))
        });
    let mut path = format!("{BASE}{rest}");
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    let uri = Uri::from_parts(parts).ok()?;
    Some((Named(named), uri))
}

/// The text of a percent-encoded segment of a path.
fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// The namespace of a request: that of its path, or `default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InNamespace(pub(crate) Namespace);

impl<S: Send + Sync> FromRequestParts<S> for InNamespace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<Named>() {
            None => Ok(Self(Namespace::default())),
            Some(Named(Ok(namespace))) => Ok(Self(namespace.clone())),
            Some(Named(Err(message))) => Err(Problem::malformed_fields(vec![FieldProblem::new(
                "namespace",
                message,
            )])),
        }
    }
}

/// Refuses a request for what belongs to no namespace under the path of another namespace than `default`.
pub(crate) struct NoNamespace;

impl<S: Send + Sync> FromRequestParts<S> for NoNamespace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let InNamespace(namespace) = InNamespace::from_request_parts(parts, state).await?;
        if namespace.is_default() {
            return Ok(Self);
        }
        Err(Problem::not_found(format!(
            "this belongs to no namespace; ask for it without /namespaces/{namespace}"
        )))
    }
}

impl InNamespace {
    /// The job with this name: a local one, or a qualified one of this namespace.
    pub(crate) fn job(&self, text: &str) -> Result<JobName, String> {
        let name = if text.contains('/') {
            text.parse()
        } else {
            JobName::in_namespace(&self.0, text)
        };
        self.own(text, name, JobName::is_in)
    }

    /// The group with this name: a local one, or a qualified one of this namespace.
    pub(crate) fn group(&self, text: &str) -> Result<GroupName, String> {
        let name = if text.contains('/') {
            text.parse()
        } else {
            GroupName::in_namespace(&self.0, text)
        };
        self.own(text, name, GroupName::is_in)
    }

    fn own<T>(
        &self,
        text: &str,
        name: Result<T, NameError>,
        is_in: impl FnOnce(&T, &Namespace) -> bool,
    ) -> Result<T, String> {
        let name = name.map_err(|error| error.to_string())?;
        if is_in(&name, &self.0) {
            return Ok(name);
        }
        Err(format!(
            "{text:?} is in another namespace than the request, which is for {}; '/' is not allowed in a local name",
            self.0
        ))
    }

    /// The namespace whose entries a list has; `None` for all of them, which the parameter [`ALL`] asks for.
    pub(crate) fn listed(&self, params: &mut Params) -> Option<Namespace> {
        if !params.flag(ALL) {
            return Some(self.0.clone());
        }
        if !self.0.is_default() {
            let message = format!("not possible under /namespaces/{}; leave that out", self.0);
            params.refuse(ALL, message);
        }
        None
    }

    /// The detail of a run, if it is in the namespace.
    pub(crate) fn has(&self, job: &cueline_model::JobName) -> bool {
        job.is_in(&self.0)
    }

    /// A run of a job of the namespace.
    pub(crate) async fn run(
        &self,
        state: &ApiState,
        run: cueline_model::RunId,
    ) -> Result<RunDetail, Problem> {
        let detail = state.store.run(run).await?;
        if detail.run.job.is_in(&self.0) {
            Ok(detail)
        } else {
            // The same answer as for a run that does not exist.
            Err(StoreError::no_run(run).into())
        }
    }
}

/// Whether `group` is in the namespace; `None` stands for all namespaces.
pub(crate) fn has_group(namespace: Option<&Namespace>, group: &GroupName) -> bool {
    namespace.is_none_or(|namespace| group.is_in(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &str) -> Option<(Result<String, String>, String)> {
        let (Named(named), uri) = split(&uri.parse().expect("a URI"))?;
        Some((named.map(|n| n.to_string()), uri.to_string()))
    }

    #[test]
    fn the_namespace_is_taken_out_of_the_path() {
        let team = |path: &str| Some((Ok("team-a".to_owned()), path.to_owned()));
        assert_eq!(
            read("/api/v1/namespaces/team-a/jobs/x?n=1"),
            team("/api/v1/jobs/x?n=1")
        );
        assert_eq!(read("/api/v1/namespaces/team-a"), team("/api/v1"));
        assert_eq!(read("/api/v1/namespaces/team%2Da/"), team("/api/v1/"));
        for other in ["/api/v1/jobs", "/api/v1/namespaces", "/livez", "/"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn a_wrong_namespace_is_kept_for_the_answer() {
        for (path, words) in [
            ("/api/v1/namespaces//jobs", "must not be empty"),
            ("/api/v1/namespaces/a%2Fb/jobs", "not allowed"),
            ("/api/v1/namespaces/%zz/jobs", "percent-encoded"),
            ("/api/v1/namespaces/%FF/jobs", "percent-encoded"),
            ("/api/v1/namespaces/../jobs", "starts with"),
        ] {
            let (named, rest) = read(path).expect("has a namespace");
            assert!(named.expect_err("is refused").contains(words), "{path}");
            assert_eq!(rest, "/api/v1/jobs");
        }
    }

    #[test]
    fn a_name_of_another_namespace_is_refused() {
        let team = InNamespace("team-a".parse().expect("a namespace"));
        let name: JobName = "team-a/x".parse().expect("a name");
        assert_eq!(team.job("x"), Ok(name.clone()));
        assert_eq!(team.job("team-a/x"), Ok(name));
        for other in ["team-b/x", "default/x", "a/b/c"] {
            assert!(team.job(other).is_err(), "{other}");
            assert!(team.group(other).is_err(), "{other}");
        }
        let default = InNamespace(Namespace::default());
        assert!(default.job("team-a/x").is_err());
        assert_eq!(
            default.job("default/x").map(|n| n.to_string()),
            Ok("x".into())
        );
    }
}
