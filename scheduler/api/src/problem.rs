//! Error answers, as `application/problem+json` (RFC 9457).

use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use cueline_model::decode::MAX_PROBLEMS;
use cueline_store::admin::AdminError;
use cueline_store::{ErrorKind, StoreError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One wrong field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldProblem {
    /// The job that it belongs to, if a request has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub job: Option<String>,
    /// The field, with its path: `schedule.cron`.
    pub field: String,
    /// The given value and the accepted ones.
    pub message: String,
}

impl FieldProblem {
    /// A problem with `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            job: None,
            field: field.into(),
            message: message.into(),
        }
    }
}

/// The problems that were found in one request.
///
/// A body of 4 MiB may have a million wrong fields, and an answer that names them all would be many times as large. So
/// only the first [`MAX_PROBLEMS`] are kept. A further entry says that there are more.
#[derive(Debug, Default)]
pub(crate) struct FieldProblems {
    list: Vec<FieldProblem>,
    /// Whether some value is malformed by itself, which the OpenAPI document forbids.
    has_malformed: bool,
}

impl FieldProblems {
    /// Records that a value is malformed, if there is room for it.
    pub(crate) fn push(&mut self, problem: FieldProblem) {
        self.has_malformed = true;
        self.push_unfit(problem);
    }

    /// Records that a well-formed value does not fit the others, or what the server knows.
    pub(crate) fn push_unfit(&mut self, problem: FieldProblem) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(problem);
        } else if self.list.len() == MAX_PROBLEMS {
            let message = format!("more than {MAX_PROBLEMS} problems; the others are not listed");
            self.list.push(FieldProblem::new("", message));
        }
    }

    /// The problems, with a further entry if there are more.
    pub(crate) fn into_list(self) -> Vec<FieldProblem> {
        self.list
    }

    /// Refuses the request if a problem was recorded.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        if self.list.is_empty() {
            Ok(())
        } else if self.has_malformed {
            Err(Problem::malformed_fields(self.list))
        } else {
            Err(Problem::unfit_fields(self.list))
        }
    }
}

/// Why a request was refused or failed.
///
/// Most functions return it as their error, so it is kept small: texts that stay as they are have no spare room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The problem type for programs, as a URI reference: `cueline:not-found`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: Box<str>,
    /// The title of the problem type.
    #[schema(value_type = String)]
    pub title: Box<str>,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// The details of this case.
    pub detail: String,
    /// The wrong fields, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// The id of what an earlier request with the same idempotency key has created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub id: Option<Box<str>>,
    /// Seconds after which the request may succeed, as in the header `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry_after_s: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("cueline:{kind}").into(),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            id: None,
            retry_after_s: None,
        }
    }

    /// The request itself is not well formed.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "malformed",
            "The request is malformed",
            detail,
        )
    }

    /// Fields or parameters of the request are not well formed.
    pub(crate) fn malformed_fields(errors: Vec<FieldProblem>) -> Self {
        Self::malformed(summary(&errors)).with(errors)
    }

    /// Fields or parameters are well formed, and do not fit each other, or what the server knows.
    pub(crate) fn unfit_fields(errors: Vec<FieldProblem>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unfit-value",
            "A value does not fit",
            summary(&errors),
        )
        .with(errors)
    }

    /// A definition that does not fit.
    pub(crate) fn of_definition(problems: Vec<cueline_model::decode::Problem>) -> Self {
        let errors = problems
            .into_iter()
            .map(|problem| FieldProblem::new(&problem.field, problem.message));
        Self::unfit(errors.collect())
    }

    /// A definition is not valid.
    pub(crate) fn unfit(errors: Vec<FieldProblem>) -> Self {
        let title = "The definition does not fit";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unfit",
            title,
            summary(&errors),
        )
        .with(errors)
    }

    /// The token is missing or wrong.
    pub(crate) fn unauthorized(detail: &str) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "The token is missing or wrong",
            detail,
        )
    }

    /// The caller has no right to it.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "You have no right to this",
            detail,
        )
    }

    /// The caller has no right to these fields.
    pub(crate) fn forbidden_fields(errors: Vec<FieldProblem>) -> Self {
        Self::forbidden(summary(&errors)).with(errors)
    }

    /// A password was tried too often, or a login failed too often.
    pub(crate) fn too_many_attempts(wait: Duration) -> Self {
        // Rounded up: after the whole seconds, the next attempt is admitted.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let mut problem = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-attempts",
            "Too many attempts",
            format!(
                "a login was tried too often, for this name or from this address; try again in {seconds} s"
            ),
        );
        problem.retry_after_s = Some(seconds);
        problem
    }

    /// A quota of the namespace is reached.
    pub(crate) fn quota_reached(detail: impl Into<String>, retry_after_ms: u64) -> Self {
        let mut problem = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "quota",
            "A quota is reached",
            detail,
        );
        problem.retry_after_s = Some(retry_after_ms.div_ceil(1_000));
        problem
    }

    /// The body is larger than the path takes.
    pub(crate) fn too_large(most_bytes: usize) -> Self {
        let detail = format!("a request body has at most {most_bytes} bytes here");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "The body is too large",
            detail,
        )
    }

    /// The body did not arrive in time.
    pub(crate) fn too_slow(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "too-slow",
            "The body did not arrive in time",
            detail,
        )
    }

    /// The content type is not JSON.
    pub(crate) fn not_json(detail: impl Into<String>) -> Self {
        let title = "The body is not JSON";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not-json",
            title,
            detail,
        )
    }

    /// The resource does not exist.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            "There is no such thing",
            detail,
        )
    }

    /// The present state does not allow it.
    pub(crate) fn refused(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "conflict",
            "The request conflicts with the stored state",
            detail,
        )
    }

    /// The request may succeed later.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Not possible just now",
            detail,
        )
    }

    /// The change is made, but triggers of the old definition may still be published.
    pub(crate) fn still_publishing(detail: impl Into<String>) -> Self {
        let title = "The change is made, but an old trigger may still be published";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "still-publishing",
            title,
            detail,
        )
    }

    /// The stored objects do not meet the preconditions of the request. Each error has an object's name as its field.
    fn precondition_failed(error: &StoreError) -> Self {
        let mut errors = FieldProblems::default();
        for object in error.refused_objects() {
            errors.push(FieldProblem::new(&object.name, &object.reason));
        }
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition-failed",
            "The stored object is another version",
            error.to_string(),
        )
        .with(errors.into_list())
    }

    /// Whether a precondition was not met.
    pub(crate) fn is_precondition_failed(&self) -> bool {
        self.status == StatusCode::PRECONDITION_FAILED.as_u16()
    }

    /// An earlier request with the same idempotency key has created the object.
    fn already_created(error: &StoreError) -> Self {
        let problem = Self::new(
            StatusCode::CONFLICT,
            "already-created",
            "An earlier request has created it",
            error.to_string(),
        );
        let existing = error.refused_objects().first();
        Self {
            id: existing.map(|object| object.name.as_str().into()),
            ..problem
        }
    }

    fn with(mut self, errors: Vec<FieldProblem>) -> Self {
        self.errors = errors;
        self
    }
}

/// Why a request was refused for want of a right, for the audit log. Responses with status 403 have it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct RefusalReason(pub(crate) String);

/// The most wrong fields that a reason names.
const MAX_FIELDS_IN_REASON: usize = 5;

impl RefusalReason {
    fn of(problem: &Problem) -> Self {
        if problem.errors.is_empty() {
            return Self(problem.detail.clone());
        }
        let errors = problem.errors.iter().take(MAX_FIELDS_IN_REASON);
        let mut parts: Vec<String> = errors
            .map(|error| match &error.job {
                Some(job) => format!("job {job}: {}: {}", error.field, error.message),
                None => format!("{}: {}", error.field, error.message),
            })
            .collect();
        let others = problem.errors.len().saturating_sub(parts.len());
        if others > 0 {
            parts.push(format!("and {others} more"));
        }
        Self(parts.join("; "))
    }
}

fn summary(errors: &[FieldProblem]) -> String {
    match errors {
        [one] if one.field.is_empty() => one.message.clone(),
        [one] => format!("{}: {}", one.field, one.message),
        many => format!("{} fields are invalid", many.len()),
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Store(error) => error.into(),
            AdminError::Broker(_) => Self::unavailable(error.to_string()),
            AdminError::Refused(reason) => Self::refused(reason),
            AdminError::Quota {
                reason,
                retry_after_ms,
            } => Self::quota_reached(reason, retry_after_ms),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = error.to_string();
        match error.kind() {
            ErrorKind::NotFound => Self::not_found(detail),
            ErrorKind::Conflict => Self::new(
                StatusCode::CONFLICT,
                "conflict",
                "The request conflicts with the stored state",
                detail,
            ),
            ErrorKind::Invalid => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "unfit",
                "The definition does not fit",
                detail,
            ),
            ErrorKind::Precondition => Self::precondition_failed(&error),
            ErrorKind::AlreadyCreated => Self::already_created(&error),
            ErrorKind::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-mismatch",
                "The idempotency key was used for another request",
                detail,
            ),
            ErrorKind::Transient => {
                tracing::warn!(error = %chain(&error), "store call failed temporarily; check the database if this continues");
                Self::unavailable(detail)
            }
            ErrorKind::Broken => {
                tracing::error!(error = %chain(&error), "store is unusable; check the database, or restore it from a backup");
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "store-broken",
                    "The store is broken",
                    detail,
                )
            }
        }
    }
}

/// An error with all its causes, for the log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (
            status,
            [(header::CONTENT_TYPE, "application/problem+json")],
            body,
        )
            .into_response();
        let more = match status {
            StatusCode::UNAUTHORIZED => {
                Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                Some((header::RETRY_AFTER, HeaderValue::from_static("1")))
            }
            _ => self
                .retry_after_s
                .map(|seconds| (header::RETRY_AFTER, seconds.into())),
        };
        if let Some((name, value)) = more {
            response.headers_mut().insert(name, value);
        }
        if status == StatusCode::FORBIDDEN {
            response.extensions_mut().insert(RefusalReason::of(&self));
        }
        response
    }
}

pub(crate) async fn no_such_path(uri: Uri) -> Problem {
    Problem::not_found(format!(
        "there is nothing at {}; GET /api/v1 lists all paths",
        uri.path()
    ))
}

pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "The path does not have that method",
        format!(
            "{} does not take {method}; the Allow header names what it takes",
            uri.path()
        ),
    )
}
