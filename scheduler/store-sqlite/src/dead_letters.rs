//! Dead letters.

use cueline_model::{Actor, Namespace};
use cueline_store::adapter::audit::{DeletedLetterRow, letters_deleted};
use cueline_store::adapter::audit_query::Bound;
use cueline_store::adapter::convert::{to_i64, without_nul};
use cueline_store::adapter::dead_letter_query::{DeadLetterQuery, Dialect};
use cueline_store::adapter::queries::{DeadLetterRow, dead_letter};
use cueline_store::{DeadLetter, DeadLetterFilter, MAX_DEAD_LETTERS, NewDeadLetter};
use sqlx::AssertSqlSafe;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, audit};

const INSERT: &str = "
    INSERT INTO dead_letter (key, queue, topic, reason, at, payload, origin, namespace) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT DO NOTHING";

/// Deletes all but the newest ?1.
const TRIM: &str = "
    DELETE FROM dead_letter WHERE id <= (SELECT id FROM dead_letter ORDER BY id DESC LIMIT 1 OFFSET ?1)";

/// What this database writes differently in lists.
pub(crate) const DIALECT: Dialect = Dialect {
    marker: '?',
    find: "instr",
};

const BY_ID: &str = "
    SELECT d.id, queue, topic, reason, at, payload, origin, namespace
    FROM json_each(?1) e CROSS JOIN dead_letter d ON d.id = e.value ORDER BY e.key";

/// Returns the columns of [`DeletedLetterRow`].
const DELETE: &str = "
    DELETE FROM dead_letter WHERE id IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR namespace = ?2)
    RETURNING id, queue, topic, reason, at, length(payload), namespace";

impl SqliteStore {
    pub(crate) async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<u64> {
        if letters.is_empty() {
            return Ok(0);
        }
        let mut tx = self.db.write().await?;
        let mut inserted = 0;
        // One statement per letter: letters are few, and JSON cannot hold their binary payloads.
        for letter in letters {
            inserted += sqlx::query(INSERT)
                .bind(&letter.key)
                .bind(without_nul(&letter.queue))
                .bind(without_nul(&letter.topic))
                .bind(without_nul(&letter.reason))
                .bind(letter.at.as_millis())
                .bind(&letter.payload)
                .bind(&letter.origin)
                .bind(letter.namespace.as_ref().map(Namespace::as_str))
                .execute(&mut *tx)
                .await?
                .rows_affected();
        }
        sqlx::query(TRIM)
            .bind(to_i64(MAX_DEAD_LETTERS))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(inserted)
    }

    pub(crate) async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetter>> {
        let DeadLetterQuery {
            sql, parameters, ..
        } = DeadLetterQuery::new(filter, DIALECT);
        let mut query = sqlx::query_as::<sqlx::Sqlite, DeadLetterRow>(AssertSqlSafe(sql));
        for parameter in parameters {
            query = match parameter {
                Bound::Number(number) => query.bind(number),
                Bound::Text(text) => query.bind(text),
            };
        }
        let rows = query.fetch_all(&mut *self.db.read().await?).await?;
        Ok(rows.into_iter().map(dead_letter).collect())
    }

    pub(crate) async fn dead_letters_by_id(&self, ids: &[i64]) -> Result<Vec<DeadLetter>> {
        let rows: Vec<DeadLetterRow> = sqlx::query_as(BY_ID)
            .bind(Json(ids))
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        Ok(rows.into_iter().map(dead_letter).collect())
    }

    pub(crate) async fn delete_dead_letters(
        &self,
        namespace: Option<&Namespace>,
        ids: &[i64],
        by: &Actor,
    ) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let mut deleted: Vec<DeletedLetterRow> = sqlx::query_as(DELETE)
            .bind(Json(ids))
            .bind(namespace.map(Namespace::as_str))
            .fetch_all(&mut *tx)
            .await?;
        deleted.sort_unstable_by_key(|(id, ..)| *id);
        let count = deleted.len() as u64;
        audit::write(&mut tx, &letters_deleted(by, deleted), now).await?;
        tx.commit().await?;
        Ok(count)
    }
}
