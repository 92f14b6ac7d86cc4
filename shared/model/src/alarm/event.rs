//! What has happened that raises an alarm.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::scope::AlarmScope;
use crate::job::Job;
use crate::name::{GroupName, JobName, RuleName};
use crate::run::{RunId, RunState};
use crate::time::Timestamp;

/// The longest message of a run that an event keeps, in bytes. A longer one is cut.
pub const MAX_EVENT_MESSAGE_BYTES: usize = 1_000;

/// The labels of a job that an event keeps, in bytes of names and values. Those that do not fit are left out.
pub(super) const MAX_EVENT_LABEL_BYTES: usize = 4_096;

/// The kind of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionKind {
    /// A run failed.
    Failed,
    /// Several runs failed one after the other.
    FailedInARow,
    /// A run timed out.
    TimedOut,
    /// A run was lost.
    Lost,
    /// A run found no executor in time.
    Unroutable,
    /// The first success after a failure.
    Recovered,
    /// Fire times were missed.
    Missed,
    /// A run is late.
    Late,
    /// Too many runs wait.
    Backlog,
    /// A group has no live executor.
    NoExecutor,
    /// A person tests a channel.
    Test,
}

impl ConditionKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Failed,
        Self::FailedInARow,
        Self::TimedOut,
        Self::Lost,
        Self::Unroutable,
        Self::Recovered,
        Self::Missed,
        Self::Late,
        Self::Backlog,
        Self::NoExecutor,
        Self::Test,
    ];

    /// The word for it in rules, in the API and in stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::FailedInARow => "failed_in_a_row",
            Self::TimedOut => "timed_out",
            Self::Lost => "lost",
            Self::Unroutable => "unroutable",
            Self::Recovered => "recovered",
            Self::Missed => "missed",
            Self::Late => "late",
            Self::Backlog => "backlog",
            Self::NoExecutor => "no_executor",
            Self::Test => "test",
        }
    }

    /// The kind with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl fmt::Display for ConditionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What is known about an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmFacts {
    /// The job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobName>,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The labels of the job, up to [`MAX_EVENT_LABEL_BYTES`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The state of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// How many runs failed one after the other, fire times were missed, or runs wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Since when: the first failure, the first missed fire time, the due time, the last time with a live executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The message of the run, cut to [`MAX_EVENT_MESSAGE_BYTES`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl AlarmFacts {
    /// Facts about a job.
    pub fn of_job(job: &Job) -> Self {
        Self {
            job: Some(job.spec.name.clone()),
            group: Some(job.spec.group.clone()),
            labels: kept_labels(&job.spec.labels),
            ..Self::default()
        }
    }

    /// Adds a message.
    #[must_use]
    pub fn saying(mut self, message: &str) -> Self {
        let mut end = message.len().min(MAX_EVENT_MESSAGE_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message[..end].clone_into(&mut self.message);
        self
    }

    /// Whether a scope fits the event.
    pub(super) fn is_in(&self, scope: &AlarmScope) -> bool {
        let job = self.job.as_ref().map(JobName::local);
        let group = self.group.as_ref().map(GroupName::local);
        scope.fits(job, group, &self.labels)
    }
}

/// The labels by name, without those that have no room.
fn kept_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut room = MAX_EVENT_LABEL_BYTES;
    let mut kept = BTreeMap::new();
    for (name, value) in labels {
        if let Some(rest) = room.checked_sub(name.len() + value.len()) {
            room = rest;
            kept.insert(name.clone(), value.clone());
        }
    }
    kept
}

/// An event that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAlarmEvent {
    /// The rule.
    pub rule_id: i64,
    /// Its name.
    pub rule: RuleName,
    /// What happened, once for each rule: a second event of the rule with this key is not written.
    pub key: String,
    /// When.
    pub at: Timestamp,
    /// Which condition of the rule it fulfils.
    pub kind: ConditionKind,
    /// When the messages about it are sent at the latest.
    pub send_at: Timestamp,
    /// What is known.
    pub facts: AlarmFacts,
}
