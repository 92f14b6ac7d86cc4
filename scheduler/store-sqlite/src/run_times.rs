//! Finds runs by the time at which they were written.

use sqlx::SqliteConnection;

use crate::error::Result;

const FIRST_FROM: &str = "SELECT id, created_at FROM run WHERE id >= ?1 ORDER BY id LIMIT 1";

/// The lowest id of a run written at `since` or later. It is found by bisection, because ids ascend with the time of
/// writing.
pub(crate) async fn first_since(
    conn: &mut SqliteConnection,
    lowest: i64,
    highest: i64,
    since: i64,
) -> Result<i64> {
    let (mut low, mut high) = (lowest, highest.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        let row: Option<(i64, i64)> = sqlx::query_as(FIRST_FROM)
            .bind(middle)
            .fetch_optional(&mut *conn)
            .await?;
        match row {
            Some((id, created_at)) if created_at < since => low = id + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}
