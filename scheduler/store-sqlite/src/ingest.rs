//! Ingests reports. One statement reads the runs, decisions are made in memory, and a few statements write.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cueline_model::{RunKind, Timestamp};
use cueline_store::adapter::convert::{run_kind, run_state, to_u32};
use cueline_store::adapter::log_lines::NewLines;
use cueline_store::adapter::report_batch::{
    BatchWrites, ReportBatch, earlier_attempts, required_jobs,
};
use cueline_store::adapter::snapshot::{
    Children, JobSnapshot, RunSnapshot, executor_of_row, set_earlier_executors,
};
use cueline_store::adapter::timeline::TimelineEvent;
use cueline_store::adapter::transition::Transition;
use cueline_store::{AttemptReport, IngestSummary, StoreError};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;

/// The columns of [`SnapshotRow`]. The group of an ended run is not known if its job may have moved since. The subquery is
/// for deleted jobs only, and is not executed for others.
pub(crate) const SNAPSHOTS: &str = "
    SELECT json_group_array(json_array(r.id, r.job_id, r.kind, r.state, r.attempt, r.retries, r.reruns, r.cancel_requested,
        d.version, d.enabled, d.fixed_delay, d.children, d.paused_until, d.failing, r.executor,
        coalesce(r.published_group, CASE WHEN r.state < 10
            THEN coalesce(d.group_name, (SELECT j.group_name FROM job j WHERE j.id = r.job_id)) END)))
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value LEFT JOIN job_due d ON d.job_id = r.job_id";

/// Rows of [`set_earlier_executors`].
const EXECUTORS_OF_EARLIER: &str = "
    SELECT json_group_array(json_array(v.run_id, v.attempt, v.group_name, v.executor))
    FROM json_each(?1) e CROSS JOIN run_event v ON v.run_id = e.value ->> 0
    WHERE v.attempt = e.value ->> 1 AND v.executor IS NOT NULL";

/// An attempt counts as started when its trigger was queued or later, because the executor's clock may be behind.
pub(crate) const START: &str = "
    UPDATE run SET state = 3, started_at = e.value ->> 1, claimed_by = NULL,
        queued_at = CASE WHEN state = 1 THEN ?2 ELSE queued_at END,
        overdue_at = max(e.value ->> 1, coalesce(CASE WHEN state = 1 THEN ?2 ELSE queued_at END, e.value ->> 1))
            + (SELECT j.max_attempt_ms FROM job j WHERE j.id = run.job_id)
    FROM jsonb_each(?1) e WHERE run.id = e.value ->> 0";

const SET_PROGRESS: &str = "
    UPDATE run SET progress = e.value ->> 1 FROM json_each(?1) e WHERE run.id = e.value ->> 0";

/// For successes without message and output, which nearly all ends are.
pub(crate) const SUCCEED: &str = "
    UPDATE run SET state = 10, started_at = coalesce(e.value ->> 1, CASE WHEN state = 3 THEN started_at END),
        ended_at = e.value ->> 2, exit_status = e.value ->> 3, message = NULL, claimed_by = NULL
    FROM jsonb_each(?1) e WHERE run.id = e.value ->> 0";

pub(crate) const TRANSITION: &str = "
    UPDATE run SET state = e.value ->> '$.state', attempt = e.value ->> '$.attempt', retries = e.value ->> '$.retries',
        reruns = e.value ->> '$.reruns', due_at = coalesce(e.value ->> '$.due_at', due_at),
        started_at = coalesce(e.value ->> '$.started_at', CASE WHEN state = 3 THEN started_at END),
        ended_at = e.value ->> '$.ended_at', exit_status = e.value ->> '$.exit_status', message = e.value ->> '$.message',
        output = e.value ->> '$.output', claimed_by = NULL,
        progress = CASE WHEN e.value ->> '$.state' = 0 THEN NULL ELSE progress END,
        overdue_at = CASE WHEN e.value ->> '$.state' = 0 THEN NULL ELSE overdue_at END
    FROM jsonb_each(?1) e WHERE run.id = e.value ->> '$.run'";

/// A run that is retried over and over gets at most a thousand events.
const INSERT_EVENTS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail, group_name, executor)
    SELECT value ->> 0, ?2, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?1)
    WHERE (SELECT count(*) FROM run_event v WHERE v.run_id = value ->> 0) < 1000";

/// A repeated late report gets one event.
const INSERT_REFUSALS: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail, group_name, executor)
    SELECT DISTINCT value ->> 0, ?2, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?1)
    WHERE NOT EXISTS (SELECT 1 FROM run_event v WHERE v.run_id = value ->> 0 AND v.attempt = value ->> 1
        AND v.event = value ->> 2 AND v.detail = value ->> 3)";

/// Indexes of the lines that are not stored yet.
const NEW_LINES: &str = "
    SELECT json_group_array(e.key) FROM json_each(?1) e
    WHERE NOT EXISTS (SELECT 1 FROM run_log l WHERE l.run_id = e.value ->> 0 AND l.cursor = e.value ->> 1)";

const INSERT_LINES: &str = "
    INSERT INTO run_log (run_id, cursor, at, stream, text)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?1)";

/// A run before the reports. If it has no job version, its job is deleted.
#[derive(Debug, Deserialize)]
struct SnapshotRow {
    id: i64,
    job_id: i64,
    kind: i64,
    state: i64,
    attempt: i64,
    retries: i64,
    reruns: i64,
    cancel_requested: i64,
    version: Option<i64>,
    enabled: Option<i64>,
    fixed_delay: Option<i64>,
    children: Option<i64>,
    paused_until: Option<i64>,
    failing: Option<i64>,
    executor: Option<String>,
    executor_group: Option<String>,
}

impl SnapshotRow {
    fn snapshot(&self) -> std::result::Result<RunSnapshot, StoreError> {
        Ok(RunSnapshot {
            id: self.id,
            job_id: self.job_id,
            manual: run_kind(self.kind).is_ok_and(|kind| kind == RunKind::Manual),
            state: run_state(self.state)?,
            attempt: to_u32(self.attempt),
            retries: to_u32(self.retries),
            reruns: to_u32(self.reruns),
            cancel_requested: self.cancel_requested == 1,
            executor: executor_of_row(self.executor_group.as_deref(), self.executor.as_deref())?,
            earlier: BTreeMap::new(),
            job: self.version.map(|version| JobSnapshot {
                version,
                enabled: self.enabled == Some(1),
                fixed_delay: self.fixed_delay == Some(1),
                children: Children::from_code(self.children.unwrap_or_default()),
                paused_until: self.paused_until.map(Timestamp::from_millis),
                failing: self.failing == Some(1),
            }),
        })
    }
}

/// A transition as [`TRANSITION`] takes it.
#[derive(Debug, Serialize)]
struct TransitionRow<'a> {
    run: i64,
    state: u8,
    attempt: u32,
    retries: u32,
    reruns: u32,
    due_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    exit_status: Option<i32>,
    message: Option<&'a str>,
    output: Option<&'a str>,
}

impl<'a> TransitionRow<'a> {
    fn new(transition: &'a Transition) -> Self {
        Self {
            run: transition.run,
            state: transition.state.code(),
            attempt: transition.attempt,
            retries: transition.retries,
            reruns: transition.reruns,
            due_at: transition.due_at,
            started_at: transition.started_at,
            ended_at: transition.ended_at,
            exit_status: transition.exit_status,
            message: transition.message.as_deref(),
            output: transition.output.as_deref(),
        }
    }
}

impl SqliteStore {
    pub(crate) async fn ingest_reports(&self, reports: &[AttemptReport]) -> Result<IngestSummary> {
        if reports.is_empty() {
            return Ok(IngestSummary::default());
        }
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let mut runs = read_snapshots(&mut tx, reports).await?;
        read_earlier_executors(&mut tx, reports, &mut runs).await?;
        let jobs = self
            .definitions
            .get(&mut tx, required_jobs(reports, &runs))
            .await?;
        let mut batch = ReportBatch::new(runs, now);
        batch.apply(reports, &jobs);
        let ignored = insert_lines(&mut tx, &NewLines::of(reports, &batch)).await?;
        let mut writes = batch.into_writes();
        writes.summary.ignored += ignored;
        write(&mut tx, &writes, now).await?;
        insert_events(&mut tx, INSERT_EVENTS, &writes.events, now).await?;
        insert_events(&mut tx, INSERT_REFUSALS, &writes.refusals, now).await?;
        let summary = self.follow_up(&mut tx, &writes, now).await?;
        self.raise_alarms(&mut tx, &writes, &jobs, now).await?;
        tx.commit().await?;
        Ok(summary)
    }
}

async fn read_snapshots(
    conn: &mut SqliteConnection,
    reports: &[AttemptReport],
) -> Result<Vec<RunSnapshot>> {
    let ids: BTreeSet<i64> = reports.iter().map(|r| r.attempt.run.0).collect();
    let Json(rows): Json<Vec<SnapshotRow>> = sqlx::query_scalar(SNAPSHOTS)
        .bind(Json(ids))
        .fetch_one(conn)
        .await?;
    let snapshots = rows.iter().map(SnapshotRow::snapshot);
    Ok(snapshots.collect::<std::result::Result<_, _>>()?)
}

/// Reads who had the earlier attempts that executors report about, which is rare.
async fn read_earlier_executors(
    conn: &mut SqliteConnection,
    reports: &[AttemptReport],
    runs: &mut [RunSnapshot],
) -> Result<()> {
    let earlier = earlier_attempts(reports, runs);
    if earlier.is_empty() {
        return Ok(());
    }
    let Json(rows): Json<Vec<(i64, i64, String, String)>> =
        sqlx::query_scalar(EXECUTORS_OF_EARLIER)
            .bind(Json(earlier))
            .fetch_one(conn)
            .await?;
    Ok(set_earlier_executors(runs, &rows)?)
}

async fn write(conn: &mut SqliteConnection, writes: &BatchWrites, now: Timestamp) -> Result<()> {
    if !writes.started.is_empty() {
        let started: Vec<(i64, Timestamp)> = writes.started.iter().map(|s| (s.run, s.at)).collect();
        sqlx::query(START)
            .bind(Json(started))
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await?;
    }
    if !writes.progress.is_empty() {
        sqlx::query(SET_PROGRESS)
            .bind(Json(&writes.progress))
            .execute(&mut *conn)
            .await?;
    }
    let (plain, others): (Vec<&Transition>, Vec<&Transition>) = writes
        .ended
        .iter()
        .map(|(_, end)| end)
        .partition(|end| end.is_success() && end.message.is_none() && end.output.is_none());
    if !plain.is_empty() {
        let rows: Vec<_> = plain
            .iter()
            .map(|end| (end.run, end.started_at, end.ended_at, end.exit_status))
            .collect();
        sqlx::query(SUCCEED)
            .bind(Json(rows))
            .execute(&mut *conn)
            .await?;
    }
    // If a run got another attempt and ended in the same batch, only its end is written.
    let ended: HashSet<i64> = writes.ended.iter().map(|(_, end)| end.run).collect();
    let next_attempts = writes.next_attempts.iter();
    let rows: Vec<TransitionRow<'_>> = next_attempts
        .filter(|transition| !ended.contains(&transition.run))
        .chain(others)
        .map(TransitionRow::new)
        .collect();
    if !rows.is_empty() {
        sqlx::query(TRANSITION)
            .bind(Json(rows))
            .execute(conn)
            .await?;
    }
    Ok(())
}

async fn insert_events(
    conn: &mut SqliteConnection,
    statement: &'static str,
    events: &[TimelineEvent],
    now: Timestamp,
) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = events
        .iter()
        .map(|e| {
            let by = e.executor.as_ref();
            let (group, name) = (by.map(|by| &by.group), by.map(|by| &by.name));
            (e.run, e.attempt, e.event, e.detail.as_str(), group, name)
        })
        .collect();
    sqlx::query(statement)
        .bind(Json(rows))
        .bind(now.as_millis())
        .execute(conn)
        .await?;
    Ok(())
}

/// Stores the new lines. Returns the number of reports without a new line.
async fn insert_lines(conn: &mut SqliteConnection, lines: &NewLines<'_>) -> Result<usize> {
    if lines.lines().is_empty() {
        return Ok(lines.ignored_reports(|_| false));
    }
    let keys: Vec<(i64, i64)> = lines.lines().iter().map(|l| (l.run, l.cursor)).collect();
    let Json(new): Json<Vec<usize>> = sqlx::query_scalar(NEW_LINES)
        .bind(Json(&keys))
        .fetch_one(&mut *conn)
        .await?;
    let new: HashSet<(i64, i64)> = new.iter().filter_map(|at| keys.get(*at).copied()).collect();
    let is_new = |run, cursor| new.contains(&(run, cursor));
    let rows: Vec<_> = lines
        .lines()
        .iter()
        .filter(|l| is_new(l.run, l.cursor))
        .map(|l| (l.run, l.cursor, l.at, l.stream, &l.text))
        .collect();
    sqlx::query(INSERT_LINES)
        .bind(Json(rows))
        .execute(conn)
        .await?;
    Ok(lines.ignored_reports(|l| is_new(l.run, l.cursor)))
}
