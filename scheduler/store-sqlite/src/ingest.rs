//! Reports on their way into the store: one reading statement, decisions in memory, a handful of writing statements.

use std::collections::{HashMap, HashSet};

use cueline_model::{Job, RunState, Timestamp};
use cueline_store::{Ingested, LogRow, Report, ReportBody, StoreError};
use sqlx::SqliteConnection;

use crate::database::commit;
use crate::error::failed;
use crate::report::{Batch, Close, Event, Facts, Writes, soonest};
use crate::rows::{clean, decode, encode};
use crate::{SqliteStore, follow};

pub(crate) const FACTS: &str = "
    SELECT json_group_array(json_array(r.id, r.job_id, r.kind, r.state, r.attempt, r.retries, r.reruns, r.cancel_requested,
        r.fire_key, d.version, d.enabled, d.fixed_delay, d.has_children))
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value LEFT JOIN job_due d ON d.job_id = r.job_id";

pub(crate) const START: &str = "
    UPDATE run SET state = 3, started_at = e.value ->> 1, claimed_by = NULL,
        queued_at = CASE WHEN state = 1 THEN ?2 ELSE queued_at END
    FROM json_each(?1) e WHERE run.id = e.value ->> 0";

const PROGRESS: &str = "
    UPDATE run SET progress = e.value ->> 1 FROM json_each(?1) e WHERE run.id = e.value ->> 0";

pub(crate) const SUCCEED: &str = "
    UPDATE run SET state = 10, started_at = coalesce(e.value ->> 1, CASE WHEN state = 3 THEN started_at END),
        ended_at = e.value ->> 2, exit_status = e.value ->> 3, message = NULL, claimed_by = NULL
    FROM json_each(?1) e WHERE run.id = e.value ->> 0";

pub(crate) const CLOSE: &str = "
    UPDATE run SET state = e.value ->> '$.state', attempt = e.value ->> '$.attempt', retries = e.value ->> '$.retries',
        reruns = e.value ->> '$.reruns', due_at = coalesce(e.value ->> '$.due_at', due_at),
        started_at = coalesce(e.value ->> '$.started_at', CASE WHEN state = 3 THEN started_at END),
        ended_at = e.value ->> '$.ended_at', exit_status = e.value ->> '$.exit_status', message = e.value ->> '$.message',
        output = e.value ->> '$.output', claimed_by = NULL,
        progress = CASE WHEN e.value ->> '$.state' = 0 THEN NULL ELSE progress END
    FROM json_each(?1) e WHERE run.id = e.value ->> '$.id'";

/// A run that comes back again and again keeps the first thousand lines of its timeline.
const NOTE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT value ->> 0, ?2, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1)
    WHERE (SELECT count(*) FROM run_event v WHERE v.run_id = value ->> 0) < 1000";

/// A repeated late report is noted once.
const NOTE_ONCE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT DISTINCT value ->> 0, ?2, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1)
    WHERE NOT EXISTS (SELECT 1 FROM run_event v WHERE v.run_id = value ->> 0 AND v.attempt = value ->> 1
        AND v.event = value ->> 2 AND v.detail = value ->> 3)";

const NEW_LINES: &str = "
    SELECT json_group_array(e.key) FROM json_each(?1) e
    WHERE NOT EXISTS (SELECT 1 FROM run_log l WHERE l.run_id = e.value ->> 0 AND l.cursor = e.value ->> 1)";

const INSERT_LINES: &str = "
    INSERT INTO run_log (run_id, cursor, at, stream, text)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?1)";

impl SqliteStore {
    pub(crate) async fn apply_reports(&self, reports: &[Report]) -> Result<Ingested, StoreError> {
        if reports.is_empty() {
            return Ok(Ingested::default());
        }
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let facts = read_facts(&mut tx, reports).await?;
        let jobs = self.policies(&mut tx, reports, &facts).await?;
        let mut batch = Batch::new(facts, now)?;
        for report in reports {
            match &report.body {
                ReportBody::Started(at) => batch.started(report.id, *at),
                ReportBody::Progress(part) => batch.progress(report.id, *part),
                ReportBody::Ended(outcome) => batch.ended(report.id, outcome, &jobs),
                ReportBody::Log(_) => {}
            }
        }
        let useless = write_logs(&mut tx, reports, &batch).await?;
        let (writes, events, refusals, mut done) = batch.into_writes();
        done.refused += useless;
        write(&mut tx, &writes, now).await?;
        note(&mut tx, NOTE, &events, now).await?;
        note(&mut tx, NOTE_ONCE, &refusals, now).await?;
        self.follow_up(&mut tx, &writes.closed, now, &mut done)
            .await?;
        commit(tx).await?;
        Ok(done)
    }

    /// The definitions of jobs whose attempts failed: what follows depends on them.
    async fn policies(
        &self,
        conn: &mut SqliteConnection,
        reports: &[Report],
        facts: &[Facts],
    ) -> Result<HashMap<i64, std::sync::Arc<Job>>, StoreError> {
        let failed: HashSet<i64> = reports
            .iter()
            .filter(|r| match &r.body {
                ReportBody::Ended(o) => o.kind.state().is_some_and(RunState::is_failure),
                _ => false,
            })
            .map(|r| r.id.run.0)
            .collect();
        if failed.is_empty() {
            return Ok(HashMap::new());
        }
        let versions: HashMap<i64, i64> = facts
            .iter()
            .filter(|f| failed.contains(&f.id))
            .filter_map(|f| Some((f.job_id, f.version?)))
            .collect();
        self.definitions.of(conn, versions.into_iter()).await
    }

    async fn follow_up(
        &self,
        conn: &mut SqliteConnection,
        closed: &[(Facts, Close)],
        now: Timestamp,
        done: &mut Ingested,
    ) -> Result<(), StoreError> {
        let awaited: Vec<(i64, Timestamp)> = closed
            .iter()
            .filter(|(facts, _)| facts.is_awaited())
            .filter_map(|(facts, close)| Some((facts.job_id, close.ended_at?.min(now))))
            .collect();
        if let Some(next) = follow::next_after_end(conn, &self.definitions, &awaited).await? {
            soonest(&mut done.next_due, next);
        }
        let parents: Vec<follow::Success<'_>> = closed
            .iter()
            .filter(|(facts, close)| facts.has_children() && close.succeeded())
            .map(|(facts, close)| follow::Success {
                run: facts.id,
                job: facts.job_id,
                kind: facts.kind,
                fire_key: facts.fire_key,
                output: close.output.as_deref(),
            })
            .collect();
        if parents.is_empty() {
            return Ok(());
        }
        done.children = self.fire_children(conn, &parents, now).await?;
        if done.children > 0 {
            soonest(&mut done.next_due, now);
        }
        Ok(())
    }
}

async fn read_facts(
    conn: &mut SqliteConnection,
    reports: &[Report],
) -> Result<Vec<Facts>, StoreError> {
    let mut ids: Vec<i64> = reports.iter().map(|r| r.id.run.0).collect();
    ids.sort_unstable();
    ids.dedup();
    let text: String = sqlx::query_scalar(FACTS)
        .bind(encode(&ids)?)
        .fetch_one(conn)
        .await
        .map_err(failed("read the runs that are reported on"))?;
    decode(&text)
}

async fn write(
    conn: &mut SqliteConnection,
    writes: &Writes,
    now: Timestamp,
) -> Result<(), StoreError> {
    let fail = failed("apply reports");
    if !writes.started.is_empty() {
        sqlx::query(START)
            .bind(encode(&writes.started)?)
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    if !writes.progress.is_empty() {
        sqlx::query(PROGRESS)
            .bind(encode(&writes.progress)?)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    let plain: Vec<_> = writes
        .closed
        .iter()
        .filter_map(|(_, c)| c.plain())
        .collect();
    if !plain.is_empty() {
        sqlx::query(SUCCEED)
            .bind(encode(&plain)?)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    let others: Vec<&Close> = writes
        .closed
        .iter()
        .map(|(_, c)| c)
        .filter(|c| c.plain().is_none())
        .collect();
    if !others.is_empty() {
        sqlx::query(CLOSE)
            .bind(encode(&others)?)
            .execute(conn)
            .await
            .map_err(&fail)?;
    }
    Ok(())
}

async fn note(
    conn: &mut SqliteConnection,
    how: &'static str,
    events: &[Event],
    now: Timestamp,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    sqlx::query(how)
        .bind(encode(events)?)
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of runs"))
}

/// The place of a line in its run's log; `None` past the range of cursors.
fn cursor(attempt: u32, seq: u64) -> Option<i64> {
    let seq = i64::from(u32::try_from(seq).ok()?);
    (i64::from(attempt) << 32).checked_add(seq)
}

/// A line of a log as it was written down.
pub(crate) fn line(cursor: i64, at: i64, stream: String, text: String) -> LogRow {
    LogRow {
        cursor,
        attempt: crate::rows::small(cursor >> 32),
        seq: crate::rows::unsigned(cursor & 0xffff_ffff),
        at: Timestamp::from_millis(at),
        stream,
        text,
    }
}

/// Writes the lines that are new; how many reports brought none.
async fn write_logs(
    conn: &mut SqliteConnection,
    reports: &[Report],
    batch: &Batch,
) -> Result<usize, StoreError> {
    let fail = failed("write log lines");
    let mut rows = Vec::new();
    let mut from = Vec::new();
    let mut seen = HashSet::new();
    let mut reports_with_lines = 0;
    for (index, report) in reports.iter().enumerate() {
        let ReportBody::Log(lines) = &report.body else {
            continue;
        };
        reports_with_lines += 1;
        if !batch.keeps_log_of(report.id) {
            continue;
        }
        for (seq, at, stream, text) in lines {
            let run = report.id.run.0;
            let Some(cursor) = cursor(report.id.attempt, *seq) else {
                continue;
            };
            if seen.insert((run, cursor)) {
                rows.push((run, cursor, *at, *stream, clean(text)));
                from.push(index);
            }
        }
    }
    if rows.is_empty() {
        return Ok(reports_with_lines);
    }
    let keys: Vec<(i64, i64)> = rows.iter().map(|r| (r.0, r.1)).collect();
    let text: String = sqlx::query_scalar(NEW_LINES)
        .bind(encode(&keys)?)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    let new: Vec<usize> = decode(&text)?;
    let useful: HashSet<usize> = new.iter().filter_map(|&at| from.get(at).copied()).collect();
    let new: Vec<_> = new.iter().filter_map(|&at| rows.get(at)).collect();
    sqlx::query(INSERT_LINES)
        .bind(encode(&new)?)
        .execute(conn)
        .await
        .map_err(&fail)?;
    Ok(reports_with_lines - useful.len())
}
