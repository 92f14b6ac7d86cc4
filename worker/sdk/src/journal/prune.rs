//! Deletes entries that are no longer needed.

use super::error::JournalError;
use super::file::Journal;
use super::read::json_array;

/// The most reported entries that are kept to answer redelivered triggers.
pub(super) const MAX_REPORTED: u64 = 1_000_000;
/// How long a reported entry is kept, unless there are more than [`MAX_REPORTED`]. Triggers are valid for 60 minutes.
/// The other 10 minutes allow for clocks that differ.
pub(super) const KEEP_REPORTED_MS: i64 = 70 * 60 * 1_000;
/// The most entries that one call deletes.
const BATCH: i64 = 8_192;
/// The most triggers that one call deletes. At this number they are deleted at once.
const TRIGGERS_BATCH: usize = 8_192;

impl Journal {
    /// Deletes triggers of attempts that no longer wait, and some of the reported entries that are no longer needed.
    /// Returns the number of entries.
    pub(crate) async fn prune(&mut self, now_ms: i64) -> Result<u64, JournalError> {
        self.delete_unused_triggers().await?;
        if self.has_surplus() {
            self.reported = self.count_reported().await?;
        }
        // Above the limit a whole batch goes, so the entries are counted once for thousands of new ones.
        let before_ms = if self.has_surplus() {
            i64::MAX
        } else {
            now_ms.saturating_sub(KEEP_REPORTED_MS)
        };
        let done = sqlx::query(
            "DELETE FROM entry WHERE key IN
                 (SELECT key FROM entry WHERE state = 3 AND at < ?1 ORDER BY at LIMIT ?2)",
        )
        .bind(before_ms)
        .bind(BATCH)
        .execute(&mut self.connection)
        .await
        .map_err(JournalError::database("prune"))?;
        self.reported = self.reported.saturating_sub(done.rows_affected());
        Ok(done.rows_affected())
    }

    async fn delete_unused_triggers(&mut self) -> Result<(), JournalError> {
        let unused = self.triggers.unused(TRIGGERS_BATCH);
        let count = unused.len();
        if count == 0 {
            return Ok(());
        }
        sqlx::query("DELETE FROM entry WHERE key IN (SELECT value FROM json_each(?1))")
            .bind(json_array(unused.iter().copied()))
            .execute(&mut self.connection)
            .await
            .map_err(JournalError::database("prune"))?;
        self.triggers.forget_unused(count);
        Ok(())
    }

    /// Whether there may be more reported entries than are kept. The next [`prune`](Self::prune) counts them.
    fn has_surplus(&self) -> bool {
        self.reported > MAX_REPORTED
    }

    /// Whether there is so much to delete that it cannot wait.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.has_surplus() || self.triggers.unused(TRIGGERS_BATCH).len() >= TRIGGERS_BATCH
    }
}
