//! Store adapter on PostgreSQL 13 and later: any number of scheduler nodes on one database.
//!
//! Each use case is one transaction in READ COMMITTED. It locks the rows that its decisions depend on. Claims skip rows
//! that other nodes have locked, so that nodes share the due runs. All transactions lock jobs before runs, and each
//! kind by id. If two transactions still block each other, PostgreSQL rolls one back, and its call is repeated.
//!
//! The hot path handles a whole batch with a few statements, which take lists as arrays.
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
mod columns;
mod counted_pool;
mod database;
mod dead_letters;
mod definitions;
mod dispatch;
mod drop_day;
mod end_runs;
mod error;
mod executors;
mod fire_due;
mod fire_rules;
mod flows;
mod follow_ups;
mod group_rates;
mod history;
mod ingest;
mod job_list;
mod job_writes;
mod jobs;
mod kept_connections;
mod lanes;
mod ledger;
mod live_executors;
mod log_lines;
mod maintenance;
mod marks;
mod namespaces;
mod new_runs;
mod nodes;
mod oldest_queued;
mod options;
mod partitions;
mod plain_ends;
mod promotions;
#[cfg(test)]
mod query_plan_tests;
mod retention;
mod rewrite_day;
mod run_list;
mod runs;
mod schema;
mod scripts;
mod situations;
mod store;
mod store_id;
mod summaries;
mod transaction;
mod trigger;
mod url;
mod waiting_runs;
#[cfg(test)]
mod waits_tests;
mod windows;
mod worker_keys;

use std::pin::Pin;
use std::sync::Arc;

use cueline_model::StoreId;
use cueline_store::StoreError;
use cueline_store::adapter::accounts::UseNotes;
use cueline_store::adapter::alarms::BookCache;
use cueline_store::adapter::fire_rules::RulesCache;

use crate::database::Database;
use crate::definitions::Definitions;
use crate::drop_day::DayChecks;
use crate::history::LastHistory;
use crate::trigger::TriggeredJobs;

pub use crate::options::PgOptions;
pub use crate::schema::SchemaVersion;

/// A store in one PostgreSQL database, or in one schema of it: the first in the connection's `search_path`.
#[derive(Debug)]
pub struct PgStore {
    db: Arc<Database>,
    uses: UseNotes,
    definitions: Definitions,
    triggered: TriggeredJobs,
    rules: RulesCache,
    alarms: BookCache,
    day_checks: DayChecks,
    history: LastHistory,
}

/// A call at work. Boxed, so that its code is in this crate only, and not again in each that calls it.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl PgStore {
    /// Connects to the store at `url` (`postgres://user:password@host:port/database?sslmode=…`).
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Invalid`](cueline_store::ErrorKind::Invalid) for a URL of another form, and for options out of
    ///   range.
    /// - [`ErrorKind::Broken`](cueline_store::ErrorKind::Broken) for a wrong password, the database of another program,
    ///   and a schema that this program does not know or may not migrate (see [`PgOptions::migrate`]).
    /// - [`ErrorKind::Transient`](cueline_store::ErrorKind::Transient) if the server does not answer.
    pub fn connect(url: &str, options: PgOptions) -> Boxed<'_, Result<Self, StoreError>> {
        Box::pin(async move {
            let db = Database::connect(url, options).await;
            let db = Arc::new(db.map_err(|error| error.failed_to("open the store"))?);
            Ok(Self {
                uses: accounts::note_uses(&db),
                db,
                definitions: Definitions::default(),
                triggered: TriggeredJobs::default(),
                rules: RulesCache::default(),
                alarms: BookCache::default(),
                day_checks: DayChecks::default(),
                history: LastHistory::default(),
            })
        })
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

/// Creates the schema in an empty database, or migrates an older one. Returns its new version. Any number of processes
/// may call this at the same time.
///
/// # Errors
///
/// As [`PgStore::connect`].
pub fn migrate(url: &str) -> Boxed<'_, Result<SchemaVersion, StoreError>> {
    let migrated = async { schema::migrate(&url::parse(url, &PgOptions::default())?).await };
    Box::pin(async {
        let migrated = migrated.await;
        migrated.map_err(|error| error.failed_to("migrate the store's schema"))
    })
}

/// Gives the store at `url` a new id and returns it, and ends all sessions of users. No scheduler may be running.
///
/// Call it after a restore that the store cannot notice: of a copy of the data directory, without a recovery. Such a
/// store allocates run ids again that executors already know.
///
/// # Errors
///
/// As [`PgStore::connect`].
pub fn renew_store_id(url: &str) -> Boxed<'_, Result<StoreId, StoreError>> {
    let renewed = async { store_id::renew(&url::parse(url, &PgOptions::default())?).await };
    Box::pin(async {
        let renewed = renewed.await;
        renewed.map_err(|error| error.failed_to("give the store a new id"))
    })
}
