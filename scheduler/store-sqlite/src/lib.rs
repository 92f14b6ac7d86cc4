//! Store adapter on SQLite: one file, one process, no server.
//!
//! All writes use one connection. Each use case is one `BEGIN IMMEDIATE` transaction, which is on disk when it returns.
//! Reads use other connections.
//!
//! The hot path handles a whole batch with a few statements. Lists are passed and returned as one JSON text, because
//! passing single rows to SQLite's thread costs more than the work on them.
//!
//! Statements that are repeated all the time say `LIMIT ?1 + 0`. SQLite plans a bare parameter there for its value, so it would
//! prepare the statement anew at each use.
//!
//! Each module holds one concern, with its SQL at the top. Its methods have the names of the port's methods; `store.rs`
//! connects them.

mod accounts;
mod alarm_outbox;
mod alarms;
mod audit;
mod backfills;
mod cancel;
mod changes;
mod children;
mod claim;
mod counted_pool;
mod database;
mod dead_letters;
mod definitions;
mod dispatch;
mod error;
mod executors;
mod fire_due;
mod fire_rules;
mod flows;
mod follow_ups;
mod group_rates;
mod ingest;
mod job_list;
mod jobs;
mod lanes;
mod ledger;
mod live_executors;
mod maintenance;
mod namespaces;
mod new_runs;
mod nodes;
mod oldest_queued;
#[cfg(test)]
mod query_plan_tests;
mod retention;
mod run_list;
mod run_times;
mod runs;
mod schema;
mod scripts;
mod situations;
mod store;
mod store_id;
mod summaries;
mod trigger;
mod waiting_runs;
#[cfg(test)]
mod waits_tests;
mod windows;
mod worker_keys;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use cueline_store::adapter::accounts::UseNotes;
use cueline_store::adapter::alarms::BookCache;
use cueline_store::adapter::fire_rules::RulesCache;
use cueline_store::{ClockOverride, StoreError};

use crate::database::Database;
use crate::definitions::Definitions;
use crate::error::failed_to;

/// How to open a store.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The clock, for tests. By default it is the machine's clock, which SQLite uses too.
    pub clock: Option<ClockOverride>,
    /// How long after its last heartbeat an executor counts as live, in milliseconds; 15,000 by default.
    pub executor_dead_after_ms: u64,
    /// Whether to create the schema in an empty file, and to migrate an older one; `true` by default. If `false`,
    /// opening such a file fails.
    pub migrate: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            clock: None,
            executor_dead_after_ms: 15_000,
            migrate: true,
        }
    }
}

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    db: Arc<Database>,
    uses: UseNotes,
    definitions: Definitions,
    rules: RulesCache,
    alarms: BookCache,
}

/// A call at work. Boxed, so that its code is in this crate only, and not again in each that calls it.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl SqliteStore {
    /// Opens the store at `path`. With [`SqliteOptions::migrate`] an absent file is created, and an older schema is
    /// migrated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`](cueline_store::ErrorKind::Broken) for a damaged file, the database of another program, and
    /// a schema that this program does not know or may not migrate.
    pub fn open(path: &Path, options: SqliteOptions) -> Boxed<'_, Result<Self, StoreError>> {
        Box::pin(async move {
            let db = Database::open(path, options).await;
            let db = Arc::new(db.map_err(|error| error.failed_to("open the store"))?);
            Ok(Self {
                uses: accounts::note_uses(&db),
                db,
                definitions: Definitions::default(),
                rules: RulesCache::default(),
                alarms: BookCache::default(),
            })
        })
    }

    /// Limits the size of the file to `pages` of 4 KiB, for tests. At the limit, writes fail as on a full disk.
    ///
    /// # Errors
    ///
    /// As all methods of the [`Store`](cueline_store::Store).
    pub async fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        let limited = self.db.limit_pages(pages).await;
        limited.map_err(|error| failed_to("limit the store's size", error))
    }

    /// Waits for the calls in progress and closes all connections. Uses of sessions and API tokens that are not noted yet are
    /// left out. Committed transactions are already on disk.
    pub fn close(&self) -> Boxed<'_, ()> {
        Box::pin(async move {
            self.uses.close();
            self.db.close().await;
        })
    }
}
