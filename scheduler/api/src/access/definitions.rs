//! Whether a caller may apply job definitions.
//!
//! Each definition needs the right to edit jobs in its group. A change also needs it in the group that the job had before.
//! A script or a command needs its own right, before as well as after the change. So does an HTTP request with a secret, which
//! its author could send anywhere.
//!
//! The check is not in the transaction that writes. It says what it has seen of each job, and the write requires that.

use std::collections::{HashMap, HashSet};

use cueline_model::handler::HttpSpec;
use cueline_model::{AccessScope, HandlerSpec, JobId, JobName, JobSpec, Right, TextOrSecret};
use cueline_store::{
    Change, ErrorKind, JobPreconditions, Precondition, Revision, StoreError, require_jobs,
};

use super::caller::{Caller, missing};
use crate::ApiState;
use crate::problem::{FieldProblem, Problem};

/// What the permission to apply definitions depends on.
#[derive(Debug)]
pub(crate) enum Checked {
    /// On nothing that is stored: the caller may apply any definition.
    Anything,
    /// On each job being as it was seen: in this state, or absent for `None`.
    Seen(Vec<(JobName, Option<Revision>)>),
}

impl Checked {
    /// The preconditions of the write: those of the request, and that each job is still as it was seen.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Precondition`] if the jobs that were seen do not meet the preconditions of the request.
    pub(crate) fn with(
        &self,
        of_request: &JobPreconditions,
    ) -> Result<JobPreconditions, StoreError> {
        let Self::Seen(jobs) = self else {
            return Ok(of_request.clone());
        };
        require_jobs(of_request, jobs.iter().map(|(name, seen)| (name, *seen)))?;
        // One state fulfils the conditions of the request already.
        let as_seen = |(name, seen): &(JobName, Option<Revision>)| {
            let condition = match seen {
                Some(revision) => Precondition::OneOf(vec![*revision]),
                None => Precondition::Absent,
            };
            (name.clone(), condition)
        };
        Ok(jobs.iter().map(as_seen).collect())
    }

    /// Whether the write was refused because a job is not as it was seen any more. The permission is unknown then.
    pub(crate) fn is_outdated(&self, error: &StoreError) -> bool {
        matches!(self, Self::Seen(_)) && error.kind() == ErrorKind::Precondition
    }
}

/// Refuses definitions that the caller may not apply. The answer names each of them.
pub(crate) async fn check_apply(
    state: &ApiState,
    caller: &Caller,
    specs: &[JobSpec],
) -> Result<Checked, Problem> {
    if caller.may_everywhere(Right::EditJobs) && caller.may_everywhere(Right::EditScripts) {
        return Ok(Checked::Anything);
    }
    let errors = specs.iter().filter_map(|spec| refusal(caller, spec));
    refuse(errors.collect())?;
    check_parents(state, caller, specs).await?;
    let seen = check_changed(state, caller, specs).await?;
    Ok(Checked::Seen(seen))
}

fn refuse(errors: Vec<FieldProblem>) -> Result<(), Problem> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Problem::forbidden_fields(errors))
}

/// Why the caller may not apply this definition.
fn refusal(caller: &Caller, spec: &JobSpec) -> Option<FieldProblem> {
    let (field, right) = missing_right(caller, spec)?;
    let scope = AccessScope::Group(spec.group.clone());
    Some(problem_of(&spec.name, field, missing(right, &scope)))
}

/// The right that the caller lacks in the group of the definition, and the field that needs it.
fn missing_right(caller: &Caller, spec: &JobSpec) -> Option<(&'static str, Right)> {
    if !caller.may(Right::EditJobs, &spec.group) {
        return Some(("group", Right::EditJobs));
    }
    (can_read_secrets(&spec.handler) && !caller.may(Right::EditScripts, &spec.group))
        .then_some(("handler", Right::EditScripts))
}

/// Whether the author of the job can get what is secret on the worker: a program reads it, and an HTTP request sends each
/// secret that it names to the URL that it names.
fn can_read_secrets(handler: &HandlerSpec) -> bool {
    match handler {
        HandlerSpec::Shell(_) | HandlerSpec::Command(_) | HandlerSpec::Script(_) => true,
        HandlerSpec::Http(http) => names_secret(http),
        HandlerSpec::Native(_) => false,
    }
}

fn names_secret(http: &HttpSpec) -> bool {
    let mut values = http.headers.values().chain(&http.body);
    values.any(|value| matches!(value, TextOrSecret::Secret(_)))
}

fn problem_of(job: &JobName, field: &str, message: String) -> FieldProblem {
    FieldProblem {
        job: Some(job.local().to_owned()),
        field: field.to_owned(),
        message,
    }
}

/// A child starts with its parent's end, and may get its output. So a caller who may not read the parent gets the same
/// answer as for one that does not exist.
async fn check_parents(
    state: &ApiState,
    caller: &Caller,
    specs: &[JobSpec],
) -> Result<(), Problem> {
    let mut known: HashSet<&JobName> = specs.iter().map(|spec| &spec.name).collect();
    for spec in specs {
        for parent in spec.parents() {
            if !known.insert(parent) {
                continue;
            }
            let job = match state.store.job(parent).await {
                Ok(summary) => summary.job,
                // The store refuses it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            if !caller.may(Right::Read, &job.spec.group) {
                return Err(no_parent(&spec.name, parent).into());
            }
        }
    }
    Ok(())
}

/// In the words of the store.
fn no_parent(child: &JobName, parent: &JobName) -> StoreError {
    StoreError::invalid(format!(
        "failed to apply job {:?}: its parent {:?} does not exist",
        child.as_str(),
        parent.as_str()
    ))
}

/// Looks at the present definitions of the jobs that would change. Returns the state of each job.
async fn check_changed(
    state: &ApiState,
    caller: &Caller,
    specs: &[JobSpec],
) -> Result<Vec<(JobName, Option<Revision>)>, Problem> {
    let planned = state.store.apply_jobs(specs, true, &caller.actor).await?;
    let changed: Vec<JobId> = planned
        .iter()
        .filter(|job| job.change == Change::Updated)
        .filter_map(|job| job.id)
        .collect();
    let present = if changed.is_empty() {
        Vec::new()
    } else {
        state.store.definitions(&changed).await?
    };
    let found: HashMap<JobId, Revision> = present
        .iter()
        .map(|job| (job.id, Revision::from(&**job)))
        .collect();
    let mut errors = Vec::new();
    for job in &present {
        let spec = &job.spec;
        if !caller.may(Right::Read, &spec.group) {
            errors.push(name_taken(&spec.name));
        } else if let Some(problem) = refusal(caller, spec) {
            errors.push(problem);
        }
    }
    // A definition that cannot be read may be in any group.
    let unreadable = planned.iter().filter(|job| {
        job.change == Change::Updated && job.id.is_none_or(|id| !found.contains_key(&id))
    });
    errors.extend(unreadable.map(|job| name_taken(&job.name)));
    refuse(errors)?;
    let seen = planned.into_iter().map(|job| {
        let planned = job.id.zip(job.version);
        let planned = planned.map(|(id, version)| Revision { id: id.0, version });
        // The definition that was looked at may be newer than the comparison.
        let looked_at = job.id.and_then(|id| found.get(&id).copied());
        (job.name, looked_at.or(planned))
    });
    Ok(seen.collect())
}

fn name_taken(job: &JobName) -> FieldProblem {
    let message = "a job of another group, which you may not read, has this name; use another name";
    problem_of(job, "name", message.to_owned())
}
