//! Reading changes of runs and jobs.
//!
//! There is one writer, and it commits runs in the order of their ids. So an id is all that a reader of new runs has to
//! keep.

use cueline_model::{JobId, RunId, Timestamp};
use cueline_store::adapter::convert::{parse_name, run_kind, run_state, to_i64, to_u32};
use cueline_store::{
    ChangedRuns, JobBrief, JobsFingerprint, KnownRun, LiveRuns, NewRuns, RunBrief, RunCursor,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

const HIGHEST: &str = "SELECT coalesce(max(id), 0) FROM run";

/// The order by id must not make SQLite search all runs by id.
pub(crate) const LIVE: &str = "
    SELECT json_group_array(id) FROM (SELECT id FROM run INDEXED BY run_live WHERE state < 10 ORDER BY id DESC LIMIT ?1 + 0)";

pub(crate) const NEW: &str = "
    SELECT json_group_array(id) FROM (SELECT id FROM run WHERE id > ?1 ORDER BY id LIMIT ?2 + 0)";

/// ?1: id, code of the state, and attempt of each run.
pub(crate) const CHANGED: &str = "
    SELECT json_group_array(e.value ->> 0) FROM json_each(?1) e LEFT JOIN run r ON r.id = e.value ->> 0
    WHERE r.id IS NULL OR r.state <> e.value ->> 1 OR r.attempt <> e.value ->> 2";

pub(crate) const BRIEFS: &str = "
    SELECT r.id, r.job_id, j.name, j.group_name, r.kind, r.state, r.attempt, r.executor, r.fire_at, r.ended_at
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value CROSS JOIN job j ON j.id = r.job_id
    ORDER BY r.id";

const FINGERPRINT: &str = "
    SELECT (SELECT coalesce(max(id), 0) FROM job), count(*), coalesce(sum(version), 0), coalesce(sum(job_id), 0) FROM job_due";

pub(crate) const JOBS: &str = "
    SELECT d.job_id, j.name, j.group_name, d.version, d.enabled FROM job_due d CROSS JOIN job j ON j.id = d.job_id
    WHERE d.job_id > ?1 ORDER BY d.job_id LIMIT ?2 + 0";

type BriefRow = (
    i64,
    i64,
    String,
    String,
    i64,
    i64,
    i64,
    Option<String>,
    i64,
    Option<i64>,
);

type JobRow = (i64, String, String, i64, bool);

impl SqliteStore {
    pub(crate) async fn live_runs(&self, limit: usize) -> Result<LiveRuns> {
        let mut tx = self.db.snapshot().await?;
        let last: i64 = sqlx::query_scalar(HIGHEST).fetch_one(&mut *tx).await?;
        let Json(ids): Json<Vec<i64>> = sqlx::query_scalar(LIVE)
            .bind(to_i64(limit))
            .fetch_one(&mut *tx)
            .await?;
        let mut live = read_briefs(&mut tx, &ids).await?;
        live.reverse();
        Ok(LiveRuns {
            cursor: at(last),
            live,
        })
    }

    pub(crate) async fn new_runs(&self, after: &RunCursor, limit: usize) -> Result<NewRuns> {
        let mut tx = self.db.snapshot().await?;
        let Json(ids): Json<Vec<i64>> = sqlx::query_scalar(NEW)
            .bind(after.last)
            .bind(to_i64(limit))
            .fetch_one(&mut *tx)
            .await?;
        Ok(NewRuns {
            runs: read_briefs(&mut tx, &ids).await?,
            cursor: at(ids.last().copied().unwrap_or(after.last)),
            more: ids.len() >= limit,
            // Ids are never used again, and a restored file is opened by another process.
            restarted: false,
        })
    }

    pub(crate) async fn changed_runs(&self, known: &[KnownRun]) -> Result<ChangedRuns> {
        let rows: Vec<(i64, u8, u32)> = known
            .iter()
            .map(|run| (run.id.0, run.state.code(), run.attempt))
            .collect();
        let mut tx = self.db.snapshot().await?;
        let Json(ids): Json<Vec<i64>> = sqlx::query_scalar(CHANGED)
            .bind(Json(rows))
            .fetch_one(&mut *tx)
            .await?;
        let changed = read_briefs(&mut tx, &ids).await?;
        let exists = |id: &i64| changed.binary_search_by_key(id, |run| run.id.0).is_ok();
        let deleted = ids.iter().filter(|id| !exists(id));
        let mut deleted: Vec<RunId> = deleted.map(|id| RunId(*id)).collect();
        deleted.sort_unstable();
        Ok(ChangedRuns { changed, deleted })
    }

    pub(crate) async fn jobs_fingerprint(&self) -> Result<JobsFingerprint> {
        let row: (i64, i64, i64, i64) = sqlx::query_as(FINGERPRINT)
            .fetch_one(&mut *self.db.read().await?)
            .await?;
        let (highest_id, count, versions, ids) = row;
        Ok(JobsFingerprint {
            highest_id,
            count,
            versions,
            ids,
        })
    }

    pub(crate) async fn job_briefs(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<JobBrief>> {
        let rows: Vec<JobRow> = sqlx::query_as(JOBS)
            .bind(after.map_or(0, |id| id.0))
            .bind(to_i64(limit))
            .fetch_all(&mut *self.db.read().await?)
            .await?;
        rows.into_iter().map(job_brief).collect()
    }
}

const fn at(last: i64) -> RunCursor {
    RunCursor {
        last,
        missing: Vec::new(),
    }
}

/// The runs with these ids, sorted by id. Missing ones are left out.
async fn read_briefs(conn: &mut SqliteConnection, ids: &[i64]) -> Result<Vec<RunBrief>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<BriefRow> = sqlx::query_as(BRIEFS)
        .bind(Json(ids))
        .fetch_all(conn)
        .await?;
    rows.into_iter().map(brief).collect()
}

fn brief(row: BriefRow) -> Result<RunBrief> {
    let (id, job_id, job, group, kind, state, attempt, executor, fire_at, ended_at) = row;
    Ok(RunBrief {
        id: RunId(id),
        job_id: JobId(job_id),
        job: parse_name(&job)?,
        group: parse_name(&group)?,
        kind: run_kind(kind)?,
        state: run_state(state)?,
        attempt: to_u32(attempt),
        executor: executor.as_deref().map(parse_name).transpose()?,
        fire_at: Timestamp::from_millis(fire_at),
        ended_at: ended_at.map(Timestamp::from_millis),
    })
}

fn job_brief((id, name, group, version, enabled): JobRow) -> Result<JobBrief> {
    Ok(JobBrief {
        id: JobId(id),
        name: parse_name(&name)?,
        group: parse_name(&group)?,
        version,
        enabled,
    })
}
