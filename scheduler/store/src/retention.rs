//! Retention: what is deleted, when, and who says so.

use async_trait::async_trait;
use cueline_model::{AccessScope, Actor, GroupName, JobName, Namespace, Retention, RunId};

use crate::error::StoreError;

/// The most groups with rules.
pub const MAX_GROUP_RULES: usize = 10_000;

/// The most runs that one call of [`RetentionStore::prune_runs`] deletes.
pub const MAX_PRUNED_AT_ONCE: usize = 500;

/// The rule of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRetention {
    /// The group.
    pub group: GroupName,
    /// Its rule.
    pub rule: Retention,
}

/// Asks for the next part of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpireRequest {
    /// Runs without a rule expire this long after their end.
    pub age_ms: u64,
    /// The most runs that are deleted one by one, the most logs and the most outputs.
    pub limit: usize,
    /// Where the sweep goes on: [`Expired::next`] of the part before. `None` begins at the oldest run.
    pub after: Option<RunId>,
}

/// What a part of a sweep has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// Runs with all that belongs to them.
    pub runs: u64,
    /// Logs of runs that stay.
    pub logs: u64,
    /// Outputs of runs that stay.
    pub outputs: u64,
    /// Where the next part begins; `None` at the end of the sweep.
    pub next: Option<RunId>,
}

/// Runs to delete by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneRequest {
    /// The runs, at most [`MAX_PRUNED_AT_ONCE`].
    pub runs: Vec<RunId>,
    /// Only runs of jobs in this namespace; `None` for all namespaces (G18).
    pub namespace: Option<Namespace>,
    /// Only runs of jobs in groups of these scopes; `None` for all.
    pub within: Option<Vec<AccessScope>>,
}

/// What became of runs to delete. Those that are in none of the lists do not exist, or not within the namespace and the
/// scopes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The deleted ones, by job, sorted by its name.
    pub deleted: Vec<PrunedOfJob>,
    /// Those that have not ended, or that belong to a fire with a shard that has not.
    pub live: Vec<RunId>,
}

/// Deleted runs of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunedOfJob {
    /// The job. It may be deleted.
    pub job: JobName,
    /// Their number.
    pub runs: u64,
}

impl Pruned {
    /// The number of deleted runs.
    pub fn count(&self) -> u64 {
        self.deleted.iter().map(|of_job| of_job.runs).sum()
    }
}

/// Rules for what is kept, and the deletions that follow from them.
///
/// A run expires by the rule of its job: [`Retention::age`] after its end, or once [`Retention::runs`] newer runs of its
/// job exist. A field that the job leaves open is that of its present group, and else that of the request. Rules apply to
/// runs that exist already. The rule of a deleted job stays; only a number of runs does not count for it any more.
///
/// A run that has not ended is never deleted, and no shard of a fire before all shards of it have ended. What is deleted
/// is noted, so that the [ledger](crate::Store::ledger) does not count its fire times as lost.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait RetentionStore: Send + Sync + 'static {
    /// The rules of groups, sorted by name. With `group`, only that of this group, if it has one.
    async fn retention_rules(
        &self,
        group: Option<&GroupName>,
    ) -> Result<Vec<GroupRetention>, StoreError>;

    /// Replaces the rule of a group. An empty one is deleted. Returns whether it has changed.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if there are [`MAX_GROUP_RULES`] others.
    async fn set_retention(
        &self,
        group: &GroupName,
        rule: &Retention,
        by: &Actor,
    ) -> Result<bool, StoreError>;

    /// Deletes what has expired in a part of the runs, oldest first.
    ///
    /// The number of runs that a call looks at is bounded too, so a part may delete nothing and still have a next one. A
    /// store that partitions runs by day may keep a run without a rule up to two days longer. It may drop a whole day of
    /// runs regardless of the limit.
    ///
    /// An idempotency key ends with the retention of the request, also if its runs are deleted earlier or later.
    async fn expire_runs(&self, request: ExpireRequest) -> Result<Expired, StoreError>;

    /// Deletes ended runs with their logs and timelines. Writes one entry of the audit log for each job.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for more than [`MAX_PRUNED_AT_ONCE`] runs.
    async fn prune_runs(&self, request: &PruneRequest, by: &Actor) -> Result<Pruned, StoreError>;

    /// Deletes at most `limit` dead letters that were refused more than `older_than_ms` ago, oldest first. Returns their
    /// number.
    async fn prune_dead_letters(&self, older_than_ms: u64, limit: usize)
    -> Result<u64, StoreError>;

    /// Deletes runs that ended more than `older_than_ms` ago, in one part. Returns their number.
    async fn delete_expired_runs(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let request = ExpireRequest {
            age_ms: older_than_ms,
            limit,
            after: None,
        };
        Ok(self.expire_runs(request).await?.runs)
    }
}
