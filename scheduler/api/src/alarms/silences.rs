//! Silences, in which no messages are sent.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use cueline_model::decode;
use serde_json::Value;

use crate::SharedState;
use crate::access::Caller;
use crate::body::Body;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::path::number;
use crate::problem::Problem;
use crate::query;
use crate::view::{SilenceList, SilenceRef, SilenceView};

type NumberPath = Result<Path<String>, PathRejection>;

/// Lists the silences of a namespace that are not over.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/silences",
    operation_id = "alarm_silence_list",
    tag = "alarms",
    responses((status = 200, description = "The silences, in the order in which they were added.", body = SilenceList))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<SilenceList>, Problem> {
    query::none(&uri)?;
    let now = state.store.now().await?;
    let book = state.store.alarm_book().await?;
    let own = book
        .silences
        .iter()
        .filter(|silence| silence.spec.namespace == namespace && now < silence.spec.until);
    let silences = own.map(SilenceView::from).collect();
    Ok(Json(SilenceList { silences, now }))
}

/// Begins a silence.
#[utoipa::path(
    post,
    path = "/api/v1/alarms/silences",
    operation_id = "alarm_silence_start",
    tag = "alarms",
    description = "Until it ends, alarms in its scope are recorded, and no message is sent about them. Without a scope it is about all alarms of the namespace. Either `until` or `for` is given.",
    request_body = openapi::NewAlarmSilence,
    responses(
        (status = 201, description = "The silence is there.", body = SilenceRef),
        (status = 409, description = "There are too many silences.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn add(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<SilenceRef>), Problem> {
    query::none(&uri)?;
    let body = Value::Object(body.given()?.into_object());
    let now = state.store.now().await?;
    let decoded = decode::alarm_silence(&decode::Node::from(body), &namespace, now);
    let mut spec = decoded.map_err(Problem::of_definition)?;
    spec.by = caller.actor.to_string();
    let id = state.store.add_silence(&spec, &caller.actor).await?;
    Ok((StatusCode::CREATED, Json(SilenceRef { id })))
}

/// Ends a silence.
#[utoipa::path(
    delete,
    path = "/api/v1/alarms/silences/{id}",
    operation_id = "alarm_silence_end",
    tag = "alarms",
    params(("id" = openapi::RunNumber, Path, description = "The number of the silence.")),
    responses((status = 200, description = "The silence has ended.", body = SilenceRef))
)]
pub(crate) async fn end(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    InNamespace(namespace): InNamespace,
    path: NumberPath,
    uri: Uri,
) -> Result<Json<SilenceRef>, Problem> {
    query::none(&uri)?;
    let id = number(path, "silence")?;
    let ended = state.store.end_silence(&namespace, id, &caller.actor);
    ended.await?;
    Ok(Json(SilenceRef { id }))
}
