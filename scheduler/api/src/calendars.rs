//! Calendars, which exclude fire times of the jobs that name them.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Response;
use cueline_model::{CalendarName, CalendarSpec, JobId, decode};
use cueline_store::{AppliedCalendar, Precondition, StoredCalendar};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::body::{Body, a_kind};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::preconditions::{IfMatch, IfMatchOrNone, IfNoneMatch, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::settle::settle;
use crate::view::{AppliedCalendarView, CalendarList, CalendarRef, CalendarView, CalendarsApplied};
use crate::{ApiState, SharedState};

type CalendarPath = Result<Path<String>, PathRejection>;

fn calendar_name(namespace: &InNamespace, path: CalendarPath) -> Result<CalendarName, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let name = CalendarName::in_namespace(&namespace.0, &text);
    name.map_err(|error| {
        let message = format!("{text:?}: {error}");
        Problem::malformed_fields(vec![FieldProblem::new("name", message)])
    })
}

/// Lists the calendars of a namespace by name.
#[utoipa::path(
    get,
    path = "/api/v1/calendars",
    operation_id = "calendar_list",
    tag = "calendars",
    responses((status = 200, description = "The calendars.", body = CalendarList))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<CalendarList>, Problem> {
    query::none(&uri)?;
    let found = state.store.calendars(&namespace, None).await?;
    let calendars = found.into_iter().map(CalendarView::from).collect();
    Ok(Json(CalendarList { calendars }))
}

/// Shows one calendar with the jobs that use it.
#[utoipa::path(
    get,
    path = "/api/v1/calendars/{name}",
    operation_id = "calendar_show",
    tag = "calendars",
    params(
        ("name" = openapi::Name, Path, description = "The name of the calendar."),
        ("If-None-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of an earlier response: 304 if it is still that one."),
    ),
    responses(
        (status = 200, description = "The calendar.", body = CalendarView, headers(("ETag" = String, description = "The version of the calendar."))),
        (status = 304, description = "The calendar still has this `ETag`."),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: CalendarPath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let name = calendar_name(&namespace, path)?;
    let found = stored(&state, &namespace, &name).await?;
    Ok(if_none_match.answer(found.revision, CalendarView::from(found)))
}

async fn stored(
    state: &ApiState,
    namespace: &InNamespace,
    name: &CalendarName,
) -> Result<StoredCalendar, Problem> {
    let found = state.store.calendars(&namespace.0, Some(name)).await?;
    found
        .into_iter()
        .next()
        .ok_or_else(|| Problem::not_found(format!("there is no calendar {:?}", name.local())))
}

/// Creates and changes calendars, all or none.
#[utoipa::path(
    post,
    path = "/api/v1/calendars/apply",
    operation_id = "calendar_apply",
    tag = "calendars",
    description = "All definitions are checked before any is written. Calendars that are not named stay as they are. Once the response is there, no run is published that a calendar excludes.",
    request_body = openapi::CalendarsRequest,
    responses(
        (status = 200, description = "The change of each calendar, in the order given.", body = CalendarsApplied),
        (status = 409, description = "There would be too many calendars.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn apply(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<CalendarsApplied>, Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["calendars", "dry_run"]);
    let dry_run = fields.flag("dry_run");
    let calendars = fields.take("calendars");
    match &calendars {
        Some(Value::Array(_)) => {}
        Some(other) => fields.record(
            "calendars",
            format!("{} is given; give a list of calendars", a_kind(other)),
        ),
        None => fields.record("calendars", "missing; give a list of calendars"),
    }
    fields.finish()?;
    let specs = definitions(&state, namespace, calendars.unwrap_or_default()).await?;
    let written = write(&state, &caller, &specs, &Precondition::None, dry_run).await?;
    let applied = written.into_iter().map(AppliedCalendarView::from);
    Ok(Json(CalendarsApplied {
        dry_run,
        applied: applied.collect(),
    }))
}

/// Creates or replaces a calendar.
#[utoipa::path(
    put,
    path = "/api/v1/calendars/{name}",
    operation_id = "calendar_replace",
    tag = "calendars",
    params(
        ("name" = openapi::Name, Path, description = "The name of the calendar."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is replaced, or `*` for any."),
        ("If-None-Match" = Option<openapi::AnyEntityTag>, Header, description = "`*`: the calendar must not exist."),
    ),
    request_body = openapi::CalendarReplacement,
    responses(
        (status = 200, description = "The change.", body = AppliedCalendarView, headers(("ETag" = String, description = "The version of the calendar."))),
        (status = 409, description = "There would be too many calendars.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The calendar has another version, or does not exist, or exists.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn replace(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: CalendarPath,
    uri: Uri,
    IfMatchOrNone(condition): IfMatchOrNone,
    body: Body,
) -> Result<Tagged<AppliedCalendarView>, Problem> {
    query::none(&uri)?;
    let name = calendar_name(&namespace, path)?;
    let definition = named(body.into_object(), &name)?;
    let list = Value::Array(vec![Value::Object(definition)]);
    let specs = definitions(&state, namespace, list).await?;
    let written = write(&state, &caller, &specs, &condition, false).await?;
    let applied = written.into_iter().next();
    let revision = applied.as_ref().and_then(|applied| applied.revision);
    match (revision, applied) {
        (Some(revision), Some(applied)) => Ok(tagged(revision, applied.into())),
        _ => Err(Problem::unavailable(
            "it is not known whether the calendar was written; send the request again",
        )),
    }
}

/// The definition with the name of the path. A name in the definition has to be the same.
fn named(
    mut definition: Map<String, Value>,
    name: &CalendarName,
) -> Result<Map<String, Value>, Problem> {
    match definition.get("name") {
        None | Some(Value::Null) => {}
        Some(Value::String(given)) if given == name.local() => {}
        Some(_) => {
            let message = format!(
                "another name than {:?} in the path; leave it out, or give that one",
                name.local()
            );
            let errors = vec![FieldProblem::new("name", message)];
            return Err(Problem::unfit_fields(errors));
        }
    }
    definition.insert("name".to_owned(), name.local().into());
    Ok(definition)
}

/// Deletes a calendar that no job uses.
#[utoipa::path(
    delete,
    path = "/api/v1/calendars/{name}",
    operation_id = "calendar_delete",
    tag = "calendars",
    params(
        ("name" = openapi::Name, Path, description = "The name of the calendar."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is deleted, or `*` for any."),
    ),
    responses(
        (status = 200, description = "The calendar is deleted.", body = CalendarRef),
        (status = 409, description = "Jobs use the calendar; `detail` names them.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The calendar has another version.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: CalendarPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
) -> Result<Json<CalendarRef>, Problem> {
    query::none(&uri)?;
    let name = calendar_name(&namespace, path)?;
    state
        .store
        .delete_calendar(&name, &condition, &caller.actor)
        .await?;
    Ok(Json(CalendarRef { name }))
}

/// Reads calendars, and reports all problems at once. A calendar may have thousands of dates, so this runs off the async
/// threads.
async fn definitions(
    state: &ApiState,
    namespace: InNamespace,
    calendars: Value,
) -> Result<Vec<CalendarSpec>, Problem> {
    state
        .large
        .compute(move || decoded(calendars, &namespace))
        .await?
}

fn decoded(calendars: Value, namespace: &InNamespace) -> Result<Vec<CalendarSpec>, Problem> {
    let body = Map::from_iter([("calendars".to_owned(), calendars)]);
    let node = decode::Node::from(Value::Object(body));
    let found = decode::file(&node, &namespace.0).map_err(|problems| {
        let errors = problems.into_iter().map(|problem| FieldProblem {
            job: None,
            field: problem.field,
            message: problem.message,
        });
        Problem::unfit(errors.collect())
    })?;
    let elsewhere = found.calendars.iter().find(|c| !c.name.is_in(&namespace.0));
    if let Some(calendar) = elsewhere {
        let message = format!(
            "{:?} given; the request is for the namespace {}",
            calendar.name.namespace().as_str(),
            namespace.0
        );
        let errors = vec![FieldProblem::new("namespace", message)];
        return Err(Problem::unfit(errors));
    }
    Ok(found.calendars)
}

/// Writes calendars, and waits until no run that was written ahead by the old ones can be published any more.
async fn write(
    state: &ApiState,
    caller: &Caller,
    specs: &[CalendarSpec],
    condition: &Precondition,
    dry_run: bool,
) -> Result<Vec<AppliedCalendar>, Problem> {
    let store = &state.store;
    let put = store.put_calendars(specs, condition, dry_run, &caller.actor);
    let (applied, jobs) = put.await?;
    replanned(state, &jobs).await?;
    Ok(applied)
}

/// What follows when plans of jobs have changed.
pub(crate) async fn replanned(state: &ApiState, jobs: &[JobId]) -> Result<(), Problem> {
    if jobs.is_empty() {
        return Ok(());
    }
    state.admin.wake_claim();
    settle(state, jobs).await
}
