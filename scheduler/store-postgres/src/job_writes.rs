//! Writes job definitions in batches.

use std::collections::HashMap;

use cueline_model::{FireRules, GroupName, JobId, JobName, JobSpec, Timestamp};
use cueline_store::adapter::convert::parse_name;
use cueline_store::adapter::fire_rules::DueColumns;
use cueline_store::adapter::jobs::{JobColumns, JobUpdate, SideEffects};
use sqlx::postgres::PgConnection;

use crate::columns::{column, job_ids};
use crate::error::Result;

/// Changes of definitions run one after the other. The first number marks locks of Cueline.
pub(crate) const LOCK: &str = "SELECT pg_advisory_xact_lock(1131767116, 4)";

const INSERT: &str = "
    INSERT INTO job (name, version, created_at, group_name, startup, max_attempt_ms, definition,
        keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms)
    SELECT e.name, 1, $6, e.group_name, e.startup, e.max_attempt_ms, e.definition, e.age_ms, e.runs, e.logs_ms, e.outputs_ms
    FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[], $5::text[], $7::bigint[], $8::bigint[], $9::bigint[],
        $10::bigint[]) WITH ORDINALITY
        e (name, group_name, startup, max_attempt_ms, definition, age_ms, runs, logs_ms, outputs_ms, position)
    ORDER BY e.position
    RETURNING id, name";

const INSERT_DUE: &str = "
    INSERT INTO job_due (job_id, version, next_fire_at, enabled, fixed_delay, group_name, excluded_from, rules, paused_until)
    SELECT e.id, 1, e.next_fire_at, e.enabled, e.fixed_delay, e.group_name, e.excluded_from, e.rules, e.paused_until
    FROM unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::boolean[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[])
        e (id, next_fire_at, enabled, fixed_delay, group_name, excluded_from, rules, paused_until)";

/// While there are published attempts, the time limit gets no shorter, because they still have the old one.
const UPDATE: &str = "
    UPDATE job SET version = e.version, group_name = e.group_name, startup = e.startup, definition = e.definition,
        max_attempt_ms = CASE WHEN e.max_attempt_ms IS NOT NULL
                AND (job.max_attempt_ms IS NULL OR e.max_attempt_ms < job.max_attempt_ms)
                AND EXISTS (SELECT FROM run_live l WHERE l.job_id = job.id AND l.state IN (1, 2, 3))
            THEN job.max_attempt_ms ELSE e.max_attempt_ms END,
        keep_age_ms = e.age_ms, keep_runs = e.runs, keep_logs_ms = e.logs_ms, keep_outputs_ms = e.outputs_ms
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::boolean[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[],
        $9::bigint[], $10::bigint[])
        e (id, version, group_name, startup, max_attempt_ms, definition, age_ms, runs, logs_ms, outputs_ms)
    WHERE job.id = e.id";

const UPDATE_DUE: &str = "
    UPDATE job_due SET version = e.version, next_fire_at = e.next_fire_at, enabled = e.enabled, fixed_delay = e.fixed_delay,
        group_name = e.group_name, excluded_from = e.excluded_from, rules = e.rules, paused_until = e.paused_until
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[], $5::boolean[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[])
        e (id, version, next_fire_at, enabled, fixed_delay, group_name, excluded_from, rules, paused_until)
    WHERE job_due.job_id = e.id";

/// A pause or a resume changes no text, so that a definition keeps what this program does not know.
const SET_ENABLED_DUE: &str = "
    UPDATE job_due SET version = version + 1, enabled = $2, next_fire_at = $3, excluded_from = $4, rules = $5,
        paused_until = $6
    WHERE job_id = $1";
const NEXT_VERSION: &str = "UPDATE job SET version = version + 1 WHERE id = $1";

const UNLINK: &str = "DELETE FROM job_parent WHERE child_id = ANY ($1::bigint[])";

/// It finds parents by name, so it is executed once all applied jobs exist.
const LINK: &str = "
    INSERT INTO job_parent (parent_id, child_id, waits_for_all, after_failure)
    SELECT p.id, e.child, e.waits_for_all, e.after_failure
    FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::boolean[]) e (child, parent, waits_for_all, after_failure)
        JOIN job p ON p.name = e.parent AND p.deleted_at IS NULL";

const SET_CHILDREN: &str = "
    UPDATE job_due SET children =
        coalesce((SELECT max(CASE WHEN l.after_failure THEN 2 ELSE 1 END) FROM job_parent l WHERE l.parent_id = job_due.job_id), 0)
    FROM unnest($1::text[]) e (name) JOIN job j ON j.name = e.name AND j.deleted_at IS NULL
    WHERE job_due.job_id = j.id";

const PARENTS: &str =
    "SELECT p.name FROM job_parent l JOIN job p ON p.id = l.parent_id WHERE l.child_id = $1";

/// Published attempts keep the group that they were published to. The ids ascend. As in `waiting_runs`, they are no
/// relation to join with.
pub(crate) const KEEP_GROUPS: &str = "
    UPDATE run_live l SET published_group = ($3::text[])[($2::integer[])[width_bucket(l.job_id, $1::bigint[])]]
    WHERE l.job_id = ANY ($1::bigint[]) AND l.state IN (1, 2, 3) AND l.published_group IS NULL";

pub(crate) const DELAY_NEXT_FIRES: &str = "
    UPDATE run_live l SET delays_next_fire = true WHERE l.job_id = ANY ($1::bigint[]) AND NOT l.delays_next_fire";

/// A fixed-delay job with a live run gets its next fire time at the end of that run.
const WAIT_FOR_LIVE_RUNS: &str = "
    UPDATE job_due d SET next_fire_at = NULL, excluded_from = NULL
    WHERE d.job_id = ANY ($1::bigint[]) AND d.fixed_delay AND d.next_fire_at IS NOT NULL
        AND EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.delays_next_fire)";

/// Definitions per statement. It is limited because definitions may be long.
const CHUNK: usize = 5_000;

/// Creates jobs and returns their ids.
pub(crate) async fn create(
    conn: &mut PgConnection,
    specs: &[&JobSpec],
    now: Timestamp,
    rules: &FireRules,
) -> Result<HashMap<JobName, JobId>> {
    let mut created = HashMap::with_capacity(specs.len());
    for specs in specs.chunks(CHUNK) {
        let jobs = job_columns(specs.iter().copied(), now, rules)?;
        let rows: Vec<(i64, String)> = sqlx::query_as(INSERT)
            .bind(column(&jobs, |j| j.name))
            .bind(column(&jobs, |j| j.group))
            .bind(column(&jobs, |j| j.startup))
            .bind(column(&jobs, |j| j.max_attempt_ms))
            .bind(column(&jobs, |j| j.definition.as_str()))
            .bind(now.as_millis())
            .bind(column(&jobs, |j| j.kept.0))
            .bind(column(&jobs, |j| j.kept.1))
            .bind(column(&jobs, |j| j.kept.2))
            .bind(column(&jobs, |j| j.kept.3))
            .fetch_all(&mut *conn)
            .await?;
        for (id, name) in rows {
            created.insert(parse_name::<JobName>(&name)?, JobId(id));
        }
        let ids = specs.iter().filter_map(|spec| created.get(&spec.name));
        sqlx::query(INSERT_DUE)
            .bind(ids.map(|id| id.0).collect::<Vec<_>>())
            .bind(column(&jobs, |j| j.due.next_fire_at))
            .bind(column(&jobs, |j| j.enabled))
            .bind(column(&jobs, |j| j.fixed_delay))
            .bind(column(&jobs, |j| j.group))
            .bind(column(&jobs, |j| j.due.excluded_from))
            .bind(column(&jobs, |j| j.due.rules))
            .bind(column(&jobs, |j| j.due.paused_until))
            .execute(&mut *conn)
            .await?;
    }
    Ok(created)
}

/// Writes new definitions as new versions. The updates are sorted by job id.
pub(crate) async fn update(
    conn: &mut PgConnection,
    updates: &[JobUpdate<'_>],
    now: Timestamp,
    rules: &FireRules,
) -> Result<()> {
    for updates in updates.chunks(CHUNK) {
        let ids = column(updates, |u| u.job.id.0);
        let versions = column(updates, |u| u.job.version + 1);
        let jobs = job_columns(updates.iter().map(|u| u.spec), now, rules)?;
        // This statement comes first, because it locks the jobs.
        sqlx::query(UPDATE_DUE)
            .bind(&ids)
            .bind(&versions)
            .bind(column(&jobs, |j| j.due.next_fire_at))
            .bind(column(&jobs, |j| j.enabled))
            .bind(column(&jobs, |j| j.fixed_delay))
            .bind(column(&jobs, |j| j.group))
            .bind(column(&jobs, |j| j.due.excluded_from))
            .bind(column(&jobs, |j| j.due.rules))
            .bind(column(&jobs, |j| j.due.paused_until))
            .execute(&mut *conn)
            .await?;
        sqlx::query(UPDATE)
            .bind(&ids)
            .bind(&versions)
            .bind(column(&jobs, |j| j.group))
            .bind(column(&jobs, |j| j.startup))
            .bind(column(&jobs, |j| j.max_attempt_ms))
            .bind(column(&jobs, |j| j.definition.as_str()))
            .bind(column(&jobs, |j| j.kept.0))
            .bind(column(&jobs, |j| j.kept.1))
            .bind(column(&jobs, |j| j.kept.2))
            .bind(column(&jobs, |j| j.kept.3))
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Writes a pause or a resume as a new version.
pub(crate) async fn set_enabled(
    conn: &mut PgConnection,
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

/// Removes the links of a deleted job to its parents.
pub(crate) async fn unlink_deleted(conn: &mut PgConnection, job: JobId) -> Result<()> {
    let parents: Vec<String> = sqlx::query_scalar(PARENTS)
        .bind(job.0)
        .fetch_all(&mut *conn)
        .await?;
    if parents.is_empty() {
        return Ok(());
    }
    execute_for(conn, UNLINK, &[job]).await?;
    sqlx::query(SET_CHILDREN)
        .bind(parents)
        .execute(conn)
        .await?;
    Ok(())
}

fn job_columns<'a>(
    specs: impl Iterator<Item = &'a JobSpec>,
    now: Timestamp,
    rules: &FireRules,
) -> Result<Vec<JobColumns<'a>>> {
    specs
        .map(|spec| Ok(JobColumns::new(spec, now, rules)?))
        .collect()
}

/// Writes the new links between children and parents.
pub(crate) async fn link(conn: &mut PgConnection, effects: &SideEffects) -> Result<()> {
    if effects.parents.is_empty() {
        return Ok(());
    }
    execute_for(conn, UNLINK, &effects.unlinked).await?;
    sqlx::query(LINK)
        .bind(column(&effects.links, |l| l.child.0))
        .bind(column(&effects.links, |l| l.parent.as_str()))
        .bind(column(&effects.links, |l| l.waits_for_all))
        .bind(column(&effects.links, |l| l.after_failure))
        .execute(&mut *conn)
        .await?;
    let parents: Vec<&str> = effects.parents.iter().map(JobName::as_str).collect();
    sqlx::query(SET_CHILDREN)
        .bind(parents)
        .execute(conn)
        .await?;
    Ok(())
}

/// Records the groups that published attempts were sent to.
pub(crate) async fn keep_groups(
    conn: &mut PgConnection,
    moved: &[(JobId, GroupName)],
) -> Result<()> {
    if !moved.is_empty() {
        let mut moved: Vec<(i64, &str)> = column(moved, |(job, group)| (job.0, group.as_str()));
        moved.sort_unstable();
        let mut groups = column(&moved, |(_, group)| *group);
        groups.sort_unstable();
        groups.dedup();
        let position = |group: &str| groups.partition_point(|one| *one < group) + 1;
        sqlx::query(KEEP_GROUPS)
            .bind(column(&moved, |(job, _)| *job))
            .bind(column(&moved, |(_, group)| {
                i32::try_from(position(group)).unwrap_or(i32::MAX)
            }))
            .bind(&groups)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Marks the live runs of these jobs, so that their ends set the next fire times.
pub(crate) async fn delay_next_fires(conn: &mut PgConnection, jobs: &[JobId]) -> Result<()> {
    execute_for(conn, DELAY_NEXT_FIRES, jobs).await
}

/// Removes the next fire times of fixed-delay jobs with a live run.
pub(crate) async fn wait_for_live_runs(conn: &mut PgConnection, jobs: &[JobId]) -> Result<()> {
    execute_for(conn, WAIT_FOR_LIVE_RUNS, jobs).await
}

async fn execute_for(
    conn: &mut PgConnection,
    statement: &'static str,
    jobs: &[JobId],
) -> Result<()> {
    if !jobs.is_empty() {
        sqlx::query(statement)
            .bind(job_ids(jobs))
            .execute(conn)
            .await?;
    }
    Ok(())
}
