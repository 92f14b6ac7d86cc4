//! The keys of enrolled workers in memory, read from the store.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{WorkerKeyId, WorkerPublicKey};
use cueline_runtime::{Activator, Duty, Next};
use cueline_store::{Store, StoreError, StoredWorkerKey};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::key_table::{KeyStanding, KeyTable};

/// Keys read at once.
const PAGE: usize = 1_000;
/// The most pages read in one turn. The next turn continues.
const MAX_PAGES: usize = 200;
/// What has changed is read this often. So a revocation counts on each node within about a second.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Reads are at least this far apart, however many unknown keys arrive.
const REFRESH_APART: Duration = Duration::from_millis(100);
/// All keys are read this often: the store deletes some, and after a lost commit it gives a number of a change again.
const RELOAD_EVERY: Duration = Duration::from_mins(1);

/// The keys of all enrolled workers. A node has one of these.
pub struct EnrolledKeys {
    store: Arc<dyn Store>,
    table: RwLock<KeyTable>,
    reads: Mutex<Reads>,
    /// Wakes the duty that reads changes.
    pub(crate) wanted: Activator,
}

/// What was read, and when. Its lock lets one caller read at a time.
#[derive(Debug, Default)]
struct Reads {
    /// When the last read began that has succeeded.
    begun_at: Option<Instant>,
    /// When all keys were read last.
    reloaded_at: Option<Instant>,
    /// The number of the last change that was read.
    version: i64,
}

impl std::fmt::Debug for EnrolledKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrolledKeys").finish_non_exhaustive()
    }
}

impl EnrolledKeys {
    /// The keys in this store. None is known before the first read.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            table: RwLock::default(),
            reads: Mutex::default(),
            wanted: Activator::new(),
        }
    }

    /// Reads what has changed, unless another caller has begun to read after `since`. Waits if the last read was a
    /// moment ago.
    pub(crate) async fn refresh_since(&self, since: Instant) -> Result<(), StoreError> {
        let mut reads = self.reads.lock().await;
        if let Some(begun_at) = reads.begun_at {
            if begun_at >= since {
                return Ok(());
            }
            sleep_until(begun_at + REFRESH_APART).await;
        }
        self.read(&mut reads).await
    }

    /// Reads what has changed at once, after this node has changed a key.
    pub(crate) async fn refresh_now(&self) -> Result<(), StoreError> {
        let mut reads = self.reads.lock().await;
        self.read(&mut reads).await
    }

    async fn read(&self, reads: &mut Reads) -> Result<(), StoreError> {
        let begun_at = Instant::now();
        let is_due = |at: Instant| begun_at.duration_since(at) >= RELOAD_EVERY;
        if reads.reloaded_at.is_none_or(is_due) {
            let (keys, version) = self.changes(0).await?;
            let mut table = KeyTable::default();
            for key in keys {
                table.insert(key);
            }
            self.replace(table);
            reads.version = version;
            reads.reloaded_at = Some(begun_at);
        } else {
            let (keys, version) = self.changes(reads.version).await?;
            self.extend(keys);
            if version < reads.version {
                // The store was restored to an earlier state.
                reads.reloaded_at = None;
            }
            reads.version = version;
        }
        reads.begun_at = Some(begun_at);
        Ok(())
    }

    /// The keys that were changed after this version, and the version up to which they were read.
    async fn changes(&self, after: i64) -> Result<(Vec<StoredWorkerKey>, i64), StoreError> {
        let (mut keys, mut version) = (Vec::new(), after);
        for _ in 0..MAX_PAGES {
            let page = self.store.worker_keys(version, PAGE).await?;
            let is_last = page.keys.len() < PAGE;
            version = page.version;
            keys.extend(page.keys);
            if is_last {
                break;
            }
        }
        Ok((keys, version))
    }

    fn replace(&self, table: KeyTable) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    fn extend(&self, keys: Vec<StoredWorkerKey>) {
        if keys.is_empty() {
            return;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            table.insert(key);
        }
    }

    /// A copy, so that no lock is held while a signature is verified.
    pub(super) fn find(
        &self,
        executor: &ExecutorId,
        key: &WorkerKeyId,
        now: Timestamp,
    ) -> Option<(WorkerPublicKey, KeyStanding)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.find(executor, key, now)
    }
}

/// Reads changed keys again and again.
pub(crate) struct RefreshKeys {
    pub(crate) keys: Arc<EnrolledKeys>,
}

impl Duty for RefreshKeys {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "worker keys"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.keys.refresh_since(Instant::now()).await?;
        Ok(Next::After(REFRESH_EVERY))
    }
}
