//! Turns heartbeats into rows.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use cueline_model::Heartbeat;
use cueline_model::selector::MAX_EXECUTOR_LABELS;
use serde::Serialize;

use super::convert::{to_i64, without_nul};

/// The columns of a heartbeat.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "named like the columns of the tables")]
pub struct HeartbeatRow<'a> {
    pub group: &'a str,
    pub name: &'a str,
    pub incarnation: Cow<'a, str>,
    pub session: i64,
    pub capabilities: BTreeSet<Cow<'a, str>>,
    pub capacity: i64,
    pub labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    pub weight: i64,
    pub held: i64,
    pub running: i64,
    pub draining: bool,
    pub gone: bool,
    pub refusal: Option<Cow<'a, str>>,
}

/// The last heartbeat of each executor, sorted by group and name. All transactions lock rows in this order.
pub fn latest_heartbeats(heartbeats: &[Heartbeat]) -> Vec<HeartbeatRow<'_>> {
    let latest: BTreeMap<(&str, &str), &Heartbeat> = heartbeats
        .iter()
        .map(|heartbeat| {
            let id = &heartbeat.executor;
            ((id.group.as_str(), id.name.as_str()), heartbeat)
        })
        .collect();
    latest
        .into_iter()
        .map(|((group, name), heartbeat)| HeartbeatRow {
            group,
            name,
            incarnation: without_nul(&heartbeat.incarnation),
            session: heartbeat.session.0,
            capabilities: heartbeat
                .capabilities
                .iter()
                .map(|capability| without_nul(capability))
                .collect(),
            capacity: i64::from(heartbeat.capacity),
            labels: heartbeat
                .labels
                .iter()
                .take(MAX_EXECUTOR_LABELS)
                .map(|(key, value)| (without_nul(key), without_nul(value)))
                .collect(),
            weight: i64::from(heartbeat.weight.get()),
            held: to_i64(heartbeat.held),
            running: to_i64(heartbeat.running),
            draining: heartbeat.draining,
            gone: heartbeat.gone,
            refusal: heartbeat.refusal.as_deref().map(without_nul),
        })
        .collect()
}
