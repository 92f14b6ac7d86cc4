//! Answers about namespaces and their quotas.

use cueline_model::{Namespace, Timestamp};
use cueline_store::{NamespaceSummary, Quotas};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// The limits of a namespace. One that is absent is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotasView {
    /// The most jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_jobs: Option<u64>,
    /// The most runs that have not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_waiting_runs: Option<u64>,
    /// The most requests in a minute that trigger a job, at each scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_triggers_per_minute: Option<u64>,
}

impl From<Quotas> for QuotasView {
    fn from(quotas: Quotas) -> Self {
        Self {
            max_jobs: quotas.max_jobs,
            max_waiting_runs: quotas.max_waiting_runs,
            max_triggers_per_minute: quotas.max_triggers_per_minute,
        }
    }
}

/// The quotas of a namespace and its present use of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaPage {
    /// The namespace.
    #[schema(value_type = openapi::GivenNamespace)]
    pub namespace: Namespace,
    /// Its quotas.
    pub quotas: QuotasView,
    /// The version of the quotas, from 1; 0 if there are none.
    pub version: u64,
    /// Its jobs.
    pub jobs: u64,
    /// Its runs that have not started.
    pub waiting_runs: u64,
}

impl QuotaPage {
    /// A namespace without jobs, waiting runs and quotas.
    pub(crate) fn unused(namespace: Namespace) -> Self {
        Self {
            namespace,
            quotas: QuotasView::default(),
            version: 0,
            jobs: 0,
            waiting_runs: 0,
        }
    }
}

impl From<NamespaceSummary> for QuotaPage {
    fn from(summary: NamespaceSummary) -> Self {
        Self {
            namespace: summary.namespace,
            quotas: summary.quotas.into(),
            version: summary.version,
            jobs: summary.jobs,
            waiting_runs: summary.waiting_runs,
        }
    }
}

/// A namespace in a list. The numbers are absent if the caller may read only some of its groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceView {
    /// The namespace.
    #[schema(value_type = openapi::GivenNamespace)]
    pub namespace: Namespace,
    /// Its quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub quotas: Option<QuotasView>,
    /// Its jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub jobs: Option<u64>,
    /// Its runs that have not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waiting_runs: Option<u64>,
}

impl From<QuotaPage> for NamespaceView {
    fn from(page: QuotaPage) -> Self {
        Self {
            namespace: page.namespace,
            quotas: Some(page.quotas),
            jobs: Some(page.jobs),
            waiting_runs: Some(page.waiting_runs),
        }
    }
}

/// A page of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespacePage {
    /// The namespaces.
    pub namespaces: Vec<NamespaceView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}
