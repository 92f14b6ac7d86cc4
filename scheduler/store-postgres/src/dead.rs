//! Messages that nobody could take.

use cueline_model::Timestamp;
use cueline_store::{DeadLetter, MAX_DEAD_LETTERS, NewDeadLetter, StoreError};

use crate::PgStore;
use crate::database::commit;
use crate::error::failed;
use crate::rows::{clean, int};

const INSERT: &str = "
    INSERT INTO dead_letter (key, queue, topic, reason, at, payload)
    SELECT e.key, e.queue, e.topic, e.reason, e.at, e.payload
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[]) WITH ORDINALITY
        e (key, queue, topic, reason, at, payload, place)
    ORDER BY e.place
    ON CONFLICT DO NOTHING";

/// All but the newest.
const TRIM: &str = "
    DELETE FROM dead_letter WHERE id <= (SELECT id FROM dead_letter ORDER BY id DESC LIMIT 1 OFFSET $1)";

const PAGE: &str = "
    SELECT id, queue, topic, reason, at, payload FROM dead_letter WHERE id < $1 ORDER BY id DESC LIMIT $2";

const BY_ID: &str = "
    SELECT d.id, d.queue, d.topic, d.reason, d.at, d.payload
    FROM unnest($1::bigint[]) WITH ORDINALITY e (id, place) JOIN dead_letter d ON d.id = e.id ORDER BY e.place";

const DELETE: &str =
    "DELETE FROM dead_letter d USING unnest($1::bigint[]) e (id) WHERE d.id = e.id";

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

fn column<'a, T>(letters: &'a [NewDeadLetter], of: impl Fn(&'a NewDeadLetter) -> T) -> Vec<T> {
    letters.iter().map(of).collect()
}

impl PgStore {
    pub(crate) async fn keep_dead(&self, letters: &[NewDeadLetter]) -> Result<u64, StoreError> {
        if letters.is_empty() {
            return Ok(0);
        }
        let fail = failed("keep dead letters");
        let mut tx = self.db.write().await?;
        let new = sqlx::query(INSERT)
            .bind(column(letters, |l| clean(&l.key)))
            .bind(column(letters, |l| clean(&l.queue)))
            .bind(column(letters, |l| clean(&l.topic)))
            .bind(column(letters, |l| clean(&l.reason)))
            .bind(column(letters, |l| l.at.as_millis()))
            .bind(column(letters, |l| l.payload.as_slice()))
            .execute(&mut *tx)
            .await
            .map_err(&fail)?
            .rows_affected();
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
            .bind(ids)
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("read dead letters"))?;
        Ok(rows.into_iter().map(letter).collect())
    }

    pub(crate) async fn delete_dead(&self, ids: &[i64]) -> Result<u64, StoreError> {
        let mut tx = self.db.write().await?;
        let deleted = sqlx::query(DELETE)
            .bind(ids)
            .execute(&mut *tx)
            .await
            .map_err(failed("delete dead letters"))?
            .rows_affected();
        commit(tx).await?;
        Ok(deleted)
    }
}
