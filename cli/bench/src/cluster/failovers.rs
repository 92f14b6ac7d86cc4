//! What the schedulers say about silent executors: their counters, and warnings in their logs.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_store::admin::SinceStart;
use serde::Deserialize;

use super::Cluster;
use crate::report::{Report, number};

/// The warning about an executor that gets no more triggers. It follows half as long a silence as a failover.
const FELL_SILENT: &str = "executor fell silent; it gets no more triggers";
/// The warning about heartbeats that found no room in a buffer.
const HEARTBEATS_LOST: &str = "lost heartbeats, because they arrive faster";

/// How long a scheduler may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the counters of all schedulers.
pub(super) struct Schedulers {
    client: reqwest::Client,
    token: String,
}

/// Counts of all schedulers together, since their start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FailoverCounts {
    /// Silent executors whose work was moved. An executor without work is not counted.
    pub(super) failovers: u64,
    /// Attempts that were moved.
    pub(super) failed_over: u64,
    /// Executors that got no more triggers because of their silence.
    pub(super) fell_silent: u64,
    /// Warnings about lost heartbeats.
    pub(super) heartbeats_lost: u64,
}

/// The part of the answer that is read.
#[derive(Deserialize)]
struct Stats {
    since_start: SinceStart,
}

impl Schedulers {
    pub(super) fn new(cluster: &Cluster) -> Result<Self> {
        cueline_runtime::tls::install_provider();
        let client = reqwest::Client::builder().timeout(ANSWER_TIMEOUT);
        Ok(Self {
            client: client.build()?,
            token: cluster.token()?,
        })
    }

    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// If a scheduler does not answer, or its log cannot be read.
    pub(super) async fn read(&self, cluster: &Cluster) -> Result<FailoverCounts> {
        let mut counts = FailoverCounts::default();
        for url in &cluster.urls {
            let request = self.client.get(format!("{url}/stats"));
            let answer = request.bearer_auth(&self.token).send().await;
            let answer = answer.context("failed to reach a scheduler")?;
            let stats: Stats = answer.error_for_status()?.json().await?;
            counts.failovers += stats.since_start.failovers;
            counts.failed_over += stats.since_start.failed_over;
        }
        for scheduler in &cluster.schedulers {
            counts.fell_silent += scheduler.count_in_log(FELL_SILENT)?;
            counts.heartbeats_lost += scheduler.count_in_log(HEARTBEATS_LOST)?;
        }
        Ok(counts)
    }
}

impl FailoverCounts {
    /// Adds what has happened since `before`. In a phase without a silent executor, all of it is false.
    pub(super) fn add_false_since(&self, before: &Self, report: &mut Report) {
        let mut add = |name: &str, now: u64, then: u64| {
            report.add(name, number(now.saturating_sub(then)), "");
        };
        add("false failovers", self.failovers, before.failovers);
        add(
            "executors wrongly taken for silent",
            self.fell_silent,
            before.fell_silent,
        );
        add(
            "warnings of lost heartbeats",
            self.heartbeats_lost,
            before.heartbeats_lost,
        );
    }
}
