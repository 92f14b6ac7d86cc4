//! Reads JSON bodies field by field, so that one answer names every wrong field.

use std::error::Error;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use cueline_http::BodyTimeout;
use cueline_model::Timestamp;
use serde_json::{Map, Value};

use crate::instant::instant;
use crate::problem::{FieldProblem, FieldProblems, Problem};
use crate::{MAX_SMALL_BODY_BYTES, SharedState, strict_json};

/// A body: an object, or nothing at all.
pub(crate) struct Body(Option<Map<String, Value>>);

impl FromRequest<SharedState> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &SharedState) -> Result<Self, Problem> {
        let content_type = request.headers().get(header::CONTENT_TYPE).map(shown);
        let coding = content_coding(request.headers());
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(not_read)?;
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        if let Some(coding) = coding {
            let detail = format!("the body has the content coding {coding:?}; send it without one");
            return Err(Problem::not_json(detail));
        }
        match content_type {
            Some(given) if is_json(&given) => {}
            Some(given) => {
                let detail = format!("the body is {given:?}; send application/json");
                return Err(Problem::not_json(detail));
            }
            None => {
                return Err(Problem::not_json(
                    "the body has no Content-Type; send application/json",
                ));
            }
        }
        let parsed = if bytes.len() > MAX_SMALL_BODY_BYTES {
            let parsing = state.large.compute(move || strict_json::parse(&bytes));
            parsing.await?
        } else {
            strict_json::parse(&bytes)
        };
        match parsed {
            Ok(Value::Object(fields)) => Ok(Self(Some(fields))),
            Ok(other) => Err(Problem::malformed(format!(
                "the body is {}; send an object",
                a_kind(&other)
            ))),
            Err(error) => Err(Problem::malformed(syntax_error(&error))),
        }
    }
}

fn not_read(rejection: BytesRejection) -> Problem {
    if let Some(timeout) = cause::<BodyTimeout>(&rejection) {
        return Problem::too_slow(timeout.to_string());
    }
    match rejection.into_response().status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(crate::MAX_BODY_BYTES),
        _ => Problem::malformed("the body could not be read completely"),
    }
}

/// The first cause of this type.
fn cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn shown(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// A coding that the sender says it has applied to the body, such as gzip. None is undone here: what a proxy decodes would
/// be another text than what is parsed, and a small body could become a large one.
fn content_coding(headers: &HeaderMap) -> Option<String> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter().map(shown);
    codings.find(|coding| !coding.trim().eq_ignore_ascii_case("identity"))
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let lower = essence.to_ascii_lowercase();
    lower == "application/json" || (lower.starts_with("application/") && lower.ends_with("+json"))
}

fn syntax_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&place).unwrap_or(&text);
    format!(
        "the body is not JSON: line {}, column {}: {what}",
        error.line(),
        error.column()
    )
}

/// "a text", "a number" …, for messages.
pub(crate) fn a_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The fields of a body.
pub(crate) struct Fields {
    fields: Map<String, Value>,
    errors: FieldProblems,
}

impl Body {
    /// The fields of the body. Fields that are not in `known` are refused. A missing body counts as an empty object.
    pub(crate) fn fields(self, known: &[&str]) -> Fields {
        let fields = self.0.unwrap_or_default();
        let mut errors = FieldProblems::default();
        for name in fields.keys() {
            if !known.contains(&name.as_str()) {
                errors.push(FieldProblem::new(name, unknown_field(known)));
            }
        }
        Fields { fields, errors }
    }

    /// Refuses a missing body, where an empty object would change much.
    pub(crate) fn given(self) -> Result<Self, Problem> {
        match self.0 {
            None => Err(Problem::malformed("there is no body; send an object")),
            Some(_) => Ok(self),
        }
    }

    /// The fields as they are given. A missing body counts as an empty object.
    pub(crate) fn into_object(self) -> Map<String, Value> {
        self.0.unwrap_or_default()
    }

    /// Refuses every field.
    pub(crate) fn nothing(self) -> Result<(), Problem> {
        self.fields(&[]).finish()
    }
}

fn unknown_field(known: &[&str]) -> String {
    if known.is_empty() {
        "unknown field; this request takes none".to_owned()
    } else {
        format!("unknown field; this request takes {}", known.join(", "))
    }
}

impl Fields {
    /// A field as an unparsed value; `null` counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// Whether the field is given; `null` counts as absent.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| !value.is_null())
    }

    /// A text of at most `most_bytes` that has to be given. Otherwise the problem is recorded.
    pub(crate) fn required_text(&mut self, name: &str, most_bytes: usize) -> String {
        if !self.has(name) {
            self.record(name, "missing; give a text");
            return String::new();
        }
        let text = self.text(name, most_bytes);
        if text.as_deref() == Some("") {
            self.record(name, "is empty; give a text");
        }
        text.unwrap_or_default()
    }

    /// A text of at most `most_bytes`.
    pub(crate) fn text(&mut self, name: &str, most_bytes: usize) -> Option<String> {
        match self.take(name)? {
            // Process arguments, headers and some databases cannot have one.
            Value::String(text) if text.contains('\0') => {
                self.record(name, "a text with a NUL character; give one without");
                None
            }
            Value::String(text) if text.len() <= most_bytes => Some(text),
            Value::String(text) => {
                let message = format!(
                    "a text of at most {most_bytes} bytes; this one has {}",
                    text.len()
                );
                self.record(name, message);
                None
            }
            other => {
                self.record(name, format!("{} is given; give a text", a_kind(&other)));
                None
            }
        }
    }

    /// Parameters, as in a job's definition: a text is taken unchanged, any other value as JSON text.
    pub(crate) fn params(&mut self, name: &str, most_bytes: usize) -> Option<String> {
        if let Some(
            value @ (Value::Array(_) | Value::Object(_) | Value::Bool(_) | Value::Number(_)),
        ) = self.fields.get(name)
        {
            let text = value.to_string();
            self.fields.insert(name.to_owned(), Value::String(text));
        }
        self.text(name, most_bytes)
    }

    /// `true` or `false`, `false` by default.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        match self.take(name) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(other) => {
                self.record(
                    name,
                    format!("{} is given; give true or false", a_kind(&other)),
                );
                false
            }
        }
    }

    /// A whole number within bounds.
    pub(crate) fn number(
        &mut self,
        name: &str,
        default: i64,
        range: std::ops::RangeInclusive<i64>,
    ) -> i64 {
        match self.take(name) {
            None => default,
            Some(value) => value
                .as_i64()
                .filter(|n| range.contains(n))
                .unwrap_or_else(|| {
                    let (least, most) = range.into_inner();
                    let message = format!("{value} is not a whole number from {least} to {most}");
                    self.record(name, message);
                    default
                }),
        }
    }

    /// An instant, as a text or a number of milliseconds.
    pub(crate) fn instant(&mut self, name: &str) -> Option<Timestamp> {
        let text = match self.take(name)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        match instant(&text) {
            Ok(at) => Some(at),
            Err(error) => {
                self.record(name, error.to_string());
                None
            }
        }
    }

    /// Records a problem with a field.
    pub(crate) fn record(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push(FieldProblem::new(name, message));
    }

    /// Records that a field does not fit another one, or a header.
    pub(crate) fn record_unfit(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push_unfit(FieldProblem::new(name, message));
    }

    /// Refuses the request if a problem was recorded.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        self.errors.finish()
    }
}
