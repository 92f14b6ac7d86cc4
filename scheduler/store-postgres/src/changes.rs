//! Reading changes of runs and jobs.
//!
//! The numbers of runs ascend over all days. Transactions take them before they commit, so new runs appear out of order
//! (see [`run_numbers`](cueline_store::adapter::run_numbers)). A search looks for the numbers on each day, since a new
//! run may belong to an older one.

use std::collections::BTreeSet;

use cueline_model::{JobId, RunId, Timestamp};
use cueline_store::adapter::convert::{parse_name, run_kind, run_state, to_i64, to_u32};
use cueline_store::adapter::run_numbers::{advance, searched};
use cueline_store::{
    ChangedRuns, JobBrief, JobsFingerprint, KnownRun, LiveRuns, NewRuns, RunBrief, RunCursor,
};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::{column, state_code, to_i32};
use crate::error::Result;
use crate::partitions::{Day, existing_partitions};

/// The last number that was allocated, and whether any was.
const LAST_NUMBER: &str = "SELECT last_value, is_called FROM run_number";

/// Numbers below the last one whose transactions may be in progress when a reader starts.
const MAY_BE_IN_PROGRESS: i64 = 20_000;

/// Ids in ranges, with the most of each. The ranges are of one day each, so each reads one partition.
pub(crate) const SEARCH: &str = "
    SELECT e.place, r.id FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY e (first, last, most, place), LATERAL (
        SELECT id FROM run WHERE id >= e.first AND id <= e.last ORDER BY id LIMIT e.most) r";

pub(crate) const LIVE: &str = "SELECT id FROM run_live ORDER BY id DESC LIMIT $1";

pub(crate) const CHANGED: &str = "
    SELECT e.id FROM unnest($1::bigint[], $2::smallint[], $3::integer[]) e (id, state, attempt) LEFT JOIN run_live l ON l.id = e.id
    WHERE l.id IS NULL OR l.state <> e.state OR l.attempt <> e.attempt";

pub(crate) const BRIEFS: &str = "
    SELECT r.id, r.job_id, j.name, j.group_name, r.kind::bigint, coalesce(l.state, r.state)::bigint,
        coalesce(l.attempt, r.attempt)::bigint, coalesce(l.executor, r.executor), r.fire_at, r.ended_at
    FROM run r JOIN job j ON j.id = r.job_id LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id = ANY ($1) ORDER BY r.id";

const FINGERPRINT: &str = "
    SELECT (SELECT coalesce(max(id), 0) FROM job), count(*), coalesce(sum(version), 0)::bigint, coalesce(sum(job_id), 0)::bigint
    FROM job_due";

pub(crate) const JOBS: &str = "
    SELECT d.job_id, j.name, j.group_name, d.version, d.enabled FROM job_due d JOIN job j ON j.id = d.job_id
    WHERE d.job_id > $1 ORDER BY d.job_id LIMIT $2";

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

impl PgStore {
    pub(crate) async fn live_runs(&self, limit: usize) -> Result<LiveRuns> {
        let mut tx = self.db.snapshot().await?;
        let now = self.db.now(&mut tx).await?;
        let last = last_number(&mut tx).await?;
        let begin = RunCursor {
            last: last.saturating_sub(MAY_BE_IN_PROGRESS).max(-1),
            missing: Vec::new(),
        };
        // The numbers that are missing there may be of transactions in progress.
        let days = existing_partitions(&mut tx).await?;
        let most = usize::try_from(MAY_BE_IN_PROGRESS).unwrap_or(usize::MAX);
        let (found, complete_to) = search(&mut tx, &begin, &days, most).await?;
        let numbers = found.iter().map(|id| number_of(*id));
        let (_, cursor) = advance(&begin, numbers, complete_to, now);
        let ids: Vec<i64> = sqlx::query_scalar(LIVE)
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        let mut live = read_briefs(&mut tx, &ids).await?;
        live.reverse();
        Ok(LiveRuns { cursor, live })
    }

    pub(crate) async fn new_runs(&self, after: &RunCursor, limit: usize) -> Result<NewRuns> {
        let mut tx = self.db.snapshot().await?;
        if last_number(&mut tx).await? < after.last {
            return Ok(NewRuns {
                runs: Vec::new(),
                cursor: after.clone(),
                more: false,
                restarted: true,
            });
        }
        let now = self.db.now(&mut tx).await?;
        let days = existing_partitions(&mut tx).await?;
        let (found, complete_to) = search(&mut tx, after, &days, limit).await?;
        let numbers = found.iter().map(|id| number_of(*id));
        let (new, cursor) = advance(after, numbers, complete_to, now);
        let is_new = |id: &&i64| new.binary_search(&number_of(**id)).is_ok();
        let ids: Vec<i64> = found.iter().filter(is_new).copied().collect();
        Ok(NewRuns {
            runs: read_briefs(&mut tx, &ids).await?,
            cursor,
            more: complete_to < i64::MAX,
            restarted: false,
        })
    }

    pub(crate) async fn changed_runs(&self, known: &[KnownRun]) -> Result<ChangedRuns> {
        let mut tx = self.db.snapshot().await?;
        let ids: Vec<i64> = sqlx::query_scalar(CHANGED)
            .bind(column(known, |run| run.id.0))
            .bind(column(known, |run| state_code(run.state)))
            .bind(column(known, |run| to_i32(run.attempt)))
            .fetch_all(&mut *tx)
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

/// The number in a run's id.
fn number_of(id: i64) -> i64 {
    id - Day::of_run(id).id(0)
}

/// The highest number that was allocated; -1 if there is none.
async fn last_number(conn: &mut PgConnection) -> Result<i64> {
    let (last, is_called): (i64, bool) = sqlx::query_as(LAST_NUMBER).fetch_one(conn).await?;
    Ok(if is_called { last } else { -1 })
}

/// Ids of runs with the numbers that the cursor looks for. Of new numbers it returns at most `limit` of each day, and the
/// second value is the number up to which they are complete.
async fn search(
    conn: &mut PgConnection,
    cursor: &RunCursor,
    days: &BTreeSet<Day>,
    limit: usize,
) -> Result<(Vec<i64>, i64)> {
    let ranges = ranges(cursor, days, limit);
    let rows: Vec<(i64, i64)> = sqlx::query_as(SEARCH)
        .bind(column(&ranges, |range| range.first))
        .bind(column(&ranges, |range| range.last))
        .bind(column(&ranges, |range| range.most))
        .fetch_all(conn)
        .await?;
    let mut found = vec![(0_i64, i64::MIN); ranges.len()];
    for (place, id) in &rows {
        // Places count from 1.
        let place = usize::try_from(place - 1).unwrap_or_default();
        if let Some((count, highest)) = found.get_mut(place) {
            *count += 1;
            *highest = (*highest).max(number_of(*id));
        }
    }
    // What a full range lacks has higher numbers than what was found there.
    let full = ranges.iter().zip(&found);
    let full = full.filter(|(range, (count, _))| *count >= range.most);
    let complete_to = full.map(|(_, (_, highest))| *highest).min();
    let ids = rows.into_iter().map(|(_, id)| id).collect();
    Ok((ids, complete_to.unwrap_or(i64::MAX)))
}

/// Ids of one day.
struct Range {
    first: i64,
    last: i64,
    most: i64,
}

/// The ranges of numbers to search, on each day.
fn ranges(cursor: &RunCursor, days: &BTreeSet<Day>, limit: usize) -> Vec<Range> {
    let of_day = |day: Day, (first, last): (i64, i64)| {
        let (_, past) = day.ids();
        let is_above = first > cursor.last;
        Range {
            first: day.id(first),
            last: day.id(0).saturating_add(last).min(past - 1),
            // Missing numbers are few, and all of them are wanted.
            most: if is_above { to_i64(limit) } else { i64::MAX },
        }
    };
    let numbers = searched(cursor).into_iter();
    numbers
        .flat_map(|part| days.iter().map(move |day| of_day(*day, part)))
        .filter(|range| range.first <= range.last)
        .collect()
}

/// The runs with these ids, sorted by id. Missing ones are left out.
async fn read_briefs(conn: &mut PgConnection, ids: &[i64]) -> Result<Vec<RunBrief>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<BriefRow> = sqlx::query_as(BRIEFS).bind(ids).fetch_all(conn).await?;
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
