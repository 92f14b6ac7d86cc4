//! Applies, pauses and deletes jobs.
//!
//! Only one call at a time changes definitions. Each call first locks its jobs and then handles their waiting runs. So
//! it sees the runs of earlier transactions, and later transactions see the new definition.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Actor, AttemptId, GroupName, Job, JobId, JobName, JobSpec, Timestamp};
use cueline_store::adapter::audit::{job_deleted, job_enabled};
use cueline_store::adapter::convert::parse_name;
use cueline_store::adapter::fire_rules::{DueColumns, require_calendars};
use cueline_store::adapter::jobs::{ApplyPlan, SideEffects, refuse_parent, stopped_message};
use cueline_store::adapter::scripts::ScriptWrites;
use cueline_store::{AppliedJob, JobPreconditions, Precondition, Revision, StoreError};
use sqlx::postgres::PgConnection;

use crate::columns::job_ids;
use crate::dispatch::attempt_id;
use crate::error::Result;
use crate::follow_ups::lock_jobs;
use crate::job_writes::LOCK;
use crate::namespaces::check_quotas;
use crate::{PgStore, audit, job_writes, scripts, waiting_runs};

const TO_CHANGE: &str = "
    SELECT j.id, j.version, d.enabled, j.group_name, j.definition FROM job j JOIN job_due d ON d.job_id = j.id
    WHERE j.name = $1 AND j.deleted_at IS NULL";

const CHILDREN: &str = "
    SELECT c.name FROM job_parent l JOIN job c ON c.id = l.child_id WHERE l.parent_id = $1 ORDER BY c.name LIMIT 5";

const DELETE: &str = "UPDATE job SET deleted_at = $2, version = version + 1 WHERE id = $1";
const DELETE_DUE: &str = "DELETE FROM job_due WHERE job_id = $1";

pub(crate) const DISPATCHING: &str = "
    SELECT l.id, l.attempt FROM run_live l WHERE l.job_id = ANY ($1::bigint[]) AND l.state = 1";

impl PgStore {
    pub(crate) async fn apply_jobs_if(
        &self,
        specs: &[JobSpec],
        conditions: &JobPreconditions,
        dry_run: bool,
        by: &Actor,
    ) -> Result<Vec<AppliedJob>> {
        let mut tx = self.db.write().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let names = specs.iter().map(|spec| &spec.name);
        let stored = self.definitions.by_name(&mut tx, names).await?;
        let plan = ApplyPlan::new(specs, &stored)?;
        plan.require(conditions)?;
        self.definitions
            .check_parents(&mut tx, specs, &stored)
            .await?;
        let rules = self.present_rules(&mut tx).await?;
        require_calendars(specs, &rules)?;
        let scripts = scripts::resolve(&mut tx, specs).await?;
        check_quotas(&mut tx, &plan).await?;
        let mut created = HashMap::new();
        if !dry_run {
            let updates = plan.updates();
            let ids = updates.iter().map(|update| update.job.id);
            let now = self.lock_and_read_clock(&mut tx, ids).await?;
            created = job_writes::create(&mut tx, &plan.new_jobs(), now, &rules).await?;
            let changed: Vec<i64> = updates.iter().map(|update| update.job.id.0).collect();
            self.account_excluded(&mut tx, &changed, &rules, now)
                .await?;
            job_writes::update(&mut tx, &updates, now, &rules).await?;
            write_side_effects(&mut tx, &plan.side_effects(&created), now).await?;
            let uses = ScriptWrites::new(&plan, &scripts, &created);
            scripts::write_uses(&mut tx, &uses).await?;
            let new: Vec<i64> = created.values().map(|id: &JobId| id.0).collect();
            audit::forget_versions(&mut tx, &new).await?;
            audit::write_versions(&mut tx, &plan.versioned(&created), by, now).await?;
            audit::write(&mut tx, &plan.audit_entries(by)?, now).await?;
            tx.commit().await?;
        }
        Ok(plan.into_applied(&created, dry_run))
    }

    pub(crate) async fn set_job_enabled_if(
        &self,
        name: &JobName,
        enabled: bool,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<Revision> {
        let mut tx = self.db.write().await?;
        let JobToChange {
            revision,
            enabled: is_enabled,
            group,
            ..
        } = job_to_change(&mut tx, name).await?;
        let what = if enabled { "resume" } else { "pause" };
        condition.require(&format!("{what} the job"), name.as_str(), Some(revision))?;
        if is_enabled == enabled {
            return Ok(revision);
        }
        let job = JobId(revision.id);
        let now = self.lock_and_read_clock(&mut tx, [job]).await?;
        let rules = self.present_rules(&mut tx).await?;
        self.account_excluded(&mut tx, &[job.0], &rules, now)
            .await?;
        let due = if enabled {
            let readable = self.readable_job(&mut tx, name).await?;
            let spec = readable.spec.resumed();
            DueColumns::new(&spec, &rules, spec.next_fire(now))
        } else {
            DueColumns {
                rules: rules.revision,
                ..DueColumns::default()
            }
        };
        job_writes::set_enabled(&mut tx, job, enabled, due).await?;
        if enabled {
            waiting_runs::unclaim(&mut tx, &[job]).await?;
            job_writes::wait_for_live_runs(&mut tx, &[job]).await?;
        } else {
            let message = stopped_message("paused", by);
            waiting_runs::end(&mut tx, &[job], now, &message).await?;
        }
        audit::write_versions(&mut tx, &[job.0], by, now).await?;
        audit::write(&mut tx, &[job_enabled(by, name, &group, enabled)], now).await?;
        tx.commit().await?;
        Ok(Revision {
            version: revision.version + 1,
            ..revision
        })
    }

    pub(crate) async fn delete_job_if(
        &self,
        name: &JobName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<JobId> {
        let mut tx = self.db.write().await?;
        let found = job_to_change(&mut tx, name).await?;
        condition.require("delete the job", name.as_str(), Some(found.revision))?;
        let job = JobId(found.revision.id);
        let now = self.lock_and_read_clock(&mut tx, [job]).await?;
        let children: Vec<String> = sqlx::query_scalar(CHILDREN)
            .bind(job.0)
            .fetch_all(&mut *tx)
            .await?;
        refuse_parent(name, &children)?;
        let rules = self.present_rules(&mut tx).await?;
        self.account_excluded(&mut tx, &[job.0], &rules, now)
            .await?;
        sqlx::query(DELETE_DUE)
            .bind(job.0)
            .execute(&mut *tx)
            .await?;
        let message = stopped_message("deleted", by);
        waiting_runs::end(&mut tx, &[job], now, &message).await?;
        sqlx::query(DELETE)
            .bind(job.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        job_writes::unlink_deleted(&mut tx, job).await?;
        scripts::forget_uses(&mut tx, &[job.0]).await?;
        let entry = job_deleted(by, name, &found.group, (found.definition, found.enabled));
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(job)
    }

    pub(crate) async fn dispatching_attempts(&self, jobs: &[JobId]) -> Result<Vec<AttemptId>> {
        let mut conn = self.db.autocommit().await?;
        let rows: Vec<(i64, i32)> = sqlx::query_as(DISPATCHING)
            .bind(job_ids(jobs))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        Ok(rows.into_iter().map(attempt_id).collect())
    }

    /// The job with its definition. Fails if this program cannot read it.
    async fn readable_job(&self, conn: &mut PgConnection, name: &JobName) -> Result<Arc<Job>> {
        let mut found = self
            .definitions
            .by_name(conn, std::iter::once(name))
            .await?;
        let job = found.remove(name);
        Ok(job.ok_or_else(|| StoreError::no_job(name.as_str()))?)
    }

    /// Locks jobs, and then reads the clock. Read before, runs that became due during the wait would count as written
    /// ahead of time.
    pub(crate) async fn lock_and_read_clock(
        &self,
        conn: &mut PgConnection,
        jobs: impl IntoIterator<Item = JobId>,
    ) -> Result<Timestamp> {
        lock_jobs(conn, jobs.into_iter().map(|id| id.0).collect()).await?;
        self.db.now(conn).await
    }
}

/// A job that is paused, resumed or deleted. Its definition stays a text, because it may be of a newer program.
struct JobToChange {
    revision: Revision,
    enabled: bool,
    group: GroupName,
    definition: String,
}

/// Reads the job under the lock of definitions.
async fn job_to_change(conn: &mut PgConnection, name: &JobName) -> Result<JobToChange> {
    sqlx::query(LOCK).execute(&mut *conn).await?;
    let found: Option<(i64, i64, bool, String, String)> = sqlx::query_as(TO_CHANGE)
        .bind(name.as_str())
        .fetch_optional(conn)
        .await?;
    let (id, version, enabled, group, definition) =
        found.ok_or_else(|| StoreError::no_job(name.as_str()))?;
    Ok(JobToChange {
        revision: Revision { id, version },
        enabled,
        group: parse_name(&group)?,
        definition,
    })
}

async fn write_side_effects(
    conn: &mut PgConnection,
    effects: &SideEffects,
    now: Timestamp,
) -> Result<()> {
    job_writes::link(conn, effects).await?;
    if !effects.updated.is_empty() {
        waiting_runs::delete_ahead(conn, &effects.updated, now).await?;
        waiting_runs::unclaim(conn, &effects.updated).await?;
    }
    // The waiting runs are locked by now, so all runs that were published before are visible.
    job_writes::keep_groups(conn, &effects.moved).await?;
    job_writes::delay_next_fires(conn, &effects.became_fixed_delay).await?;
    if !effects.paused.is_empty() {
        let message = "its job was paused by an edit";
        waiting_runs::end(conn, &effects.paused, now, message).await?;
    }
    job_writes::wait_for_live_runs(conn, &effects.still_fixed_delay).await
}
