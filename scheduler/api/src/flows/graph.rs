//! The graph of a flow run: how each job stands, and why it has not started. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::flow::{self, Start};
use cueline_model::{AfterOn, FireState, Job, JobName, ParentState};
use cueline_store::FlowPart;

use crate::view::{Counts, FlowJob, FlowJobState, FlowState};

/// The most parents that a reason names. The number of the others follows.
const MAX_NAMED: usize = 3;

/// How the flow run as a whole stands.
pub(super) fn state_of(states: impl IntoIterator<Item = FireState>) -> FlowState {
    // The order of fires is another one: a job that was stopped weighs less here than one that failed.
    let states: BTreeSet<FireState> = states.into_iter().collect();
    if states.contains(&FireState::Live) {
        FlowState::Running
    } else if states.contains(&FireState::Failed) {
        FlowState::Failed
    } else if states.contains(&FireState::Stopped) {
        FlowState::Stopped
    } else {
        FlowState::Succeeded
    }
}

/// The state by the number of runs in each state alone.
pub(super) fn state_of_counts(counts: &Counts) -> FlowState {
    state_of(
        counts
            .keys()
            .map(|state| FireState::of_shard(*state, false)),
    )
}

/// A graph of jobs, with the fires of a flow run.
pub(super) struct Graph<'a> {
    jobs: BTreeMap<&'a JobName, &'a Arc<Job>>,
    fires: HashMap<&'a JobName, FireState>,
    counts: HashMap<&'a JobName, Counts>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(jobs: &'a [Arc<Job>], parts: &'a [FlowPart]) -> Self {
        let mut fires: HashMap<&JobName, FireState> = HashMap::new();
        let mut counts: HashMap<&JobName, Counts> = HashMap::new();
        for part in parts {
            let state = FireState::of_shard(part.state, part.cancel_requested);
            let fire = fires.entry(&part.job).or_insert(state);
            *fire = state.max(*fire);
            let of_job = counts.entry(&part.job).or_default();
            *of_job.entry(part.state).or_default() += 1;
        }
        Self {
            jobs: jobs.iter().map(|job| (&job.spec.name, job)).collect(),
            fires,
            counts,
        }
    }

    /// How the flow run stands.
    pub(super) fn state(&self) -> FlowState {
        state_of(self.fires.values().copied())
    }

    /// All jobs, each after its parents.
    pub(super) fn jobs(&self) -> Vec<FlowJob> {
        let settled = self.settled();
        self.in_order()
            .into_iter()
            .map(|job| {
                let name = &job.spec.name;
                let state = settled.get(name).copied();
                FlowJob {
                    job: name.clone(),
                    group: job.spec.group.clone(),
                    state: state.unwrap_or(FlowJobState::NotStarted),
                    after: job.spec.after.as_deref().cloned(),
                    runs: self.counts.get(name).cloned().unwrap_or_default(),
                    reason: self.reason(job, &settled),
                }
            })
            .collect()
    }

    /// Parents before children; those without an order between them by name.
    fn in_order(&self) -> Vec<&'a Arc<Job>> {
        let mut placed: BTreeSet<&JobName> = BTreeSet::new();
        let mut order = Vec::with_capacity(self.jobs.len());
        let mut open: Vec<&'a Arc<Job>> = self.jobs.values().copied().collect();
        while !open.is_empty() {
            let (ready, later): (Vec<_>, Vec<_>) = open.into_iter().partition(|job| {
                let mut parents = job.spec.parents().iter();
                parents.all(|p| placed.contains(p) || !self.jobs.contains_key(p))
            });
            // Definitions form no cycle, so there is always one that is ready.
            if ready.is_empty() {
                order.extend(later);
                return order;
            }
            placed.extend(ready.iter().map(|job| &job.spec.name));
            order.extend(ready);
            open = later;
        }
        order
    }

    /// The state of each job. A job waits if its parents may still start it.
    fn settled(&self) -> HashMap<&'a JobName, FlowJobState> {
        let mut settled: HashMap<&JobName, FlowJobState> = HashMap::new();
        for job in self.in_order() {
            let name = &job.spec.name;
            let state = match self.fires.get(name) {
                Some(FireState::Live) => FlowJobState::Running,
                Some(FireState::Succeeded) => FlowJobState::Succeeded,
                Some(FireState::Failed) => FlowJobState::Failed,
                Some(FireState::Stopped) => FlowJobState::Stopped,
                None if self.may_start(job, &settled) => FlowJobState::Waiting,
                None => FlowJobState::NotStarted,
            };
            settled.insert(name, state);
        }
        settled
    }

    fn may_start(&self, job: &Job, settled: &HashMap<&JobName, FlowJobState>) -> bool {
        let Some(after) = job.spec.after.as_ref().filter(|_| job.spec.is_enabled()) else {
            return false;
        };
        let parents = after.names().iter().map(|parent| {
            match (self.fires.get(parent), settled.get(parent)) {
                (Some(state), _) => ParentState::Fired(*state),
                (None, Some(FlowJobState::Waiting)) => ParentState::Ahead,
                // In the graph and not started: it is waited for in vain.
                (None, Some(_)) => ParentState::Fired(FireState::Stopped),
                (None, None) => ParentState::OutOfReach,
            }
        });
        flow::start(after, parents) == Start::Later
    }

    fn reason(&self, job: &Job, settled: &HashMap<&JobName, FlowJobState>) -> Option<String> {
        let state = settled.get(&job.spec.name)?;
        let after = job.spec.after.as_ref()?;
        let is_open = match state {
            FlowJobState::Waiting => true,
            FlowJobState::NotStarted => false,
            _ => return None,
        };
        if !job.spec.is_enabled() {
            return Some("it is paused".to_owned());
        }
        let wanted = |parent: &&JobName| match self.fires.get(*parent) {
            Some(FireState::Live) => is_open,
            Some(state) => !is_open && !after.on.accepts(*state),
            None => settled.contains_key(*parent),
        };
        let parents: Vec<String> = after
            .names()
            .iter()
            .filter(wanted)
            .map(|parent| format!("{} {}", parent.local(), ended(settled.get(parent).copied())))
            .collect();
        let ends = match after.on {
            AfterOn::Success => "a success",
            AfterOn::Failure => "a failure",
            AfterOn::Always => "a success or a failure",
        };
        let which = if after.waits_for_all() && after.names().len() > 1 {
            format!("{ends} of all parents")
        } else {
            ends.to_owned()
        };
        Some(format!("it starts after {which}; {}", listed(&parents)))
    }
}

fn ended(state: Option<FlowJobState>) -> &'static str {
    match state {
        Some(FlowJobState::Waiting) => "has not started yet",
        Some(FlowJobState::NotStarted) | None => "did not start",
        Some(FlowJobState::Running) => "is running",
        Some(FlowJobState::Succeeded) => "succeeded",
        Some(FlowJobState::Failed) => "failed",
        Some(FlowJobState::Stopped) => "was stopped",
    }
}

fn listed(parents: &[String]) -> String {
    let mut shown = parents[..parents.len().min(MAX_NAMED)].join(", ");
    if parents.len() > MAX_NAMED {
        shown = format!("{shown} and {} more", parents.len() - MAX_NAMED);
    }
    shown
}

#[cfg(test)]
mod tests {
    use cueline_model::{JobId, RunId, RunState};
    use serde_json::json;

    use super::*;

    fn job(name: &str, after: serde_json::Value) -> Arc<Job> {
        let mut text = json!({
            "name": name, "group": "g", "schedule": { "manual": true }, "handler": { "native": "work" },
        });
        if !after.is_null() {
            text["after"] = after;
        }
        let spec = serde_json::from_value(text).expect("a definition");
        Arc::new(Job {
            id: JobId(1),
            version: 1,
            spec,
        })
    }

    fn diamond() -> Vec<Arc<Job>> {
        vec![
            job("d", json!({ "all": ["b", "c"] })),
            job("b", json!({ "all": ["a"] })),
            job("c", json!({ "all": ["a"] })),
            job("a", json!(null)),
            job("page", json!({ "any": ["b", "c"], "on": "failure" })),
        ]
    }

    fn part(job: &str, state: RunState) -> FlowPart {
        FlowPart {
            run: RunId(1),
            job: job.parse().expect("a name"),
            group: "g".parse().expect("a name"),
            state,
            cancel_requested: false,
        }
    }

    /// Name, state and reason of each job.
    fn shown(jobs: &[Arc<Job>], parts: &[FlowPart]) -> Vec<(String, FlowJobState, String)> {
        let graph = Graph::new(jobs, parts);
        let jobs = graph.jobs().into_iter();
        jobs.map(|job| {
            let reason = job.reason.unwrap_or_default();
            (job.job.as_str().to_owned(), job.state, reason)
        })
        .collect()
    }

    fn entry(name: &str, state: FlowJobState, reason: &str) -> (String, FlowJobState, String) {
        (name.to_owned(), state, reason.to_owned())
    }

    #[test]
    fn jobs_come_after_their_parents_and_say_what_they_wait_for() {
        use FlowJobState as S;
        let parts = [
            part("a", RunState::Succeeded),
            part("b", RunState::Succeeded),
            part("c", RunState::Running),
        ];
        assert_eq!(
            shown(&diamond(), &parts),
            [
                entry("a", S::Succeeded, ""),
                entry("b", S::Succeeded, ""),
                entry("c", S::Running, ""),
                entry(
                    "d",
                    S::Waiting,
                    "it starts after a success of all parents; c is running"
                ),
                entry(
                    "page",
                    S::Waiting,
                    "it starts after a failure; c is running"
                ),
            ]
        );
        assert_eq!(Graph::new(&diamond(), &parts).state(), FlowState::Running);
    }

    #[test]
    fn a_job_that_does_not_start_names_the_parent() {
        use FlowJobState as S;
        let parts = [
            part("a", RunState::Succeeded),
            part("b", RunState::Skipped),
            part("c", RunState::Failed),
            part("page", RunState::Succeeded),
        ];
        let shown = shown(&diamond(), &parts);
        assert_eq!(shown[1], entry("b", S::Stopped, ""));
        let reason = "it starts after a success of all parents; b was stopped, c failed";
        assert_eq!(shown[3], entry("d", S::NotStarted, reason));
        assert_eq!(Graph::new(&diamond(), &parts).state(), FlowState::Failed);
    }

    #[test]
    fn what_follows_a_job_that_does_not_start_does_not_start_either() {
        use FlowJobState as S;
        let jobs = [
            job("a", json!(null)),
            job("b", json!({ "all": ["a"] })),
            job("c", json!({ "all": ["b"], "on": "always" })),
        ];
        let shown = shown(&jobs, &[part("a", RunState::Failed)]);
        assert_eq!(
            shown[1..],
            [
                entry("b", S::NotStarted, "it starts after a success; a failed"),
                entry(
                    "c",
                    S::NotStarted,
                    "it starts after a success or a failure; b did not start"
                ),
            ]
        );
    }

    #[test]
    fn a_flow_run_is_as_its_worst_job() {
        use FireState as S;
        for (states, expected) in [
            (&[S::Succeeded, S::Succeeded][..], FlowState::Succeeded),
            (&[S::Succeeded, S::Stopped], FlowState::Stopped),
            (&[S::Stopped, S::Failed], FlowState::Failed),
            (&[S::Failed, S::Live], FlowState::Running),
        ] {
            assert_eq!(state_of(states.iter().copied()), expected, "{states:?}");
        }
    }
}
