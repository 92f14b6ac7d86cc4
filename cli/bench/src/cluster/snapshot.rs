//! Counters at one instant, and the difference of two.

use anyhow::Result;
use tokio::time::Instant;

use super::Cluster;
use crate::database::Counted;
use crate::report::{Report, number};
use crate::usage::Usage;

pub(super) struct Snapshot {
    at: Instant,
    attempts: u64,
    usage: Usage,
    counted: Counted,
}

impl Snapshot {
    pub(super) async fn take(cluster: &mut Cluster) -> Result<Self> {
        let (at, attempts) = (Instant::now(), cluster.attempts().await?);
        Ok(Self {
            at,
            attempts,
            usage: cluster.usage()?,
            counted: cluster.database.counted().await?,
        })
    }

    /// Adds the differences since `before`, in total and per fire.
    pub(super) fn add_since(&self, before: &Self, report: &mut Report) {
        let attempts = self.attempts - before.attempts;
        let elapsed = self.at.duration_since(before.at).as_secs_f64();
        let (fires, then) = (number(attempts.max(1)), &before.counted);
        report.add("fires/s", number(attempts) / elapsed, "1/s");
        report.add("seconds", elapsed, "s");
        let transactions = self.counted.transactions - then.transactions;
        report.add("transactions per fire", transactions / fires, "");
        if let (Some(now), Some(then)) = (self.counted.statements, then.statements) {
            report.add("statements per fire", (now - then) / fires, "");
        }
        let wal = self.counted.wal_bytes - then.wal_bytes;
        report.add("write-ahead log per fire", wal / fires, "bytes");
        if let Some(bytes) = self.usage.loopback_since(&before.usage) {
            report.add("loopback per fire", number(bytes) / fires, "bytes");
        }
        self.usage.add_since(&before.usage, report);
    }
}
