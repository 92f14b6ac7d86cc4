//! An event, and who gets it.

use cueline_model::{GroupName, JobName, Namespace, RunState};
use serde::Serialize;

use crate::namespace::has_group;
use crate::view::{ExecutorEvent, JobEvent, Namespaced, Overflow, RunEvent};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    Run,
    Executor,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Job, Self::Run, Self::Executor];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Run => "run",
            Self::Executor => "executor",
        }
    }

    /// The kind with this name.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| {
            format!("{text:?} is not a kind of event; the kinds are job, run, executor")
        })
    }
}

/// Some of the kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kinds([bool; 3]);

impl Kinds {
    pub(super) const fn contains(self, kind: Kind) -> bool {
        self.0[kind as usize]
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL
            .into_iter()
            .filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<T: IntoIterator<Item = Kind>>(kinds: T) -> Self {
        let mut all = Self::default();
        for kind in kinds {
            all.0[kind as usize] = true;
        }
        all
    }
}

/// An event as all subscribers get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(super) kind: Kind,
    /// The value of the field `event`.
    pub(super) name: &'static str,
    /// The group whose readers may see it; `None` for events that say nothing about any job, run or executor.
    group: Option<GroupName>,
    job: Option<JobName>,
    state: Option<RunState>,
    /// JSON, without line breaks.
    pub(super) data: String,
}

impl Event {
    pub(super) fn of_run(event: &RunEvent) -> Self {
        Self {
            kind: Kind::Run,
            name: Kind::Run.as_str(),
            group: Some(event.group.clone()),
            job: Some(event.job.clone()),
            state: Some(event.state),
            data: json_of(&event.group, event),
        }
    }

    pub(super) fn of_job(event: &JobEvent) -> Self {
        Self {
            kind: Kind::Job,
            name: Kind::Job.as_str(),
            group: Some(event.group.clone()),
            job: Some(event.name.clone()),
            state: None,
            data: json_of(&event.group, event),
        }
    }

    pub(super) fn of_executor(event: &ExecutorEvent) -> Self {
        Self {
            kind: Kind::Executor,
            name: Kind::Executor.as_str(),
            group: Some(event.group.clone()),
            job: None,
            state: None,
            data: json_of(&event.group, event),
        }
    }

    /// There are more runs or jobs than are watched.
    pub(super) fn overflow(kind: Kind, watched: usize) -> Self {
        let watched = u64::try_from(watched).unwrap_or(u64::MAX);
        Self::of_stream(kind, "overflow", json(&Overflow { watched }))
    }

    /// Changes of this kind may be missing.
    pub(super) fn resync(kind: Kind) -> Self {
        Self::of_stream(kind, RESYNC, "{}".to_owned())
    }

    const fn of_stream(kind: Kind, name: &'static str, data: String) -> Self {
        Self {
            kind,
            name,
            group: None,
            job: None,
            state: None,
            data,
        }
    }

    /// The group whose readers may see the event. `None` for an event that all may see.
    pub(crate) const fn group(&self) -> Option<&GroupName> {
        self.group.as_ref()
    }
}

/// The name of events that tell a client to read the lists again.
pub(super) const RESYNC: &str = "resync";

/// The data of an event. All types here can be written as JSON.
pub(super) fn json(data: &impl Serialize) -> String {
    serde_json::to_string(data).unwrap_or_default()
}

/// The data of an event about what belongs to a group. As in the lists, it names the namespace unless that is `default`.
fn json_of(group: &GroupName, item: &impl Serialize) -> String {
    json(&Namespaced {
        namespace: group.namespace(),
        item,
    })
}

/// Whether a caller may read what belongs to this group.
pub(crate) type MayRead = Box<dyn Fn(&GroupName) -> bool + Send + Sync>;

/// What a subscriber wants and may see.
pub(crate) struct Filter {
    pub(crate) kinds: Kinds,
    /// What belongs to this namespace; `None` for all.
    pub(crate) namespace: Option<Namespace>,
    /// Jobs with these names, and their runs; empty for all.
    pub(crate) jobs: Vec<JobName>,
    /// What belongs to these groups; empty for all.
    pub(crate) groups: Vec<GroupName>,
    /// Runs in one of these states; empty for all.
    pub(crate) states: Vec<RunState>,
    pub(crate) may_read: MayRead,
}

impl Filter {
    /// Executors belong to no job, and jobs are in no state: such a filter does not concern them.
    pub(super) fn passes(&self, event: &Event) -> bool {
        let of_jobs = |job: &JobName| self.jobs.is_empty() || self.jobs.contains(job);
        let is_readable = |group: &GroupName| {
            has_group(self.namespace.as_ref(), group)
                && (self.groups.is_empty() || self.groups.contains(group))
                && (self.may_read)(group)
        };
        let in_state = |state: RunState| self.states.is_empty() || self.states.contains(&state);
        self.kinds.contains(event.kind)
            && event.job.as_ref().is_none_or(of_jobs)
            && event.state.is_none_or(in_state)
            && event.group().is_none_or(is_readable)
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{JobId, RunId, RunKind, Timestamp};

    use super::*;
    use crate::view::{JobChange, RunChange};

    fn run(job: &str, group: &str, state: RunState) -> Event {
        Event::of_run(&RunEvent {
            change: RunChange::Created,
            id: RunId(1),
            job_id: JobId(1),
            job: job.parse().expect("a name"),
            group: group.parse().expect("a name"),
            kind: RunKind::Manual,
            state,
            attempt: 1,
            fire_at: Timestamp::from_millis(0),
            executor: None,
            ended_at: None,
        })
    }

    fn job(name: &str) -> Event {
        Event::of_job(&JobEvent {
            change: JobChange::Created,
            id: JobId(1),
            name: name.parse().expect("a name"),
            group: "g".parse().expect("a name"),
            version: 1,
            enabled: true,
        })
    }

    fn all() -> Filter {
        Filter {
            kinds: Kind::ALL.into_iter().collect(),
            namespace: None,
            jobs: Vec::new(),
            groups: Vec::new(),
            states: Vec::new(),
            may_read: Box::new(|_| true),
        }
    }

    #[test]
    fn a_filter_leaves_out_other_kinds_jobs_and_states() {
        let failed = run("a", "g", RunState::Failed);
        assert!(all().passes(&failed) && all().passes(&job("a")));
        let jobs = Filter {
            kinds: [Kind::Job].into_iter().collect(),
            ..all()
        };
        assert!(!jobs.passes(&failed) && jobs.passes(&job("a")));
        let of_b = Filter {
            jobs: vec!["b".parse().expect("a name")],
            ..all()
        };
        let of_other = Filter {
            groups: vec!["other".parse().expect("a name")],
            ..all()
        };
        assert!(!of_other.passes(&failed) && of_other.passes(&Event::resync(Kind::Job)));
        assert!(!of_b.passes(&failed) && !of_b.passes(&job("a")) && of_b.passes(&job("b")));
        let lost = Filter {
            states: vec![RunState::Lost],
            ..all()
        };
        assert!(!lost.passes(&failed) && lost.passes(&run("a", "g", RunState::Lost)));
        assert!(lost.passes(&job("a")));
    }

    #[test]
    fn a_caller_sees_events_of_readable_groups_only_and_all_events_about_the_stream() {
        let reader = Filter {
            may_read: Box::new(|group| group.as_str() == "mine"),
            ..all()
        };
        assert!(reader.passes(&run("a", "mine", RunState::Failed)));
        assert!(!reader.passes(&run("a", "other", RunState::Failed)));
        assert!(reader.passes(&Event::overflow(Kind::Run, 1)));
        assert!(reader.passes(&Event::resync(Kind::Job)));
    }

    #[test]
    fn a_stream_of_a_namespace_has_its_events_only_and_all_events_about_the_stream() {
        let of_team = Filter {
            namespace: Some("team-a".parse().expect("a namespace")),
            ..all()
        };
        let own = run("team-a/a", "team-a/g", RunState::Failed);
        assert!(of_team.passes(&own) && all().passes(&own));
        assert!(!of_team.passes(&run("a", "g", RunState::Failed)));
        assert!(!of_team.passes(&run("team-b/a", "team-b/g", RunState::Failed)));
        assert!(of_team.passes(&Event::overflow(Kind::Run, 1)));
        let of_default = Filter {
            namespace: Some(Namespace::default()),
            ..all()
        };
        assert!(!of_default.passes(&own) && of_default.passes(&job("a")));
    }

    #[test]
    fn the_data_of_an_event_names_its_namespace_unless_that_is_default() {
        let own = run("team-a/a", "team-a/g", RunState::Failed);
        assert!(own.data.contains(r#""namespace":"team-a""#), "{}", own.data);
        assert!(own.data.contains(r#""job":"team-a/a""#), "{}", own.data);
        let other = run("a", "g", RunState::Failed);
        assert!(!other.data.contains("namespace"), "{}", other.data);
    }
}
