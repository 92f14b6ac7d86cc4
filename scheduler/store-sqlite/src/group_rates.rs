//! The rate limits of groups.

use cueline_model::{Actor, GroupName, Rate};
use cueline_store::GroupRate;
use cueline_store::adapter::audit::group_rate_changed;
use cueline_store::adapter::limits::{GroupRateRow, group_rate, room_for_rate};
use sqlx::SqliteConnection;

use crate::error::Result;
use crate::{SqliteStore, audit};

const READ: &str = "
    SELECT group_name, count, per FROM group_rate WHERE ?1 IS NULL OR group_name = ?1 ORDER BY group_name";

const OTHERS: &str = "SELECT count(*) FROM group_rate WHERE group_name <> ?1";

const WRITE: &str = "
    INSERT INTO group_rate (group_name, count, per) VALUES (?1, ?2, ?3)
    ON CONFLICT (group_name) DO UPDATE SET count = excluded.count, per = excluded.per";

pub(crate) const DELETE: &str = "DELETE FROM group_rate WHERE group_name = ?1";

/// All rates, or that of one group.
pub(crate) async fn read(
    conn: &mut SqliteConnection,
    group: Option<&GroupName>,
) -> Result<Vec<GroupRate>> {
    let rows: Vec<GroupRateRow> = sqlx::query_as(READ)
        .bind(group.map(GroupName::as_str))
        .fetch_all(conn)
        .await?;
    rows.into_iter().map(|row| Ok(group_rate(row)?)).collect()
}

impl SqliteStore {
    pub(crate) async fn group_rates(&self) -> Result<Vec<GroupRate>> {
        let mut conn = self.db.read().await?;
        read(&mut conn, None).await
    }

    pub(crate) async fn set_group_rate(
        &self,
        group: &GroupName,
        rate: Option<Rate>,
        by: &Actor,
    ) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let before = read(&mut tx, Some(group)).await?;
        let before = before.first().map(|present| present.rate);
        if before == rate {
            return Ok(false);
        }
        if let Some(rate) = rate {
            let others: i64 = sqlx::query_scalar(OTHERS)
                .bind(group.as_str())
                .fetch_one(&mut *tx)
                .await?;
            room_for_rate(others)?;
            sqlx::query(WRITE)
                .bind(group.as_str())
                .bind(i64::from(rate.count))
                .bind(rate.per.as_str())
                .execute(&mut *tx)
                .await?;
        } else {
            sqlx::query(DELETE)
                .bind(group.as_str())
                .execute(&mut *tx)
                .await?;
        }
        let entry = group_rate_changed(by, group, before, rate);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(true)
    }
}
