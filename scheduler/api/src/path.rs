//! Reads names and numbers from paths. The check of rights and the handlers refuse a wrong one in the same words, and read
//! a name in the same namespace.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use cueline_model::{ExecutorId, ExecutorName, JobName, RunId};

use crate::namespace::InNamespace;
use crate::problem::{FieldProblem, Problem};

/// The name of a job in the namespace of the request.
pub(crate) fn job_name(namespace: &InNamespace, text: &str) -> Result<JobName, Problem> {
    namespace
        .job(text)
        .map_err(|message| Problem::malformed_fields(vec![FieldProblem::new("name", message)]))
}

/// The id of a run.
pub(crate) fn run_id(text: &str) -> Result<RunId, Problem> {
    text.parse::<i64>()
        .ok()
        .filter(|id| *id > 0)
        .map(RunId)
        .ok_or_else(|| {
            let message = format!("{text:?} is not a run's id; ids are whole numbers from 1 on");
            Problem::malformed_fields(vec![FieldProblem::new("id", message)])
        })
}

/// The group, in the namespace of the request, and the name of an executor.
pub(crate) fn executor(
    namespace: &InNamespace,
    group: &str,
    name: &str,
) -> Result<ExecutorId, Problem> {
    let mut errors = Vec::new();
    let group = namespace.group(group).map_err(|message| {
        errors.push(FieldProblem::new("group", message));
    });
    let name = name.parse::<ExecutorName>().map_err(|e| {
        errors.push(FieldProblem::new("executor", e.to_string()));
    });
    match (group, name) {
        (Ok(group), Ok(name)) => Ok(ExecutorId { group, name }),
        _ => Err(Problem::malformed_fields(errors)),
    }
}

/// The number of something, such as a silence, in a path.
pub(crate) fn number(
    path: Result<Path<String>, PathRejection>,
    noun: &str,
) -> Result<i64, Problem> {
    let Path(text) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let id = text.parse::<i64>().ok().filter(|id| *id > 0);
    id.ok_or_else(|| {
        let message =
            format!("{text:?} is not the number of a {noun}; numbers are whole and from 1 on");
        Problem::malformed_fields(vec![FieldProblem::new("id", message)])
    })
}
