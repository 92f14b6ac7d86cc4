//! Job definitions: applying, pausing, deleting.
//!
//! Definitions change one call at a time. Each takes the locks of its jobs first; runs that wait are dealt with after that, so that what is
//! fired or retried before is seen, and what comes later sees the new definition.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{AttemptId, Job, JobId, JobName, JobSpec, RunId, Timestamp};
use cueline_store::adapter::jobs::{check_names, is_fixed_delay};
use cueline_store::adapter::parents::parent_of;
use cueline_store::{AppliedJob, Change, ErrorKind, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::by_name::stored;
use crate::database::commit;
use crate::error::failed;
use crate::follow::hold;
use crate::parents::check_parents;
use crate::rows::{clean, numbers, small};
use crate::stop::{stop, unclaim, withdraw};
use crate::write_jobs::{
    KeptGroup, NewVersion, create, keep_group, set_has_children, set_parents, update, wait_for_runs,
};

/// The first number marks locks of Cueline.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 4)";

const AWAIT: &str = "
    UPDATE run_live l SET awaited = true FROM unnest($1::bigint[]) e (id) WHERE l.job_id = e.id AND NOT l.awaited";

const CHILDREN: &str = "
    SELECT name FROM job WHERE parent_id = $1 AND parent_id IS NOT NULL AND deleted_at IS NULL ORDER BY name LIMIT 5";

const DELETE: &str = "UPDATE job SET deleted_at = $2, version = version + 1 WHERE id = $1";
const DELETE_DUE: &str = "DELETE FROM job_due WHERE job_id = $1";

pub(crate) const PUBLISHING: &str = "
    SELECT l.id, l.attempt FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.job_id = e.id WHERE l.state = 1";

/// What an apply does besides writing definitions.
#[derive(Default)]
struct Consequences<'a> {
    /// Their runs in `scheduled` go out by the new definition.
    changed: Vec<JobId>,
    /// They were enabled and are not any more.
    paused: Vec<JobId>,
    /// They count their delay from the end of a run now.
    fixed_delay: Vec<JobId>,
    /// They did so before.
    still_fixed_delay: Vec<JobId>,
    /// What is out of them stays in the group that it was sent to.
    moved: Vec<KeptGroup<'a>>,
    /// Names of jobs that gained or lost a child.
    parents: BTreeSet<JobName>,
    /// Jobs and the parents that they name now.
    adopted: Vec<(JobId, Option<JobName>)>,
}

impl PgStore {
    pub(crate) async fn apply(
        &self,
        specs: &[JobSpec],
        dry_run: bool,
    ) -> Result<Vec<AppliedJob>, StoreError> {
        let mut tx = self.db.write().await?;
        lock(&mut tx).await?;
        let old = stored(&mut tx, specs.iter().map(|s| &s.name)).await?;
        check_names(specs)?;
        check_parents(&mut tx, specs, &old).await?;
        let specs: Vec<JobSpec> = specs
            .iter()
            .map(|spec| spec.over(old.get(&spec.name).map(|job| &job.spec)))
            .collect();
        let changes: Vec<(&JobSpec, Option<&Arc<Job>>, Change)> = specs
            .iter()
            .map(|spec| {
                let job = old.get(&spec.name);
                let change = match job {
                    None => Change::Created,
                    Some(job) if job.spec == *spec => Change::Unchanged,
                    Some(_) => Change::Updated,
                };
                (spec, job, change)
            })
            .collect();
        let mut created = HashMap::new();
        if !dry_run {
            let updated = changes
                .iter()
                .filter(|(.., change)| *change == Change::Updated);
            let ids = updated.filter_map(|(_, job, _)| job.map(|job| job.id));
            let now = self.hold_now(&mut tx, ids).await?;
            created = write(&mut tx, &changes, now).await?;
            commit(tx).await?;
        }
        Ok(changes
            .into_iter()
            .map(|(spec, job, change)| AppliedJob {
                name: spec.name.clone(),
                id: job
                    .map(|job| job.id)
                    .or_else(|| created.get(&spec.name).copied()),
                change,
            })
            .collect())
    }

    pub(crate) async fn switch(
        &self,
        name: &JobName,
        enabled: bool,
        by: &str,
    ) -> Result<JobId, StoreError> {
        let mut tx = self.db.write().await?;
        lock(&mut tx).await?;
        let job = one(&mut tx, name).await?;
        if job.spec.is_enabled() == enabled {
            return Ok(job.id);
        }
        let now = self.hold_now(&mut tx, std::iter::once(job.id)).await?;
        let mut spec = job.spec.clone();
        spec.enabled = Some(enabled);
        update(
            &mut tx,
            &[NewVersion {
                job: &job,
                spec: &spec,
            }],
            now,
        )
        .await?;
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
        lock(&mut tx).await?;
        let job = one(&mut tx, name).await?;
        let now = self.hold_now(&mut tx, std::iter::once(job.id)).await?;
        let children: Vec<String> = sqlx::query_scalar(CHILDREN)
            .bind(job.id.0)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
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
        sqlx::query(DELETE_DUE)
            .bind(job.id.0)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let why = format!("its job was deleted by {}", clean(by));
        stop(&mut tx, &[job.id], now, &why).await?;
        sqlx::query(DELETE)
            .bind(job.id.0)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        if let Some(parent) = parent_of(&job.spec)? {
            set_has_children(&mut tx, &BTreeSet::from([parent.clone()])).await?;
        }
        commit(tx).await?;
        Ok(job.id)
    }

    /// Takes the locks of jobs; what the clock shows then. It may have been waited for, and what has become due meanwhile is not ahead of time.
    async fn hold_now(
        &self,
        conn: &mut PgConnection,
        jobs: impl Iterator<Item = JobId>,
    ) -> Result<Timestamp, StoreError> {
        hold(conn, jobs.map(|id| id.0).collect()).await?;
        self.db.now(conn).await
    }

    pub(crate) async fn list_publishing(
        &self,
        jobs: &[JobId],
    ) -> Result<Vec<AttemptId>, StoreError> {
        let mut conn = self.db.glance().await?;
        let rows: Vec<(i64, i32)> = sqlx::query_as(PUBLISHING)
            .bind(numbers(jobs))
            .fetch_all(&mut *conn)
            .await
            .map_err(failed("list the runs that are being published"))?;
        let id = |(run, attempt)| AttemptId {
            run: RunId(run),
            attempt: small(attempt),
        };
        Ok(rows.into_iter().map(id).collect())
    }
}

async fn lock(conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query(LOCK)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("lock the jobs"))
}

async fn one(conn: &mut PgConnection, name: &JobName) -> Result<Arc<Job>, StoreError> {
    stored(conn, std::iter::once(name))
        .await?
        .remove(name)
        .ok_or_else(|| StoreError::no_job(name.as_str()))
}

/// Writes what has changed, and what follows from it; the ids of new jobs.
async fn write(
    conn: &mut PgConnection,
    changes: &[(&JobSpec, Option<&Arc<Job>>, Change)],
    now: Timestamp,
) -> Result<HashMap<JobName, JobId>, StoreError> {
    let mut after = Consequences::default();
    let new: Vec<&JobSpec> = changes
        .iter()
        .filter(|(_, job, _)| job.is_none())
        .map(|(spec, ..)| *spec)
        .collect();
    let created = create(conn, &new, now).await?;
    for spec in new {
        let id = created.get(&spec.name).copied();
        if let (Some(parent), Some(id)) = (parent_of(spec)?, id) {
            after.parents.insert(parent.clone());
            after.adopted.push((id, Some(parent.clone())));
        }
    }
    let mut updated: Vec<NewVersion<'_>> = Vec::new();
    for (spec, job, change) in changes {
        if let (Some(job), Change::Updated) = (job, change) {
            after.note(job, spec)?;
            updated.push(NewVersion { job, spec });
        }
    }
    updated.sort_unstable_by_key(|new| new.job.id);
    update(conn, &updated, now).await?;
    after.write(conn, now).await?;
    Ok(created)
}

impl<'a> Consequences<'a> {
    fn note(&mut self, job: &'a Job, spec: &JobSpec) -> Result<(), StoreError> {
        if job.spec.group != spec.group {
            self.moved.push(KeptGroup {
                job: job.id,
                group: &job.spec.group,
            });
        }
        self.changed.push(job.id);
        if job.spec.is_enabled() && !spec.is_enabled() {
            self.paused.push(job.id);
        }
        match (is_fixed_delay(&job.spec), is_fixed_delay(spec)) {
            (false, true) => self.fixed_delay.push(job.id),
            (true, true) => self.still_fixed_delay.push(job.id),
            _ => {}
        }
        let (old, new) = (parent_of(&job.spec)?, parent_of(spec)?);
        if old != new {
            self.parents.extend(old.into_iter().chain(new).cloned());
            self.adopted.push((job.id, new.cloned()));
        }
        Ok(())
    }

    async fn write(&self, conn: &mut PgConnection, now: Timestamp) -> Result<(), StoreError> {
        set_parents(conn, &self.adopted).await?;
        set_has_children(conn, &self.parents).await?;
        if !self.changed.is_empty() {
            withdraw(conn, &self.changed, now).await?;
            unclaim(conn, &self.changed).await?;
        }
        // What waits is locked by now, and what went out before that is seen.
        keep_group(conn, &self.moved).await?;
        if !self.fixed_delay.is_empty() {
            sqlx::query(AWAIT)
                .bind(numbers(&self.fixed_delay))
                .execute(&mut *conn)
                .await
                .map_err(failed("apply jobs"))?;
        }
        if !self.paused.is_empty() {
            stop(conn, &self.paused, now, "its job was paused by an edit").await?;
        }
        wait_for_runs(conn, &self.still_fixed_delay).await?;
        Ok(())
    }
}
