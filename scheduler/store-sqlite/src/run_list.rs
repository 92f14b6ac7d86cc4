//! Lists runs.
//!
//! The ids come from an index, in the order of the list. What the index does not tell is looked at for each run, and the
//! number of runs is bounded.

use std::collections::{HashMap, HashSet};

use cueline_model::{RunId, RunState, Timestamp};
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
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;
use crate::run_times::first_since;
use crate::runs::{codes, id_range, read_runs, runs_of_jobs};

macro_rules! all {
    ($direction:literal) => {
        concat!(
            "SELECT json_group_array(id) FROM (SELECT id FROM run WHERE id > ?1 AND id < ?2 ORDER BY id ",
            $direction,
            " LIMIT ?3)"
        )
    };
}

pub(crate) const ALL: &str = all!("DESC");
pub(crate) const ALL_ASCENDING: &str = all!("ASC");

/// For states other than success. Few runs are in such a state.
macro_rules! in_rare_states {
    ($direction:literal) => {
        concat!(
            "SELECT json_group_array(id) FROM (
                SELECT id FROM run WHERE state > 10 AND state IN (SELECT value FROM json_each(?3)) AND id > ?1 AND id < ?2
                UNION ALL
                SELECT id FROM run WHERE state < 10 AND state IN (SELECT value FROM json_each(?3)) AND id > ?1 AND id < ?2
                ORDER BY id ",
            $direction,
            " LIMIT ?4)"
        )
    };
}

pub(crate) const IN_RARE_STATES: &str = in_rare_states!("DESC");
pub(crate) const IN_RARE_STATES_ASCENDING: &str = in_rare_states!("ASC");

/// Which of these runs fit, with their jobs.
pub(crate) const FITTING: &str = "
    SELECT r.id, r.job_id FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value
    WHERE (?2 = '[]' OR r.state IN (SELECT value FROM json_each(?2))) AND (?3 = '[]' OR r.kind IN (SELECT value FROM json_each(?3)))
        AND (?4 = '[]' OR r.executor IN (SELECT value FROM json_each(?4))) AND r.created_at >= ?5 AND r.created_at < ?6";

const JOBS_NAMED: &str = "
    SELECT j.id, j.version, j.name, j.group_name FROM json_each(?1) e CROSS JOIN job j ON j.name = e.value";

pub(crate) const JOBS_OF_GROUPS: &str = "
    SELECT j.id, j.version, j.name, j.group_name FROM json_each(?1) e CROSS JOIN job j ON j.group_name = e.value LIMIT ?2";

const JOBS_OF_NAMESPACE: &str = "
    SELECT id, version, name, group_name FROM job
    WHERE name >= ?1 AND name < ?2 AND (?3 = 0 OR instr(name, '/') = 0) LIMIT ?4";

const JOBS_BY_ID: &str = "
    SELECT j.id, j.version, j.name, j.group_name FROM json_each(?1) e CROSS JOIN job j ON j.id = e.value";

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

impl SqliteStore {
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
        conn: &mut SqliteConnection,
        filter: &RunFilter,
    ) -> Result<Option<Vec<i64>>> {
        if !is_about_jobs(filter) {
            return Ok(None);
        }
        let most = most_candidates(filter);
        let groups = looked_up_groups(&filter.groups, filter.within.as_deref());
        let rows: Vec<JobRow> = if !filter.jobs.is_empty() {
            let rows: Vec<JobRow> = sqlx::query_as(JOBS_NAMED)
                .bind(Json(&filter.jobs))
                .fetch_all(&mut *conn)
                .await?;
            require_names(&filter.jobs, rows.iter().map(|row| row.2.as_str()))?;
            rows
        } else if let Some(groups) = groups {
            sqlx::query_as(JOBS_OF_GROUPS)
                .bind(Json(groups))
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
        conn: &mut SqliteConnection,
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
        conn: &mut SqliteConnection,
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
        conn: &mut SqliteConnection,
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
        let states: &[RunState] = if *source == RunSource::All {
            &filter.states
        } else {
            &[]
        };
        let kinds: Vec<u8> = filter.kinds.iter().map(|kind| kind.code()).collect();
        let rows: Vec<(i64, i64)> = sqlx::query_as(FITTING)
            .bind(Json(ids))
            .bind(codes(states))
            .bind(Json(kinds))
            .bind(Json(&filter.executors))
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
            .bind(Json(&unknown))
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
    conn: &mut SqliteConnection,
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
            let Json(ids) = sqlx::query_scalar(if is_ascending { ALL_ASCENDING } else { ALL })
                .bind(range.above)
                .bind(range.below)
                .bind(to_i64(batch))
                .fetch_one(conn)
                .await?;
            ids
        }
        RunSource::RareStates => {
            let statement = if is_ascending {
                IN_RARE_STATES_ASCENDING
            } else {
                IN_RARE_STATES
            };
            let Json(ids) = sqlx::query_scalar(statement)
                .bind(range.above)
                .bind(range.below)
                .bind(codes(&filter.states))
                .bind(to_i64(batch))
                .fetch_one(conn)
                .await?;
            ids
        }
    };
    Ok(FoundRuns {
        ids,
        searched_to: None,
    })
}

/// Ids of runs that were written within the times of the filter. Ids ascend with the time of writing.
async fn id_ranges_of(conn: &mut SqliteConnection, filter: &RunFilter) -> Result<Vec<IdRange>> {
    let mut range = IdRange::ALL;
    let (since, until) = id_times(filter);
    if filter.since.is_some() || filter.until.is_some() {
        let (lowest, highest) = id_range(conn).await?;
        range = IdRange {
            above: first_since(conn, lowest, highest, since)
                .await?
                .saturating_sub(1),
            below: first_since(conn, lowest, highest, until).await?,
        };
    }
    let range = range.behind(filter.after, filter.order);
    let ranges = vec![range];
    Ok(ranges
        .into_iter()
        .filter(|range| !range.is_empty())
        .collect())
}
