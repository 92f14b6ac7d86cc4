//! Applies job definitions: computes their columns, and the effects of a change on runs and other jobs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{
    Actor, After, FireRules, GroupName, Job, JobId, JobName, JobSpec, Schedule, Timestamp,
};

use super::audit::{job_created, job_updated, stored_actor};
use super::convert::to_i64;
use super::definitions::serialize_definition;
use super::fire_rules::DueColumns;
use super::retention::{RuleColumns, rule_columns};
use crate::{
    AppliedJob, Change, ErrorKind, JobPreconditions, NewAuditEntry, Revision, StoreError,
    require_jobs,
};

/// The version of a new job.
const FIRST_VERSION: i64 = 1;

/// The columns of a stored job.
#[derive(Debug)]
pub struct JobColumns<'a> {
    /// The name.
    pub name: &'a str,
    /// The executor group.
    pub group: &'a str,
    /// Whether the job runs when the first node starts (`startup` schedule).
    pub startup: bool,
    /// The longest that an attempt takes: timeout and kill grace, in milliseconds. `None` without a timeout.
    pub max_attempt_ms: Option<i64>,
    /// The text of the definition.
    pub definition: String,
    /// When it is planned next. For a paused job, or if the schedule is exhausted, there is no time.
    pub due: DueColumns,
    /// Whether the schedule is enabled.
    pub enabled: bool,
    /// Whether the next fire time counts from the end of a run.
    pub fixed_delay: bool,
    /// Its retention rule.
    pub kept: RuleColumns,
}

impl<'a> JobColumns<'a> {
    /// The columns of a definition that is applied at `now` under these fire rules.
    ///
    /// # Errors
    ///
    /// As [`serialize_definition`].
    pub fn new(spec: &'a JobSpec, now: Timestamp, rules: &FireRules) -> Result<Self, StoreError> {
        let enabled = spec.is_enabled();
        let next_fire_at = if enabled { spec.next_fire(now) } else { None };
        let max_attempt_ms = spec.timeout.map(|timeout| {
            to_i64(
                timeout
                    .as_millis()
                    .saturating_add(spec.kill_grace.as_millis()),
            )
        });
        Ok(Self {
            name: spec.name.as_str(),
            group: spec.group.as_str(),
            startup: spec.schedule == Schedule::Startup,
            max_attempt_ms,
            definition: serialize_definition(spec)?,
            due: DueColumns::new(spec, rules, next_fire_at),
            enabled,
            fixed_delay: is_fixed_delay(spec),
            kept: rule_columns(&spec.retention),
        })
    }
}

/// Whether the next fire time of the job counts from the end of a run.
pub fn is_fixed_delay(spec: &JobSpec) -> bool {
    matches!(spec.schedule, Schedule::FixedDelay { .. })
}

/// Definitions to apply, each with the stored job and the change.
#[derive(Debug)]
pub struct ApplyPlan(Vec<(JobSpec, Option<Arc<Job>>, Change)>);

/// A job and its new definition.
#[derive(Debug, Clone, Copy)]
pub struct JobUpdate<'a> {
    /// The stored job.
    pub job: &'a Job,
    /// The new definition.
    pub spec: &'a JobSpec,
}

impl ApplyPlan {
    /// Compares definitions with the stored ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a job is named twice.
    pub fn new(specs: &[JobSpec], stored: &HashMap<JobName, Arc<Job>>) -> Result<Self, StoreError> {
        let mut seen = BTreeSet::new();
        let mut plan = Vec::with_capacity(specs.len());
        for spec in specs {
            if !seen.insert(&spec.name) {
                return Err(StoreError::invalid(format!(
                    "failed to apply jobs: {:?} is given twice",
                    spec.name.as_str()
                )));
            }
            let job = stored.get(&spec.name);
            let spec = spec.over(job.map(|job| &job.spec));
            let change = match job {
                None => Change::Created,
                Some(job) if job.spec == spec => Change::Unchanged,
                Some(_) => Change::Updated,
            };
            plan.push((spec, job.cloned(), change));
        }
        Ok(Self(plan))
    }

    /// Fails if the stored jobs do not meet the conditions of the given definitions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Precondition`] with each job whose condition is not met.
    pub fn require(&self, conditions: &JobPreconditions) -> Result<(), StoreError> {
        let stored = self.0.iter();
        let stored = stored.map(|(spec, job, _)| {
            let revision = job.as_deref().map(Revision::from);
            (&spec.name, revision)
        });
        require_jobs(conditions, stored)
    }

    /// The definitions of jobs to create.
    pub fn new_jobs(&self) -> Vec<&JobSpec> {
        self.0
            .iter()
            .filter(|(.., change)| *change == Change::Created)
            .map(|(spec, ..)| spec)
            .collect()
    }

    /// The jobs to update, sorted by id. All transactions lock jobs in this order.
    pub fn updates(&self) -> Vec<JobUpdate<'_>> {
        let mut updates: Vec<JobUpdate<'_>> = self
            .0
            .iter()
            .filter(|(.., change)| *change == Change::Updated)
            .filter_map(|(spec, job, _)| {
                Some(JobUpdate {
                    job: job.as_deref()?,
                    spec,
                })
            })
            .collect();
        updates.sort_unstable_by_key(|update| update.job.id);
        updates
    }

    /// The effects of the changes besides written definitions. `created` has the ids of the new jobs.
    pub fn side_effects(&self, created: &HashMap<JobName, JobId>) -> SideEffects {
        let mut effects = SideEffects::default();
        for spec in self.new_jobs() {
            if let (Some(after), Some(id)) = (&spec.after, created.get(&spec.name)) {
                effects.link(*id, after);
            }
        }
        for update in self.updates() {
            effects.add(update);
        }
        effects
    }

    /// The entries of the audit log for the changes, in the order of the given definitions.
    ///
    /// # Errors
    ///
    /// As [`serialize_definition`].
    pub fn audit_entries(&self, by: &Actor) -> Result<Vec<NewAuditEntry>, StoreError> {
        self.0
            .iter()
            .filter_map(|(spec, job, change)| match (change, job) {
                (Change::Created, _) => Some(job_created(by, spec)),
                (Change::Updated, Some(job)) => Some(job_updated(by, &job.spec, spec)),
                _ => None,
            })
            .collect()
    }

    /// The jobs that get a new version. `created` has the ids of the new ones.
    pub fn versioned(&self, created: &HashMap<JobName, JobId>) -> Vec<i64> {
        let mut jobs: Vec<i64> = created.values().map(|id| id.0).collect();
        jobs.extend(self.updates().iter().map(|update| update.job.id.0));
        jobs.sort_unstable();
        jobs
    }

    /// The answer, in the order of the given definitions. `created` has the ids of the new jobs. In a dry run, the versions
    /// are the present ones.
    pub fn into_applied(self, created: &HashMap<JobName, JobId>, dry_run: bool) -> Vec<AppliedJob> {
        self.0
            .into_iter()
            .map(|(spec, job, change)| {
                let (id, version) = match job {
                    Some(job) if change == Change::Updated && !dry_run => {
                        (Some(job.id), Some(job.version + 1))
                    }
                    Some(job) => (Some(job.id), Some(job.version)),
                    None => {
                        let id = created.get(&spec.name).copied();
                        (id, id.map(|_| FIRST_VERSION))
                    }
                };
                AppliedJob {
                    name: spec.name,
                    id,
                    version,
                    change,
                }
            })
            .collect()
    }
}

/// The effects of applied changes besides written definitions.
#[derive(Debug, Default)]
pub struct SideEffects {
    /// Updated jobs. Their runs ahead of time are deleted, and their waiting runs are dispatched by the new definition.
    pub updated: Vec<JobId>,
    /// Jobs that are paused by the change. Their waiting runs end.
    pub paused: Vec<JobId>,
    /// Jobs that became `fixed_delay`. The ends of their live runs now set the next fire time.
    pub became_fixed_delay: Vec<JobId>,
    /// Jobs that stay `fixed_delay`. The end of a live run still sets the next fire time.
    pub still_fixed_delay: Vec<JobId>,
    /// Jobs that moved, with their old group. Their published attempts stay in it.
    pub moved: Vec<(JobId, GroupName)>,
    /// Jobs whose links to parents are replaced by those in `links`.
    pub unlinked: Vec<JobId>,
    /// New links to parents.
    pub links: Vec<ParentLink>,
    /// Jobs that gained or lost a child, or one that starts after other ends than before.
    pub parents: BTreeSet<JobName>,
}

/// A new link between a child and one of its parents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentLink {
    /// The child.
    pub child: JobId,
    /// A job that it runs after.
    pub parent: JobName,
    /// Whether it waits for all of its parents.
    pub waits_for_all: bool,
    /// Whether a failure of the parent may start it.
    pub after_failure: bool,
}

impl SideEffects {
    fn link(&mut self, child: JobId, after: &After) {
        self.parents.extend(after.names().iter().cloned());
        self.links
            .extend(after.names().iter().map(|parent| ParentLink {
                child,
                parent: parent.clone(),
                waits_for_all: after.waits_for_all(),
                after_failure: after.on.includes_failure(),
            }));
    }

    fn add(&mut self, JobUpdate { job, spec }: JobUpdate<'_>) {
        self.updated.push(job.id);
        if job.spec.group != spec.group {
            self.moved.push((job.id, job.spec.group.clone()));
        }
        if job.spec.is_enabled() && !spec.is_enabled() {
            self.paused.push(job.id);
        }
        match (is_fixed_delay(&job.spec), is_fixed_delay(spec)) {
            (false, true) => self.became_fixed_delay.push(job.id),
            (true, true) => self.still_fixed_delay.push(job.id),
            _ => {}
        }
        if job.spec.after != spec.after {
            self.unlinked.push(job.id);
            self.parents.extend(job.spec.parents().iter().cloned());
            if let Some(after) = &spec.after {
                self.link(job.id, after);
            }
        }
    }
}

/// The message of the waiting runs of a job that is paused or deleted: `verb` is `paused` or `deleted`.
pub fn stopped_message(verb: &str, by: &Actor) -> String {
    format!("its job was {verb} by {}", stored_actor(by))
}

/// Returns an error if other jobs run after the job that is deleted.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] with the names of the children.
pub fn refuse_parent(job: &JobName, children: &[String]) -> Result<(), StoreError> {
    if children.is_empty() {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to delete job {:?}: it is the parent of {}",
            job.as_str(),
            children.join(", ")
        ),
    ))
}
