//! Applies job definitions: validated as a whole, and written in transactions that delay no fire.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use cueline_model::{Actor, JobId, JobName, JobSpec, decode};
use cueline_store::{AppliedJob, Change, JobPreconditions, Precondition, Revision, StoreError};
use serde_json::{Map, Value};

use crate::access::{Caller, check_apply};
use crate::body::{Body, a_kind};
use crate::if_versions;
use crate::namespace::InNamespace;
use crate::never_fires;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query;
use crate::settle::settle;
use crate::view::ApplyAnswer;
use crate::{ApiState, SharedState};

/// The most jobs that one transaction writes, those with a parent not counted. The scheduler writes its fires between two
/// transactions.
const MAX_JOBS_IN_TRANSACTION: usize = 500;

/// How often rights are checked for one request, if others change its jobs between the check and the write.
const MAX_CHECKS: usize = 2;

/// Reads definitions from `{"jobs": […]}` and reports all problems at once. Validation takes milliseconds for each wrong
/// name, so it runs off the async threads.
pub(crate) async fn definitions(
    state: &ApiState,
    namespace: InNamespace,
    jobs: Value,
) -> Result<Vec<JobSpec>, Problem> {
    state
        .large
        .compute(move || decoded(jobs, &namespace))
        .await?
}

fn decoded(jobs: Value, namespace: &InNamespace) -> Result<Vec<JobSpec>, Problem> {
    let body = Map::from_iter([("jobs".to_owned(), jobs)]);
    let node = decode::Node::from(Value::Object(body));
    let specs = decode::jobs(&node, &namespace.0).map_err(|problems| {
        let errors = problems
            .into_iter()
            .map(|problem| FieldProblem {
                job: problem.job,
                field: problem.field,
                message: problem.message,
            })
            .collect();
        Problem::unfit(errors)
    })?;
    let errors: Vec<FieldProblem> = specs
        .iter()
        .filter(|spec| !spec.name.is_in(&namespace.0))
        .take(decode::MAX_PROBLEMS)
        .map(|spec| FieldProblem {
            job: Some(spec.name.local().to_owned()),
            field: "namespace".to_owned(),
            message: format!(
                "{:?} given; the request is for the namespace {}",
                spec.name.namespace().as_str(),
                namespace.0
            ),
        })
        .collect();
    if errors.is_empty() {
        Ok(specs)
    } else {
        Err(Problem::unfit(errors))
    }
}

/// Creates and updates jobs.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/apply",
    operation_id = "job_apply",
    tag = "jobs",
    description = "All definitions are checked before any is written. Jobs that are not named stay as they are.",
    request_body = openapi::ApplyRequest,
    responses(
        (status = 200, description = "The change of each job, in the order given.", body = ApplyAnswer),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "A job has another version than in `if_versions`. `errors` names each.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names job and field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn apply(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    uri: Uri,
    body: Body,
) -> Result<Json<ApplyAnswer>, Problem> {
    query::none(&uri)?;
    let mut fields = body.fields(&["jobs", "dry_run", "if_versions"]);
    let conditions = if_versions::read(&mut fields, &namespace);
    let dry_run = fields.flag("dry_run");
    let jobs = fields.take("jobs");
    match &jobs {
        Some(Value::Array(_)) => {}
        Some(other) => fields.record(
            "jobs",
            format!("{} is given; give a list of job definitions", a_kind(other)),
        ),
        None => fields.record("jobs", "missing; give a list of job definitions"),
    }
    fields.finish()?;
    let specs = definitions(&state, namespace, jobs.unwrap_or_default()).await?;
    if_versions::require_applied(&conditions, &specs)?;
    let applied = check_and_write(&state, &caller, &specs, &conditions, dry_run).await;
    let applied = applied.map_err(if_versions::refused)?;
    if !dry_run {
        // Wait for unchanged jobs too. An earlier call may have changed them and returned while old triggers were still
        // being published.
        let before: Vec<JobId> = applied
            .iter()
            .filter(|one| one.change != Change::Created)
            .filter_map(|one| one.id)
            .collect();
        settle(&state, &before).await?;
    }
    Ok(Json(ApplyAnswer { dry_run, applied }))
}

/// Writes definitions that the caller may apply if the conditions are met, or only compares them.
///
/// Rights depend on stored jobs, which others may change or move after the check. The transaction that writes requires them
/// as they were seen. If one is not, the check is repeated.
async fn check_and_write(
    state: &ApiState,
    caller: &Caller,
    specs: &[JobSpec],
    conditions: &JobPreconditions,
    dry_run: bool,
) -> Result<Vec<AppliedJob>, Problem> {
    let by = &caller.actor;
    for _ in 0..MAX_CHECKS {
        let checked = check_apply(state, caller, specs).await?;
        never_fires::refuse(state, specs).await?;
        let conditions = checked.with(conditions)?;
        match write(state, specs, &conditions, dry_run, by).await {
            Ok(applied) => return Ok(applied),
            Err(Failed { error, written }) if !checked.is_outdated(&error) => {
                return Err(incomplete(error.into(), written, specs.len()));
            }
            // A further check would take the jobs that are written for unchanged ones.
            Err(Failed { written, .. }) if written > 0 => {
                return Err(incomplete(changed_meanwhile(), written, specs.len()));
            }
            Err(_) => {}
        }
    }
    Err(changed_meanwhile())
}

fn changed_meanwhile() -> Problem {
    Problem::refused(
        "failed to apply jobs: others changed them during the request; read them and send it again",
    )
}

/// Why definitions were not written.
struct Failed {
    error: StoreError,
    /// The jobs that were written before.
    written: usize,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self { error, written: 0 }
    }
}

/// Writes definitions in transactions of bounded size, or only compares them. Returns the results in the order of `specs`.
async fn write(
    state: &ApiState,
    specs: &[JobSpec],
    conditions: &JobPreconditions,
    dry_run: bool,
    by: &Actor,
) -> Result<Vec<AppliedJob>, Failed> {
    let store = &state.store;
    if dry_run {
        return Ok(store.apply_jobs_if(specs, conditions, true, by).await?);
    }
    if specs.len() <= MAX_JOBS_IN_TRANSACTION {
        let applied = store.apply_jobs_if(specs, conditions, false, by).await?;
        state.admin.wake_claim();
        return Ok(applied);
    }
    // Refuses what cannot be applied as a whole, before anything is written.
    store.apply_jobs_if(specs, conditions, true, by).await?;
    let mut applied: HashMap<JobName, AppliedJob> = HashMap::with_capacity(specs.len());
    for part in transactions(specs.to_vec()) {
        match store.apply_jobs_if(&part, conditions, false, by).await {
            Ok(written) => applied.extend(written.into_iter().map(|job| (job.name.clone(), job))),
            Err(error) => {
                let written = applied.len();
                return Err(Failed { error, written });
            }
        }
        state.admin.wake_claim();
    }
    let in_order = specs.iter().filter_map(|spec| applied.remove(&spec.name));
    Ok(in_order.collect())
}

/// Writes one definition that the caller may apply if the condition is met. Waits until no trigger of the old one can be
/// published any more.
pub(crate) async fn write_one(
    state: &ApiState,
    caller: &Caller,
    specs: &[JobSpec],
    condition: &Precondition,
) -> Result<(Revision, AppliedJob), Problem> {
    let of_each = specs
        .iter()
        .map(|spec| (spec.name.clone(), condition.clone()));
    let conditions: JobPreconditions = of_each.collect();
    let applied = check_and_write(state, caller, specs, &conditions, false).await?;
    let applied = applied.into_iter().next();
    let applied = applied.and_then(|one| {
        let (id, version) = (one.id?.0, one.version?);
        Some((Revision { id, version }, one))
    });
    let Some((revision, applied)) = applied else {
        return Err(Problem::unavailable(
            "it is not known whether the definition was written; send the request again",
        ));
    };
    if applied.change != Change::Created {
        settle(state, &[JobId(revision.id)]).await?;
    }
    Ok((revision, applied))
}

/// Splits definitions into transactions. Jobs without a parent come first, because they depend on no other job. All jobs
/// with a parent follow in one transaction: in between, the new parents of some and the old ones of others could form a
/// cycle.
fn transactions(specs: Vec<JobSpec>) -> Vec<Vec<JobSpec>> {
    let (children, alone): (Vec<JobSpec>, Vec<JobSpec>) =
        specs.into_iter().partition(|spec| spec.after.is_some());
    let mut parts = Vec::new();
    let mut alone = alone.into_iter().peekable();
    while alone.peek().is_some() {
        parts.push(alone.by_ref().take(MAX_JOBS_IN_TRANSACTION).collect());
    }
    if !children.is_empty() {
        parts.push(children);
    }
    parts
}

/// Adds how much was written before the problem.
fn incomplete(mut problem: Problem, written: usize, total: usize) -> Problem {
    if written > 0 {
        problem.detail = format!(
            "{}; {written} of {total} jobs are applied, send the request again for the others",
            problem.detail
        );
    }
    problem
}

#[cfg(test)]
mod tests {
    use cueline_model::Namespace;
    use serde_json::json;

    use super::*;

    fn specs(parents: &[Option<usize>]) -> Vec<JobSpec> {
        let jobs = parents.iter().enumerate().map(|(i, parent)| {
            let mut job = json!({ "name": format!("j{i}"), "handler": { "native": "x" } });
            match parent {
                Some(parent) => job["after"] = json!(format!("j{parent}")),
                None => job["schedule"] = json!({ "manual": true }),
            }
            job
        });
        decoded(jobs.collect(), &InNamespace(Namespace::default())).expect("valid")
    }

    #[test]
    fn transactions_are_bounded_and_jobs_with_a_parent_come_last() {
        let mut parents = vec![None; 2 * MAX_JOBS_IN_TRANSACTION + 1];
        parents.insert(0, Some(1));
        parents.push(Some(2));
        let parts = transactions(specs(&parents));
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(
            sizes,
            [MAX_JOBS_IN_TRANSACTION, MAX_JOBS_IN_TRANSACTION, 1, 2]
        );
        let last = parts.last().expect("a part");
        assert!(last.iter().all(|spec| spec.after.is_some()));
    }

    #[test]
    fn a_problem_says_how_much_was_written_before() {
        let problem = || Problem::unavailable("busy");
        assert_eq!(incomplete(problem(), 0, 9).detail, "busy");
        let text = incomplete(problem(), 5, 9).detail;
        assert!(text.contains("5 of 9 jobs are applied"), "{text}");
    }
}
