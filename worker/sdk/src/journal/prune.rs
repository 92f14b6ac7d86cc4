//! Deletes entries that are no longer needed.
//!
//! The broker delivers a trigger without an ack again after about 30 s, before newer ones. So it knows its acks long
//! before an entry is deleted, at 2,000 ends a second after 8 minutes. Schedulers may need an entry for longer: while its
//! result waits in the results queue, they ask for the attempt, and publish it again if it is missing. The journal
//! therefore tells until when it has forgotten attempts. Schedulers do not take those for lost triggers.

use cueline_model::StoreId;
use sqlx::Sqlite;

use super::error::JournalError;
use super::file::{Journal, execute};

/// The most reported entries that are kept to answer redelivered triggers.
pub(super) const MAX_REPORTED: u64 = 1_000_000;
/// How long a reported entry is kept, unless there are more than [`MAX_REPORTED`]. Triggers are valid for 60 minutes.
/// The other 10 minutes allow for clocks that differ.
pub(super) const KEEP_REPORTED_MS: i64 = 70 * 60 * 1_000;
/// The most entries that one call deletes.
const BATCH: i64 = 8_192;
/// The journal claims to have forgotten entries this much younger. So it updates that time once a minute, not at each
/// deletion.
const FORGET_AHEAD_MS: i64 = 60_000;

/// The entries that a call deletes: by store, the time of the newest one. 54 is the number of bits for the run in a key.
/// It is one row of JSON, because no rows would look like a thread that has ended. SQLite plans a bare parameter of `LIMIT`
/// for its value, so it would prepare the statement anew at each use.
const NEWEST: &str = "
    SELECT json_group_array(json_array(store, newest)) FROM (
        SELECT key >> 54 AS store, max(at) AS newest
        FROM (SELECT key, at FROM entry WHERE state = 3 AND at < ?1 ORDER BY at LIMIT ?2 + 0) GROUP BY 1)";

impl Journal {
    /// Deletes some of the reported entries that are no longer needed, and returns how many.
    pub(crate) async fn prune(&mut self, now_ms: i64) -> Result<u64, JournalError> {
        self.check_thread("prune")?;
        let pruned = self.prune_batch(now_ms).await;
        self.has_ended = pruned.as_ref().is_err_and(JournalError::is_final);
        pruned
    }

    async fn prune_batch(&mut self, now_ms: i64) -> Result<u64, JournalError> {
        if self.is_over_limit() {
            self.reported = self.count_reported().await?;
        }
        // Above the limit a whole batch goes, so the entries are counted once for thousands of new ones.
        let before_ms = if self.is_over_limit() {
            i64::MAX
        } else {
            now_ms.saturating_sub(KEEP_REPORTED_MS)
        };
        let newest: String = sqlx::query_scalar(NEWEST)
            .bind(before_ms)
            .bind(BATCH)
            .fetch_one(&mut self.connection)
            .await
            .map_err(JournalError::database("prune"))?;
        let newest: Vec<(i64, i64)> =
            serde_json::from_str(&newest).map_err(|e| JournalError::Corrupt(e.to_string()))?;
        if newest.is_empty() {
            return Ok(0);
        }
        for (store, at_ms) in newest {
            self.mark_forgotten(store, at_ms).await?;
        }
        let delete = sqlx::query::<Sqlite>(
            "DELETE FROM entry WHERE key IN
                 (SELECT key FROM entry WHERE state = 3 AND at < ?1 ORDER BY at LIMIT ?2 + 0)",
        )
        .bind(before_ms)
        .bind(BATCH);
        let deleted = execute(&mut self.connection, delete)
            .await
            .map_err(JournalError::database("prune"))?;
        self.reported = self.reported.saturating_sub(deleted);
        Ok(deleted)
    }

    /// Records that entries of this store are forgotten that were reported until `at_ms`.
    async fn mark_forgotten(&mut self, store: i64, at_ms: i64) -> Result<(), JournalError> {
        if self
            .forgotten
            .get(&store)
            .is_some_and(|until| *until >= at_ms)
        {
            return Ok(());
        }
        let until = at_ms.saturating_add(FORGET_AHEAD_MS);
        let update = sqlx::query::<Sqlite>("UPDATE store SET forgotten = ?2 WHERE number = ?1")
            .bind(store)
            .bind(until);
        execute(&mut self.connection, update)
            .await
            .map_err(JournalError::database("prune"))?;
        self.forgotten.insert(store, until);
        Ok(())
    }

    /// Until when entries of this store may be forgotten, by the time of their report. `None` if none is.
    pub(crate) fn forgotten_until(&self, store: StoreId) -> Option<i64> {
        let number = self.stores.number(store)?;
        self.forgotten.get(&number).copied()
    }

    /// Whether there may be more reported entries than are kept. The next [`prune`](Self::prune) counts them.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.reported > MAX_REPORTED
    }
}
