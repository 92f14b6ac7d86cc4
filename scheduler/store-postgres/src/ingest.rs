//! Ingests reports. One statement reads the runs, decisions are made in memory, and a few statements write.
//!
//! Nearly all reports are plain successes, and need no decision: [`plain_ends`](crate::plain_ends) ends them before. Of the
//! others, ends on which nothing depends are decided without locks, and the statement that ends runs checks that they are
//! unchanged. If one has changed, the batch is decided again with its runs locked. If a decision reads or changes a job,
//! the job is locked first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use cueline_model::{AttemptEvent, RunKind, Timestamp};
use cueline_store::adapter::convert::{run_kind, run_state, to_i64, to_u32};
use cueline_store::adapter::log_lines::NewLines;
use cueline_store::adapter::plain_ends::add_summary;
use cueline_store::adapter::report_batch::{
    BatchWrites, ReportBatch, earlier_attempts, required_jobs,
};
use cueline_store::adapter::snapshot::{
    Children, JobSnapshot, RunSnapshot, executor_of_row, set_earlier_executors,
};
use cueline_store::adapter::timeline::TimelineEvent;
use cueline_store::adapter::transition::Transition;
use cueline_store::{AttemptReport, ErrorKind, IngestSummary, StoreError};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow as _, Row as _};

use crate::columns::{column, id_range, sparse, state_code, to_i32};
use crate::end_runs::end_runs;
use crate::error::Result;
use crate::partitions::{Day, share_old_days};
use crate::{PgStore, children, follow_ups, log_lines};

/// The last subquery is for deleted jobs only, and is not executed for others.
macro_rules! snapshots {
    ($lock:literal) => {
        concat!(
            "SELECT l.id, l.job_id, l.kind, l.state, l.attempt, l.retries, l.reruns, l.cancel_requested,
                d.version, d.enabled, d.fixed_delay, d.children, d.paused_until, d.failing, l.executor,
                coalesce(l.published_group, d.group_name, (SELECT j.group_name FROM job j WHERE j.id = l.job_id)) AS executor_group
            FROM run_live l LEFT JOIN job_due d ON d.job_id = l.job_id WHERE l.id = ANY ($1)",
            $lock
        )
    };
}

pub(crate) const SNAPSHOTS: &str = snapshots!("");
pub(crate) const SNAPSHOTS_LOCKED: &str = snapshots!(" ORDER BY l.id FOR UPDATE OF l");

/// The group of an ended run is not known if its job may have moved since.
pub(crate) const SNAPSHOTS_OF_ENDED: &str = "
    SELECT r.id, r.job_id, r.kind, r.state, r.attempt, r.retries, 0 AS reruns, r.cancel_requested,
        NULL::bigint AS version, NULL::boolean AS enabled, NULL::boolean AS fixed_delay, NULL::smallint AS children,
        NULL::bigint AS paused_until, NULL::boolean AS failing,
        r.executor, r.published_group AS executor_group
    FROM run r WHERE r.id = ANY ($1) AND r.state IS NOT NULL";

pub(crate) const EXECUTORS_OF_EARLIER: &str = "
    SELECT v.run_id, v.attempt::bigint, v.group_name, v.executor
    FROM unnest($1::bigint[], $2::integer[]) e (id, attempt)
        JOIN run_event v ON v.run_id = e.id AND v.run_id BETWEEN $3 AND $4 AND v.attempt = e.attempt
    WHERE v.executor IS NOT NULL";

/// An attempt counts as started when its trigger was queued or later, because the executor's clock may be behind.
pub(crate) const START: &str = "
    UPDATE run_live l SET state = 3, started_at = e.at, queued_at = CASE WHEN l.state = 1 THEN $4 ELSE l.queued_at END,
        overdue_at = greatest(e.at, CASE WHEN l.state = 1 THEN $4 ELSE l.queued_at END)
            + (SELECT j.max_attempt_ms FROM job j WHERE j.id = l.job_id)
    FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) e (id, attempt, at)
    WHERE l.id = e.id AND l.attempt = e.attempt AND l.state IN (1, 2)";

const SET_PROGRESS: &str = "
    UPDATE run_live l SET progress = e.fraction FROM unnest($1::bigint[], $2::double precision[]) e (id, fraction) WHERE l.id = e.id";

pub(crate) const NEXT_ATTEMPT: &str = "
    UPDATE run_live l SET state = 0, attempt = e.attempt, retries = e.retries, reruns = e.reruns, due_at = e.due_at,
        started_at = coalesce(e.started_at, CASE WHEN l.state = 3 THEN l.started_at END), exit_status = e.exit_status,
        message = e.message, claimed_by = NULL, progress = NULL, overdue_at = NULL
    FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[], $7::bigint[], $8::integer[],
        $9::text[]) e (id, from_attempt, attempt, retries, reruns, due_at, started_at, exit_status, message)
    WHERE l.id = e.id AND l.attempt = e.from_attempt";

/// Only a published run can succeed. The values of a run are at the index of its id in the sorted $1, as in
/// [`BEGIN`](crate::marks::BEGIN): a join would compare each run with each other while the statistics say that there are
/// none. `$6`, `$8` and `$10` are sparse, see [`sparse`].
pub(crate) const END: &str = end_runs!(
    "",
    delete: "WHERE l.id = ANY ($1::bigint[]) AND l.attempt = ($2::integer[])[width_bucket(l.id, $1::bigint[])]
        AND (l.state > 0 OR ($3::smallint[])[width_bucket(l.id, $1::bigint[])] > 10)",
    ends: "($3::smallint[])[width_bucket(l.id, $1::bigint[])] AS end_state,
        coalesce(($4::bigint[])[width_bucket(l.id, $1::bigint[])], CASE WHEN l.state = 3 THEN l.started_at END) AS began_at,
        ($5::bigint[])[width_bucket(l.id, $1::bigint[])] AS end_at,
        ($7::integer[])[($6::integer[])[width_bucket(l.id, $1::bigint[])]] AS status,
        ($9::text[])[($8::integer[])[width_bucket(l.id, $1::bigint[])]] AS reason,
        ($11::text[])[($10::integer[])[width_bucket(l.id, $1::bigint[])]] AS result",
    within: "AND run.id BETWEEN $12 AND $13",
    then: "SELECT count(*) FROM done"
);

/// A run that is retried over and over gets at most a thousand events.
pub(crate) const INSERT_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail, group_name, executor)
    SELECT e.id, $5, e.attempt, e.event, e.detail, e.group_name, e.executor
    FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[], $8::text[], $9::text[])
        e (id, attempt, event, detail, group_name, executor)
    WHERE (SELECT count(*) FROM (SELECT FROM run_event v WHERE v.run_id = e.id AND v.run_id BETWEEN $6 AND $7 LIMIT 1000) known) < 1000";

/// A repeated late report gets one event.
const INSERT_REFUSALS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail, group_name, executor)
    SELECT DISTINCT e.id, $5::bigint, e.attempt, e.event, e.detail, e.group_name, e.executor
    FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[], $8::text[], $9::text[])
        e (id, attempt, event, detail, group_name, executor)
    WHERE NOT EXISTS (SELECT FROM run_event v WHERE v.run_id = e.id AND v.run_id BETWEEN $6 AND $7 AND v.attempt = e.attempt
        AND v.event = e.event AND v.detail = e.detail)";

/// A record without content in the database's log.
const WRITE_NOTHING: &str = "SELECT pg_logical_emit_message(true, 'cueline', '')::text";

/// A batch is decided at most this often while its jobs change.
const MAX_TRIES: u32 = 4;

/// The runs of a batch.
struct Snapshots {
    runs: Vec<RunSnapshot>,
    /// Whether the runs are locked until this transaction ends.
    locked: bool,
}

impl PgStore {
    pub(crate) async fn ingest_reports(&self, reports: &[AttemptReport]) -> Result<IngestSummary> {
        let (mut summary, others) = self.end_plainly(reports).await?;
        if others.len() == reports.len() {
            return self.ingest_others(reports).await;
        }
        if !others.is_empty() {
            let (positions, others): (Vec<usize>, Vec<AttemptReport>) = others
                .into_iter()
                .map(|(at, other)| (at, other.clone()))
                .unzip();
            let of_others = self.ingest_others(&others).await?;
            add_summary(&mut summary, of_others, &positions);
        }
        Ok(summary)
    }

    async fn ingest_others(&self, reports: &[AttemptReport]) -> Result<IngestSummary> {
        if reports.is_empty() {
            return Ok(IngestSummary::default());
        }
        for round in 0..MAX_TRIES {
            if let Some(summary) = self.try_ingest(reports, round > 0).await? {
                return Ok(summary);
            }
        }
        Err(StoreError::new(
            ErrorKind::Transient,
            "failed to ingest reports: their jobs change too often",
        )
        .into())
    }

    /// Returns `None` without having written anything if runs or jobs changed between reading and writing.
    async fn try_ingest(
        &self,
        reports: &[AttemptReport],
        lock: bool,
    ) -> Result<Option<IngestSummary>> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let days = reports.iter().map(|r| Day::of_run(r.attempt.run.0));
        share_old_days(&mut tx, &days.collect(), now).await?;
        let Some(Snapshots { mut runs, locked }) = read_snapshots(&mut tx, reports, lock).await?
        else {
            return Ok(None);
        };
        read_earlier_executors(&mut tx, reports, &mut runs).await?;
        let jobs = self
            .definitions
            .get(&mut tx, required_jobs(reports, &runs))
            .await?;
        let mut batch = ReportBatch::new(runs, now);
        batch.apply(reports, &jobs);
        let ignored = log_lines::insert(&mut tx, &NewLines::of(reports, &batch)).await?;
        let mut writes = batch.into_writes();
        writes.summary.ignored += ignored;
        if !write(&mut tx, &writes, now).await? && !locked {
            return Ok(None);
        }
        insert_events(&mut tx, INSERT_EVENTS, &writes.events, now).await?;
        insert_events(&mut tx, INSERT_REFUSALS, &writes.refusals, now).await?;
        let summary = self.follow_up(&mut tx, &writes).await?;
        self.raise_alarms(&mut tx, &writes, &jobs).await?;
        if summary.ignored > 0 || !summary.foreign.is_empty() {
            // A report without effect is not seen again. A former primary does not know what happened since its standby was
            // promoted, so it may take any report for one. It cannot commit, but only a commit of something waits for the standby.
            sqlx::query(WRITE_NOTHING).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(Some(summary))
    }
}

/// Reads the runs. With `lock`, or if an end involves a job, it locks the jobs first and then the runs. Returns `None`
/// if more jobs are involved then.
async fn read_snapshots(
    conn: &mut PgConnection,
    reports: &[AttemptReport],
    lock: bool,
) -> Result<Option<Snapshots>> {
    let ids: BTreeSet<i64> = reports.iter().map(|r| r.attempt.run.0).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let runs = read_runs(conn, &ids, SNAPSHOTS).await?;
    let jobs = involved_jobs(reports, &runs);
    if jobs.is_empty() && !lock {
        let locked = false;
        return Ok(Some(Snapshots { runs, locked }));
    }
    let lock: Vec<i64> = jobs.iter().copied().collect();
    let has_parents = |run: &RunSnapshot| run.has_children() && jobs.contains(&run.job_id);
    if runs.iter().any(has_parents) {
        children::lock_with_children(conn, lock).await?;
    } else {
        follow_ups::lock_jobs(conn, lock).await?;
    }
    let runs = read_runs(conn, &ids, SNAPSHOTS_LOCKED).await?;
    let locked = involved_jobs(reports, &runs).is_subset(&jobs);
    Ok(locked.then_some(Snapshots { runs, locked }))
}

/// The jobs that must not change while these reports are applied.
fn involved_jobs(reports: &[AttemptReport], runs: &[RunSnapshot]) -> HashSet<i64> {
    let by_id: HashMap<i64, &RunSnapshot> = runs.iter().map(|run| (run.id, run)).collect();
    reports
        .iter()
        .filter_map(|report| match &report.event {
            AttemptEvent::Ended { outcome } => {
                let run = by_id.get(&report.attempt.run.0)?;
                run.end_involves_job(outcome).then_some(run.job_id)
            }
            _ => None,
        })
        .collect()
}

/// Reads live runs with `live_statement`, and the others from among the ended ones.
async fn read_runs(
    conn: &mut PgConnection,
    ids: &[i64],
    live_statement: &'static str,
) -> Result<Vec<RunSnapshot>> {
    let mut rows = sqlx::query(live_statement)
        .bind(ids)
        .fetch_all(&mut *conn)
        .await?;
    if rows.len() < ids.len() {
        let live = rows.iter().map(|row| row.try_get("id"));
        let live = live.collect::<std::result::Result<HashSet<i64>, _>>()?;
        let others: Vec<i64> = ids
            .iter()
            .copied()
            .filter(|id| !live.contains(id))
            .collect();
        rows.extend(
            sqlx::query(SNAPSHOTS_OF_ENDED)
                .bind(others)
                .fetch_all(conn)
                .await?,
        );
    }
    rows.iter().map(snapshot).collect()
}

/// Reads who had the earlier attempts that executors report about, which is rare.
async fn read_earlier_executors(
    conn: &mut PgConnection,
    reports: &[AttemptReport],
    runs: &mut [RunSnapshot],
) -> Result<()> {
    let earlier = earlier_attempts(reports, runs);
    if earlier.is_empty() {
        return Ok(());
    }
    let (ids, attempts): (Vec<i64>, Vec<i32>) = earlier
        .into_iter()
        .map(|(run, attempt)| (run, to_i32(attempt)))
        .unzip();
    let (low, high) = id_range(ids.iter().copied());
    let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(EXECUTORS_OF_EARLIER)
        .bind(ids)
        .bind(attempts)
        .bind(low)
        .bind(high)
        .fetch_all(conn)
        .await?;
    Ok(set_earlier_executors(runs, &rows)?)
}

/// The columns of [`SNAPSHOTS`] by their places, because each access by name searches for it.
type SnapshotRow<'r> = (
    i64,
    i64,
    i16,
    i16,
    i32,
    i32,
    i32,
    bool,
    Option<i64>,
    Option<bool>,
    Option<bool>,
    Option<i16>,
    Option<i64>,
    Option<bool>,
    Option<&'r str>,
    Option<&'r str>,
);

/// A run before the reports. If it has no job version, its job is deleted.
fn snapshot(row: &PgRow) -> Result<RunSnapshot> {
    let (
        id,
        job_id,
        kind,
        state,
        attempt,
        retries,
        reruns,
        cancel_requested,
        version,
        enabled,
        fixed_delay,
        children,
        paused_until,
        failing,
        executor,
        group,
    ) = SnapshotRow::from_row(row)?;
    let job = version.map(|version| JobSnapshot {
        version,
        enabled: enabled == Some(true),
        fixed_delay: fixed_delay == Some(true),
        children: Children::from_code(i64::from(children.unwrap_or_default())),
        paused_until: paused_until.map(Timestamp::from_millis),
        failing: failing == Some(true),
    });
    Ok(RunSnapshot {
        id,
        job_id,
        manual: run_kind(kind).is_ok_and(|k| k == RunKind::Manual),
        state: run_state(state)?,
        attempt: to_u32(attempt),
        retries: to_u32(retries),
        reruns: to_u32(reruns),
        cancel_requested,
        executor: executor_of_row(group, executor)?,
        earlier: BTreeMap::new(),
        job,
    })
}

/// Writes the changes of runs. Returns whether all runs were unchanged since they were read.
async fn write(conn: &mut PgConnection, writes: &BatchWrites, now: Timestamp) -> Result<bool> {
    let mut unchanged = true;
    if !writes.started.is_empty() {
        let started = sqlx::query(START)
            .bind(column(&writes.started, |s| s.run))
            .bind(column(&writes.started, |s| to_i32(s.attempt)))
            .bind(column(&writes.started, |s| s.at.as_millis()))
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await?;
        unchanged &= started.rows_affected() == writes.started.len() as u64;
    }
    if !writes.progress.is_empty() {
        let (ids, fractions): (Vec<i64>, Vec<f64>) = writes.progress.iter().copied().unzip();
        sqlx::query(SET_PROGRESS)
            .bind(ids)
            .bind(fractions)
            .execute(&mut *conn)
            .await?;
    }
    write_next_attempts(conn, &writes.next_attempts).await?;
    let ended: Vec<&Transition> = writes.ended.iter().map(|(_, end)| end).collect();
    Ok(write_ends(conn, &ended).await? && unchanged)
}

async fn write_next_attempts(conn: &mut PgConnection, transitions: &[Transition]) -> Result<()> {
    if transitions.is_empty() {
        return Ok(());
    }
    sqlx::query(NEXT_ATTEMPT)
        .bind(column(transitions, |t| t.run))
        .bind(column(transitions, |t| to_i32(t.from_attempt)))
        .bind(column(transitions, |t| to_i32(t.attempt)))
        .bind(column(transitions, |t| to_i32(t.retries)))
        .bind(column(transitions, |t| to_i32(t.reruns)))
        .bind(column(transitions, |t| t.due_at.map(Timestamp::as_millis)))
        .bind(column(transitions, |t| {
            t.started_at.map(Timestamp::as_millis)
        }))
        .bind(column(transitions, |t| t.exit_status))
        .bind(column(transitions, |t| t.message.as_deref()))
        .execute(conn)
        .await?;
    Ok(())
}

async fn write_ends(conn: &mut PgConnection, ended: &[&Transition]) -> Result<bool> {
    if ended.is_empty() {
        return Ok(true);
    }
    let (low, high) = id_range(ended.iter().map(|end| end.run));
    let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
    let (status_at, statuses) = sparse(ended, |end| end.exit_status);
    let (message_at, messages) = sparse(ended, |end| end.message.as_deref());
    let (output_at, outputs) = sparse(ended, |end| end.output.as_deref());
    let count: i64 = sqlx::query_scalar(END)
        .bind(column(ended, |end| end.run))
        .bind(column(ended, |end| to_i32(end.from_attempt)))
        .bind(column(ended, |end| state_code(end.state)))
        .bind(column(ended, |end| millis(end.started_at)))
        .bind(column(ended, |end| millis(end.ended_at)))
        .bind(status_at)
        .bind(statuses)
        .bind(message_at)
        .bind(messages)
        .bind(output_at)
        .bind(outputs)
        .bind(low)
        .bind(high)
        .fetch_one(conn)
        .await?;
    Ok(count == to_i64(ended.len()))
}

async fn insert_events(
    conn: &mut PgConnection,
    statement: &'static str,
    events: &[TimelineEvent],
    now: Timestamp,
) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let (low, high) = id_range(events.iter().map(|e| e.run));
    sqlx::query(statement)
        .bind(column(events, |e| e.run))
        .bind(column(events, |e| to_i32(e.attempt)))
        .bind(column(events, |e| e.event))
        .bind(column(events, |e| e.detail.as_str()))
        .bind(now.as_millis())
        .bind(low)
        .bind(high)
        .bind(column(events, |e| {
            e.executor.as_ref().map(|by| by.group.as_str())
        }))
        .bind(column(events, |e| {
            e.executor.as_ref().map(|by| by.name.as_str())
        }))
        .execute(conn)
        .await?;
    Ok(())
}
