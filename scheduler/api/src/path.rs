//! Reads names and numbers from paths. The check of rights and the handlers refuse a wrong one in the same words.

use cueline_model::{ExecutorId, ExecutorName, GroupName, JobName, RunId};

use crate::problem::{FieldProblem, Problem};

/// The name of a job.
pub(crate) fn job_name(text: &str) -> Result<JobName, Problem> {
    text.parse().map_err(|e: cueline_model::NameError| {
        Problem::malformed_fields(vec![FieldProblem::new("name", e.to_string())])
    })
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

/// The group and the name of an executor.
pub(crate) fn executor(group: &str, name: &str) -> Result<ExecutorId, Problem> {
    let mut errors = Vec::new();
    let group = group.parse::<GroupName>().map_err(|e| {
        errors.push(FieldProblem::new("group", e.to_string()));
    });
    let name = name.parse::<ExecutorName>().map_err(|e| {
        errors.push(FieldProblem::new("executor", e.to_string()));
    });
    match (group, name) {
        (Ok(group), Ok(name)) => Ok(ExecutorId { group, name }),
        _ => Err(Problem::malformed_fields(errors)),
    }
}
