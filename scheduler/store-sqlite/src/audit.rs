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
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::SqliteStore;
use crate::error::Result;

const INSERT: &str = "
    INSERT INTO audit (at, actor, address, action, action_object, namespace, group_name, object, result, detail, old_value, new_value)
    SELECT ?2, value ->> '$.actor', value ->> '$.address', value ->> '$.action', value ->> '$.action_object',
           value ->> '$.namespace', value ->> '$.group_name', value ->> '$.object', value ->> '$.result',
           value ->> '$.detail', value ->> '$.old_value', value ->> '$.new_value'
    FROM json_each(?1)";

pub(crate) const PRUNE: &str = "
    DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ?1 ORDER BY at LIMIT ?2)";

/// The current versions of these jobs, after they were written.
const INSERT_VERSIONS: &str = "
    INSERT INTO job_version (job_id, version, at, changed_by, enabled, definition)
    SELECT j.id, j.version, ?2, ?3, d.enabled, j.definition
    FROM json_each(?1) e CROSS JOIN job j ON j.id = e.value CROSS JOIN job_due d ON d.job_id = j.id";

/// Each new version pushes out one, so that a job has at most ?2.
pub(crate) const TRIM_VERSIONS: &str = "
    DELETE FROM job_version WHERE (job_id, version) IN
        (SELECT j.id, j.version - ?2 FROM json_each(?1) e CROSS JOIN job j ON j.id = e.value)";

/// The versions of the last deleted job that had the name of each new one. The creation of that job has deleted those of
/// the one before, so the cost does not grow with the number of deletions.
pub(crate) const FORGET_VERSIONS: &str = "
    DELETE FROM job_version WHERE job_id IN
        (SELECT (SELECT max(p.id) FROM job p WHERE p.name = j.name AND p.id < j.id)
            FROM json_each(?1) e CROSS JOIN job j ON j.id = e.value)";

/// Jobs that were deleted before this time, and whose versions retention has not deleted yet.
pub(crate) const DELETED_JOBS: &str = "
    SELECT id FROM job WHERE deleted_at < ?1 AND keeps_versions = 1 ORDER BY deleted_at LIMIT ?2";

pub(crate) const PRUNE_VERSIONS: &str = "
    DELETE FROM job_version WHERE (job_id, version) IN
        (SELECT v.job_id, v.version FROM json_each(?1) e CROSS JOIN job_version v ON v.job_id = e.value LIMIT ?2)";

const WITHOUT_VERSIONS: &str = "
    UPDATE job SET keeps_versions = 0
    WHERE id IN (SELECT value FROM json_each(?1))
        AND NOT EXISTS (SELECT 1 FROM job_version v WHERE v.job_id = job.id)";

const NEWEST_OF_NAME: &str = "SELECT id FROM job WHERE name = ?1 ORDER BY id DESC LIMIT 1";

pub(crate) const VERSIONS: &str = "
    SELECT version, at, changed_by, enabled, definition FROM job_version
    WHERE job_id = ?1 AND version < ?2 ORDER BY version DESC LIMIT ?3";

pub(crate) const VERSIONS_ASCENDING: &str = "
    SELECT version, at, changed_by, enabled, definition FROM job_version
    WHERE job_id = ?1 AND version > ?2 ORDER BY version LIMIT ?3";

/// Writes entries in the transaction of the change that they are about.
pub(crate) async fn write(
    conn: &mut SqliteConnection,
    entries: &[NewAuditEntry],
    at: Timestamp,
) -> Result<()> {
    for entries in entries.chunks(MAX_ENTRIES_IN_STATEMENT) {
        let rows: Vec<AuditColumns> = entries.iter().map(AuditColumns::from).collect();
        sqlx::query(INSERT)
            .bind(Json(rows))
            .bind(at.as_millis())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Keeps the current versions of these jobs, and deletes the oldest beyond the bound.
pub(crate) async fn write_versions(
    conn: &mut SqliteConnection,
    jobs: &[i64],
    by: &Actor,
    at: Timestamp,
) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT_VERSIONS)
        .bind(Json(jobs))
        .bind(at.as_millis())
        .bind(stored_actor(by))
        .execute(&mut *conn)
        .await?;
    sqlx::query(TRIM_VERSIONS)
        .bind(Json(jobs))
        .bind(to_i64(MAX_JOB_VERSIONS))
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes the versions of the deleted jobs that had the names of these new ones last.
pub(crate) async fn forget_versions(conn: &mut SqliteConnection, created: &[i64]) -> Result<()> {
    if !created.is_empty() {
        sqlx::query(FORGET_VERSIONS)
            .bind(Json(created))
            .execute(conn)
            .await?;
    }
    Ok(())
}

impl SqliteStore {
    async fn write_entries(&self, entries: &[NewAuditEntry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut tx = self.db.write().await?;
        write(&mut tx, entries, self.db.now()).await?;
        tx.commit().await
    }

    async fn list_entries(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        let AuditQuery {
            sql, parameters, ..
        } = AuditQuery::new(filter, '?');
        let mut query = sqlx::query_as::<sqlx::Sqlite, AuditRow>(AssertSqlSafe(sql));
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
        let pruned = sqlx::query(PRUNE)
            .bind(self.db.now().minus_ms(older_than_ms).as_millis())
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
            .bind(self.db.now().minus_ms(older_than_ms).as_millis())
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        if jobs.is_empty() {
            return Ok(0);
        }
        let pruned = sqlx::query(PRUNE_VERSIONS)
            .bind(Json(&jobs))
            .bind(to_i64(limit))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        sqlx::query(WITHOUT_VERSIONS)
            .bind(Json(&jobs))
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
        versions(&mut *self.db.snapshot().await?, job, order, after, limit).await
    }
}

/// The versions of the newest job with that name, in a snapshot.
pub(crate) async fn versions(
    conn: &mut SqliteConnection,
    job: &JobName,
    order: Order,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<JobVersion>> {
    let id: Option<i64> = sqlx::query_scalar(NEWEST_OF_NAME)
        .bind(job.as_str())
        .fetch_optional(&mut *conn)
        .await?;
    let id = id.ok_or_else(|| StoreError::no_job(job.as_str()))?;
    let (statement, first) = match order {
        Order::Ascending => (VERSIONS_ASCENDING, -1),
        Order::Descending => (VERSIONS, i64::MAX),
    };
    let rows: Vec<JobVersionRow> = sqlx::query_as(statement)
        .bind(id)
        .bind(after.map_or(first, to_i64))
        .bind(to_i64(limit))
        .fetch_all(conn)
        .await?;
    Ok(rows.into_iter().map(job_version).collect())
}

#[async_trait]
impl Audit for SqliteStore {
    async fn record(&self, entries: &[NewAuditEntry]) -> std::result::Result<(), StoreError> {
        let written = self.write_entries(entries).await;
        written.map_err(|error| error.failed_to("write the audit log"))
    }

    async fn audit_entries(
        &self,
        filter: &AuditFilter,
    ) -> std::result::Result<Vec<AuditEntry>, StoreError> {
        let listed = self.list_entries(filter).await;
        listed.map_err(|error| error.failed_to("read the audit log"))
    }

    async fn prune_audit(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> std::result::Result<u64, StoreError> {
        let pruned = self.prune_entries(older_than_ms, limit).await;
        pruned.map_err(|error| error.failed_to("delete old entries of the audit log"))
    }

    async fn prune_versions(
        &self,
        older_than_ms: u64,
        limit: usize,
    ) -> std::result::Result<u64, StoreError> {
        let pruned = self.prune_versions_of_deleted(older_than_ms, limit).await;
        pruned.map_err(|error| error.failed_to("delete versions of deleted jobs"))
    }

    async fn job_versions(
        &self,
        job: &JobName,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> std::result::Result<Vec<JobVersion>, StoreError> {
        let listed = self.list_versions(job, order, after, limit).await;
        listed.map_err(|error| error.failed_to("list the versions of a job"))
    }
}
