//! Namespaces: quotas, and the numbers of their jobs and waiting runs.

use async_trait::async_trait;
use cueline_model::{Actor, Namespace};
use cueline_store::adapter::audit::quotas_changed;
use cueline_store::adapter::convert::{parse_name, to_i64, to_u64};
use cueline_store::adapter::job_list::name_range;
use cueline_store::adapter::jobs::ApplyPlan;
use cueline_store::adapter::quotas::{
    NamedQuotaRow, QuotaRow, SummaryRow, change_quotas, check_max_jobs, columns,
    limits_waiting_runs, new_jobs_by_namespace, quota_loads, summary,
};
use cueline_store::{NamespaceFilter, NamespaceSummary, Namespaces, QuotaLoad, Quotas, StoreError};
use sqlx::postgres::PgConnection;

use crate::columns::column;
use crate::error::Result;
use crate::{PgStore, audit};

/// The namespace in a job's name.
macro_rules! namespace_of {
    ($name:literal) => {
        concat!(
            "CASE WHEN strpos(",
            $name,
            ", '/') = 0 THEN 'default' ELSE split_part(",
            $name,
            ", '/', 1) END"
        )
    };
}

/// Runs that have not started, by namespace.
const WAITING: &str = concat!(
    "
    SELECT ",
    namespace_of!("j.name"),
    " AS namespace, sum(l.runs)::bigint AS runs
    FROM (SELECT job_id, count(*) AS runs FROM run_live WHERE state < 3 GROUP BY job_id) l JOIN job j ON j.id = l.job_id
    GROUP BY 1"
);

/// Namespaces with their numbers: those in $1 if it is given, after $2.
const LIST: &str = concat!(
    "
    WITH jobs AS (
        SELECT ",
    namespace_of!("name"),
    " AS namespace, count(*) AS jobs FROM job WHERE deleted_at IS NULL GROUP BY 1
    ), waiting AS (
        SELECT ",
    namespace_of!("j.name"),
    " AS namespace, sum(l.runs)::bigint AS runs
        FROM (SELECT job_id, count(*) AS runs FROM run_live WHERE state < 3 GROUP BY job_id) l JOIN job j ON j.id = l.job_id
        GROUP BY 1
    ), names AS (
        SELECT namespace FROM jobs UNION SELECT namespace FROM waiting UNION SELECT name FROM namespace
    )
    SELECT n.namespace, coalesce(q.version, 0), q.max_jobs, q.max_waiting_runs, q.max_triggers_per_minute,
        coalesce(j.jobs, 0), coalesce(w.runs, 0)
    FROM names n LEFT JOIN jobs j ON j.namespace = n.namespace LEFT JOIN waiting w ON w.namespace = n.namespace
        LEFT JOIN namespace q ON q.name = n.namespace
    WHERE ($1::text[] IS NULL OR n.namespace = ANY ($1)) AND ($2::text IS NULL OR n.namespace COLLATE \"C\" > $2)
    ORDER BY n.namespace COLLATE \"C\" LIMIT $3"
);

const QUOTAS: &str = "
    SELECT name, version, max_jobs, max_waiting_runs, max_triggers_per_minute FROM namespace ORDER BY name";

/// Changes of quotas run one after the other. Apply, which locks single rows, waits only for those.
const LOCK: &str = "LOCK TABLE namespace IN SHARE ROW EXCLUSIVE MODE";

const ROW: &str = "
    SELECT version, max_jobs, max_waiting_runs, max_triggers_per_minute FROM namespace WHERE name = $1";

const OTHERS: &str = "SELECT count(*) FROM namespace WHERE name <> $1";

const WRITE: &str = "
    INSERT INTO namespace (name, version, max_jobs, max_waiting_runs, max_triggers_per_minute, created_at)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, max_jobs = excluded.max_jobs,
        max_waiting_runs = excluded.max_waiting_runs, max_triggers_per_minute = excluded.max_triggers_per_minute";

const DELETE: &str = "DELETE FROM namespace WHERE name = $1";

/// Locks the rows, so that a quota does not change between the count and the new jobs.
const LIMITS: &str = "
    SELECT name, max_jobs FROM namespace WHERE name = ANY ($1) AND max_jobs IS NOT NULL ORDER BY name FOR UPDATE";

const COUNT_JOBS: &str = "
    SELECT count(*) FROM job WHERE name >= $1 AND name < $2 AND (NOT $3 OR strpos(name, '/') = 0) AND deleted_at IS NULL";

/// Refuses the new jobs of a plan that are beyond the quotas of their namespaces. Only one call at a time changes
/// definitions, so the number of jobs does not change until the end of the transaction.
pub(crate) async fn check_quotas(conn: &mut PgConnection, plan: &ApplyPlan) -> Result<()> {
    let new = new_jobs_by_namespace(&plan.new_jobs());
    if new.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = new.keys().map(Namespace::as_str).collect();
    let limits: Vec<(String, i64)> = sqlx::query_as(LIMITS)
        .bind(names)
        .fetch_all(&mut *conn)
        .await?;
    for (name, limit) in limits {
        let namespace: Namespace = parse_name(&name)?;
        let (from, below, without_slash) = name_range(Some(&namespace));
        let present: i64 = sqlx::query_scalar(COUNT_JOBS)
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .fetch_one(&mut *conn)
            .await?;
        let requested = new.get(&namespace).copied().unwrap_or_default();
        check_max_jobs(&namespace, limit, present, requested)?;
    }
    Ok(())
}

impl PgStore {
    async fn list_namespaces(&self, filter: &NamespaceFilter) -> Result<Vec<NamespaceSummary>> {
        let names = filter
            .names
            .as_deref()
            .map(|names| column(names, Namespace::as_str));
        let rows: Vec<SummaryRow> = sqlx::query_as(LIST)
            .bind(names)
            .bind(filter.after.as_ref().map(Namespace::as_str))
            .bind(to_i64(filter.limit))
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        rows.into_iter().map(|row| Ok(summary(row)?)).collect()
    }

    async fn read_quota_loads(&self) -> Result<Vec<QuotaLoad>> {
        let mut conn = self.db.read().await?;
        self.quota_loads_in(&mut conn).await
    }

    pub(crate) async fn quota_loads_in(&self, conn: &mut PgConnection) -> Result<Vec<QuotaLoad>> {
        let rows: Vec<NamedQuotaRow> = sqlx::query_as(QUOTAS).fetch_all(&mut *conn).await?;
        let waiting = if limits_waiting_runs(&rows) {
            sqlx::query_as(WAITING).fetch_all(&mut *conn).await?
        } else {
            Vec::new()
        };
        Ok(quota_loads(rows, waiting)?)
    }

    async fn write_quotas(
        &self,
        namespace: &Namespace,
        quotas: &Quotas,
        if_version: Option<u64>,
        by: &Actor,
    ) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let stored: Option<QuotaRow> = sqlx::query_as(ROW)
            .bind(namespace.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        let others: i64 = sqlx::query_scalar(OTHERS)
            .bind(namespace.as_str())
            .fetch_one(&mut *tx)
            .await?;
        let Some(change) = change_quotas(namespace, stored, quotas, if_version, others)? else {
            return Ok(stored.map_or(0, |row| to_u64(row.0)));
        };
        match &change.after {
            Some(after) => {
                let [jobs, waiting, triggers] = columns(after);
                sqlx::query(WRITE)
                    .bind(namespace.as_str())
                    .bind(to_i64(change.version))
                    .bind(jobs)
                    .bind(waiting)
                    .bind(triggers)
                    .bind(now.as_millis())
                    .execute(&mut *tx)
                    .await?;
            }
            None => {
                sqlx::query(DELETE)
                    .bind(namespace.as_str())
                    .execute(&mut *tx)
                    .await?;
            }
        }
        let entry = quotas_changed(by, namespace, change.before.as_ref(), change.after.as_ref());
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(change.version)
    }
}

#[async_trait]
impl Namespaces for PgStore {
    async fn namespaces(
        &self,
        filter: &NamespaceFilter,
    ) -> std::result::Result<Vec<NamespaceSummary>, StoreError> {
        self.read("list namespaces", || self.list_namespaces(filter))
            .await
    }

    async fn quota_loads(&self) -> std::result::Result<Vec<QuotaLoad>, StoreError> {
        self.read("read quotas", || self.read_quota_loads()).await
    }

    async fn set_quotas(
        &self,
        namespace: &Namespace,
        quotas: &Quotas,
        if_version: Option<u64>,
        by: &Actor,
    ) -> std::result::Result<u64, StoreError> {
        let write = || self.write_quotas(namespace, quotas, if_version, by);
        self.write("set quotas", write).await
    }
}
