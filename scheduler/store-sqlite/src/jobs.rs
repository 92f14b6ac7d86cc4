//! Job definitions: applying, pausing, deleting.

use std::collections::BTreeSet;
use std::sync::Arc;

use cueline_model::{AttemptId, Job, JobId, JobName, JobSpec, RunId, Schedule, Timestamp};
use cueline_store::adapter::definitions::written;
use cueline_store::adapter::jobs::{check_names, is_fixed_delay, longest_ms, next_fire};
use cueline_store::adapter::parents::parent_of;
use cueline_store::{AppliedJob, Change, ErrorKind, StoreError};
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::by_name::stored;
use crate::database::commit;
use crate::error::failed;
use crate::parents::check_parents;
use crate::rows::{clean, decode, encode};
use crate::stop::{stop, unclaim, withdraw};

const INSERT: &str = "
    INSERT INTO job (name, version, created_at, grp, startup, longest_ms, definition) VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6) RETURNING id";

const INSERT_DUE: &str = "
    INSERT INTO job_due (job_id, version, next_fire_at, enabled, fixed_delay) VALUES (?1, 1, ?2, ?3, ?4)";

/// What is out goes by the time limit that it went out with: the backstop gets no shorter while there is something.
const UPDATE: &str = "
    UPDATE job SET version = ?2, grp = ?3, startup = ?4, definition = ?6,
        longest_ms = CASE WHEN ?5 IS NOT NULL AND (longest_ms IS NULL OR ?5 < longest_ms)
                AND EXISTS (SELECT 1 FROM run r WHERE r.job_id = ?1 AND r.state IN (1, 2, 3) AND r.state < 10)
            THEN longest_ms ELSE ?5 END
    WHERE id = ?1";

/// Their delay begins at the end of the run that is out, which sets the time.
const WAIT_FOR_RUNS: &str = "
    UPDATE job_due SET next_fire_at = NULL
    WHERE job_id IN (SELECT value FROM json_each(?1)) AND fixed_delay = 1 AND next_fire_at IS NOT NULL
        AND EXISTS (SELECT 1 FROM run r WHERE r.job_id = job_due.job_id AND r.awaited = 1 AND r.state < 10)";

const UPDATE_DUE: &str = "
    UPDATE job_due SET version = ?2, next_fire_at = ?3, enabled = ?4, fixed_delay = ?5 WHERE job_id = ?1";

/// Finds parents by name, once all the jobs that are applied together exist.
const SET_PARENT: &str = "
    UPDATE job SET parent_id = (SELECT p.id FROM job p WHERE p.name = ?2 AND p.deleted_at IS NULL) WHERE id = ?1";

const SET_HAS_CHILDREN: &str = "
    UPDATE job_due SET has_children = EXISTS
        (SELECT 1 FROM job c WHERE c.parent_id = job_due.job_id AND c.parent_id IS NOT NULL AND c.deleted_at IS NULL)
    WHERE job_id IN (SELECT id FROM job WHERE deleted_at IS NULL AND name IN (SELECT value FROM json_each(?1)))";

/// What is out stays in the group that it was sent to.
const KEEP_GROUP: &str = "
    UPDATE run SET sent_to_group = ?2
    WHERE state IN (1, 2, 3) AND state < 10 AND sent_to_group IS NULL AND job_id = ?1";

const AWAIT: &str = "
    UPDATE run SET awaited = 1 WHERE state < 10 AND awaited = 0 AND job_id IN (SELECT value FROM json_each(?1))";

const CHILDREN: &str = "
    SELECT json_group_array(name) FROM (SELECT name FROM job
        WHERE parent_id = ?1 AND parent_id IS NOT NULL AND deleted_at IS NULL ORDER BY name LIMIT 5)";

const DELETE: &str = "UPDATE job SET deleted_at = ?2, version = version + 1 WHERE id = ?1";
const DELETE_DUE: &str = "DELETE FROM job_due WHERE job_id = ?1";

const PUBLISHING: &str = "
    SELECT json_group_array(json_array(id, attempt)) FROM run WHERE state = 1 AND state < 10 AND job_id IN (SELECT value FROM json_each(?1))";

/// What an apply does besides writing definitions.
#[derive(Default)]
struct Consequences {
    /// Their runs in `scheduled` go out by the new definition.
    changed: Vec<JobId>,
    /// They were enabled and are not any more.
    paused: Vec<JobId>,
    /// They count their delay from the end of a run now.
    fixed_delay: Vec<JobId>,
    /// They did so before.
    still_fixed_delay: Vec<JobId>,
    /// Names of jobs that gained or lost a child.
    parents: BTreeSet<JobName>,
    /// Jobs and the parents that they name now.
    adopted: Vec<(JobId, Option<JobName>)>,
}

impl SqliteStore {
    pub(crate) async fn apply(
        &self,
        specs: &[JobSpec],
        dry_run: bool,
    ) -> Result<Vec<AppliedJob>, StoreError> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let stored = stored(&mut tx, specs.iter().map(|s| &s.name)).await?;
        check_names(specs)?;
        check_parents(&mut tx, specs, &stored).await?;
        let mut applied = Vec::with_capacity(specs.len());
        let mut after = Consequences::default();
        for spec in specs {
            let old = stored.get(&spec.name);
            let spec = &spec.over(old.map(|job| &job.spec));
            let change = match old {
                None => Change::Created,
                Some(job) if job.spec == *spec => Change::Unchanged,
                Some(_) => Change::Updated,
            };
            let id = match old {
                _ if dry_run => old.map(|job| job.id),
                None => Some(create(&mut tx, spec, now, &mut after).await?),
                Some(job) => {
                    if change == Change::Updated {
                        update(&mut tx, job, spec, now, &mut after).await?;
                    }
                    Some(job.id)
                }
            };
            applied.push(AppliedJob {
                name: spec.name.clone(),
                id,
                change,
            });
        }
        if !dry_run {
            after.write(&mut tx, now).await?;
            commit(tx).await?;
        }
        Ok(applied)
    }

    pub(crate) async fn switch(
        &self,
        name: &JobName,
        enabled: bool,
        by: &str,
    ) -> Result<JobId, StoreError> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let job = one(&mut tx, name).await?;
        if job.spec.is_enabled() == enabled {
            return Ok(job.id);
        }
        let mut spec = job.spec.clone();
        spec.enabled = Some(enabled);
        write_definition(&mut tx, &job, &spec, now).await?;
        if enabled {
            unclaim(&mut tx, &[job.id]).await?;
            wait_for_runs(&mut tx, &[job.id]).await?;
        } else {
            let why = format!("its job was paused by {}", clean(by));
            stop(&mut tx, &[job.id], now, &why).await?;
        }
        commit(tx).await?;
        Ok(job.id)
    }

    pub(crate) async fn delete(&self, name: &JobName, by: &str) -> Result<JobId, StoreError> {
        let fail = failed("delete a job");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let job = one(&mut tx, name).await?;
        let text: String = sqlx::query_scalar(CHILDREN)
            .bind(job.id.0)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let children: Vec<String> = decode(&text)?;
        if !children.is_empty() {
            return Err(StoreError::new(
                ErrorKind::Conflict,
                format!(
                    "failed to delete job {:?}: it is the parent of {}",
                    name.as_str(),
                    children.join(", ")
                ),
            ));
        }
        let why = format!("its job was deleted by {}", clean(by));
        stop(&mut tx, &[job.id], now, &why).await?;
        sqlx::query(DELETE)
            .bind(job.id.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        sqlx::query(DELETE_DUE)
            .bind(job.id.0)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        if let Some(parent) = parent_of(&job.spec)? {
            set_has_children(&mut tx, &BTreeSet::from([parent.clone()])).await?;
        }
        commit(tx).await?;
        Ok(job.id)
    }

    pub(crate) async fn list_publishing(
        &self,
        jobs: &[JobId],
    ) -> Result<Vec<AttemptId>, StoreError> {
        let mut conn = self.db.read().await?;
        let text: String = sqlx::query_scalar(PUBLISHING)
            .bind(encode(jobs)?)
            .fetch_one(&mut *conn)
            .await
            .map_err(failed("list the runs that are being published"))?;
        let rows: Vec<(RunId, u32)> = decode(&text)?;
        let id = |(run, attempt)| AttemptId { run, attempt };
        Ok(rows.into_iter().map(id).collect())
    }
}

async fn one(conn: &mut SqliteConnection, name: &JobName) -> Result<Arc<Job>, StoreError> {
    stored(conn, std::iter::once(name))
        .await?
        .remove(name)
        .ok_or_else(|| StoreError::no_job(name.as_str()))
}

async fn create(
    conn: &mut SqliteConnection,
    spec: &JobSpec,
    now: Timestamp,
    after: &mut Consequences,
) -> Result<JobId, StoreError> {
    let fail = failed("create a job");
    let id: i64 = sqlx::query_scalar(INSERT)
        .bind(spec.name.as_str())
        .bind(now.as_millis())
        .bind(spec.group.as_str())
        .bind(spec.schedule == Schedule::Startup)
        .bind(longest_ms(spec))
        .bind(written(spec)?)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    sqlx::query(INSERT_DUE)
        .bind(id)
        .bind(next_fire(spec, now))
        .bind(spec.is_enabled())
        .bind(is_fixed_delay(spec))
        .execute(conn)
        .await
        .map_err(&fail)?;
    if let Some(parent) = parent_of(spec)? {
        after.parents.insert(parent.clone());
        after.adopted.push((JobId(id), Some(parent.clone())));
    }
    Ok(JobId(id))
}

async fn update(
    conn: &mut SqliteConnection,
    job: &Job,
    spec: &JobSpec,
    now: Timestamp,
    after: &mut Consequences,
) -> Result<(), StoreError> {
    write_definition(conn, job, spec, now).await?;
    if job.spec.group != spec.group {
        sqlx::query(KEEP_GROUP)
            .bind(job.id.0)
            .bind(job.spec.group.as_str())
            .execute(conn)
            .await
            .map_err(failed("keep the group of runs that are out"))?;
    }
    after.changed.push(job.id);
    if job.spec.is_enabled() && !spec.is_enabled() {
        after.paused.push(job.id);
    }
    match (is_fixed_delay(&job.spec), is_fixed_delay(spec)) {
        (false, true) => after.fixed_delay.push(job.id),
        (true, true) => after.still_fixed_delay.push(job.id),
        _ => {}
    }
    let (old, new) = (parent_of(&job.spec)?, parent_of(spec)?);
    if old != new {
        after.parents.extend(old.into_iter().chain(new).cloned());
        after.adopted.push((job.id, new.cloned()));
    }
    Ok(())
}

async fn write_definition(
    conn: &mut SqliteConnection,
    job: &Job,
    spec: &JobSpec,
    now: Timestamp,
) -> Result<(), StoreError> {
    let fail = failed("change a job");
    let version = job.version + 1;
    sqlx::query(UPDATE)
        .bind(job.id.0)
        .bind(version)
        .bind(spec.group.as_str())
        .bind(spec.schedule == Schedule::Startup)
        .bind(longest_ms(spec))
        .bind(written(spec)?)
        .execute(&mut *conn)
        .await
        .map_err(&fail)?;
    sqlx::query(UPDATE_DUE)
        .bind(job.id.0)
        .bind(version)
        .bind(next_fire(spec, now))
        .bind(spec.is_enabled())
        .bind(is_fixed_delay(spec))
        .execute(conn)
        .await
        .map(drop)
        .map_err(&fail)
}

impl Consequences {
    async fn write(&self, conn: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
        let fail = failed("apply jobs");
        for (job, parent) in &self.adopted {
            sqlx::query(SET_PARENT)
                .bind(job.0)
                .bind(parent.as_ref().map(JobName::as_str))
                .execute(&mut *conn)
                .await
                .map_err(&fail)?;
        }
        if !self.parents.is_empty() {
            set_has_children(conn, &self.parents).await?;
        }
        if !self.changed.is_empty() {
            withdraw(conn, &self.changed, now).await?;
            unclaim(conn, &self.changed).await?;
        }
        if !self.fixed_delay.is_empty() {
            sqlx::query(AWAIT)
                .bind(encode(&self.fixed_delay)?)
                .execute(&mut *conn)
                .await
                .map_err(&fail)?;
        }
        if !self.paused.is_empty() {
            stop(conn, &self.paused, now, "its job was paused by an edit").await?;
        }
        wait_for_runs(conn, &self.still_fixed_delay).await?;
        Ok(())
    }
}

/// Jobs with a fixed delay of which a run lives are due when that ends, and not before.
async fn wait_for_runs(conn: &mut SqliteConnection, jobs: &[JobId]) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    sqlx::query(WAIT_FOR_RUNS)
        .bind(encode(jobs)?)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("wait for the runs of fixed-delay jobs"))
}

async fn set_has_children(
    conn: &mut SqliteConnection,
    parents: &BTreeSet<JobName>,
) -> Result<(), StoreError> {
    let parents: Vec<&JobName> = parents.iter().collect();
    sqlx::query(SET_HAS_CHILDREN)
        .bind(encode(&parents)?)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("note which jobs have children"))
}
