//! The versions that the jobs of an apply must have: the field `if_versions`.

use std::collections::HashSet;

use cueline_model::{JobName, JobSpec};
use cueline_store::{JobPreconditions, Precondition};
use serde_json::Value;

use crate::body::{Fields, a_kind};
use crate::namespace::InNamespace;
use crate::problem::{FieldProblem, FieldProblems, Problem};

const FIELD: &str = "if_versions";

/// Reads the field: a version by the name of each job, `null` for a job that must not exist.
pub(crate) fn read(fields: &mut Fields, namespace: &InNamespace) -> JobPreconditions {
    let mut conditions = JobPreconditions::new();
    let given = match fields.take(FIELD) {
        None => return conditions,
        Some(Value::Object(given)) => given,
        Some(other) => {
            let kind = a_kind(&other);
            let message = format!("{kind} is given; give an object of versions by names of jobs");
            fields.record(FIELD, message);
            return conditions;
        }
    };
    for (name, version) in given {
        let field = format!("{FIELD}.{name}");
        let condition = match version.as_i64() {
            _ if version.is_null() => Precondition::Absent,
            Some(version @ 1..) => Precondition::Version(version),
            _ => {
                let message = format!(
                    "{version} is not a version; give a whole number from 1 on, or null for a job that must not exist"
                );
                fields.record(&field, message);
                continue;
            }
        };
        match namespace.job(&name) {
            Ok(job) => {
                if conditions.insert(job, condition).is_some() {
                    fields.record_unfit(&field, "the job is given twice; give it once");
                }
            }
            // A name of another namespace is well formed.
            Err(message) if name.parse::<JobName>().is_ok() => {
                fields.record_unfit(&field, message);
            }
            Err(message) => fields.record(&field, message),
        }
    }
    conditions
}

/// Refuses versions of jobs that are not applied. They would have no effect.
pub(crate) fn require_applied(
    conditions: &JobPreconditions,
    specs: &[JobSpec],
) -> Result<(), Problem> {
    if conditions.is_empty() {
        return Ok(());
    }
    let applied: HashSet<&JobName> = specs.iter().map(|spec| &spec.name).collect();
    let mut errors = FieldProblems::default();
    for name in conditions.keys().filter(|name| !applied.contains(name)) {
        let field = format!("{FIELD}.{}", name.local());
        let message = "no job of this name is in `jobs`; leave it out, or add the job";
        errors.push_unfit(FieldProblem::new(field, message));
    }
    errors.finish()
}

/// A refusal of the store, with the job of each version that is another one.
pub(crate) fn refused(mut problem: Problem) -> Problem {
    if problem.is_precondition_failed() {
        for error in &mut problem.errors {
            let name = std::mem::replace(&mut error.field, FIELD.to_owned());
            let local = name.rsplit('/').next().unwrap_or(&name);
            error.job = Some(local.to_owned());
        }
    }
    problem
}
