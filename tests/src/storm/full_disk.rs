//! The fault that fills the disk of a worker's state directory.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use cueline_runtime::{Clock as _, SystemClock};
use cueline_test_servers::free_port;
use cueline_test_support::eventually;
use tokio::time::sleep;

use super::disk::Disk;
use crate::cluster::WITHIN;

/// More than the journal of a worker needs in the longest storm. The disk takes memory for what is on it, and for all
/// of it while it is full.
const KIB: u32 = 192 * 1_024;

/// A part of the reason that a worker with an unusable journal gives.
const JOURNAL: &str = "journal cannot be used";

/// When a disk was full. All times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullDisk {
    /// When its worker was seen to say so. It says so only after its journal has failed for some seconds.
    pub announced: i64,
    /// Right before there was room again.
    pub until: i64,
}

/// The disk of one worker's state directory, and the address at which the worker says whether it takes triggers.
#[derive(Debug)]
pub struct WorkerDisk {
    disk: Disk,
    health: String,
    http: reqwest::Client,
}

impl WorkerDisk {
    /// Mounts it on the state directory, which it creates. Returns the reason if that is not possible here.
    pub fn mount(state_dir: &Path) -> Result<Result<Self, String>> {
        let disk = match Disk::mount(state_dir, KIB)? {
            Ok(disk) => disk,
            Err(why) => return Ok(Err(why)),
        };
        cueline_runtime::tls::install_provider();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .build()?;
        Ok(Ok(Self {
            disk,
            health: format!("127.0.0.1:{}", free_port()?),
            http,
        }))
    }

    /// The address for the worker's `--health`.
    pub fn health(&self) -> &str {
        &self.health
    }

    /// See [`Disk::launcher`].
    pub fn launcher(&self, folder: &Path) -> (&'static str, Vec<String>) {
        self.disk.launcher(folder)
    }

    /// See [`Disk::copy_out`].
    pub fn copy_out(&self) -> Result<()> {
        self.disk.copy_out()
    }

    /// Fills the disk until the worker says so, and for `more` after that. Returns once the journal works again.
    ///
    /// The worker notices a full disk at a write that needs room. Its journal reuses room for some seconds, and while
    /// another fault keeps triggers away it writes nothing.
    pub async fn fill_for(&self, more: Duration) -> Result<FullDisk> {
        self.disk.fill().await?;
        self.wait_until_usable(false).await?;
        let announced = SystemClock.now_ms();
        sleep(more).await;
        let until = SystemClock.now_ms();
        self.disk.make_room()?;
        self.wait_until_usable(true).await?;
        Ok(FullDisk { announced, until })
    }

    async fn wait_until_usable(&self, usable: bool) -> Result<()> {
        let expected = if usable {
            "a worker uses its journal again, because its disk has room"
        } else {
            "a worker says that it takes no triggers, because its disk is full"
        };
        let url = format!("http://{}/readyz", self.health);
        eventually(expected, WITHIN, async || {
            let answered = async { self.http.get(&url).send().await?.text().await };
            let answer = answered.await.map_err(|e| e.to_string())?;
            if answer.contains(JOURNAL) == usable {
                return Err(answer);
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}
