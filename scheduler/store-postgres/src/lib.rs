//! Store adapter on PostgreSQL 13 and later: any number of scheduler nodes on one database.
//!
//! Each use case is one transaction in READ COMMITTED, with row locks where it decides on what it has read. Claims skip what others
//! hold, so that nodes share out what is due. Hot paths move a whole batch with a handful of statements: lists go in as
//! arrays. Locks are taken in one order, jobs before runs, each by id; where two transactions still block each other, PostgreSQL undoes one, and its call is made again.
//!
//! Each module holds one concern with its SQL at the top. Nothing here knows brokers, routing or HTTP.

mod by_name;
mod cancel;
mod claim;
mod database;
mod days;
mod dead;
mod definitions;
mod dispatch;
mod error;
mod executors;
mod finish;
mod fire;
mod follow;
mod identity;
mod ingest;
mod jobs;
mod ledger;
mod live;
mod logs;
mod new_run;
mod nodes;
mod options;
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
mod write_jobs;

use cueline_model::StoreId;
use cueline_store::StoreError;

use crate::database::Database;
use crate::definitions::Definitions;

pub use crate::options::{NowFn, PgOptions};
pub use crate::schema::SchemaVersion;

/// A store in one PostgreSQL database, or in one schema of it (the first in the connection's `search_path`).
#[derive(Debug)]
pub struct PgStore {
    db: Database,
    definitions: Definitions,
}

impl PgStore {
    /// Connects to the store at `url` (`postgres://user:password@host:port/database?sslmode=…`).
    ///
    /// A database of another program, an empty or older one that may not be migrated (see [`PgOptions::migrate`]), or one that a
    /// newer program has changed too much for this one is refused with [`ErrorKind::Broken`](cueline_store::ErrorKind::Broken), and so
    /// is a wrong password; a server that does not answer is [`ErrorKind::Transient`](cueline_store::ErrorKind::Transient).
    pub async fn connect(url: &str, options: PgOptions) -> Result<Self, StoreError> {
        Ok(Self {
            db: Database::connect(url, options).await?,
            definitions: Definitions::default(),
        })
    }

    /// Ends all connections, after the calls in progress. What was committed is on disk either way.
    pub async fn close(&self) {
        self.db.close().await;
    }
}

/// Brings the database at `url` up to date, or creates what a store needs in an empty one; the version that it has now. Safe to call from any
/// number of processes at a time.
pub async fn migrate(url: &str) -> Result<SchemaVersion, StoreError> {
    let connect = database::parse(url, &PgOptions::default())?;
    schema::migrate(&connect).await
}

/// Gives the store at `url` a new id; it. For a store that was restored from a backup and counts on from there: executors take its new runs
/// for those that they know by the same numbers otherwise. No scheduler may be running meanwhile.
pub async fn renew_identity(url: &str) -> Result<StoreId, StoreError> {
    let connect = database::parse(url, &PgOptions::default())?;
    identity::renew(&connect).await
}
