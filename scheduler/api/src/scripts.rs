//! Scripts with their versions, which jobs run by name.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Response;
use cueline_model::script::MAX_REMARK_BYTES;
use cueline_model::{ScriptName, ScriptSpec, decode};
use cueline_store::{AppliedScript, Precondition, ScriptVersion};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::body::{Body, a_kind};
use crate::calendars::replanned;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::preconditions::{IfMatch, IfMatchOrNone, IfNoneMatch, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::versions::{number, version_field};
use crate::view::{
    AppliedScriptView, ScriptList, ScriptRef, ScriptVersionView, ScriptVersions, ScriptView,
    ScriptsApplied,
};
use crate::{ApiState, SharedState};

type ScriptPath = Result<Path<String>, PathRejection>;

fn script_name(namespace: &InNamespace, path: ScriptPath) -> Result<ScriptName, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let name = ScriptName::in_namespace(&namespace.0, &text);
    name.map_err(|error| {
        let message = format!("{text:?}: {error}");
        Problem::malformed_fields(vec![FieldProblem::new("name", message)])
    })
}

/// Lists the scripts of a namespace by name, without their texts.
#[utoipa::path(
    get,
    path = "/api/v1/scripts",
    operation_id = "script_list",
    tag = "scripts",
    responses((status = 200, description = "The scripts.", body = ScriptList))
)]
pub(crate) async fn list(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<ScriptList>, Problem> {
    query::none(&uri)?;
    let found = state.store.scripts(&namespace).await?;
    let scripts = found.into_iter().map(ScriptView::from).collect();
    Ok(Json(ScriptList { scripts }))
}

/// Shows one script with its text and the jobs that use it.
#[utoipa::path(
    get,
    path = "/api/v1/scripts/{name}",
    operation_id = "script_show",
    tag = "scripts",
    params(
        ("name" = openapi::Name, Path, description = "The name of the script."),
        ("If-None-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of an earlier response: 304 if it is still that one."),
    ),
    responses(
        (status = 200, description = "The script.", body = ScriptView, headers(("ETag" = String, description = "The version of the script."))),
        (status = 304, description = "The script still has this `ETag`."),
    )
)]
pub(crate) async fn show(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: ScriptPath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let name = script_name(&namespace, path)?;
    let found = state.store.script(&name).await?;
    Ok(if_none_match.answer(found.revision, ScriptView::from(found)))
}

/// Saves scripts, each in a transaction of its own.
#[utoipa::path(
    post,
    path = "/api/v1/scripts/apply",
    operation_id = "script_apply",
    tag = "scripts",
    description = "All definitions are checked before any is saved. Each script is saved in a transaction of its own. Once the response is there, no run is published with the text of an earlier version, unless its job is pinned to it.",
    request_body = openapi::ScriptsRequest,
    responses(
        (status = 200, description = "The change of each script, in the order given.", body = ScriptsApplied),
        (status = 409, description = "There would be too many scripts. Those before this one are saved.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn apply(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<ScriptsApplied>, Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["scripts", "dry_run"]);
    let dry_run = fields.flag("dry_run");
    let scripts = fields.take("scripts");
    match &scripts {
        Some(Value::Array(_)) => {}
        Some(other) => fields.record(
            "scripts",
            format!("{} is given; give a list of scripts", a_kind(other)),
        ),
        None => fields.record("scripts", "missing; give a list of scripts"),
    }
    fields.finish()?;
    let specs = definitions(&state, namespace, scripts.unwrap_or_default()).await?;
    let mut applied = Vec::with_capacity(specs.len());
    for spec in &specs {
        let one = write(&state, &caller, spec, &Precondition::None, dry_run).await?;
        applied.push(AppliedScriptView::from(one));
    }
    Ok(Json(ScriptsApplied { dry_run, applied }))
}

/// Creates a script, or saves a new version of it.
#[utoipa::path(
    put,
    path = "/api/v1/scripts/{name}",
    operation_id = "script_save",
    tag = "scripts",
    params(
        ("name" = openapi::Name, Path, description = "The name of the script."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is followed by this one, or `*` for any."),
        ("If-None-Match" = Option<openapi::AnyEntityTag>, Header, description = "`*`: the script must not exist."),
    ),
    request_body = openapi::ScriptReplacement,
    responses(
        (status = 200, description = "The change.", body = AppliedScriptView, headers(("ETag" = String, description = "The version of the script."))),
        (status = 409, description = "There would be too many scripts.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The script has another version, or does not exist, or exists.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn save(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: ScriptPath,
    uri: Uri,
    IfMatchOrNone(condition): IfMatchOrNone,
    body: Body,
) -> Result<Tagged<AppliedScriptView>, Problem> {
    query::none(&uri)?;
    let name = script_name(&namespace, path)?;
    let definition = named(body.into_object(), &name)?;
    let list = Value::Array(vec![Value::Object(definition)]);
    let specs = definitions(&state, namespace, list).await?;
    let Some(spec) = specs.first() else {
        return Err(Problem::malformed("no script is given; give one"));
    };
    saved(write(&state, &caller, spec, &condition, false).await?)
}

fn saved(applied: AppliedScript) -> Result<Tagged<AppliedScriptView>, Problem> {
    match applied.revision {
        Some(revision) => Ok(tagged(revision, applied.into())),
        None => Err(Problem::unavailable(
            "it is not known whether the script was saved; send the request again",
        )),
    }
}

/// The definition with the name of the path. A name in the definition has to be the same.
fn named(
    mut definition: Map<String, Value>,
    name: &ScriptName,
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

/// Deletes a script that no job uses.
#[utoipa::path(
    delete,
    path = "/api/v1/scripts/{name}",
    operation_id = "script_delete",
    tag = "scripts",
    params(
        ("name" = openapi::Name, Path, description = "The name of the script."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is deleted, or `*` for any."),
    ),
    responses(
        (status = 200, description = "The script is deleted.", body = ScriptRef),
        (status = 409, description = "Jobs use the script; `detail` names them.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The script has another version.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: ScriptPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
) -> Result<Json<ScriptRef>, Problem> {
    query::none(&uri)?;
    let name = script_name(&namespace, path)?;
    let delete = state.store.delete_script(&name, &condition, &caller.actor);
    delete.await?;
    Ok(Json(ScriptRef { name }))
}

/// Lists the versions of a script that are kept, newest first, without their texts.
#[utoipa::path(
    get,
    path = "/api/v1/scripts/{name}/versions",
    operation_id = "script_history",
    tag = "scripts",
    params(("name" = openapi::Name, Path, description = "The name of the script.")),
    responses((status = 200, description = "The versions.", body = ScriptVersions))
)]
pub(crate) async fn history(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: ScriptPath,
    uri: Uri,
) -> Result<Json<ScriptVersions>, Problem> {
    query::none(&uri)?;
    let name = script_name(&namespace, path)?;
    let found = state.store.script_versions(&name).await?;
    let versions = found.into_iter().map(ScriptVersionView::from).collect();
    let now = state.store.now().await?;
    Ok(Json(ScriptVersions {
        name,
        versions,
        now,
    }))
}

/// Shows one version of a script with its text.
#[utoipa::path(
    get,
    path = "/api/v1/scripts/{name}/versions/{version}",
    operation_id = "script_version",
    tag = "scripts",
    params(
        ("name" = openapi::Name, Path, description = "The name of the script."),
        ("version" = openapi::VersionNumber, Path, description = "The number of the version."),
    ),
    responses((status = 200, description = "The version.", body = ScriptVersionView))
)]
pub(crate) async fn version(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Json<ScriptVersionView>, Problem> {
    query::none(&uri)?;
    let Path((script, version)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let name = script_name(&namespace, Ok(Path(script)))?;
    let version = number(&version)
        .map_err(|e| Problem::malformed_fields(vec![FieldProblem::new("version", e)]))?;
    Ok(Json(find(&state, &name, version).await?.into()))
}

/// Saves the language and the text of an earlier version as a new version.
#[utoipa::path(
    post,
    path = "/api/v1/scripts/{name}/restore",
    operation_id = "script_restore",
    tag = "scripts",
    params(
        ("name" = openapi::Name, Path, description = "The name of the script."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the newest version."),
    ),
    request_body = openapi::ScriptRestore,
    responses(
        (status = 200, description = "The version is restored.", body = AppliedScriptView, headers(("ETag" = String, description = "The version of the script."))),
        (status = 412, description = "The script has another version than in `If-Match`.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn restore(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: ScriptPath,
    uri: Uri,
    IfMatch(condition): IfMatch,
    body: Body,
) -> Result<Tagged<AppliedScriptView>, Problem> {
    query::none(&uri)?;
    let name = script_name(&namespace, path)?;
    let mut fields = body.fields(&["version", "remark"]);
    let version = version_field(&mut fields);
    let remark = fields.text("remark", MAX_REMARK_BYTES);
    fields.finish()?;
    let found = find(&state, &name, version).await?;
    let spec = ScriptSpec {
        name,
        language: found.language,
        text: found.text.unwrap_or_default(),
        remark: remark.unwrap_or_else(|| format!("version {version} again")),
    };
    saved(write(&state, &caller, &spec, &condition, false).await?)
}

async fn find(state: &ApiState, name: &ScriptName, version: u64) -> Result<ScriptVersion, Problem> {
    let number = i64::try_from(version).unwrap_or(i64::MAX);
    let found = state.store.script_version(name, number).await?;
    found.ok_or_else(|| {
        Problem::not_found(format!(
            "script {name} has no version {version}; it never had it, or the version was deleted because there were newer ones"
        ))
    })
}

/// Reads scripts, and reports all problems at once. The texts may be long, so this runs off the async threads.
async fn definitions(
    state: &ApiState,
    namespace: InNamespace,
    scripts: Value,
) -> Result<Vec<ScriptSpec>, Problem> {
    state
        .large
        .compute(move || decoded(scripts, &namespace))
        .await?
}

fn decoded(scripts: Value, namespace: &InNamespace) -> Result<Vec<ScriptSpec>, Problem> {
    let body = Map::from_iter([("scripts".to_owned(), scripts)]);
    let node = decode::Node::from(Value::Object(body));
    let found = decode::file(&node, &namespace.0).map_err(|problems| {
        let errors = problems.into_iter().map(|problem| FieldProblem {
            job: None,
            field: problem.field,
            message: problem.message,
        });
        Problem::unfit(errors.collect())
    })?;
    let elsewhere = found.scripts.iter().find(|s| !s.name.is_in(&namespace.0));
    if let Some(script) = elsewhere {
        let message = format!(
            "{:?} given; the request is for the namespace {}",
            script.name.namespace().as_str(),
            namespace.0
        );
        let errors = vec![FieldProblem::new("namespace", message)];
        return Err(Problem::unfit(errors));
    }
    Ok(found.scripts)
}

/// Saves a script, and waits until no run with the text before can be published any more.
async fn write(
    state: &ApiState,
    caller: &Caller,
    spec: &ScriptSpec,
    condition: &Precondition,
    dry_run: bool,
) -> Result<AppliedScript, Problem> {
    let store = &state.store;
    let put = store.put_script(spec, condition, dry_run, &caller.actor);
    let (applied, jobs) = put.await?;
    replanned(state, &jobs).await?;
    Ok(applied)
}
