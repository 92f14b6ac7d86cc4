//! Alarms: rules, channels and silences, and what was raised and delivered.

pub(crate) mod records;
pub(crate) mod silences;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use cueline_model::alarm::Stored;
use cueline_model::{AlarmChannel, AlarmRule, ChannelName, Namespace, RuleName, decode};
use cueline_store::{AlarmDefinition, AlarmName, Precondition, Revision};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::body::Body;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::preconditions::{IfMatch, IfMatchOrNone, IfNoneMatch, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::view::{
    AlarmRef, AppliedAlarmView, ChannelList, ChannelTest, ChannelView, RuleList, RuleView,
};
use crate::{ApiState, SharedState};

type NamePath = Result<Path<String>, PathRejection>;

/// The name in a path.
fn in_path<N>(
    path: NamePath,
    read: impl FnOnce(&str) -> Result<N, cueline_model::NameError>,
) -> Result<N, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    read(&text).map_err(|error| {
        let message = format!("{text:?}: {error}");
        Problem::malformed_fields(vec![FieldProblem::new("name", message)])
    })
}

fn rule_name(namespace: &InNamespace, path: NamePath) -> Result<RuleName, Problem> {
    in_path(path, |text| RuleName::in_namespace(&namespace.0, text))
}

fn channel_name(namespace: &InNamespace, path: NamePath) -> Result<ChannelName, Problem> {
    in_path(path, |text| ChannelName::in_namespace(&namespace.0, text))
}

fn revision<T>(stored: &Stored<T>) -> Revision {
    Revision {
        id: stored.id,
        version: stored.version,
    }
}

/// The definition with the name of the path. A name in the definition has to be the same.
fn named(mut definition: Map<String, Value>, name: &str) -> Result<Map<String, Value>, Problem> {
    match definition.get("name") {
        None | Some(Value::Null) => {}
        Some(Value::String(given)) if given == name => {}
        Some(_) => {
            let message =
                format!("another name than {name:?} in the path; leave it out, or give that one");
            let errors = vec![FieldProblem::new("name", message)];
            return Err(Problem::unfit_fields(errors));
        }
    }
    definition.insert("name".to_owned(), name.into());
    Ok(definition)
}

/// A definition is in the namespace of the request.
fn require_namespace(own: &Namespace, namespace: &InNamespace) -> Result<(), Problem> {
    if *own == namespace.0 {
        return Ok(());
    }
    let message = format!(
        "{:?} given; the request is for the namespace {}",
        own.as_str(),
        namespace.0
    );
    let errors = vec![FieldProblem::new("namespace", message)];
    Err(Problem::unfit(errors))
}

/// Lists the alarm rules of a namespace by name.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/rules",
    operation_id = "alarm_rule_list",
    tag = "alarms",
    responses((status = 200, description = "The rules.", body = RuleList))
)]
pub(crate) async fn rules(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<RuleList>, Problem> {
    query::none(&uri)?;
    let book = state.store.alarm_book().await?;
    let own = book
        .rules
        .iter()
        .filter(|rule| rule.spec.name.is_in(&namespace));
    let mut rules: Vec<RuleView> = own.map(RuleView::from).collect();
    rules.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Json(RuleList { rules }))
}

/// Shows one alarm rule.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/rules/{name}",
    operation_id = "alarm_rule_show",
    tag = "alarms",
    params(
        ("name" = openapi::Name, Path, description = "The name of the rule."),
        ("If-None-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of an earlier response: 304 if it is still that one."),
    ),
    responses(
        (status = 200, description = "The rule.", body = RuleView, headers(("ETag" = String, description = "The version of the rule."))),
        (status = 304, description = "The rule still has this `ETag`."),
    )
)]
pub(crate) async fn rule(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let name = rule_name(&namespace, path)?;
    let book = state.store.alarm_book().await?;
    let found = book.rules.iter().find(|rule| rule.spec.name == name);
    let missing = || Problem::not_found(format!("there is no alarm rule {:?}", name.local()));
    let found = found.ok_or_else(missing)?;
    Ok(if_none_match.answer(revision(found), RuleView::from(found)))
}

/// Creates or replaces an alarm rule.
#[utoipa::path(
    put,
    path = "/api/v1/alarms/rules/{name}",
    operation_id = "alarm_rule_replace",
    tag = "alarms",
    description = "Ends of runs and fires from now on are judged by it. Its channels must exist.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the rule."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is replaced, or `*` for any."),
        ("If-None-Match" = Option<openapi::AnyEntityTag>, Header, description = "`*`: the rule must not exist."),
    ),
    request_body = openapi::AlarmRuleReplacement,
    responses(
        (status = 200, description = "The change.", body = AppliedAlarmView, headers(("ETag" = String, description = "The version of the rule."))),
        (status = 409, description = "A channel does not exist, or there would be too many rules.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The rule has another version, or does not exist, or exists.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn put_rule(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    IfMatchOrNone(condition): IfMatchOrNone,
    body: Body,
) -> Result<Tagged<AppliedAlarmView>, Problem> {
    query::none(&uri)?;
    let name = rule_name(&namespace, path)?;
    let definition = Value::Object(named(body.into_object(), name.local())?);
    let node = decode::Node::from(definition);
    let spec: AlarmRule =
        decode::alarm_rule(&node, &namespace.0).map_err(Problem::of_definition)?;
    require_namespace(&spec.name.namespace(), &namespace)?;
    write(&state, &caller, AlarmDefinition::Rule(spec), &condition).await
}

async fn write(
    state: &ApiState,
    caller: &Caller,
    definition: AlarmDefinition,
    condition: &Precondition,
) -> Result<Tagged<AppliedAlarmView>, Problem> {
    let put = state.store.put_alarm(&definition, condition, &caller.actor);
    let applied = put.await?;
    let name = match definition {
        AlarmDefinition::Rule(rule) => rule.name.to_string(),
        AlarmDefinition::Channel(channel) => channel.name.to_string(),
    };
    let view = AppliedAlarmView {
        name,
        version: applied.revision.version,
        change: applied.change,
    };
    Ok(tagged(applied.revision, view))
}

/// Deletes an alarm rule. Its alarms that wait are not sent.
#[utoipa::path(
    delete,
    path = "/api/v1/alarms/rules/{name}",
    operation_id = "alarm_rule_delete",
    tag = "alarms",
    params(
        ("name" = openapi::Name, Path, description = "The name of the rule."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is deleted, or `*` for any."),
    ),
    responses(
        (status = 200, description = "The rule is deleted.", body = AlarmRef),
        (status = 412, description = "The rule has another version.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete_rule(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    IfMatch(condition): IfMatch,
) -> Result<Json<AlarmRef>, Problem> {
    query::none(&uri)?;
    let name = rule_name(&namespace, path)?;
    let own = AlarmName::Rule(name.clone());
    let deleted = state.store.delete_alarm(&own, &condition, &caller.actor);
    deleted.await?;
    Ok(Json(AlarmRef {
        name: name.to_string(),
    }))
}

/// Lists the alarm channels of a namespace by name.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/channels",
    operation_id = "alarm_channel_list",
    tag = "alarms",
    responses((status = 200, description = "The channels.", body = ChannelList))
)]
pub(crate) async fn channels(
    State(state): State<SharedState>,
    InNamespace(namespace): InNamespace,
    uri: Uri,
) -> Result<Json<ChannelList>, Problem> {
    query::none(&uri)?;
    let book = state.store.alarm_book().await?;
    let own = book
        .channels
        .iter()
        .filter(|channel| channel.spec.name.is_in(&namespace));
    let mut channels: Vec<ChannelView> = own.map(ChannelView::from).collect();
    channels.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Json(ChannelList { channels }))
}

/// Shows one alarm channel.
#[utoipa::path(
    get,
    path = "/api/v1/alarms/channels/{name}",
    operation_id = "alarm_channel_show",
    tag = "alarms",
    params(
        ("name" = openapi::Name, Path, description = "The name of the channel."),
        ("If-None-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of an earlier response: 304 if it is still that one."),
    ),
    responses(
        (status = 200, description = "The channel. It names its secrets, and has no values.", body = ChannelView, headers(("ETag" = String, description = "The version of the channel."))),
        (status = 304, description = "The channel still has this `ETag`."),
    )
)]
pub(crate) async fn channel(
    State(state): State<SharedState>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    if_none_match: IfNoneMatch,
) -> Result<Response, Problem> {
    query::none(&uri)?;
    let name = channel_name(&namespace, path)?;
    let book = state.store.alarm_book().await?;
    let missing = || Problem::not_found(format!("there is no alarm channel {:?}", name.local()));
    let found = book.channel(&name).ok_or_else(missing)?;
    Ok(if_none_match.answer(revision(found), ChannelView::from(found)))
}

/// Creates or replaces an alarm channel.
#[utoipa::path(
    put,
    path = "/api/v1/alarms/channels/{name}",
    operation_id = "alarm_channel_replace",
    tag = "alarms",
    description = "Exactly one of `email`, `webhook`, `slack`, `dingtalk`, `wecom` and `feishu` says what it is. Values of secrets are on the schedulers: the definition names them.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the channel."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is replaced, or `*` for any."),
        ("If-None-Match" = Option<openapi::AnyEntityTag>, Header, description = "`*`: the channel must not exist."),
    ),
    request_body = openapi::AlarmChannelReplacement,
    responses(
        (status = 200, description = "The change.", body = AppliedAlarmView, headers(("ETag" = String, description = "The version of the channel."))),
        (status = 409, description = "There would be too many channels.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The channel has another version, or does not exist, or exists.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn put_channel(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    IfMatchOrNone(condition): IfMatchOrNone,
    body: Body,
) -> Result<Tagged<AppliedAlarmView>, Problem> {
    query::none(&uri)?;
    let name = channel_name(&namespace, path)?;
    let definition = Value::Object(named(body.into_object(), name.local())?);
    let node = decode::Node::from(definition);
    let spec: AlarmChannel =
        decode::alarm_channel(&node, &namespace.0).map_err(Problem::of_definition)?;
    require_namespace(&spec.name.namespace(), &namespace)?;
    write(&state, &caller, AlarmDefinition::Channel(spec), &condition).await
}

/// Deletes an alarm channel that no rule uses.
#[utoipa::path(
    delete,
    path = "/api/v1/alarms/channels/{name}",
    operation_id = "alarm_channel_delete",
    tag = "alarms",
    params(
        ("name" = openapi::Name, Path, description = "The name of the channel."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is deleted, or `*` for any."),
    ),
    responses(
        (status = 200, description = "The channel is deleted.", body = AlarmRef),
        (status = 409, description = "Rules use the channel; `detail` names them.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The channel has another version.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete_channel(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    IfMatch(condition): IfMatch,
) -> Result<Json<AlarmRef>, Problem> {
    query::none(&uri)?;
    let name = channel_name(&namespace, path)?;
    let own = AlarmName::Channel(name.clone());
    let deleted = state.store.delete_alarm(&own, &condition, &caller.actor);
    deleted.await?;
    Ok(Json(AlarmRef {
        name: name.to_string(),
    }))
}

/// Sends a test message through an alarm channel.
#[utoipa::path(
    post,
    path = "/api/v1/alarms/channels/{name}/test",
    operation_id = "alarm_channel_test",
    tag = "alarms",
    description = "A scheduler sends it, once. The delivery of that number has the answer of the channel.",
    params(("name" = openapi::Name, Path, description = "The name of the channel.")),
    responses(
        (status = 202, description = "The message will be sent.", body = ChannelTest),
        (status = 409, description = "Too many messages of the channel wait.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn test_channel(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: NamePath,
    uri: Uri,
    body: Body,
) -> Result<(StatusCode, Json<ChannelTest>), Problem> {
    query::none(&uri)?;
    body.fields(&[]).finish()?;
    let name = channel_name(&namespace, path)?;
    let delivery = state.store.test_channel(&name, &caller.actor).await?;
    Ok((StatusCode::ACCEPTED, Json(ChannelTest { delivery })))
}
