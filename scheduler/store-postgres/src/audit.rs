//! The audit log and the versions of jobs.

use async_trait::async_trait;
use cueline_model::{Actor, JobName, Timestamp};
use cueline_store::adapter::audit::{
    AuditColumns, AuditRow, JobVersionRow, MAX_ENTRIES_IN_STATEMENT, audit_entry, job_version,
    stored_actor,
};
use cueline_store::adapter::audit_query::{AuditQuery, Bound};
use cueline_store::adapter::convert::to_i64;
use cueline_store::{
    Audit, AuditEntry, AuditFilter, JobVersion, MAX_JOB_VERSIONS, NewAuditEntry, Order, StoreError,
};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::column;
use crate::error::Result;

const INSERT: &str = "
    INSERT INTO audit (at, actor, address, action, action_object, namespace, group_name, object, result, detail, old_value, new_value)
    SELECT $12, e.actor, e.address, e.action, e.action_object, e.namespace, e.group_name, e.object, e.result, e.detail,
        e.old_value, e.new_value
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::text[], $11::text[]) WITH ORDINALITY
        e (actor, address, action, action_object, namespace, group_name, object, result, detail, old_value, new_value, position)
    ORDER BY e.position";

pub(crate) const PRUNE: &str = "
    DELETE FROM audit WHERE id = ANY (ARRAY(SELECT a.id FROM audit a WHERE a.at < $1 ORDER BY a.at LIMIT $2))";

/// The current versions of these jobs, after they were written.
const INSERT_VERSIONS: &str = "
    INSERT INTO job_version (job_id, version, at, changed_by, enabled, definition)
    SELECT j.id, j.version, $2, $3, d.enabled, j.definition
    FROM unnest($1::bigint[]) e (id) JOIN job j ON j.id = e.id JOIN job_due d ON d.job_id = j.id";

/// Each new version pushes out one, so that a job has at most $2.
pub(crate) const TRIM_VERSIONS: &str = "
    DELETE FROM job_version v USING unnest($1::bigint[]) e (id) JOIN job j ON j.id = e.id
    WHERE v.job_id = j.id AND v.version = j.version - $2";

/// The versions of the last deleted job that had the name of each new one. The creation of that job has deleted those of
/// the one before, so the cost does not grow with the number of deletions.
///
/// Their ids are found first. The server may believe that a table is empty, if it analyzed the table while the rows of an
/// apply were not committed. A join would then find the ids once for each version.
pub(crate) const FORGET_VERSIONS: &str = "
    DELETE FROM job_version WHERE job_id = ANY (ARRAY(
        SELECT (SELECT max(p.id) FROM job p WHERE p.name = j.name AND p.id < j.id) FROM job j WHERE j.id = ANY ($1::bigint[])))";

/// Jobs that were deleted before this time, and whose versions retention has not deleted yet.
pub(crate) const DELETED_JOBS: &str = "
    SELECT id FROM job WHERE deleted_at < $1 AND keeps_versions ORDER BY deleted_at LIMIT $2";

pub(crate) const PRUNE_VERSIONS: &str = "
    DELETE FROM job_version WHERE (job_id, version) IN
        (SELECT v.job_id, v.version FROM unnest($1::bigint[]) e (id) JOIN job_version v ON v.job_id = e.id LIMIT $2)";

const WITHOUT_VERSIONS: &str = "
    UPDATE job SET keeps_versions = false
    WHERE id = ANY ($1) AND NOT EXISTS (SELECT FROM job_version v WHERE v.job_id = job.id)";

/// Versions of the newest job that ever had this name, behind $2. A job without versions has one row of NULLs.
macro_rules! versions {
    ($sign:literal, $direction:literal) => {
        concat!(
            "SELECT v.version, v.at, v.changed_by, v.enabled, v.definition
            FROM (SELECT id FROM job WHERE name = $1 ORDER BY id DESC LIMIT 1) j
                LEFT JOIN LATERAL (
                    SELECT version, at, changed_by, enabled, definition FROM job_version
                    WHERE job_id = j.id AND version ",
            $sign,
            " $2 ORDER BY version ",
            $direction,
            " LIMIT $3) v ON true
            ORDER BY v.version ",
            $direction
        )
    };
}

pub(crate) const VERSIONS: &str = versions!("<", "DESC");
pub(crate) const VERSIONS_ASCENDING: &str = versions!(">", "ASC");

type FoundVersion = (
    Option<i64>,
    Option<i64>,
    Option<String>,
    Option<bool>,
    Option<String>,
);

/// Writes entries in the transaction of the change that they are about.
pub(crate) async fn write(
    conn: &mut PgConnection,
    entries: &[NewAuditEntry],
    at: Timestamp,
) -> Result<()> {
    for entries in entries.chunks(MAX_ENTRIES_IN_STATEMENT) {
        let rows: Vec<AuditColumns> = entries.iter().map(AuditColumns::from).collect();
        sqlx::query(INSERT)
            .bind(column(&rows, |r| r.actor.as_str()))
            .bind(column(&rows, |r| r.address.as_deref()))
            .bind(column(&rows, |r| r.action.as_str()))
            .bind(column(&rows, |r| r.action_object.as_str()))
            .bind(column(&rows, |r| r.namespace.as_deref()))
            .bind(column(&rows, |r| r.group_name.as_deref()))
            .bind(column(&rows, |r| r.object.as_str()))
            .bind(column(&rows, |r| r.result))
            .bind(column(&rows, |r| r.detail.as_str()))
            .bind(column(&rows, |r| r.old_value.as_deref()))
            .bind(column(&rows, |r| r.new_value.as_deref()))
            .bind(at.as_millis())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Keeps the current versions of these jobs, and deletes the oldest beyond the bound.
pub(crate) async fn write_versions(
    conn: &mut PgConnection,
    jobs: &[i64],
    by: &Actor,
    at: Timestamp,
) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT_VERSIONS)
        .bind(jobs)
        .bind(at.as_millis())
        .bind(stored_actor(by))
        .execute(&mut *conn)
        .await?;
    sqlx::query(TRIM_VERSIONS)
        .bind(jobs)
        .bind(to_i64(MAX_JOB_VERSIONS))
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes the versions of the deleted jobs that had the names of these new ones last.
pub(crate) async fn forget_versions(conn: &mut PgConnection, created: &[i64]) -> Result<()> {
    if !created.is_empty() {
        sqlx::query(FORGET_VERSIONS)
            .bind(created)
            .execute(conn)
            .await?;
    }
    Ok(())
}

impl PgStore {
    async fn write_entries(&self, entries: &[NewAuditEntry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut tx = self.db.write().await?;
        let now = tx.now;
        write(&mut tx, entries, now).await?;
        tx.commit().await
    }

    async fn list_entries(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        let AuditQuery {
            sql, parameters, ..
        } = AuditQuery::new(filter, '$');
        let mut query = sqlx::query_as::<sqlx::Postgres, AuditRow>(AssertSqlSafe(sql));
        for parameter in parameters {
            query = match parameter {
                Bound::Number(number) => query.bind(number),
                Bound::Text(text) => query.bind(text),
            };
        }
        let rows = query.fetch_all(&mut *self.db.read().await?).await?;
        rows.into_iter().map(|row| Ok(audit_entry(row)?)).collect()
    }

    async fn prune_entries(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let before = tx.now.minus_ms(older_than_ms);
        let pruned = sqlx::query(PRUNE)
            .bind(before.as_millis())
            .bind(to_i64(limit))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(pruned)
    }

    async fn prune_versions_of_deleted(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let jobs: Vec<i64> = sqlx::query_scalar(DELETED_JOBS)
            .bind(tx.now.minus_ms(older_than_ms).as_millis())
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        if jobs.is_empty() {
            tx.roll_back().await;
            return Ok(0);
        }
        let pruned = sqlx::query(PRUNE_VERSIONS)
            .bind(&jobs)
            .bind(to_i64(limit))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        sqlx::query(WITHOUT_VERSIONS)
            .bind(&jobs)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(pruned)
    }

    async fn list_versions(
        &self,
        job: &JobName,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<JobVersion>> {
        let mut conn = self.db.read().await?;
        versions(&mut conn, job, order, after, limit).await
    }
}

/// The versions of the newest job with that name.
pub(crate) async fn versions(
    conn: &mut PgConnection,
    job: &JobName,
    order: Order,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<JobVersion>> {
    let (statement, first) = match order {
        Order::Ascending => (VERSIONS_ASCENDING, -1),
        Order::Descending => (VERSIONS, i64::MAX),
    };
    let rows: Vec<FoundVersion> = sqlx::query_as(statement)
        .bind(job.as_str())
        .bind(after.map_or(first, to_i64))
        .bind(to_i64(limit))
        .fetch_all(conn)
        .await?;
    if rows.is_empty() {
        return Err(StoreError::no_job(job.as_str()).into());
    }
    let whole = |(version, at, by, enabled, definition): FoundVersion| -> Option<JobVersionRow> {
        Some((version?, at?, by?, enabled?, definition?))
    };
    Ok(rows
        .into_iter()
        .filter_map(whole)
        .map(job_version)
        .collect())
}

#[async_trait]
impl Audit for PgStore {
    async fn record(&self, entries: &[NewAuditEntry]) -> std::result::Result<(), StoreError> {
        self.write("write the audit log", || self.write_entries(entries))
            .await
    }

    async fn audit_entries(
        &self,
        filter: &AuditFilter,
    ) -> std::result::Result<Vec<AuditEntry>, StoreError> {
        self.read("read the audit log", || self.list_entries(filter))
            .await
    }

    async fn prune_audit(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> std::result::Result<u64, StoreError> {
        let prune = || self.prune_entries(older_than_ms, limit);
        self.write("delete old entries of the audit log", prune)
            .await
    }

    async fn prune_versions(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> std::result::Result<u64, StoreError> {
        let prune = || self.prune_versions_of_deleted(older_than_ms, limit);
        self.write("delete versions of deleted jobs", prune).await
    }

    async fn job_versions(
        &self,
        job: &JobName,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> std::result::Result<Vec<JobVersion>, StoreError> {
        let list = || self.list_versions(job, order, after, limit);
        self.read("list the versions of a job", list).await
    }
}
