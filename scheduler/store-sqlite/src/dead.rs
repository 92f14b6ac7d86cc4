//! Messages that nobody could take.

use cueline_model::Timestamp;
use cueline_store::{DeadLetter, MAX_DEAD_LETTERS, NewDeadLetter, StoreError};

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::rows::{clean, encode, int};

const INSERT: &str = "
    INSERT INTO dead_letter (key, queue, topic, reason, at, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";

/// All but the newest.
const TRIM: &str = "
    DELETE FROM dead_letter WHERE id <= (SELECT id FROM dead_letter ORDER BY id DESC LIMIT 1 OFFSET ?1)";

const PAGE: &str = "
    SELECT id, queue, topic, reason, at, payload FROM dead_letter WHERE id < ?1 ORDER BY id DESC LIMIT ?2";

const BY_ID: &str = "
    SELECT d.id, queue, topic, reason, at, payload
    FROM json_each(?1) e CROSS JOIN dead_letter d ON d.id = e.value ORDER BY e.key";

const DELETE: &str = "DELETE FROM dead_letter WHERE id IN (SELECT value FROM json_each(?1))";

type Row = (i64, String, String, String, i64, Vec<u8>);

fn letter((id, queue, topic, reason, at, payload): Row) -> DeadLetter {
    DeadLetter {
        id,
        queue,
        topic,
        reason,
        at: Timestamp::from_millis(at),
        payload,
    }
}

impl SqliteStore {
    pub(crate) async fn keep_dead(&self, letters: &[NewDeadLetter]) -> Result<u64, StoreError> {
        if letters.is_empty() {
            return Ok(0);
        }
        let fail = failed("keep dead letters");
        let mut tx = self.db.write().await?;
        let mut new = 0;
        // One by one: they are few, and their payloads need not be text.
        for letter in letters {
            new += sqlx::query(INSERT)
                .bind(&letter.key)
                .bind(clean(&letter.queue).as_ref())
                .bind(clean(&letter.topic).as_ref())
                .bind(clean(&letter.reason).as_ref())
                .bind(letter.at.as_millis())
                .bind(&letter.payload)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?
                .rows_affected();
        }
        sqlx::query(TRIM)
            .bind(int(MAX_DEAD_LETTERS))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        Ok(new)
    }

    pub(crate) async fn list_dead(
        &self,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let mut conn = self.db.read().await?;
        let rows: Vec<Row> = sqlx::query_as(PAGE)
            .bind(before.unwrap_or(i64::MAX))
            .bind(int(limit))
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list dead letters"))?;
        Ok(rows.into_iter().map(letter).collect())
    }

    pub(crate) async fn find_dead(&self, ids: &[i64]) -> Result<Vec<DeadLetter>, StoreError> {
        let mut conn = self.db.read().await?;
        let rows: Vec<Row> = sqlx::query_as(BY_ID)
            .bind(encode(ids)?)
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("read dead letters"))?;
        Ok(rows.into_iter().map(letter).collect())
    }

    pub(crate) async fn delete_dead(&self, ids: &[i64]) -> Result<u64, StoreError> {
        let mut tx = self.db.write().await?;
        let deleted = sqlx::query(DELETE)
            .bind(encode(ids)?)
            .execute(&mut *tx)
            .await
            .map_err(failed("delete dead letters"))?
            .rows_affected();
        commit(tx).await?;
        Ok(deleted)
    }
}
