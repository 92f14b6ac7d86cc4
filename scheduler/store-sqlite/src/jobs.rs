//! Applies, pauses and deletes jobs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{
    Actor, AttemptId, FireRules, GroupName, Job, JobId, JobName, JobSpec, RunId, Timestamp,
};
use cueline_store::adapter::audit::{job_deleted, job_enabled};
use cueline_store::adapter::convert::parse_name;
use cueline_store::adapter::fire_rules::{DueColumns, require_calendars};
use cueline_store::adapter::jobs::{
    ApplyPlan, JobColumns, JobUpdate, SideEffects, refuse_parent, stopped_message,
};
use cueline_store::adapter::scripts::{ResolvedScripts, ScriptWrites};
use cueline_store::{AppliedJob, JobPreconditions, Precondition, Revision, StoreError};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::namespaces::check_quotas;
use crate::{SqliteStore, audit, scripts, waiting_runs};

const INSERT: &str = "
    INSERT INTO job (name, version, created_at, group_name, startup, max_attempt_ms, definition,
        keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms)
    VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
    RETURNING id";

const INSERT_DUE: &str = "
    INSERT INTO job_due (job_id, version, next_fire_at, enabled, fixed_delay, excluded_from, rules, paused_until, group_name)
    VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// While there are published attempts, the time limit gets no shorter, because they still have the old one.
const UPDATE: &str = "
    UPDATE job SET version = ?2, group_name = ?3, startup = ?4, definition = ?6,
        max_attempt_ms = CASE WHEN ?5 IS NOT NULL AND (max_attempt_ms IS NULL OR ?5 < max_attempt_ms)
                AND EXISTS (SELECT 1 FROM run r WHERE r.job_id = ?1 AND r.state IN (1, 2, 3) AND r.ended_at IS NULL)
            THEN max_attempt_ms ELSE ?5 END,
        keep_age_ms = ?7, keep_runs = ?8, keep_logs_ms = ?9, keep_outputs_ms = ?10
    WHERE id = ?1";

const UPDATE_DUE: &str = "
    UPDATE job_due SET version = ?2, next_fire_at = ?3, enabled = ?4, fixed_delay = ?5, excluded_from = ?6, rules = ?7,
        paused_until = ?8, group_name = ?9
    WHERE job_id = ?1";

/// A pause or a resume changes no text, so that a definition keeps what this program does not know.
const SET_ENABLED_DUE: &str = "
    UPDATE job_due SET version = version + 1, enabled = ?2, next_fire_at = ?3, excluded_from = ?4, rules = ?5,
        paused_until = ?6
    WHERE job_id = ?1";
const NEXT_VERSION: &str = "UPDATE job SET version = version + 1 WHERE id = ?1";

const UNLINK: &str = "DELETE FROM job_parent WHERE child_id IN (SELECT value FROM json_each(?1))";

/// It finds parents by name, so it is executed once all applied jobs exist.
const LINK: &str = "
    INSERT INTO job_parent (parent_id, child_id, waits_for_all, after_failure)
    SELECT p.id, e.value ->> 0, e.value ->> 2, e.value ->> 3
    FROM json_each(?1) e CROSS JOIN job p ON p.name = e.value ->> 1 AND p.deleted_at IS NULL";

const SET_CHILDREN: &str = "
    UPDATE job_due SET children =
        coalesce((SELECT max(1 + l.after_failure) FROM job_parent l WHERE l.parent_id = job_due.job_id), 0)
    WHERE job_id IN (SELECT id FROM job WHERE deleted_at IS NULL AND name IN (SELECT value FROM json_each(?1)))";

const PARENTS: &str = "
    SELECT json_group_array(p.name) FROM job_parent l CROSS JOIN job p ON p.id = l.parent_id WHERE l.child_id = ?1";

/// Published attempts keep the group that they were published to.
pub(crate) const KEEP_GROUP: &str = "
    UPDATE run SET published_group = ?2
    WHERE state IN (1, 2, 3) AND ended_at IS NULL AND published_group IS NULL AND job_id = ?1";

pub(crate) const DELAY_NEXT_FIRE: &str = "
    UPDATE run SET delays_next_fire = 1
    WHERE ended_at IS NULL AND delays_next_fire = 0 AND job_id IN (SELECT value FROM json_each(?1))";

/// A fixed-delay job with a live run gets its next fire time at the end of that run.
const WAIT_FOR_LIVE_RUNS: &str = "
    UPDATE job_due SET next_fire_at = NULL, excluded_from = NULL
    WHERE job_id IN (SELECT value FROM json_each(?1)) AND fixed_delay = 1 AND next_fire_at IS NOT NULL
        AND EXISTS (SELECT 1 FROM run r WHERE r.job_id = job_due.job_id AND r.delays_next_fire = 1 AND r.ended_at IS NULL)";

const TO_CHANGE: &str = "
    SELECT j.id, j.version, d.enabled, j.group_name, j.definition FROM job j CROSS JOIN job_due d ON d.job_id = j.id
    WHERE j.name = ?1 AND j.deleted_at IS NULL";

const CHILDREN: &str = "
    SELECT c.name FROM job_parent l CROSS JOIN job c ON c.id = l.child_id WHERE l.parent_id = ?1 ORDER BY c.name LIMIT 5";

const DELETE: &str = "UPDATE job SET deleted_at = ?2, version = version + 1 WHERE id = ?1";
const DELETE_DUE: &str = "DELETE FROM job_due WHERE job_id = ?1";

const DISPATCHING: &str = "
    SELECT json_group_array(json_array(id, attempt)) FROM run
    WHERE state = 1 AND state < 10 AND job_id IN (SELECT value FROM json_each(?1))";

impl SqliteStore {
    pub(crate) async fn apply_jobs_if(
        &self,
        specs: &[JobSpec],
        conditions: &JobPreconditions,
        dry_run: bool,
        by: &Actor,
    ) -> Result<Vec<AppliedJob>> {
        let mut created = HashMap::new();
        if dry_run {
            // Without the lock for writing: the fires of other jobs do not wait for it.
            let mut snapshot = self.db.snapshot().await?;
            let (plan, _) = self.plan(&mut snapshot, specs, conditions).await?;
            return Ok(plan.into_applied(&created, dry_run));
        }
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let (plan, scripts) = self.plan(&mut tx, specs, conditions).await?;
        let rules = self.present_rules(&mut tx).await?;
        for spec in plan.new_jobs() {
            created.insert(spec.name.clone(), create(&mut tx, spec, now, &rules).await?);
        }
        let updates = plan.updates();
        let ids: Vec<i64> = updates.iter().map(|update| update.job.id.0).collect();
        self.account_excluded(&mut tx, &ids, &rules, now).await?;
        for job in updates {
            update(&mut tx, job, now, &rules).await?;
        }
        write_side_effects(&mut tx, &plan.side_effects(&created), now).await?;
        let uses = ScriptWrites::new(&plan, &scripts, &created);
        scripts::write_uses(&mut tx, &uses).await?;
        let new: Vec<i64> = created.values().map(|id| id.0).collect();
        audit::forget_versions(&mut tx, &new).await?;
        audit::write_versions(&mut tx, &plan.versioned(&created), by, now).await?;
        audit::write(&mut tx, &plan.audit_entries(by)?, now).await?;
        tx.commit().await?;
        Ok(plan.into_applied(&created, dry_run))
    }

    /// Compares definitions with the stored ones, and checks their conditions, their parents, their scripts and the quotas
    /// of their namespaces.
    async fn plan(
        &self,
        conn: &mut SqliteConnection,
        specs: &[JobSpec],
        conditions: &JobPreconditions,
    ) -> Result<(ApplyPlan, ResolvedScripts)> {
        let names = specs.iter().map(|spec| &spec.name);
        let stored = self.definitions.by_name(&mut *conn, names).await?;
        let plan = ApplyPlan::new(specs, &stored)?;
        plan.require(conditions)?;
        self.definitions
            .check_parents(&mut *conn, specs, &stored)
            .await?;
        require_calendars(specs, &*self.present_rules(&mut *conn).await?)?;
        let scripts = scripts::resolve(&mut *conn, specs).await?;
        check_quotas(conn, &plan).await?;
        Ok((plan, scripts))
    }

    pub(crate) async fn set_job_enabled_if(
        &self,
        name: &JobName,
        enabled: bool,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<Revision> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
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
        set_enabled(&mut tx, job, enabled, due).await?;
        if enabled {
            waiting_runs::unclaim(&mut tx, &[job]).await?;
            wait_for_live_runs(&mut tx, &[job]).await?;
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
        let now = self.db.now();
        let found = job_to_change(&mut tx, name).await?;
        condition.require("delete the job", name.as_str(), Some(found.revision))?;
        let job = JobId(found.revision.id);
        let children: Vec<String> = sqlx::query_scalar(CHILDREN)
            .bind(job.0)
            .fetch_all(&mut *tx)
            .await?;
        refuse_parent(name, &children)?;
        let rules = self.present_rules(&mut tx).await?;
        self.account_excluded(&mut tx, &[job.0], &rules, now)
            .await?;
        let message = stopped_message("deleted", by);
        waiting_runs::end(&mut tx, &[job], now, &message).await?;
        sqlx::query(DELETE)
            .bind(job.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        sqlx::query(DELETE_DUE)
            .bind(job.0)
            .execute(&mut *tx)
            .await?;
        unlink_deleted(&mut tx, job).await?;
        scripts::forget_uses(&mut tx, &[job.0]).await?;
        let entry = job_deleted(by, name, &found.group, (found.definition, found.enabled));
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(job)
    }

    pub(crate) async fn dispatching_attempts(&self, jobs: &[JobId]) -> Result<Vec<AttemptId>> {
        let Json(rows): Json<Vec<(RunId, u32)>> = sqlx::query_scalar(DISPATCHING)
            .bind(Json(jobs))
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        let id = |(run, attempt)| AttemptId { run, attempt };
        Ok(rows.into_iter().map(id).collect())
    }

    /// The job with its definition. Fails if this program cannot read it.
    async fn readable_job(&self, conn: &mut SqliteConnection, name: &JobName) -> Result<Arc<Job>> {
        let mut found = self
            .definitions
            .by_name(conn, std::iter::once(name))
            .await?;
        let job = found.remove(name);
        Ok(job.ok_or_else(|| StoreError::no_job(name.as_str()))?)
    }
}

/// A job that is paused, resumed or deleted. Its definition stays a text, because it may be of a newer program.
struct JobToChange {
    revision: Revision,
    enabled: bool,
    group: GroupName,
    definition: String,
}

async fn job_to_change(conn: &mut SqliteConnection, name: &JobName) -> Result<JobToChange> {
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

/// Writes a pause or a resume as a new version.
async fn set_enabled(
    conn: &mut SqliteConnection,
    job: JobId,
    enabled: bool,
    due: DueColumns,
) -> Result<()> {
    sqlx::query(SET_ENABLED_DUE)
        .bind(job.0)
        .bind(enabled)
        .bind(due.next_fire_at)
        .bind(due.excluded_from)
        .bind(due.rules)
        .bind(due.paused_until)
        .execute(&mut *conn)
        .await?;
    sqlx::query(NEXT_VERSION).bind(job.0).execute(conn).await?;
    Ok(())
}

async fn create(
    conn: &mut SqliteConnection,
    spec: &JobSpec,
    now: Timestamp,
    rules: &FireRules,
) -> Result<JobId> {
    let columns = JobColumns::new(spec, now, rules)?;
    let id: i64 = sqlx::query_scalar(INSERT)
        .bind(columns.name)
        .bind(now.as_millis())
        .bind(columns.group)
        .bind(columns.startup)
        .bind(columns.max_attempt_ms)
        .bind(columns.definition)
        .bind(columns.kept.0)
        .bind(columns.kept.1)
        .bind(columns.kept.2)
        .bind(columns.kept.3)
        .fetch_one(&mut *conn)
        .await?;
    sqlx::query(INSERT_DUE)
        .bind(id)
        .bind(columns.due.next_fire_at)
        .bind(columns.enabled)
        .bind(columns.fixed_delay)
        .bind(columns.due.excluded_from)
        .bind(columns.due.rules)
        .bind(columns.due.paused_until)
        .bind(columns.group)
        .execute(conn)
        .await?;
    Ok(JobId(id))
}

/// Writes the new definition with a new version number.
async fn update(
    conn: &mut SqliteConnection,
    JobUpdate { job, spec }: JobUpdate<'_>,
    now: Timestamp,
    rules: &FireRules,
) -> Result<()> {
    let columns = JobColumns::new(spec, now, rules)?;
    let version = job.version + 1;
    sqlx::query(UPDATE)
        .bind(job.id.0)
        .bind(version)
        .bind(columns.group)
        .bind(columns.startup)
        .bind(columns.max_attempt_ms)
        .bind(columns.definition)
        .bind(columns.kept.0)
        .bind(columns.kept.1)
        .bind(columns.kept.2)
        .bind(columns.kept.3)
        .execute(&mut *conn)
        .await?;
    sqlx::query(UPDATE_DUE)
        .bind(job.id.0)
        .bind(version)
        .bind(columns.due.next_fire_at)
        .bind(columns.enabled)
        .bind(columns.fixed_delay)
        .bind(columns.due.excluded_from)
        .bind(columns.due.rules)
        .bind(columns.due.paused_until)
        .bind(columns.group)
        .execute(conn)
        .await?;
    Ok(())
}

async fn write_side_effects(
    conn: &mut SqliteConnection,
    effects: &SideEffects,
    now: Timestamp,
) -> Result<()> {
    for (job, group) in &effects.moved {
        sqlx::query(KEEP_GROUP)
            .bind(job.0)
            .bind(group.as_str())
            .execute(&mut *conn)
            .await?;
    }
    link(conn, effects).await?;
    if !effects.updated.is_empty() {
        waiting_runs::delete_ahead(conn, &effects.updated, now).await?;
        waiting_runs::unclaim(conn, &effects.updated).await?;
    }
    if !effects.became_fixed_delay.is_empty() {
        sqlx::query(DELAY_NEXT_FIRE)
            .bind(Json(&effects.became_fixed_delay))
            .execute(&mut *conn)
            .await?;
    }
    if !effects.paused.is_empty() {
        let message = "its job was paused by an edit";
        waiting_runs::end(conn, &effects.paused, now, message).await?;
    }
    wait_for_live_runs(conn, &effects.still_fixed_delay).await
}

pub(crate) async fn wait_for_live_runs(conn: &mut SqliteConnection, jobs: &[JobId]) -> Result<()> {
    if !jobs.is_empty() {
        sqlx::query(WAIT_FOR_LIVE_RUNS)
            .bind(Json(jobs))
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Writes the new links between children and parents.
async fn link(conn: &mut SqliteConnection, effects: &SideEffects) -> Result<()> {
    if effects.parents.is_empty() {
        return Ok(());
    }
    sqlx::query(UNLINK)
        .bind(Json(&effects.unlinked))
        .execute(&mut *conn)
        .await?;
    let links: Vec<_> = effects
        .links
        .iter()
        .map(|link| {
            let (all, failure) = (u8::from(link.waits_for_all), u8::from(link.after_failure));
            (link.child, &link.parent, all, failure)
        })
        .collect();
    sqlx::query(LINK)
        .bind(Json(links))
        .execute(&mut *conn)
        .await?;
    set_children(conn, &effects.parents).await
}

/// Removes the links of a deleted job to its parents.
async fn unlink_deleted(conn: &mut SqliteConnection, job: JobId) -> Result<()> {
    let Json(parents): Json<BTreeSet<JobName>> = sqlx::query_scalar(PARENTS)
        .bind(job.0)
        .fetch_one(&mut *conn)
        .await?;
    if parents.is_empty() {
        return Ok(());
    }
    sqlx::query(UNLINK)
        .bind(Json([job]))
        .execute(&mut *conn)
        .await?;
    set_children(conn, &parents).await
}

/// Records for these jobs which of their ends may start other jobs.
async fn set_children(conn: &mut SqliteConnection, parents: &BTreeSet<JobName>) -> Result<()> {
    sqlx::query(SET_CHILDREN)
        .bind(Json(parents))
        .execute(conn)
        .await?;
    Ok(())
}
