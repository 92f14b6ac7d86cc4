//! Deletes entries that are no longer needed.

use super::error::JournalError;
use super::file::Journal;

/// The most reported entries that are kept to answer redelivered triggers.
pub(super) const MAX_REPORTED: u64 = 1_000_000;
/// How long a reported entry is kept, unless there are more than [`MAX_REPORTED`]. Triggers are valid for 60 minutes.
/// The other 10 minutes allow for clocks that differ.
pub(super) const KEEP_REPORTED_MS: i64 = 70 * 60 * 1_000;
/// The most entries that one call deletes.
const BATCH: i64 = 8_192;

impl Journal {
    /// Deletes some of the reported entries that are no longer needed, and returns how many.
    pub(crate) async fn prune(&mut self, now_ms: i64) -> Result<u64, JournalError> {
        if self.is_over_limit() {
            self.reported = self.count_reported().await?;
        }
        // Above the limit a whole batch goes, so the entries are counted once for thousands of new ones.
        let before_ms = if self.is_over_limit() {
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

    /// Whether there may be more reported entries than are kept. The next [`prune`](Self::prune) counts them.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.reported > MAX_REPORTED
    }
}
