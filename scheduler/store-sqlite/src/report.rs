//! Runs that are reported on, as rows: what is read of them, and what is written.

use std::collections::{HashMap, HashSet};

use cueline_model::{RunKind, Timestamp};
use cueline_store::StoreError;
use cueline_store::adapter::attempt::Close;
use cueline_store::adapter::facts::{Facts, JobFacts};
use cueline_store::adapter::report::Writes;
use serde::{Deserialize, Serialize};

use crate::rows::{kind, small, state};

/// What is read of a run.
#[derive(Debug, Deserialize)]
pub(crate) struct Row {
    id: i64,
    job_id: i64,
    kind: i64,
    state: i64,
    attempt: i64,
    retries: i64,
    reruns: i64,
    cancel_requested: i64,
    fire_key: i64,
    /// The rest is absent when the job is deleted.
    version: Option<i64>,
    enabled: Option<i64>,
    fixed_delay: Option<i64>,
    has_children: Option<i64>,
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
            cancel_requested: self.cancel_requested == 1,
            of_job: self.version.map(|version| JobFacts {
                version,
                enabled: self.enabled == Some(1),
                fixed_delay: self.fixed_delay == Some(1),
                has_children: self.has_children == Some(1),
            }),
        })
    }
}

/// Key and kind of the fires of runs whose jobs have children, by run.
pub(crate) fn fires_of_parents(rows: &[Row]) -> HashMap<i64, (i64, i64)> {
    rows.iter()
        .filter(|row| row.has_children == Some(1))
        .map(|row| (row.id, (row.fire_key, row.kind)))
        .collect()
}

/// Run, start, end and exit status of a success that left nothing else to keep.
pub(crate) type PlainSuccess = (i64, Option<Timestamp>, Option<Timestamp>, Option<i32>);

/// How an attempt's end leaves its run, as it is written.
#[derive(Debug, Serialize)]
pub(crate) struct Closed<'a> {
    id: i64,
    state: u8,
    attempt: u32,
    retries: u32,
    reruns: u32,
    due_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    exit_status: Option<i32>,
    message: Option<&'a str>,
    output: Option<&'a str>,
}

impl<'a> Closed<'a> {
    fn new(close: &'a Close) -> Self {
        Self {
            id: close.id,
            state: close.state.code(),
            attempt: close.attempt,
            retries: close.retries,
            reruns: close.reruns,
            due_at: close.due_at,
            started_at: close.started_at,
            ended_at: close.ended_at,
            exit_status: close.exit_status,
            message: close.message.as_deref(),
            output: close.output.as_deref(),
        }
    }
}

/// What is written of each run that is closed: a few fields of plain successes, all of the others. Where a run goes on and ends in one batch, its
/// end says all.
pub(crate) fn closed(writes: &Writes) -> (Vec<PlainSuccess>, Vec<Closed<'_>>) {
    let mut plain = Vec::new();
    let mut others = Vec::new();
    for (_, close) in &writes.ended {
        if close.succeeded() && close.message.is_none() && close.output.is_none() {
            plain.push((
                close.id,
                close.started_at,
                close.ended_at,
                close.exit_status,
            ));
        } else {
            others.push(Closed::new(close));
        }
    }
    if !writes.again.is_empty() {
        let ended: HashSet<i64> = writes.ended.iter().map(|(_, close)| close.id).collect();
        let going_on = writes.again.iter().filter(|c| !ended.contains(&c.id));
        others.extend(going_on.map(Closed::new));
    }
    (plain, others)
}
