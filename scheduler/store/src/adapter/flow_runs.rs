//! Which runs of a flow run are cancelled or retried.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cueline_model::{Actor, GroupName, Job, JobName, RunId, RunKind, RunState, Timestamp};

use super::audit::stored_actor;
use super::convert::{parse_name, run_kind, run_state, to_u32, to_u64};
use super::definitions::JobsById;
use crate::{ErrorKind, FlowCounts, FlowPart, MAX_FLOW_RUNS, StoreError};

/// A run of a flow run, as an adapter reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowMember {
    /// The run as a part of the flow run.
    pub part: FlowPart,
    /// The id of its job.
    pub job: i64,
    /// Its attempt.
    pub attempt: u32,
    /// What created it.
    pub kind: RunKind,
    /// The version of the job; `None` if the job is deleted.
    pub job_version: Option<i64>,
    /// Whether the job is enabled.
    pub job_enabled: bool,
    /// When the last pause of the job's scope ends.
    pub paused_until: Option<Timestamp>,
}

/// The columns of [`FlowMember`]: run, job, state, attempt, cancellation, kind, version, enabled, end of
/// the pauses, name and group of the job.
pub type FlowMemberRow = (
    i64,
    i64,
    i64,
    i64,
    bool,
    i64,
    Option<i64>,
    bool,
    Option<i64>,
    String,
    String,
);

impl FlowMember {
    /// From its columns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`] for an unknown state or kind, and for names that are not valid.
    pub fn of_row(row: FlowMemberRow) -> Result<Self, StoreError> {
        let (
            run,
            job,
            state,
            attempt,
            cancel_requested,
            kind,
            job_version,
            job_enabled,
            paused_until,
            name,
            group,
        ) = row;
        Ok(Self {
            part: FlowPart {
                run: RunId(run),
                job: parse_name(&name)?,
                group: parse_name(&group)?,
                state: run_state(state)?,
                cancel_requested,
            },
            job,
            attempt: to_u32(attempt),
            kind: run_kind(kind)?,
            job_version,
            job_enabled,
            paused_until: paused_until.map(Timestamp::from_millis),
        })
    }

    /// Whether it has ended, and not as a success. A success counts as none if its cancellation was requested, because
    /// nothing has followed it.
    fn is_unsuccessful(&self) -> bool {
        let FlowPart {
            state,
            cancel_requested,
            ..
        } = self.part;
        state.is_terminal() && (state != RunState::Succeeded || cancel_requested)
    }

    /// Whether it would be dispatched. A pause, of the job or of its scope, does not stop manual runs.
    fn may_run(&self, now: Timestamp) -> bool {
        let is_paused = !self.job_enabled || self.paused_until.is_some_and(|until| now < until);
        self.job_version.is_some() && (!is_paused || self.kind == RunKind::Manual)
    }

    /// The text for the timeline when it is retried.
    pub fn retried_detail(&self, by: &Actor) -> String {
        format!(
            "attempt {} {}; the flow run was retried by {}",
            self.attempt,
            self.part.state,
            stored_actor(by)
        )
    }
}

/// The members, if they are not too many.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there are none, and [`ErrorKind::Conflict`] if there are more than [`MAX_FLOW_RUNS`].
pub fn members_of(flow: RunId, rows: Vec<FlowMemberRow>) -> Result<Vec<FlowMember>, StoreError> {
    if rows.is_empty() {
        return Err(StoreError::no_run(flow));
    }
    if rows.len() > MAX_FLOW_RUNS {
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!("flow run {flow} has more than {MAX_FLOW_RUNS} runs"),
        ));
    }
    rows.into_iter().map(FlowMember::of_row).collect()
}

/// Its runs as parts.
pub fn parts_of(members: &[FlowMember]) -> Vec<FlowPart> {
    members.iter().map(|member| member.part.clone()).collect()
}

/// The job that the flow run began with, and its group. If that run is missing, those of the first one that is left.
pub fn origin(flow: RunId, members: &[FlowMember]) -> Option<(&JobName, &GroupName)> {
    let first = members.iter().find(|member| member.part.run == flow);
    let part = &first.or(members.first())?.part;
    Some((&part.job, &part.group))
}

/// The jobs of these runs, each once.
pub fn jobs_of(members: &[FlowMember]) -> Vec<i64> {
    let jobs: BTreeSet<i64> = members.iter().map(|member| member.job).collect();
    jobs.into_iter().collect()
}

/// The ids of these runs.
pub fn run_ids(members: &[FlowMember]) -> Vec<RunId> {
    members.iter().map(|member| member.part.run).collect()
}

/// Jobs sorted by id.
pub fn sorted_jobs(jobs: JobsById) -> Vec<Arc<Job>> {
    let mut jobs: Vec<Arc<Job>> = jobs.into_values().collect();
    jobs.sort_unstable_by_key(|job| job.id);
    jobs
}

/// Counts by flow run from rows of flow run, state and number, sorted by flow run.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unknown state.
pub fn flow_counts(rows: Vec<(i64, i64, i64)>) -> Result<Vec<FlowCounts>, StoreError> {
    let mut counts: Vec<FlowCounts> = Vec::new();
    for (flow, state, runs) in rows {
        let count = (run_state(state)?, to_u64(runs));
        match counts.last_mut() {
            Some(last) if last.id.0 == flow => last.states.push(count),
            _ => counts.push(FlowCounts {
                id: RunId(flow),
                states: vec![count],
            }),
        }
    }
    Ok(counts)
}

/// The live runs that a cancellation is about: those that have not been published, and the others. Those whose cancellation
/// was requested before are left out.
pub fn to_cancel(members: &[FlowMember]) -> (Vec<FlowMember>, Vec<FlowMember>) {
    let is_left = |part: &FlowPart| !part.state.is_terminal() && !part.cancel_requested;
    let left = members.iter().filter(|member| is_left(&member.part));
    left.cloned()
        .partition(|member| member.part.state == RunState::Scheduled)
}

/// The message of runs that are cancelled with their flow run.
pub fn flow_cancelled_message(flow: RunId, by: &Actor) -> String {
    format!("flow run {flow} was cancelled by {}", stored_actor(by))
}

/// The runs that a retry repeats: those without success, unless they are of a job after another one that is repeated.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if there are none, with the reason.
pub fn to_retry(
    flow: RunId,
    members: &[FlowMember],
    jobs: &[Arc<Job>],
    now: Timestamp,
) -> Result<Vec<FlowMember>, StoreError> {
    let unsuccessful: Vec<&FlowMember> = members.iter().filter(|m| m.is_unsuccessful()).collect();
    let refuse = |why: &str| {
        Err(StoreError::new(
            ErrorKind::Conflict,
            format!("nothing of flow run {flow} can be retried: {why}"),
        ))
    };
    if unsuccessful.is_empty() {
        return refuse("none of its runs has ended without success");
    }
    let wanted: HashSet<i64> = unsuccessful
        .iter()
        .filter(|m| m.may_run(now))
        .map(|m| m.job)
        .collect();
    if wanted.is_empty() {
        return refuse("the jobs of the runs without success are paused or deleted");
    }
    let later = jobs_after(&wanted, jobs);
    Ok(unsuccessful
        .into_iter()
        .filter(|m| m.may_run(now) && !later.contains(&m.job))
        .cloned()
        .collect())
}

/// The jobs after some of these, directly or through others.
fn jobs_after(of: &HashSet<i64>, jobs: &[Arc<Job>]) -> HashSet<i64> {
    let mut children: HashMap<&JobName, Vec<&Arc<Job>>> = HashMap::new();
    for job in jobs {
        for parent in job.spec.parents() {
            children.entry(parent).or_default().push(job);
        }
    }
    let mut open: Vec<&JobName> = jobs
        .iter()
        .filter(|job| of.contains(&job.id.0))
        .map(|job| &job.spec.name)
        .collect();
    let mut seen: BTreeSet<&JobName> = BTreeSet::new();
    let mut found = HashSet::new();
    while let Some(name) = open.pop() {
        if seen.insert(name) {
            for child in children.get(name).into_iter().flatten() {
                found.insert(child.id.0);
                open.push(&child.spec.name);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use cueline_model::{ActorKind, JobId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn job(id: i64, name: &str, parents: &[&str]) -> Arc<Job> {
        let mut text = serde_json::json!({
            "name": name, "group": "g", "schedule": { "manual": true }, "handler": { "native": "work" },
        });
        if !parents.is_empty() {
            text["after"] = serde_json::json!({ "all": parents, "on": "always" });
        }
        Arc::new(Job {
            id: JobId(id),
            version: 1,
            spec: serde_json::from_value(text).expect("a definition"),
        })
    }

    fn member(run: i64, job: i64, state: RunState) -> FlowMember {
        FlowMember {
            part: FlowPart {
                run: RunId(run),
                job: "j".parse().expect("a name"),
                group: "g".parse().expect("a name"),
                state,
                cancel_requested: false,
            },
            job,
            attempt: 1,
            kind: RunKind::Child,
            job_version: Some(1),
            job_enabled: true,
            paused_until: None,
        }
    }

    fn retried(members: &[FlowMember]) -> Result<Vec<i64>, String> {
        let jobs = [
            job(1, "a", &[]),
            job(2, "b", &["a"]),
            job(3, "c", &["a"]),
            job(4, "d", &["b"]),
            job(5, "e", &["d"]),
        ];
        let runs = to_retry(RunId(1), members, &jobs, NOW).map_err(|e| e.to_string())?;
        Ok(runs.iter().map(|m| m.part.run.0).collect())
    }

    #[test]
    fn only_the_failed_shards_are_retried() {
        let members = [
            member(1, 1, RunState::Succeeded),
            member(2, 2, RunState::Succeeded),
            member(3, 2, RunState::TimedOut),
            member(4, 3, RunState::Cancelled),
            member(5, 3, RunState::Running),
        ];
        assert_eq!(retried(&members), Ok(vec![3, 4]));
    }

    #[test]
    fn a_job_after_one_that_is_retried_waits_for_it() {
        let members = [
            member(1, 1, RunState::Succeeded),
            member(2, 2, RunState::Failed),
            member(3, 3, RunState::Lost),
            member(4, 4, RunState::Succeeded),
            member(5, 5, RunState::Failed),
        ];
        assert_eq!(retried(&members), Ok(vec![2, 3]));
    }

    #[test]
    fn a_success_that_was_to_be_cancelled_is_repeated() {
        let mut succeeded = member(1, 1, RunState::Succeeded);
        succeeded.part.cancel_requested = true;
        assert_eq!(retried(&[succeeded]), Ok(vec![1]));
    }

    #[test]
    fn a_refusal_says_why() {
        let succeeded = [member(1, 1, RunState::Succeeded)];
        let error = retried(&succeeded).expect_err("is refused");
        assert!(error.contains("none of its runs"), "{error}");
        let mut paused = member(1, 1, RunState::Failed);
        paused.job_enabled = false;
        let error = retried(&[paused.clone()]).expect_err("is refused");
        assert!(error.contains("paused or deleted"), "{error}");
        paused.kind = RunKind::Manual;
        assert_eq!(retried(&[paused]), Ok(vec![1]));
    }

    #[test]
    fn a_pause_of_the_scope_counts_until_it_ends() {
        let mut paused = member(1, 1, RunState::Failed);
        paused.paused_until = Some(NOW.plus_ms(1));
        let error = retried(&[paused.clone()]).expect_err("is refused");
        assert!(error.contains("paused or deleted"), "{error}");
        let manual = FlowMember {
            kind: RunKind::Manual,
            ..paused.clone()
        };
        assert_eq!(retried(&[manual]), Ok(vec![1]));
        paused.paused_until = Some(NOW);
        assert_eq!(retried(&[paused]), Ok(vec![1]));
    }

    #[test]
    fn the_timeline_names_attempt_state_and_actor() {
        let by = Actor::new(ActorKind::User, "alice");
        let detail = member(1, 1, RunState::TimedOut).retried_detail(&by);
        assert_eq!(
            detail,
            "attempt 1 timed_out; the flow run was retried by user alice"
        );
    }
}
