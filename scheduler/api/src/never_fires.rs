//! Refuses definitions whose cron expression never fires again.

use cueline_model::JobSpec;
use cueline_store::ErrorKind;

use crate::ApiState;
use crate::problem::{FieldProblem, Problem};

/// Refuses them, except for jobs that have this definition already: a file whose job is over can still be applied.
pub(crate) async fn refuse(state: &ApiState, specs: &[JobSpec]) -> Result<(), Problem> {
    let candidates: Vec<&JobSpec> = specs.iter().filter(|spec| spec.may_be_over()).collect();
    if candidates.is_empty() {
        return Ok(());
    }
    let now = state.store.now().await?;
    let mut errors = Vec::new();
    for spec in candidates {
        if spec.next_fire(now).is_some() || is_stored(state, spec).await? {
            continue;
        }
        let field = if spec.end_at.is_some_and(|end| end <= now) {
            "end_at"
        } else {
            "schedule.cron"
        };
        errors.push(FieldProblem {
            job: Some(spec.name.local().to_owned()),
            field: field.to_owned(),
            message: "the job never fires again: no fire time is left before its end. Give a later year or end_at, \
                      or use { manual = true } for a job that others trigger"
                .to_owned(),
        });
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::unfit(errors))
    }
}

async fn is_stored(state: &ApiState, spec: &JobSpec) -> Result<bool, Problem> {
    match state.store.job(&spec.name).await {
        Ok(stored) => Ok(spec.over(Some(&stored.job.spec)) == stored.job.spec),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}
