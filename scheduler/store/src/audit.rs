//! The audit log: who changed what, from where, with the values before and after.
//!
//! Each method of a store that makes a change on behalf of an [`Actor`] writes its entry in the same transaction (G19).
//! Entries are never changed, and only retention deletes them.

use async_trait::async_trait;
use cueline_model::{Actor, GroupName, JobName, JobSpec, Namespace, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::list::Order;

/// The longest value before or after a change, in bytes. A longer one is replaced by its length and its SHA-256.
pub const MAX_AUDIT_VALUE_BYTES: usize = 16 * 1024;

/// The most stored versions of a job. The oldest are deleted.
pub const MAX_JOB_VERSIONS: usize = 1_000;

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditResult {
    /// It was carried out.
    Done,
    /// The actor has no right to it, or could not prove who they are.
    Refused,
}

impl AuditResult {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }
}

/// An entry that is about to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// Who.
    pub actor: Actor,
    /// What was done, as `object.verb`: `job.pause`, `user.create`, `session.login`.
    pub action: String,
    /// The namespace of the object; `None` if it belongs to none.
    pub namespace: Option<Namespace>,
    /// The group of the object; `None` if it belongs to none.
    pub group: Option<GroupName>,
    /// The name or number of the object.
    pub object: String,
    /// How it ended.
    pub result: AuditResult,
    /// Further words: the reason of a refusal, the number of runs.
    pub detail: String,
    /// The object before, as JSON; `None` if there was none, or if it did not change.
    pub before: Option<String>,
    /// The object after, as JSON; `None` if there is none, or if it did not change.
    pub after: Option<String>,
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The number; greater numbers are later.
    pub id: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What.
    pub entry: NewAuditEntry,
}

/// Which entries to list. `None` and an empty list of values do not filter; of several values, one must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Entries behind this number in the order of the list.
    pub after: Option<i64>,
    /// The direction of the list, which is sorted by number.
    pub order: Order,
    /// The actors as they are displayed: `user alice`.
    pub actors: Vec<String>,
    /// The actions, or the objects of actions: `job.pause`, `job`.
    pub actions: Vec<String>,
    /// The names or numbers of the objects.
    pub objects: Vec<String>,
    /// The groups of the objects.
    pub groups: Vec<GroupName>,
    /// The namespace of the objects.
    pub namespace: Option<Namespace>,
    /// The result.
    pub result: Option<AuditResult>,
    /// Not before this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// At most this many.
    pub limit: usize,
}

/// A version of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobVersion {
    /// The number of the version.
    pub version: u64,
    /// When it was made, by the database's clock.
    pub at: Timestamp,
    /// Who made it.
    pub by: String,
    /// The definition; `None` if this program cannot read it.
    pub definition: Option<JobSpec>,
    /// Whether its schedule was running.
    pub enabled: bool,
}

type Result<T> = std::result::Result<T, StoreError>;

/// The audit log and the versions of jobs.
///
/// # Errors
///
/// As those of [`Store`](crate::Store).
#[async_trait]
pub trait Audit: Send + Sync + 'static {
    /// Stores entries about what is no change of the store: refused requests, queues that were emptied.
    async fn record(&self, entries: &[NewAuditEntry]) -> Result<()>;

    /// Entries that match the filter, in its order.
    async fn audit_entries(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>>;

    /// Deletes at most `limit` entries that are older than `older_than_ms`, oldest first. Returns their number.
    async fn prune_audit(&self, older_than_ms: u64, limit: usize) -> Result<u64>;

    /// Deletes at most `limit` versions of jobs that were deleted more than `older_than_ms` ago. Returns their number.
    async fn prune_versions(&self, older_than_ms: u64, limit: usize) -> Result<u64>;

    /// At most `limit` versions of a job behind the version `after`, in this order of their numbers. A deleted job keeps
    /// its versions until a job gets its name, or until [`prune_versions`](Self::prune_versions) deletes them.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if no job ever had this name.
    async fn job_versions(
        &self,
        job: &JobName,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<JobVersion>>;
}
