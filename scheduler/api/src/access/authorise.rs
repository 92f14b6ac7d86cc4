//! Whether a caller has the right that a request needs.
//!
//! A caller who may not read an object gets the same answer as for an object that does not exist. Names in the path are
//! read in the namespace of the request, as the handlers read them. So the object whose group decides is the one that the
//! handler acts on.

use std::collections::HashMap;

use axum::extract::{FromRequestParts as _, Path};
use axum::http::request::Parts;
use cueline_model::{AccessScope, GroupName, JobName, Right, RunId};
use cueline_store::{ErrorKind, Order, StoreError};

use super::caller::Caller;
use super::rules::{Place, Rule};
use crate::ApiState;
use crate::namespace::InNamespace;
use crate::path;
use crate::problem::Problem;

/// Refuses the request unless the caller has what the rule says.
pub(super) async fn authorise(
    state: &ApiState,
    caller: &Caller,
    rule: Rule,
    parts: &mut Parts,
) -> Result<(), Problem> {
    match rule {
        Rule::Public | Rule::AnyCaller => Ok(()),
        Rule::Scrape => caller.require(Right::Read, &AccessScope::Cluster),
        Rule::Somewhere(right) if caller.access.allows_somewhere(right) => Ok(()),
        Rule::Somewhere(right) => Err(Problem::forbidden(format!(
            "you may not {} in any namespace",
            right.describe()
        ))),
        Rule::In(place, right) => in_place(state, caller, place, right, parts).await,
    }
}

async fn in_place(
    state: &ApiState,
    caller: &Caller,
    place: Place,
    right: Right,
    parts: &mut Parts,
) -> Result<(), Problem> {
    // What is allowed in all namespaces needs no look at the object. The handler says if there is none.
    if place == Place::Cluster || caller.may_everywhere(right) {
        return caller.require(right, &AccessScope::Cluster);
    }
    let namespace = InNamespace::from_request_parts(parts, state).await?;
    // The same for what is allowed in the whole namespace: handlers refuse objects of another one.
    let whole = AccessScope::Namespace(namespace.0.clone());
    if caller.access.allows(right, &whole) {
        return Ok(());
    }
    if place == Place::Namespace {
        return caller.require(right, &whole);
    }
    let object = object(state, &namespace, place, parts).await?;
    let scope = object
        .group
        .map_or(AccessScope::Cluster, AccessScope::Group);
    if caller.access.allows(Right::Read, &scope) {
        caller.require(right, &scope)
    } else {
        Err(object.unknown)
    }
}

/// What a request is about.
struct Object {
    /// Its group. `None` if that cannot be read; then the right is needed in all namespaces.
    group: Option<GroupName>,
    /// The answer if there were no such object.
    unknown: Problem,
}

async fn object(
    state: &ApiState,
    namespace: &InNamespace,
    place: Place,
    parts: &mut Parts,
) -> Result<Object, Problem> {
    let params = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
    let Path(params) = params.map_err(|e| Problem::malformed(e.body_text()))?;
    let param = |name: &str| params.get(name).map(String::as_str).unwrap_or_default();
    match place {
        // `in_place` has answered these.
        Place::Cluster | Place::Namespace => Ok(Object {
            group: None,
            unknown: Problem::forbidden("you may not do this in all namespaces"),
        }),
        Place::GroupInPath => {
            let executor = path::executor(namespace, param("group"), param("executor"))?;
            let unknown = Problem::not_found(format!("there is no executor {executor}"));
            Ok(Object {
                group: Some(executor.group),
                unknown,
            })
        }
        Place::JobInPath => {
            let name = path::job_name(namespace, param("name"))?;
            Ok(Object {
                group: Some(group_of_job(state, &name).await?),
                unknown: StoreError::no_job(name.as_str()).into(),
            })
        }
        Place::JobHistoryInPath => {
            let name = path::job_name(namespace, param("name"))?;
            Ok(Object {
                group: group_of_history(state, &name).await?,
                unknown: StoreError::no_job(name.as_str()).into(),
            })
        }
        Place::RunInPath => {
            let id = path::run_id(param("id"))?;
            Ok(Object {
                group: group_of_run(state, namespace, id).await?,
                unknown: StoreError::no_run(id).into(),
            })
        }
    }
}

/// The group of a job that is not deleted.
async fn group_of_job(state: &ApiState, name: &JobName) -> Result<GroupName, Problem> {
    Ok(state.store.job(name).await?.job.spec.group.clone())
}

/// The group of a job, or of the newest version of a deleted one. `None` if that version cannot be read.
async fn group_of_history(state: &ApiState, name: &JobName) -> Result<Option<GroupName>, Problem> {
    match state.store.job(name).await {
        Ok(summary) => return Ok(Some(summary.job.spec.group.clone())),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let versions = match state
        .audit
        .job_versions(name, Order::Descending, None, 1)
        .await
    {
        Ok(versions) => versions,
        // In the words for a job that the caller may not read.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(StoreError::no_job(name.as_str()).into());
        }
        Err(error) => return Err(error.into()),
    };
    let newest = versions.into_iter().next();
    let definition = newest.and_then(|version| version.definition);
    Ok(definition.map(|spec| spec.group))
}

/// Whether the caller may read the job with this name, or the newest version of a deleted one. A job that never existed
/// cannot be read.
pub(crate) async fn may_read_job(
    state: &ApiState,
    caller: &Caller,
    name: &JobName,
) -> Result<bool, Problem> {
    match state.store.job(name).await {
        Ok(summary) => return Ok(caller.may(Right::Read, &summary.job.spec.group)),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    match state
        .audit
        .job_versions(name, Order::Descending, None, 1)
        .await
    {
        Ok(versions) => {
            let newest = versions.into_iter().next();
            let definition = newest.and_then(|version| version.definition);
            Ok(definition.is_some_and(|spec| caller.may(Right::Read, &spec.group)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn group_of_run(
    state: &ApiState,
    namespace: &InNamespace,
    id: RunId,
) -> Result<Option<GroupName>, Problem> {
    let run = namespace.run(state, id).await?.run;
    let jobs = state.store.definitions(&[run.job_id]).await?;
    Ok(jobs.first().map(|job| job.spec.group.clone()))
}
