//! Namespaces: their quotas, and what they use of them.

use async_trait::async_trait;
use cueline_model::{Actor, Namespace};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The largest value of a quota.
pub const MAX_QUOTA: u64 = 1_000_000_000;

/// The most namespaces with quotas. Each scheduler keeps them in memory.
pub const MAX_NAMESPACES_WITH_QUOTAS: usize = 10_000;

/// Limits of one namespace. Without a quota there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// The most jobs. It is exact: [`Store::apply_jobs`](crate::Store::apply_jobs) refuses new jobs beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// The most runs that have not started: `scheduled`, `dispatching` or `queued`. At the quota, schedulers skip fires and
    /// refuse triggers. They count once a second, so it may be exceeded by what they claim in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting_runs: Option<u64>,
    /// The most requests in a minute that trigger a job, at each scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_triggers_per_minute: Option<u64>,
}

impl Quotas {
    /// Whether there is no limit.
    pub const fn is_empty(&self) -> bool {
        self.max_jobs.is_none()
            && self.max_waiting_runs.is_none()
            && self.max_triggers_per_minute.is_none()
    }
}

/// A namespace with its quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceSummary {
    /// The namespace.
    pub namespace: Namespace,
    /// Its quotas.
    pub quotas: Quotas,
    /// The version of the quotas, from 1; 0 if there are none.
    pub version: u64,
    /// Its jobs.
    pub jobs: u64,
    /// Its runs that have not started.
    pub waiting_runs: u64,
}

/// A namespace with quotas, as schedulers read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaLoad {
    /// The namespace.
    pub namespace: Namespace,
    /// Its quotas.
    pub quotas: Quotas,
    /// Its runs that have not started. 0 without the quota [`max_waiting_runs`](Quotas::max_waiting_runs).
    pub waiting_runs: u64,
}

/// Which namespaces to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceFilter {
    /// Only these; `None` for all that have jobs, waiting runs or quotas.
    pub names: Option<Vec<Namespace>>,
    /// Only names after this one, by their bytes.
    pub after: Option<Namespace>,
    /// The most namespaces to return.
    pub limit: usize,
}

/// Quotas of namespaces. A namespace needs no row to be used.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait Namespaces: Send + Sync + 'static {
    /// Namespaces with their numbers, sorted by name. Those without jobs, waiting runs and quotas are left out. It counts all
    /// jobs and all waiting runs, so it is for requests of users.
    async fn namespaces(
        &self,
        filter: &NamespaceFilter,
    ) -> Result<Vec<NamespaceSummary>, StoreError>;

    /// All namespaces with quotas, sorted by name. It counts waiting runs only if a namespace has a quota for them.
    async fn quota_loads(&self) -> Result<Vec<QuotaLoad>, StoreError>;

    /// Replaces the quotas of a namespace, and returns their version. Empty quotas are deleted, and have the version 0. With
    /// `if_version`, only if they have that version now. A change of nothing writes no version and no entry of the audit log.
    ///
    /// Quotas below the present use are accepted: what exists stays.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a quota over [`MAX_QUOTA`]. [`Conflict`](crate::ErrorKind::Conflict) if
    /// the quotas have another version than `if_version`, or if there are [`MAX_NAMESPACES_WITH_QUOTAS`] others.
    async fn set_quotas(
        &self,
        namespace: &Namespace,
        quotas: &Quotas,
        if_version: Option<u64>,
        by: &Actor,
    ) -> Result<u64, StoreError>;
}
