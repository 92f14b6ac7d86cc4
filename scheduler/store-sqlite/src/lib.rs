//! Store adapter on SQLite: one file, one process, no server.
//!
//! Writes go through one connection, each use case in one `BEGIN IMMEDIATE` transaction that is synced to disk when it returns;
//! reads have connections of their own. Hot paths move a whole batch with a handful of statements: lists go in as one JSON text and
//! come out as one, because each row that crosses to SQLite's thread by itself costs more than the work on it.
//!
//! Each module holds one concern with its SQL at the top. Nothing here knows brokers, routing or HTTP.

mod by_name;
mod cancel;
mod claim;
mod database;
mod dead;
mod definitions;
mod dispatch;
mod error;
mod executors;
mod fire;
mod follow;
mod identity;
mod ingest;
mod jobs;
mod ledger;
mod live;
mod new_run;
mod nodes;
mod parents;
#[cfg(test)]
mod plans;
mod reads;
mod report;
mod rows;
mod schema;
mod stop;
mod store;
mod summary;
mod trigger;
mod upkeep;

use std::path::Path;
use std::sync::Arc;

use cueline_model::Timestamp;
use cueline_store::StoreError;

use crate::database::Database;
use crate::definitions::Definitions;

/// Tells the time in place of the machine's clock.
pub type NowFn = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How to open a store.
#[derive(Clone)]
pub struct SqliteOptions {
    /// The clock; the machine's by default, which is the database's for SQLite.
    pub now: Option<NowFn>,
    /// An executor counts as live while its last sign of life is younger than this; 15,000 by default.
    pub executor_dead_after_ms: u64,
    /// Creates the schema in an empty file and brings an older one up to date; `true` by default. Otherwise both are refused.
    pub migrate: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            now: None,
            executor_dead_after_ms: 15_000,
            migrate: true,
        }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("now", &self.now.as_ref().map(|_| "injected"))
            .field("executor_dead_after_ms", &self.executor_dead_after_ms)
            .field("migrate", &self.migrate)
            .finish()
    }
}

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    db: Database,
    definitions: Definitions,
}

impl SqliteStore {
    /// Opens the store at `path`, creating the file if it is absent and bringing an older schema up to date.
    ///
    /// A damaged file, another program's database or one with a newer schema is refused with
    /// [`ErrorKind::Broken`](cueline_store::ErrorKind::Broken).
    pub async fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        Ok(Self {
            db: Database::open(path, options).await?,
            definitions: Definitions::default(),
        })
    }

    /// Lets the file grow to so many pages of 4 KiB at the most; past it, writes fail as on a full disk.
    pub async fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        self.db.limit_pages(pages).await
    }

    /// Ends all connections, after the calls in progress. What was committed is on disk either way.
    pub async fn close(&self) {
        self.db.close().await;
    }
}
