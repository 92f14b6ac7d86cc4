//! Reports on their way into the store: one reading statement, decisions in memory, a handful of writing statements.

use std::collections::{HashMap, HashSet};

use cueline_model::Timestamp;
use cueline_store::adapter::facts::Event;
use cueline_store::adapter::log;
use cueline_store::adapter::report::{Batch, Writes, policies_of, soonest};
use cueline_store::{AttemptReport, IngestSummary, StoreError};
use sqlx::SqliteConnection;

use crate::database::commit;
use crate::error::failed;
use crate::report::{Row, closed, fires_of_parents};
use crate::rows::{decode, encode};
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
    pub(crate) async fn apply_reports(
        &self,
        reports: &[AttemptReport],
    ) -> Result<IngestSummary, StoreError> {
        if reports.is_empty() {
            return Ok(IngestSummary::default());
        }
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let rows = read_rows(&mut tx, reports).await?;
        let fires = fires_of_parents(&rows);
        let facts = rows.iter().map(Row::facts).collect::<Result<Vec<_>, _>>()?;
        let policies = policies_of(reports, &facts);
        let jobs = self.definitions.of(&mut tx, policies.into_iter()).await?;
        let mut batch = Batch::new(facts, now);
        batch.apply(reports, &jobs);
        let useless = write_logs(&mut tx, reports, &batch).await?;
        let mut writes = batch.into_writes();
        writes.done.ignored += useless;
        write(&mut tx, &writes, now).await?;
        note(&mut tx, NOTE, &writes.events, now).await?;
        note(&mut tx, NOTE_ONCE, &writes.refusals, now).await?;
        let done = self.follow_up(&mut tx, &writes, &fires, now).await?;
        commit(tx).await?;
        Ok(done)
    }

    async fn follow_up(
        &self,
        conn: &mut SqliteConnection,
        writes: &Writes,
        fires: &HashMap<i64, (i64, i64)>,
        now: Timestamp,
    ) -> Result<IngestSummary, StoreError> {
        let mut done = writes.done;
        let awaited = writes.awaited(now);
        if let Some(next) = follow::next_after_end(conn, &self.definitions, &awaited).await? {
            soonest(&mut done.next_due_at, next);
        }
        let parents: Vec<follow::Success<'_>> = writes
            .parents()
            .filter_map(|(facts, close)| {
                let &(fire_key, kind) = fires.get(&facts.id)?;
                Some(follow::Success {
                    run: facts.id,
                    job: facts.job_id,
                    kind,
                    fire_key,
                    output: close.output.as_deref(),
                })
            })
            .collect();
        if parents.is_empty() {
            return Ok(done);
        }
        done.child_runs = self.fire_children(conn, &parents, now).await?;
        if done.child_runs > 0 {
            soonest(&mut done.next_due_at, now);
        }
        Ok(done)
    }
}

async fn read_rows(
    conn: &mut SqliteConnection,
    reports: &[AttemptReport],
) -> Result<Vec<Row>, StoreError> {
    let mut ids: Vec<i64> = reports.iter().map(|r| r.attempt.run.0).collect();
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
        let started: Vec<(i64, Timestamp)> = writes.started.iter().map(|s| (s.run, s.at)).collect();
        sqlx::query(START)
            .bind(encode(&started)?)
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
    let (plain, others) = closed(writes);
    if !plain.is_empty() {
        sqlx::query(SUCCEED)
            .bind(encode(&plain)?)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
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
    let rows: Vec<_> = events
        .iter()
        .map(|e| (e.run, e.attempt, e.event, e.detail.as_str()))
        .collect();
    sqlx::query(how)
        .bind(encode(&rows)?)
        .bind(now.as_millis())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of runs"))
}

/// Writes the lines that are new; how many reports brought none.
async fn write_logs(
    conn: &mut SqliteConnection,
    reports: &[AttemptReport],
    batch: &Batch,
) -> Result<usize, StoreError> {
    let fail = failed("write log lines");
    let with_lines = log::with_lines(reports);
    let lines = log::lines(reports, batch);
    if lines.is_empty() {
        return Ok(with_lines);
    }
    let keys: Vec<(i64, i64)> = lines.iter().map(|l| (l.run, l.cursor)).collect();
    let text: String = sqlx::query_scalar(NEW_LINES)
        .bind(encode(&keys)?)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    let new: Vec<usize> = decode(&text)?;
    let new: Vec<&log::Line<'_>> = new.iter().filter_map(|&at| lines.get(at)).collect();
    let useful: HashSet<usize> = new.iter().map(|line| line.report).collect();
    let new: Vec<_> = new
        .iter()
        .map(|l| (l.run, l.cursor, l.at, l.stream, &l.text))
        .collect();
    sqlx::query(INSERT_LINES)
        .bind(encode(&new)?)
        .execute(conn)
        .await
        .map_err(&fail)?;
    Ok(with_lines - useful.len())
}
