//! The history of the database: notices that it does not continue where the store left it.
//!
//! A failover to an asynchronous replica and a restored backup lose the last commits, and the sequences go back with
//! them. Executors and other nodes still know the lost ids, so no id may be issued again. Therefore ids are allocated
//! only under a history that the store has recorded. In a new one the sequences first skip more numbers than can have
//! been lost. Live runs keep their ids, so a promotion that loses nothing has no other effect.
//!
//! A history is the server's timeline and the id of a table. Each promotion and each point-in-time recovery changes the
//! timeline. A restore from a dump changes the id. The name of a WAL file begins with the timeline
//! (<https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-BACKUP>). Every user may read both.
//! Where the server permits it, the identifier of the cluster counts too. A copy of the data directory that starts as
//! if after a crash has the same history, and is not noticed.

use std::sync::{Mutex, PoisonError};

use cueline_store::StoreError;
use cueline_store::adapter::convert::corrupt;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::error::{Error, Result};

/// The present history, in statements with `store_identity` as `i`. NULL on a replica.
macro_rules! present_history {
    () => {
        "(CASE WHEN pg_is_in_recovery() THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END
            || '/' || i.tableoid::text)"
    };
}

/// The condition that the history in this parameter is the recorded one and the present one. It reads one row, once
/// per statement.
macro_rules! in_known_history {
    ($parameter:literal) => {
        concat!(
            "(SELECT i.history = ",
            $parameter,
            "::text AND ",
            $crate::history::present_history!(),
            " = ",
            $parameter,
            "::text FROM store_identity i WHERE i.only_row)"
        )
    };
}

pub(crate) use in_known_history;
pub(crate) use present_history;

const READ: &str = concat!(
    "SELECT i.history, i.system_identifier, ",
    present_history!(),
    " FROM store_identity i"
);

const READ_LOCKED: &str = concat!(
    "SELECT i.history, i.system_identifier, ",
    present_history!(),
    " FROM store_identity i FOR UPDATE"
);

const WRITE: &str = "
    UPDATE store_identity SET history = $1, system_identifier = coalesce($2, system_identifier)";

/// Servers may refuse this to users without special rights.
const SYSTEM_IDENTIFIER: &str = "SELECT system_identifier FROM pg_control_system()";

/// Skips at least 10^9 run numbers: more than a lost history can have issued on one day. A random part is added,
/// because the same backup may be restored twice, and both copies start at the same number.
const SKIP_RUN_NUMBERS: &str = "
    SELECT setval('run_number', (last_value + 1000000000 + floor(random() * 1000000000)::bigint) % 10000000000)
    FROM run_number";

/// Nodes keep definitions by job id, and claims by node id.
const SKIP_JOB_IDS: &str = "
    SELECT setval('job_id_seq', last_value + 1000000 + floor(random() * 1000000)::bigint) FROM job_id_seq";
const SKIP_NODE_IDS: &str = "
    SELECT setval('node_id_seq', last_value + 1000000 + floor(random() * 1000000)::bigint) FROM node_id_seq";

/// The history that this process last saw. It passes it to the statements that allocate ids.
#[derive(Debug, Default)]
pub(crate) struct LastHistory(Mutex<Option<String>>);

impl LastHistory {
    /// `None` until the process has read it.
    pub(crate) fn get(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns whether the process knew another one before.
    fn set(&self, seen: String) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = last.as_ref().is_some_and(|last| *last != seen);
        *last = Some(seen);
        changed
    }
}

/// What identifies a history.
#[derive(Debug, Clone, PartialEq, Eq)]
struct History {
    /// Timeline and table.
    name: String,
    /// The identifier of the cluster, where it can be read.
    system: Option<i64>,
}

/// How the present history relates to the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Continuity {
    /// It is the same.
    Same,
    /// Nothing, or less, was recorded before.
    New,
    /// It is another one. Commits may be lost.
    Broken,
}

fn continuity(recorded: Option<&History>, present: &History) -> Continuity {
    let Some(recorded) = recorded else {
        return Continuity::New;
    };
    let is_other_system = match (recorded.system, present.system) {
        (Some(recorded), Some(present)) => recorded != present,
        _ => false,
    };
    if recorded.name != present.name || is_other_system {
        Continuity::Broken
    } else if recorded.system.is_none() && present.system.is_some() {
        Continuity::New
    } else {
        Continuity::Same
    }
}

impl PgStore {
    /// Compares the present history with the recorded one. Records a new one, and skips the ids that may be lost.
    pub(crate) async fn watch_history(&self) -> Result<()> {
        let mut conn = self.db.autocommit().await?;
        let system = system_identifier(&mut conn).await?;
        let (recorded, present) = read(&mut conn, READ, system).await?;
        conn.keep();
        // A replica refuses every write, so no id is allocated there.
        let Some(mut present) = present else {
            return Ok(());
        };
        if continuity(recorded.as_ref(), &present) != Continuity::Same
            && let Some(recorded) = self.record_history(system).await?
        {
            present = recorded;
        }
        if self.history.set(present.name) {
            // Versions were issued again, too.
            self.definitions.forget();
            self.triggered.clear();
            self.rules.clear();
            self.alarms.clear();
        }
        Ok(())
    }

    /// Records the present history, and returns it. The lock makes nodes do so one after the other.
    async fn record_history(&self, system: Option<i64>) -> Result<Option<History>> {
        let mut tx = self.db.write().await?;
        let (recorded, present) = read(&mut tx, READ_LOCKED, system).await?;
        let Some(present) = present else {
            return Ok(None);
        };
        let continuity = continuity(recorded.as_ref(), &present);
        if continuity == Continuity::Broken {
            for statement in [SKIP_RUN_NUMBERS, SKIP_JOB_IDS, SKIP_NODE_IDS] {
                sqlx::query(statement).execute(&mut *tx).await?;
            }
        }
        sqlx::query(WRITE)
            .bind(&present.name)
            .bind(system)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        if continuity == Continuity::Broken {
            tracing::warn!(
                before = ?recorded,
                now = ?present,
                "database was promoted or restored, and its last commits may be lost; new runs get ids that were never issued. \
                 Runs whose commits were lost may run again. Check API tokens, users and keys of workers that were revoked or changed since: \
                 that may be lost too. A synchronous standby loses none"
            );
        }
        Ok(Some(present))
    }
}

/// The recorded and the present history. The present one is `None` on a replica.
async fn read(
    conn: &mut PgConnection,
    statement: &'static str,
    system: Option<i64>,
) -> Result<(Option<History>, Option<History>)> {
    let row: Option<(Option<String>, Option<i64>, Option<String>)> =
        sqlx::query_as(statement).fetch_optional(conn).await?;
    let (recorded, recorded_system, present) = row.ok_or_else(no_identity)?;
    let recorded = recorded.map(|name| History {
        name,
        system: recorded_system,
    });
    Ok((recorded, present.map(|name| History { name, system })))
}

fn no_identity() -> Error {
    let error: StoreError = corrupt(
        "failed to read the store's history",
        "the table store_identity is empty",
    );
    error.into()
}

/// The identifier of the cluster. `None` where the user may not read it.
async fn system_identifier(conn: &mut PgConnection) -> Result<Option<i64>> {
    let identifier: std::result::Result<i64, sqlx::Error> =
        sqlx::query_scalar(SYSTEM_IDENTIFIER).fetch_one(conn).await;
    match identifier.map_err(Error::from) {
        Ok(identifier) => Ok(Some(identifier)),
        Err(error) if error.is_not_permitted() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(name: &str, system: Option<i64>) -> History {
        History {
            name: name.to_owned(),
            system,
        }
    }

    #[test]
    fn another_timeline_table_or_cluster_breaks_the_history() {
        let recorded = history("00000001/16400", Some(7));
        for (present, expected) in [
            (history("00000001/16400", Some(7)), Continuity::Same),
            (history("00000001/16400", None), Continuity::Same),
            (history("00000002/16400", Some(7)), Continuity::Broken),
            (history("00000002/16400", None), Continuity::Broken),
            (history("00000001/16500", Some(7)), Continuity::Broken),
            (history("00000001/16400", Some(8)), Continuity::Broken),
        ] {
            assert_eq!(continuity(Some(&recorded), &present), expected);
        }
    }

    #[test]
    fn what_was_not_recorded_before_is_new() {
        let present = history("00000001/16400", Some(7));
        assert_eq!(continuity(None, &present), Continuity::New);
        let without_system = history("00000001/16400", None);
        assert_eq!(continuity(Some(&without_system), &present), Continuity::New);
    }

    #[test]
    fn only_a_change_in_a_running_process_counts() {
        let last = LastHistory::default();
        assert_eq!(last.get(), None);
        assert!(!last.set("00000001/16400".to_owned()));
        assert!(!last.set("00000001/16400".to_owned()));
        assert!(last.set("00000002/16400".to_owned()));
        assert_eq!(last.get().as_deref(), Some("00000002/16400"));
    }
}
