//! Job definitions.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::duration::DurationMs;
use crate::handler::HandlerSpec;
use crate::limit::{Concurrency, RateLimit};
use crate::name::{CalendarName, GroupName, JobName, NameError, ScriptName};
use crate::policy::{Block, Fence, Misfire, OnLost, Retry, Scope, spread};
use crate::retention::Retention;
use crate::route::Route;
use crate::schedule::Schedule;
use crate::selector::Selector;
use crate::time::Timestamp;

/// The most labels of a job.
pub const MAX_LABELS: usize = 64;

/// The most bytes of the names and values of a job's labels.
pub const MAX_LABELS_BYTES: usize = 64 * 1024;

/// Identity of a job, assigned by the store. The id of a deleted job is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A job's definition. Job files and the API accept its serialised form.
///
/// The serialised form has a field `namespace` unless that is `default`, and local names everywhere else. The group and
/// the parents of a job therefore are in its namespace.
///
/// A scheduler holds the definitions of all jobs that it plans. What is large, and what most jobs lack, is boxed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct JobSpec {
    /// Its name.
    #[serde(flatten, with = "written_name")]
    pub name: JobName,
    /// The group whose executors run the job, in the same namespace; `default` by default.
    #[serde(serialize_with = "local_group")]
    pub group: GroupName,
    /// The purpose of the job, in free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// When it fires.
    pub schedule: Schedule,
    /// The first instant that may be a fire time.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::time::rfc3339"
    )]
    pub start_at: Option<Timestamp>,
    /// The end of the fire times; it is not a fire time itself.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::time::rfc3339"
    )]
    pub end_at: Option<Timestamp>,
    /// The calendars, by their local names in the namespace of the job, that exclude fire times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calendars: Vec<String>,
    /// The longest delay of a run after its fire time. The delay is spread by job and fire time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jitter: DurationMs,
    /// The treatment of late fire times.
    #[serde(default)]
    pub misfire: Misfire,
    /// The choice of the executor.
    #[serde(default)]
    pub route: Route,
    /// Which executors may run the job, by their labels; all by default.
    #[serde(default, skip_serializing_if = "Selector::is_empty")]
    pub selector: Selector,
    /// The treatment of a trigger that meets a busy lane.
    #[serde(default)]
    pub block: Block,
    /// The extent of a lane; the whole group by default.
    #[serde(default)]
    pub scope: Scope,
    /// The most triggers that wait in one lane; 1,000 by default. Further ones end `discarded`.
    #[serde(default = "default_backlog")]
    pub backlog: u32,
    /// How many attempts are dispatched within an interval; no limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<Box<RateLimit>>,
    /// How many attempts are at work at the same time, of all jobs with the same key; no limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Box<Concurrency>>,
    /// The longest time that an attempt may run; no limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationMs>,
    /// The time between SIGTERM and SIGKILL when an attempt is stopped; 5 s by default.
    #[serde(default = "default_kill_grace")]
    pub kill_grace: DurationMs,
    /// Whether failed attempts are retried.
    #[serde(default)]
    pub retry: Retry,
    /// The treatment of an attempt whose executor died.
    #[serde(default)]
    pub on_lost: OnLost,
    /// What happens to a running attempt when its executor cannot reach the schedulers.
    #[serde(default, skip_serializing_if = "Fence::is_default")]
    pub fence: Fence,
    /// How long a due run waits for a live executor before it ends `unroutable`; 1 h by default.
    #[serde(default = "default_dispatch_deadline")]
    pub dispatch_deadline: DurationMs,
    /// 0–9; 5 by default. Of runs that are due at the same instant, the highest goes first.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// For how long, and how many, of its runs are kept; as the group and the server say by default.
    #[serde(default, skip_serializing_if = "Retention::is_empty")]
    pub retention: Retention,
    /// The work of the job's runs.
    pub handler: HandlerSpec,
    /// The parameter text for the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// The jobs after which this one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Box<After>>,
    /// Free labels that lists show and filters use, at most [`MAX_LABELS`] of [`MAX_LABELS_BYTES`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether the schedule fires. If this is absent, a new job fires and an existing one keeps its setting. Applying a
    /// file again therefore does not resume a paused job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// The parents of a child job, and the ends of them that start it. The module `flow` has the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    /// The parents.
    #[serde(flatten)]
    pub parents: Parents,
    /// The required end of the parents.
    #[serde(default)]
    pub on: AfterOn,
    /// Passes the output of the parents to the child as its parameter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pass_output: bool,
}

/// The parents of a child job, in its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parents {
    /// The child starts once all of them have ended as required.
    All(#[serde(serialize_with = "local_parents")] Vec<JobName>),
    /// The child starts once the first of them has ended as required.
    Any(#[serde(serialize_with = "local_parents")] Vec<JobName>),
}

/// The end of a parent that starts the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterOn {
    /// All shards succeeded.
    #[default]
    Success,
    /// All shards ended, and at least one of them failed.
    Failure,
    /// Either of them.
    Always,
}

impl After {
    /// The most parents of a job.
    pub const MAX_PARENTS: usize = 32;

    /// The names of the parents.
    pub fn names(&self) -> &[JobName] {
        match &self.parents {
            Parents::All(names) | Parents::Any(names) => names,
        }
    }

    /// Whether the child waits for all of its parents.
    pub fn waits_for_all(&self) -> bool {
        matches!(self.parents, Parents::All(_))
    }

    /// The names of the parents, to move them to another namespace.
    pub fn names_mut(&mut self) -> &mut [JobName] {
        match &mut self.parents {
            Parents::All(names) | Parents::Any(names) => names,
        }
    }
}

impl AfterOn {
    /// Whether a failure of a parent may start the child.
    pub const fn includes_failure(self) -> bool {
        matches!(self, Self::Failure | Self::Always)
    }

    /// The word for it in job files and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Always => "always",
        }
    }
}

/// The default of [`JobSpec::backlog`].
pub const fn default_backlog() -> u32 {
    1_000
}

/// The default of [`JobSpec::kill_grace`].
pub const fn default_kill_grace() -> DurationMs {
    DurationMs::secs(5)
}

/// The default of [`JobSpec::dispatch_deadline`].
pub const fn default_dispatch_deadline() -> DurationMs {
    DurationMs::secs(3_600)
}

/// The default of [`JobSpec::priority`].
pub const fn default_priority() -> u8 {
    5
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_zero(duration: &DurationMs) -> bool {
    duration.as_millis() == 0
}

impl Serialize for JobSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.stays_in_its_namespace() {
            return Err(S::Error::custom(NameError::NotLocal));
        }
        // The function that `remote` derives.
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The function that `remote` derives. It reads local names.
        let mut spec = Self::deserialize(deserializer)?;
        let namespace = spec.name.namespace();
        if !namespace.is_default() {
            spec.group = GroupName::in_namespace(&namespace, spec.group.as_str())
                .map_err(D::Error::custom)?;
            for parent in spec.after.iter_mut().flat_map(|after| after.names_mut()) {
                *parent =
                    JobName::in_namespace(&namespace, parent.as_str()).map_err(D::Error::custom)?;
            }
        }
        if spec.stays_in_its_namespace() {
            Ok(spec)
        } else {
            Err(D::Error::custom(NameError::NotLocal))
        }
    }
}

/// Writes a job's name as its namespace and its local name.
mod written_name {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::name::{JobName, Namespace};

    #[derive(Serialize, Deserialize)]
    struct Written {
        #[serde(default, skip_serializing_if = "Namespace::is_default")]
        namespace: Namespace,
        name: String,
    }

    pub(super) fn serialize<S: Serializer>(
        name: &JobName,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let written = Written {
            namespace: name.namespace(),
            name: name.local().to_owned(),
        };
        written.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<JobName, D::Error> {
        let Written { namespace, name } = Written::deserialize(deserializer)?;
        JobName::in_namespace(&namespace, &name).map_err(D::Error::custom)
    }
}

fn local_group<S: Serializer>(group: &GroupName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(group.local())
}

fn local_parents<S: Serializer>(parents: &[JobName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(parents.iter().map(JobName::local))
}

impl JobSpec {
    /// Whether the group and the parents are in the job's namespace. They are in each definition that was read. A
    /// definition that was put together in another way has no serialised form, and stores refuse it.
    pub fn stays_in_its_namespace(&self) -> bool {
        let namespace = self.name.namespace();
        let mut parents = self.parents().iter();
        self.group.is_in(&namespace) && parents.all(|parent| parent.is_in(&namespace))
    }

    /// The jobs after which it runs.
    pub fn parents(&self) -> &[JobName] {
        self.after.as_ref().map_or(&[], |after| after.names())
    }

    /// The names of its calendars.
    pub fn calendar_names(&self) -> impl Iterator<Item = CalendarName> {
        let namespace = self.name.namespace();
        let local = self.calendars.iter();
        local.filter_map(move |local| CalendarName::in_namespace(&namespace, local).ok())
    }

    /// The script that it runs, and the version that it is pinned to.
    pub fn script(&self) -> Option<(ScriptName, Option<i64>)> {
        let HandlerSpec::Script(script) = &self.handler else {
            return None;
        };
        let name = ScriptName::in_namespace(&self.name.namespace(), &script.name).ok()?;
        Some((name, script.version))
    }

    /// Whether the schedule fires.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// This definition with its schedule enabled.
    #[must_use]
    pub fn resumed(&self) -> Self {
        Self {
            enabled: Some(true),
            ..self.clone()
        }
    }

    /// This definition, completed with the settings of `present` that it leaves open.
    #[must_use]
    pub fn over(&self, present: Option<&Self>) -> Self {
        let enabled = self
            .enabled
            .unwrap_or_else(|| present.is_none_or(Self::is_enabled));
        Self {
            enabled: Some(enabled),
            ..self.clone()
        }
    }

    /// The first fire time after `after` that `start_at` and `end_at` allow; `None` if there is none.
    ///
    /// For `fixed_delay` this is `after` plus the delay. Call it with the end of the last run.
    pub fn next_fire(&self, after: Timestamp) -> Option<Timestamp> {
        let after = self
            .start_at
            .map_or(after, |start| after.max(start.minus_ms(1)));
        let next = self.schedule.next_after(after)?;
        (self.end_at.is_none_or(|end| next < end)).then_some(next)
    }

    /// Whether the fire times can come to an end that depends on the present time: those of a cron expression that names
    /// years, or that has an `end_at`.
    pub fn may_be_over(&self) -> bool {
        matches!(&self.schedule, Schedule::Cron(cron) if cron.names_years() || self.end_at.is_some())
    }

    /// The first `n` fire times after `after` that `start_at` and `end_at` allow; at most
    /// [`MAX_PREVIEW`](crate::schedule::MAX_PREVIEW).
    ///
    /// For `fixed_delay` the result assumes that runs take no time.
    pub fn upcoming(&self, after: Timestamp, n: usize) -> Vec<Timestamp> {
        std::iter::successors(self.next_fire(after), |last| self.next_fire(*last))
            .take(n.min(crate::schedule::MAX_PREVIEW))
            .collect()
    }

    /// When a run for `fire_at` of job `id` is due: the fire time plus the job's share of the jitter. The same
    /// arguments always give the same result.
    pub fn due_at(&self, id: JobId, fire_at: Timestamp) -> Timestamp {
        match self.jitter.as_millis() {
            0 => fire_at,
            jitter => {
                let seed = id.0.unsigned_abs().rotate_left(32) ^ fire_at.as_millis().unsigned_abs();
                fire_at.plus_ms(spread(seed) % (jitter + 1))
            }
        }
    }
}

/// A job as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its identity.
    pub id: JobId,
    /// Counts the edits of the definition, from 1. Pause and resume count as edits.
    pub version: i64,
    /// Its definition.
    #[serde(flatten)]
    pub spec: JobSpec,
}
