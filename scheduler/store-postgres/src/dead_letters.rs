//! Dead letters.

use cueline_model::{Actor, Namespace};
use cueline_store::adapter::audit::{DeletedLetterRow, letters_deleted};
use cueline_store::adapter::audit_query::Bound;
use cueline_store::adapter::convert::{to_i64, without_nul};
use cueline_store::adapter::dead_letter_query::{DeadLetterQuery, Dialect};
use cueline_store::adapter::queries::{DeadLetterRow, dead_letter};
use cueline_store::{DeadLetter, DeadLetterFilter, MAX_DEAD_LETTERS, NewDeadLetter};
use sqlx::AssertSqlSafe;

use crate::columns::column;
use crate::error::Result;
use crate::{PgStore, audit};

const INSERT: &str = "
    INSERT INTO dead_letter (key, queue, topic, reason, at, payload, origin, namespace)
    SELECT e.key, e.queue, e.topic, e.reason, e.at, e.payload, e.origin, e.namespace
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::text[], $8::text[]) WITH ORDINALITY
        e (key, queue, topic, reason, at, payload, origin, namespace, position)
    ORDER BY e.position
    ON CONFLICT DO NOTHING";

/// Deletes all but the newest $1.
const TRIM: &str = "
    DELETE FROM dead_letter WHERE id <= (SELECT id FROM dead_letter ORDER BY id DESC LIMIT 1 OFFSET $1)";

/// What this database writes differently in lists.
pub(crate) const DIALECT: Dialect = Dialect {
    marker: '$',
    find: "strpos",
};

const BY_ID: &str = "
    SELECT d.id, d.queue, d.topic, d.reason, d.at, d.payload, d.origin, d.namespace
    FROM unnest($1::bigint[]) WITH ORDINALITY e (id, position) JOIN dead_letter d ON d.id = e.id ORDER BY e.position";

/// Returns the columns of [`DeletedLetterRow`].
const DELETE: &str = "
    DELETE FROM dead_letter d USING unnest($1::bigint[]) e (id)
    WHERE d.id = e.id AND ($2::text IS NULL OR d.namespace = $2)
    RETURNING d.id, d.queue, d.topic, d.reason, d.at, length(d.payload)::bigint, d.namespace";

impl PgStore {
    pub(crate) async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<u64> {
        if letters.is_empty() {
            return Ok(0);
        }
        let mut tx = self.db.write().await?;
        let inserted = sqlx::query(INSERT)
            .bind(column(letters, |l| without_nul(&l.key)))
            .bind(column(letters, |l| without_nul(&l.queue)))
            .bind(column(letters, |l| without_nul(&l.topic)))
            .bind(column(letters, |l| without_nul(&l.reason)))
            .bind(column(letters, |l| l.at.as_millis()))
            .bind(column(letters, |l| l.payload.as_slice()))
            .bind(column(letters, |l| l.origin.as_deref()))
            .bind(column(letters, |l| {
                l.namespace.as_ref().map(Namespace::as_str)
            }))
            .execute(&mut *tx)
            .await?
            .rows_affected();
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
        let mut query = sqlx::query_as::<sqlx::Postgres, DeadLetterRow>(AssertSqlSafe(sql));
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
            .bind(ids)
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
        let now = tx.now;
        let mut deleted: Vec<DeletedLetterRow> = sqlx::query_as(DELETE)
            .bind(ids)
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
