//! Lists jobs: by name, or by their next fire time.
//!
//! Each statement reads an index in the order of the list. What the index does not tell is looked at for each row, and
//! the number of rows is bounded.

use std::collections::HashMap;

use cueline_model::JobId;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::job_list::{CandidateRow, fits, has_labels, merged, position, ranges};
use cueline_store::adapter::page_scan::{BATCH, PageScan};
use cueline_store::adapter::queries::JobRow;
use cueline_store::{JobFilter, JobList, JobPosition, JobSort, Order, StoreError};
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::error::Result;

/// Selects the columns of [`CandidateRow`].
macro_rules! candidates {
    ($from:literal, $which:literal) => {
        concat!(
            "SELECT j.id, j.version, j.name, j.group_name, d.enabled, d.next_fire_at FROM ",
            $from,
            " WHERE ",
            $which
        )
    };
}

pub(crate) const BY_NAME: &str = candidates!(
    "job j CROSS JOIN job_due d ON d.job_id = j.id",
    "j.name >= ?1 AND j.name < ?2 AND j.deleted_at IS NULL ORDER BY j.name LIMIT ?3"
);
pub(crate) const BY_NAME_DESCENDING: &str = candidates!(
    "job j CROSS JOIN job_due d ON d.job_id = j.id",
    "j.name >= ?1 AND j.name < ?2 AND j.deleted_at IS NULL ORDER BY j.name DESC LIMIT ?3"
);
pub(crate) const OF_GROUP: &str = candidates!(
    "job j CROSS JOIN job_due d ON d.job_id = j.id",
    "j.group_name = ?4 AND j.name >= ?1 AND j.name < ?2 AND j.deleted_at IS NULL ORDER BY j.name LIMIT ?3"
);
pub(crate) const OF_GROUP_DESCENDING: &str = candidates!(
    "job j CROSS JOIN job_due d ON d.job_id = j.id",
    "j.group_name = ?4 AND j.name >= ?1 AND j.name < ?2 AND j.deleted_at IS NULL ORDER BY j.name DESC LIMIT ?3"
);
pub(crate) const PLANNED: &str = candidates!(
    "job_due d CROSS JOIN job j ON j.id = d.job_id",
    "d.next_fire_at IS NOT NULL AND (d.next_fire_at, d.job_id) > (?1, ?2) ORDER BY d.next_fire_at, d.job_id LIMIT ?3"
);
pub(crate) const PLANNED_DESCENDING: &str = candidates!(
    "job_due d CROSS JOIN job j ON j.id = d.job_id",
    "d.next_fire_at IS NOT NULL AND (d.next_fire_at, d.job_id) < (?1, ?2) ORDER BY d.next_fire_at DESC, d.job_id DESC LIMIT ?3"
);
pub(crate) const BY_ID: &str = candidates!(
    "job_due d CROSS JOIN job j ON j.id = d.job_id",
    "d.job_id > ?1 ORDER BY d.job_id LIMIT ?2"
);
pub(crate) const BY_ID_DESCENDING: &str = candidates!(
    "job_due d CROSS JOIN job j ON j.id = d.job_id",
    "d.job_id < ?1 ORDER BY d.job_id DESC LIMIT ?2"
);

const NAME_OF: &str = "SELECT name FROM job WHERE id = ?1";

/// The fewest rows in one statement.
const FIRST_BATCH: usize = 100;

/// Where a list continues.
enum Place {
    /// Behind the job with this name, if any.
    Name(Option<String>),
    /// Among the jobs with a next fire time, behind this time and id.
    Planned(i64, i64),
    /// Among the jobs without one, behind this id.
    Idle(i64),
}

impl SqliteStore {
    pub(crate) async fn list_jobs(&self, filter: &JobFilter) -> Result<JobList> {
        let mut tx = self.db.snapshot().await?;
        let (JobSort::Name(order) | JobSort::NextFire(order)) = filter.sort;
        let mut place = place(&mut tx, filter, order).await?;
        let mut page: PageScan<JobRow, JobPosition> = PageScan::new(filter.limit);
        let mut batch = filter.limit.saturating_add(1).clamp(FIRST_BATCH, BATCH);
        let is_complete = loop {
            let (rows, is_last) = read(&mut tx, filter, &place, order, batch).await?;
            let jobs = if filter.labels.is_empty() {
                HashMap::new()
            } else {
                let versions = rows.iter().map(|row| (row.0, row.1));
                self.definitions.get(&mut tx, versions).await?
            };
            let is_idle = matches!(place, Place::Idle(_));
            for row in &rows {
                let position = if is_idle {
                    JobPosition {
                        next_fire: None,
                        id: JobId(row.0),
                    }
                } else {
                    position(filter.sort, row)
                };
                let belongs = !(is_idle && row.5.is_some())
                    && fits(filter, row)?
                    && has_labels(&filter.labels, &jobs, row.0);
                page.take(position, belongs.then_some((row.0, row.1, row.5)));
            }
            if page.is_over() {
                break false;
            }
            if !is_last {
                place = behind(place, rows.last());
            } else if matches!(place, Place::Planned(..)) {
                place = Place::Idle(first_id(order));
            } else {
                break true;
            }
            batch = (batch * 2).min(BATCH);
        };
        let (rows, next) = page.finish(is_complete);
        let jobs = self.summaries(&mut tx, &rows).await?;
        Ok(JobList { jobs, next })
    }
}

const fn first_id(order: Order) -> i64 {
    match order {
        Order::Ascending => i64::MIN,
        Order::Descending => i64::MAX,
    }
}

/// Where the filter's page begins.
async fn place(conn: &mut SqliteConnection, filter: &JobFilter, order: Order) -> Result<Place> {
    let first = first_id(order);
    match (filter.sort, filter.after) {
        (JobSort::Name(_), None) => Ok(Place::Name(None)),
        (JobSort::Name(_), Some(after)) => {
            let name: Option<String> = sqlx::query_scalar(NAME_OF)
                .bind(after.id.0)
                .fetch_optional(conn)
                .await?;
            let unknown = || StoreError::invalid(format!("there never was a job {}", after.id.0));
            Ok(Place::Name(Some(name.ok_or_else(unknown)?)))
        }
        (JobSort::NextFire(_), None) => Ok(Place::Planned(first, first)),
        (JobSort::NextFire(_), Some(after)) => Ok(match after.next_fire {
            Some(at) => Place::Planned(at.as_millis(), after.id.0),
            None => Place::Idle(after.id.0),
        }),
    }
}

/// The place behind the last row. Without a row, it stays.
fn behind(place: Place, last: Option<&CandidateRow>) -> Place {
    match (place, last) {
        (place, None) => place,
        (Place::Name(_), Some(row)) => Place::Name(Some(row.2.clone())),
        (Place::Planned(at, _), Some(row)) => Place::Planned(row.5.unwrap_or(at), row.0),
        (Place::Idle(_), Some(row)) => Place::Idle(row.0),
    }
}

/// The next rows, and whether they are the last ones there.
async fn read(
    conn: &mut SqliteConnection,
    filter: &JobFilter,
    place: &Place,
    order: Order,
    batch: usize,
) -> Result<(Vec<CandidateRow>, bool)> {
    let is_ascending = order == Order::Ascending;
    let rows: Vec<CandidateRow> = match place {
        Place::Name(last) => {
            return read_by_name(conn, filter, last.as_deref(), order, batch).await;
        }
        Place::Planned(at, id) => {
            let statement = if is_ascending {
                PLANNED
            } else {
                PLANNED_DESCENDING
            };
            sqlx::query_as(statement)
                .bind(*at)
                .bind(*id)
                .bind(to_i64(batch))
                .fetch_all(conn)
                .await?
        }
        Place::Idle(id) => {
            let statement = if is_ascending {
                BY_ID
            } else {
                BY_ID_DESCENDING
            };
            sqlx::query_as(statement)
                .bind(*id)
                .bind(to_i64(batch))
                .fetch_all(conn)
                .await?
        }
    };
    let is_last = rows.len() < batch;
    Ok((rows, is_last))
}

async fn read_by_name(
    conn: &mut SqliteConnection,
    filter: &JobFilter,
    last: Option<&str>,
    order: Order,
    batch: usize,
) -> Result<(Vec<CandidateRow>, bool)> {
    let is_ascending = order == Order::Ascending;
    let mut rows: Vec<CandidateRow> = Vec::new();
    let mut is_last = true;
    for range in ranges(filter, last, order) {
        let statement = match (&range.group, is_ascending) {
            (None, true) => BY_NAME,
            (None, false) => BY_NAME_DESCENDING,
            (Some(_), true) => OF_GROUP,
            (Some(_), false) => OF_GROUP_DESCENDING,
        };
        let mut query = sqlx::query_as::<sqlx::Sqlite, CandidateRow>(statement)
            .bind(range.from)
            .bind(range.below)
            .bind(to_i64(batch));
        if let Some(group) = &range.group {
            query = query.bind(group.as_str().to_owned());
        }
        let found: Vec<CandidateRow> = query.fetch_all(&mut *conn).await?;
        is_last &= found.len() < batch;
        rows.extend(found);
    }
    let rows = merged(rows, order);
    is_last &= rows.len() <= batch;
    let rows = rows.into_iter().take(batch).collect();
    Ok((rows, is_last))
}
