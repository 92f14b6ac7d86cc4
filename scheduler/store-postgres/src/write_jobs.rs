//! Writing definitions, many at a time.

use std::collections::{BTreeSet, HashMap};

use cueline_model::{GroupName, Job, JobId, JobName, JobSpec, Schedule, Timestamp};
use cueline_store::StoreError;
use cueline_store::adapter::definitions::written;
use cueline_store::adapter::jobs::{is_fixed_delay, longest_ms, next_fire};
use sqlx::postgres::PgConnection;

use crate::error::failed;
use crate::rows::{name, numbers};

const INSERT: &str = "
    INSERT INTO job (name, version, created_at, grp, startup, longest_ms, definition)
    SELECT e.name, 1, $6, e.grp, e.startup, e.longest_ms, e.definition
    FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[], $5::text[]) WITH ORDINALITY
        e (name, grp, startup, longest_ms, definition, place)
    ORDER BY e.place
    RETURNING id, name";

const INSERT_DUE: &str = "
    INSERT INTO job_due (job_id, version, next_fire_at, enabled, fixed_delay)
    SELECT e.id, 1, e.next_fire_at, e.enabled, e.fixed_delay
    FROM unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::boolean[]) e (id, next_fire_at, enabled, fixed_delay)";

/// What is out goes by the time limit that it went out with: the backstop gets no shorter while there is something.
const UPDATE: &str = "
    UPDATE job SET version = e.version, grp = e.grp, startup = e.startup, definition = e.definition,
        longest_ms = CASE WHEN e.longest_ms IS NOT NULL AND (job.longest_ms IS NULL OR e.longest_ms < job.longest_ms)
                AND EXISTS (SELECT FROM run_live l WHERE l.job_id = job.id AND l.state IN (1, 2, 3))
            THEN job.longest_ms ELSE e.longest_ms END
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::boolean[], $5::bigint[], $6::text[])
        e (id, version, grp, startup, longest_ms, definition)
    WHERE job.id = e.id";

const UPDATE_DUE: &str = "
    UPDATE job_due SET version = e.version, next_fire_at = e.next_fire_at, enabled = e.enabled, fixed_delay = e.fixed_delay
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[], $5::boolean[])
        e (id, version, next_fire_at, enabled, fixed_delay)
    WHERE job_due.job_id = e.id";

/// Finds parents by name, once all the jobs that are applied together exist.
const SET_PARENTS: &str = "
    UPDATE job SET parent_id = (SELECT p.id FROM job p WHERE p.name = e.parent AND p.deleted_at IS NULL)
    FROM unnest($1::bigint[], $2::text[]) e (id, parent) WHERE job.id = e.id";

const SET_HAS_CHILDREN: &str = "
    UPDATE job_due SET has_children = EXISTS
        (SELECT FROM job c WHERE c.parent_id = job_due.job_id AND c.parent_id IS NOT NULL AND c.deleted_at IS NULL)
    FROM unnest($1::text[]) e (name) JOIN job j ON j.name = e.name AND j.deleted_at IS NULL
    WHERE job_due.job_id = j.id";

/// What is out stays in the group that it was sent to.
const KEEP_GROUP: &str = "
    UPDATE run_live l SET sent_to_group = e.grp FROM unnest($1::bigint[], $2::text[]) e (id, grp)
    WHERE l.job_id = e.id AND l.state IN (1, 2, 3) AND l.sent_to_group IS NULL";

/// Their delay begins at the end of the run that is out, which sets the time.
const WAIT_FOR_RUNS: &str = "
    UPDATE job_due d SET next_fire_at = NULL
    WHERE d.job_id = ANY ($1::bigint[]) AND d.fixed_delay AND d.next_fire_at IS NOT NULL
        AND EXISTS (SELECT FROM run_live l WHERE l.job_id = d.job_id AND l.awaited)";

/// Definitions written by one statement: they may be long.
const CHUNK: usize = 5_000;

/// A job that changes, and what it becomes.
#[derive(Clone, Copy)]
pub(crate) struct NewVersion<'a> {
    pub(crate) job: &'a Job,
    pub(crate) spec: &'a JobSpec,
}

/// A job that moves to another group, and the one that it was in.
pub(crate) struct KeptGroup<'a> {
    pub(crate) job: JobId,
    pub(crate) group: &'a GroupName,
}

fn column<'a, T>(specs: &[&'a JobSpec], of: impl Fn(&'a JobSpec) -> T) -> Vec<T> {
    specs.iter().map(|spec| of(spec)).collect()
}

/// Creates jobs; their ids.
pub(crate) async fn create(
    conn: &mut PgConnection,
    specs: &[&JobSpec],
    now: Timestamp,
) -> Result<HashMap<JobName, JobId>, StoreError> {
    let fail = failed("create jobs");
    let mut created = HashMap::with_capacity(specs.len());
    for specs in specs.chunks(CHUNK) {
        let definitions = specs.iter().map(|s| written(s));
        let rows: Vec<(i64, String)> = sqlx::query_as(INSERT)
            .bind(column(specs, |s| s.name.as_str()))
            .bind(column(specs, |s| s.group.as_str()))
            .bind(column(specs, |s| s.schedule == Schedule::Startup))
            .bind(column(specs, longest_ms))
            .bind(definitions.collect::<Result<Vec<_>, _>>()?)
            .bind(now.as_millis())
            .fetch_all(&mut *conn)
            .await
            .map_err(&fail)?;
        for (id, text) in rows {
            created.insert(name::<JobName>(&text)?, JobId(id));
        }
        let ids = specs.iter().filter_map(|s| created.get(&s.name));
        sqlx::query(INSERT_DUE)
            .bind(ids.map(|id| id.0).collect::<Vec<_>>())
            .bind(column(specs, |s| next_fire(s, now)))
            .bind(column(specs, JobSpec::is_enabled))
            .bind(column(specs, is_fixed_delay))
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    Ok(created)
}

/// Gives jobs, in the order of their ids, a new definition and version.
pub(crate) async fn update(
    conn: &mut PgConnection,
    jobs: &[NewVersion<'_>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let fail = failed("change jobs");
    for jobs in jobs.chunks(CHUNK) {
        let ids: Vec<i64> = jobs.iter().map(|new| new.job.id.0).collect();
        let versions: Vec<i64> = jobs.iter().map(|new| new.job.version + 1).collect();
        let specs: Vec<&JobSpec> = jobs.iter().map(|new| new.spec).collect();
        let definitions = specs.iter().map(|s| written(s));
        // The lock of the job comes first.
        sqlx::query(UPDATE_DUE)
            .bind(&ids)
            .bind(&versions)
            .bind(column(&specs, |s| next_fire(s, now)))
            .bind(column(&specs, JobSpec::is_enabled))
            .bind(column(&specs, is_fixed_delay))
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
        sqlx::query(UPDATE)
            .bind(&ids)
            .bind(&versions)
            .bind(column(&specs, |s| s.group.as_str()))
            .bind(column(&specs, |s| s.schedule == Schedule::Startup))
            .bind(column(&specs, longest_ms))
            .bind(definitions.collect::<Result<Vec<_>, _>>()?)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    Ok(())
}

/// Writes which job comes after which.
pub(crate) async fn set_parents(
    conn: &mut PgConnection,
    adopted: &[(JobId, Option<JobName>)],
) -> Result<(), StoreError> {
    if adopted.is_empty() {
        return Ok(());
    }
    let parents = adopted
        .iter()
        .map(|(_, parent)| parent.as_ref().map(JobName::as_str));
    sqlx::query(SET_PARENTS)
        .bind(adopted.iter().map(|(job, _)| job.0).collect::<Vec<_>>())
        .bind(parents.collect::<Vec<_>>())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("apply jobs"))
}

/// Notes of these jobs whether they have children.
pub(crate) async fn set_has_children(
    conn: &mut PgConnection,
    parents: &BTreeSet<JobName>,
) -> Result<(), StoreError> {
    if parents.is_empty() {
        return Ok(());
    }
    sqlx::query(SET_HAS_CHILDREN)
        .bind(parents.iter().map(JobName::as_str).collect::<Vec<_>>())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("note which jobs have children"))
}

/// Jobs with a fixed delay of which a run lives are due when that ends, and not before.
pub(crate) async fn wait_for_runs(
    conn: &mut PgConnection,
    jobs: &[JobId],
) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    sqlx::query(WAIT_FOR_RUNS)
        .bind(numbers(jobs))
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("wait for the runs of fixed-delay jobs"))
}

pub(crate) async fn keep_group(
    conn: &mut PgConnection,
    moved: &[KeptGroup<'_>],
) -> Result<(), StoreError> {
    if moved.is_empty() {
        return Ok(());
    }
    sqlx::query(KEEP_GROUP)
        .bind(moved.iter().map(|m| m.job.0).collect::<Vec<_>>())
        .bind(moved.iter().map(|m| m.group.as_str()).collect::<Vec<_>>())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("keep the group of runs that are out"))
}
