//! Runs that are reported on, as rows.

use cueline_model::RunKind;
use cueline_store::StoreError;
use cueline_store::adapter::facts::{Facts, JobFacts};
use cueline_store::adapter::report::Writes;
use sqlx::FromRow;

use crate::rows::{kind, small, state};

/// What is read of a run.
#[derive(Debug, FromRow)]
pub(crate) struct Row {
    id: i64,
    job_id: i64,
    kind: i16,
    state: i16,
    attempt: i32,
    retries: i32,
    reruns: i32,
    cancel_requested: bool,
    /// The rest is absent when the job is deleted.
    version: Option<i64>,
    enabled: Option<bool>,
    fixed_delay: Option<bool>,
    has_children: Option<bool>,
}

impl Row {
    pub(crate) fn facts(&self) -> Result<Facts, StoreError> {
        Ok(Facts {
            id: self.id,
            job_id: self.job_id,
            manual: kind(self.kind).is_ok_and(|k| k == RunKind::Manual),
            state: state(self.state)?,
            attempt: small(self.attempt),
            retries: small(self.retries),
            reruns: small(self.reruns),
            cancel_requested: self.cancel_requested,
            of_job: self.version.map(|version| JobFacts {
                version,
                enabled: self.enabled == Some(true),
                fixed_delay: self.fixed_delay == Some(true),
                has_children: self.has_children == Some(true),
            }),
        })
    }
}

/// Rows are locked in one order: by id.
pub(crate) fn sort(writes: &mut Writes) {
    writes.started.sort_unstable_by_key(|started| started.run);
    writes.progress.sort_unstable_by_key(|(run, _)| *run);
    writes.again.sort_unstable_by_key(|close| close.id);
    writes.ended.sort_unstable_by_key(|(_, close)| close.id);
}
