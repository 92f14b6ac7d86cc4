//! Lists runs.
//!
//! The ids come from an index, in the order of the list. What the index does not tell is looked at for each run, and the
//! number of runs is bounded.

use std::collections::{HashMap, HashSet};

use cueline_model::{ExecutorName, GroupName, JobName, RunId, Timestamp};
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::definitions::JobsById;
use cueline_store::adapter::job_list::{fits_runs, has_labels, looked_up_groups, name_range};
use cueline_store::adapter::page_scan::{BATCH, PageScan};
use cueline_store::adapter::queries::{FoundRuns, RunsOfJobs};
use cueline_store::adapter::run_list::{
    IdRange, MAX_BLOCKS_OF_A_PAGE, RunSource, choose, id_times, is_about_jobs, is_about_runs,
    most_candidates, require_names,
};
use cueline_store::{Order, RunFilter, RunList};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::columns::{column, id_range, state_code};
use crate::error::Result;
use crate::partitions::existing_partitions;
use crate::runs::{ALL, ALL_ASCENDING, id_ranges, read_runs, runs_of_jobs};

/// For states other than success. Few runs are in such a state.
macro_rules! in_rare_states {
    ($direction:literal) => {
        concat!(
            "SELECT id FROM (
                (SELECT r.id FROM unnest($3::smallint[]) s (code), LATERAL (
                    SELECT id FROM run WHERE unsuccessful_state = s.code AND unsuccessful_state IS NOT NULL AND id > $1 AND id < $2
                    ORDER BY id ",
            $direction,
            " LIMIT $4) r)
                UNION ALL
                (SELECT id FROM run_live WHERE state = ANY ($3) AND id > $1 AND id < $2 ORDER BY id ",
            $direction,
            " LIMIT $4)) found
            ORDER BY id ",
            $direction,
            " LIMIT $4"
        )
    };
}

pub(crate) const IN_RARE_STATES: &str = in_rare_states!("DESC");
pub(crate) const IN_RARE_STATES_ASCENDING: &str = in_rare_states!("ASC");

/// Which of these runs fit, with their jobs.
pub(crate) const FITTING: &str = "
    SELECT r.id, r.job_id FROM run r LEFT JOIN run_live l ON l.id = r.id
    WHERE r.id = ANY ($1) AND r.id BETWEEN $2 AND $3
        AND ($4 OR coalesce(l.state, r.state) = ANY ($5::smallint[])) AND ($6 OR r.kind = ANY ($7::smallint[]))
        AND ($8 OR coalesce(l.executor, r.executor) = ANY ($9::text[])) AND r.created_at >= $10 AND r.created_at < $11";

const JOBS_NAMED: &str =
    "SELECT id, version, name, group_name FROM job WHERE name = ANY ($1::text[])";

pub(crate) const JOBS_OF_GROUPS: &str = "
    SELECT id, version, name, group_name FROM job WHERE group_name = ANY ($1::text[]) LIMIT $2";

const JOBS_OF_NAMESPACE: &str = "
    SELECT id, version, name, group_name FROM job
    WHERE name >= $1 AND name < $2 AND (NOT $3 OR strpos(name, '/') = 0) LIMIT $4";

const JOBS_BY_ID: &str =
    "SELECT id, version, name, group_name FROM job WHERE id = ANY ($1::bigint[])";

const CREATED: &str = "SELECT id, created_at FROM run WHERE id = ANY ($1::bigint[])";

const FIRST_FROM: &str = "
    SELECT id, created_at FROM run WHERE id >= $1 AND id <= $2 ORDER BY id LIMIT 1";

/// A job: id, version, name, group.
type JobRow = (i64, i64, String, String);

/// A list that is being read.
struct Listing<'a> {
    filter: &'a RunFilter,
    source: RunSource,
    /// Whether each run has to be looked at.
    is_checked: bool,
    /// The jobs that were looked at, and whether they fit.
    jobs: HashMap<i64, bool>,
}

impl PgStore {
    pub(crate) async fn list_runs(&self, filter: &RunFilter) -> Result<RunList> {
        let mut tx = self.db.snapshot().await?;
        let source = choose(filter, self.jobs_of(&mut tx, filter).await?);
        if source == RunSource::Jobs(Vec::new()) {
            return Ok(RunList::default());
        }
        let has_jobs = matches!(source, RunSource::Jobs(_));
        let mut listing = Listing {
            filter,
            is_checked: is_about_runs(filter, &source) || (is_about_jobs(filter) && !has_jobs),
            source,
            jobs: HashMap::new(),
        };
        let mut page = PageScan::new(filter.limit);
        let mut is_complete = true;
        for range in id_ranges_of(&mut tx, filter).await? {
            is_complete = self.scan(&mut tx, &mut listing, range, &mut page).await?;
            if !is_complete {
                break;
            }
        }
        let (ids, next) = page.finish(is_complete);
        let mut runs = read_runs(&mut tx, &ids).await?;
        if filter.order == Order::Ascending {
            runs.reverse();
        }
        Ok(RunList {
            runs,
            next: next.map(RunId),
        })
    }

    /// The jobs of the filter; `None` if they are too many, or if it is not about jobs.
    async fn jobs_of(
        &self,
        conn: &mut PgConnection,
        filter: &RunFilter,
    ) -> Result<Option<Vec<i64>>> {
        if !is_about_jobs(filter) {
            return Ok(None);
        }
        let most = most_candidates(filter);
        let groups = looked_up_groups(&filter.groups, filter.within.as_deref());
        let rows: Vec<JobRow> = if !filter.jobs.is_empty() {
            let rows: Vec<JobRow> = sqlx::query_as(JOBS_NAMED)
                .bind(column(&filter.jobs, JobName::as_str))
                .fetch_all(&mut *conn)
                .await?;
            require_names(&filter.jobs, rows.iter().map(|row| row.2.as_str()))?;
            rows
        } else if let Some(groups) = groups {
            sqlx::query_as(JOBS_OF_GROUPS)
                .bind(column(&groups, GroupName::as_str))
                .bind(to_i64(most + 1))
                .fetch_all(&mut *conn)
                .await?
        } else {
            let (from, below, without_slash) = name_range(filter.namespace.as_ref());
            sqlx::query_as(JOBS_OF_NAMESPACE)
                .bind(from)
                .bind(below)
                .bind(without_slash)
                .bind(to_i64(most + 1))
                .fetch_all(&mut *conn)
                .await?
        };
        if rows.len() > most {
            return Ok(None);
        }
        let fitting = self.fitting_jobs(conn, filter, rows).await?;
        let fitting = fitting.into_iter().filter(|(_, fits)| *fits);
        Ok(Some(fitting.map(|(id, _)| id).collect()))
    }

    /// Which of these jobs fit the filter.
    async fn fitting_jobs(
        &self,
        conn: &mut PgConnection,
        filter: &RunFilter,
        rows: Vec<JobRow>,
    ) -> Result<Vec<(i64, bool)>> {
        let jobs = if filter.labels.is_empty() {
            JobsById::new()
        } else {
            let versions = rows.iter().map(|row| (row.0, row.1));
            self.definitions.get(conn, versions).await?
        };
        let fits = |(id, _, name, group): JobRow| {
            let fits = fits_runs(filter, &name, &group)? && has_labels(&filter.labels, &jobs, id);
            Ok((id, fits))
        };
        rows.into_iter().map(fits).collect()
    }

    /// Adds the runs of a range of ids to the page. Returns whether the list continues with the next range.
    async fn scan(
        &self,
        conn: &mut PgConnection,
        listing: &mut Listing<'_>,
        mut range: IdRange,
        page: &mut PageScan<i64, i64>,
    ) -> Result<bool> {
        let filter = listing.filter;
        let batch = if listing.is_checked {
            BATCH
        } else {
            filter.limit.saturating_add(1)
        };
        loop {
            let found = candidates(conn, listing, range, batch).await?;
            let fitting = if listing.is_checked {
                self.fitting_runs(conn, listing, &found.ids).await?
            } else {
                found.ids.iter().copied().collect()
            };
            for id in &found.ids {
                page.take(*id, fitting.contains(id).then_some(*id));
            }
            if page.is_over() {
                return Ok(false);
            }
            if let Some(id) = found.searched_to {
                page.take(id, None);
                return Ok(false);
            }
            let last = found.ids.last().filter(|_| found.ids.len() >= batch);
            let Some(last) = last else {
                return Ok(true);
            };
            range = range.behind(Some(RunId(*last)), filter.order);
        }
    }

    /// Those of the runs that fit the filter.
    async fn fitting_runs(
        &self,
        conn: &mut PgConnection,
        listing: &mut Listing<'_>,
        ids: &[i64],
    ) -> Result<HashSet<i64>> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let filter = listing.filter;
        let source = &listing.source;
        let jobs = &mut listing.jobs;
        let since = filter.since.map_or(i64::MIN, Timestamp::as_millis);
        let until = filter.until.map_or(i64::MAX, Timestamp::as_millis);
        let (low, high) = id_range(ids.iter().copied());
        let any_state = filter.states.is_empty() || *source != RunSource::All;
        let rows: Vec<(i64, i64)> = sqlx::query_as(FITTING)
            .bind(ids)
            .bind(low)
            .bind(high)
            .bind(any_state)
            .bind(column(&filter.states, |state| state_code(*state)))
            .bind(filter.kinds.is_empty())
            .bind(column(&filter.kinds, |kind| i16::from(kind.code())))
            .bind(filter.executors.is_empty())
            .bind(column(&filter.executors, ExecutorName::as_str))
            .bind(since)
            .bind(until)
            .fetch_all(&mut *conn)
            .await?;
        if matches!(source, RunSource::Jobs(_)) || !is_about_jobs(filter) {
            return Ok(rows.into_iter().map(|(id, _)| id).collect());
        }
        let mut unknown: Vec<i64> = rows.iter().map(|(_, job)| *job).collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown.retain(|job| !jobs.contains_key(job));
        let found: Vec<JobRow> = sqlx::query_as(JOBS_BY_ID)
            .bind(&unknown)
            .fetch_all(&mut *conn)
            .await?;
        jobs.extend(self.fitting_jobs(conn, filter, found).await?);
        let fits = |job: &i64| jobs.get(job).copied().unwrap_or(false);
        let fitting = rows.into_iter().filter(|(_, job)| fits(job));
        Ok(fitting.map(|(id, _)| id).collect())
    }
}

/// The next ids of the range in the order of the list.
async fn candidates(
    conn: &mut PgConnection,
    listing: &Listing<'_>,
    range: IdRange,
    batch: usize,
) -> Result<FoundRuns> {
    let filter = listing.filter;
    let is_ascending = filter.order == Order::Ascending;
    let ids: Vec<i64> = match &listing.source {
        RunSource::Jobs(jobs) => {
            let wanted = RunsOfJobs {
                states: &filter.states,
                ids: range,
                order: filter.order,
                max_blocks: MAX_BLOCKS_OF_A_PAGE,
                ..RunsOfJobs::newest(jobs, batch)
            };
            return runs_of_jobs(conn, &wanted).await;
        }
        RunSource::All => {
            sqlx::query_scalar(if is_ascending { ALL_ASCENDING } else { ALL })
                .bind(range.above)
                .bind(range.below)
                .bind(to_i64(batch))
                .fetch_all(conn)
                .await?
        }
        RunSource::RareStates => {
            let statement = if is_ascending {
                IN_RARE_STATES_ASCENDING
            } else {
                IN_RARE_STATES
            };
            sqlx::query_scalar(statement)
                .bind(range.above)
                .bind(range.below)
                .bind(column(&filter.states, |state| state_code(*state)))
                .bind(to_i64(batch))
                .fetch_all(conn)
                .await?
        }
    };
    Ok(FoundRuns {
        ids,
        searched_to: None,
    })
}

/// Ids of runs that were written within the times of the filter, in the order of the list. Within a day, ids ascend with
/// the time of writing.
async fn id_ranges_of(conn: &mut PgConnection, filter: &RunFilter) -> Result<Vec<IdRange>> {
    let behind = |range: IdRange| range.behind(filter.after, filter.order);
    if filter.since.is_none() && filter.until.is_none() {
        return Ok(vec![behind(IdRange::ALL)]);
    }
    let (since, until) = id_times(filter);
    let days = existing_partitions(conn).await?;
    let days = id_ranges(conn, days).await?;
    let ends: Vec<i64> = days.iter().flat_map(|(low, high)| [*low, *high]).collect();
    let created: Vec<(i64, i64)> = sqlx::query_as(CREATED)
        .bind(&ends)
        .fetch_all(&mut *conn)
        .await?;
    let created: HashMap<i64, i64> = created.into_iter().collect();
    let mut ranges = Vec::new();
    for (low, high) in days {
        let (Some(&first_at), Some(&last_at)) = (created.get(&low), created.get(&high)) else {
            continue;
        };
        if last_at < since || first_at >= until {
            continue;
        }
        let from = if first_at >= since {
            low
        } else {
            first_since(conn, low, high, since).await?
        };
        let below = if last_at < until {
            high + 1
        } else {
            first_since(conn, low, high, until).await?
        };
        ranges.push(behind(IdRange {
            above: from - 1,
            below,
        }));
    }
    ranges.retain(|range| !range.is_empty());
    if filter.order == Order::Descending {
        ranges.reverse();
    }
    Ok(ranges)
}

/// The lowest id from `low` to `high` of a run written at `since` or later, found by bisection; `high + 1` without one.
async fn first_since(conn: &mut PgConnection, low: i64, high: i64, since: i64) -> Result<i64> {
    let (mut from, mut to) = (low, high + 1);
    while from < to {
        let middle = from + (to - from) / 2;
        let row: Option<(i64, i64)> = sqlx::query_as(FIRST_FROM)
            .bind(middle)
            .bind(high)
            .fetch_optional(&mut *conn)
            .await?;
        match row {
            Some((id, created_at)) if created_at < since => from = id + 1,
            _ => to = middle,
        }
    }
    Ok(from)
}
