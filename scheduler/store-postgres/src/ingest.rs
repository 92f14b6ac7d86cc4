//! Reports on their way into the store: one reading statement, decisions in memory, a handful of writing statements.
//!
//! Plain successes, nearly all reports, need no lock to decide on: the statement that ends runs checks that they are as they were read, and
//! where they are not, the batch is decided once more with its runs locked. What depends on a job, or changes it, holds the job's lock.

use std::collections::{BTreeSet, HashMap, HashSet};

use cueline_model::{AttemptEvent, Timestamp};
use cueline_store::adapter::attempt::Close;
use cueline_store::adapter::facts::{Event, Facts};
use cueline_store::adapter::report::{Batch, Writes, policies_of, soonest};
use cueline_store::{AttemptReport, ErrorKind, IngestSummary, StoreError};
use sqlx::postgres::PgConnection;

use crate::PgStore;
use crate::database::{Write, commit};
use crate::error::failed;
use crate::finish::finish;
use crate::follow;
use crate::logs;
use crate::report::{Row, sort};
use crate::rows::{bounds, code, int4};

macro_rules! facts {
    ($lock:literal) => {
        concat!(
            "SELECT l.id, l.job_id, l.kind, l.state, l.attempt, l.retries, l.reruns, l.cancel_requested,
                d.version, d.enabled, d.fixed_delay, d.has_children
            FROM run_live l LEFT JOIN job_due d ON d.job_id = l.job_id WHERE l.id = ANY ($1)",
            $lock
        )
    };
}

pub(crate) const FACTS: &str = facts!("");
pub(crate) const FACTS_LOCKED: &str = facts!(" ORDER BY l.id FOR UPDATE OF l");

pub(crate) const FACTS_OF_ENDED: &str = "
    SELECT r.id, r.job_id, r.kind, r.state, r.attempt, r.retries, 0 AS reruns, r.cancel_requested,
        NULL::bigint AS version, NULL::boolean AS enabled, NULL::boolean AS fixed_delay, NULL::boolean AS has_children
    FROM run r WHERE r.id = ANY ($1) AND r.state IS NOT NULL";

pub(crate) const START: &str = "
    UPDATE run_live l SET state = 3, started_at = e.at, queued_at = CASE WHEN l.state = 1 THEN $4 ELSE l.queued_at END
    FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) e (id, attempt, at)
    WHERE l.id = e.id AND l.attempt = e.attempt AND l.state IN (1, 2)";

const PROGRESS: &str = "
    UPDATE run_live l SET progress = e.part FROM unnest($1::bigint[], $2::double precision[]) e (id, part) WHERE l.id = e.id";

pub(crate) const AGAIN: &str = "
    UPDATE run_live l SET state = 0, attempt = e.attempt, retries = e.retries, reruns = e.reruns, due_at = e.due_at,
        started_at = coalesce(e.started_at, CASE WHEN l.state = 3 THEN l.started_at END), exit_status = e.exit_status,
        message = e.message, claimed_by = NULL, progress = NULL
    FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[], $7::bigint[], $8::integer[],
        $9::text[]) e (id, from_attempt, attempt, retries, reruns, due_at, started_at, exit_status, message)
    WHERE l.id = e.id AND l.attempt = e.from_attempt";

/// Only what is out can succeed.
pub(crate) const END: &str = finish!(
    "e AS (SELECT * FROM unnest($1::bigint[], $2::integer[], $3::smallint[], $4::bigint[], $5::bigint[], $6::integer[], $7::text[],
        $8::text[]) u (id, attempt, state, started_at, ended_at, exit_status, message, output)),",
    delete: "USING e WHERE l.id = e.id AND l.attempt = e.attempt AND (l.state > 0 OR e.state > 10)",
    ends: "e.state AS end_state, coalesce(e.started_at, CASE WHEN l.state = 3 THEN l.started_at END) AS began_at,
        e.ended_at AS end_at, e.exit_status AS status, e.message AS why, e.output AS result",
    within: "AND run.id BETWEEN $9 AND $10",
    then: "SELECT count(*) FROM done"
);

/// A run that comes back again and again keeps the first thousand lines of its timeline.
pub(crate) const NOTE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT e.id, $5, e.attempt, e.event, e.detail
    FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[]) e (id, attempt, event, detail)
    WHERE (SELECT count(*) FROM (SELECT FROM run_event v WHERE v.run_id = e.id AND v.run_id BETWEEN $6 AND $7 LIMIT 1000) known) < 1000";

/// A repeated late report is noted once.
const NOTE_ONCE: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT DISTINCT e.id, $5::bigint, e.attempt, e.event, e.detail
    FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[]) e (id, attempt, event, detail)
    WHERE NOT EXISTS (SELECT FROM run_event v WHERE v.run_id = e.id AND v.run_id BETWEEN $6 AND $7 AND v.attempt = e.attempt
        AND v.event = e.event AND v.detail = e.detail)";

/// A batch is decided again so many times when jobs change under it.
const MOST_TRIES: u32 = 4;

/// What is known of the runs of a batch.
struct Read {
    facts: Vec<Facts>,
    /// Nobody else can change them until the transaction ends.
    locked: bool,
}

impl PgStore {
    pub(crate) async fn apply_reports(
        &self,
        reports: &[AttemptReport],
    ) -> Result<IngestSummary, StoreError> {
        if reports.is_empty() {
            return Ok(IngestSummary::default());
        }
        for round in 0..MOST_TRIES {
            if let Some(done) = self.apply_once(reports, round > 0).await? {
                return Ok(done);
            }
        }
        Err(StoreError::new(
            ErrorKind::Transient,
            "failed to apply reports: their jobs change all the time",
        ))
    }

    /// `None` when runs or jobs have changed between reading and writing; then nothing has happened.
    async fn apply_once(
        &self,
        reports: &[AttemptReport],
        lock: bool,
    ) -> Result<Option<IngestSummary>, StoreError> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let Some(Read { facts, locked }) = read(&mut tx, reports, lock).await? else {
            return Ok(None);
        };
        let policies = policies_of(reports, &facts);
        let jobs = self.definitions.of(&mut tx, policies.into_iter()).await?;
        let mut batch = Batch::new(facts, now);
        batch.apply(reports, &jobs);
        let useless = logs::write(&mut tx, reports, &batch).await?;
        let mut writes = batch.into_writes();
        sort(&mut writes);
        writes.done.ignored += useless;
        if !write(&mut tx, &writes, now).await? && !locked {
            return Ok(None);
        }
        note(&mut tx, NOTE, &writes.events, now).await?;
        note(&mut tx, NOTE_ONCE, &writes.refusals, now).await?;
        let done = self.follow_up(&mut tx, &writes).await?;
        commit(tx).await?;
        Ok(Some(done))
    }

    async fn follow_up(
        &self,
        write: &mut Write,
        writes: &Writes,
    ) -> Result<IngestSummary, StoreError> {
        let mut done = writes.done;
        let now = write.now;
        let awaited = writes.awaited(now);
        if let Some(next) = follow::next_after_end(write, &self.definitions, &awaited).await? {
            soonest(&mut done.next_due_at, next);
        }
        let parents: Vec<follow::Success<'_>> = writes
            .parents()
            .map(|(facts, close)| follow::Success {
                run: facts.id,
                job: facts.job_id,
                output: close.output.as_deref(),
            })
            .collect();
        if parents.is_empty() {
            return Ok(done);
        }
        done.child_runs = self.fire_children(write, &parents).await?;
        if done.child_runs > 0 {
            soonest(&mut done.next_due_at, now);
        }
        Ok(done)
    }
}

/// Reads what is known of the runs. With `lock`, or if what follows depends on their jobs, holds the jobs first and then the runs; `None` if
/// more jobs would have to be held by then.
async fn read(
    conn: &mut PgConnection,
    reports: &[AttemptReport],
    lock: bool,
) -> Result<Option<Read>, StoreError> {
    let ids: BTreeSet<i64> = reports.iter().map(|r| r.attempt.run.0).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let facts = read_facts(conn, &ids, FACTS).await?;
    let held = binding(reports, &facts);
    if held.is_empty() && !lock {
        return Ok(Some(Read {
            facts,
            locked: false,
        }));
    }
    follow::hold(conn, held.iter().copied().collect()).await?;
    let facts = read_facts(conn, &ids, FACTS_LOCKED).await?;
    if !binding(reports, &facts).is_subset(&held) {
        return Ok(None);
    }
    Ok(Some(Read {
        facts,
        locked: true,
    }))
}

/// The jobs that must not change while these reports are applied.
fn binding(reports: &[AttemptReport], facts: &[Facts]) -> HashSet<i64> {
    let by_id: HashMap<i64, &Facts> = facts.iter().map(|f| (f.id, f)).collect();
    reports
        .iter()
        .filter_map(|report| match &report.event {
            AttemptEvent::Ended { outcome } => {
                let facts = by_id.get(&report.attempt.run.0)?;
                facts.binds_job(outcome).then_some(facts.job_id)
            }
            _ => None,
        })
        .collect()
}

async fn read_facts(
    conn: &mut PgConnection,
    ids: &[i64],
    of_live: &'static str,
) -> Result<Vec<Facts>, StoreError> {
    let fail = failed("read the runs that are reported on");
    let rows: Vec<Row> = sqlx::query_as(of_live)
        .bind(ids)
        .fetch_all(&mut *conn)
        .await
        .map_err(&fail)?;
    let mut facts = rows.iter().map(Row::facts).collect::<Result<Vec<_>, _>>()?;
    if facts.len() == ids.len() {
        return Ok(facts);
    }
    let live: HashSet<i64> = facts.iter().map(|f| f.id).collect();
    let others: Vec<i64> = ids
        .iter()
        .copied()
        .filter(|id| !live.contains(id))
        .collect();
    let ended: Vec<Row> = sqlx::query_as(FACTS_OF_ENDED)
        .bind(others)
        .fetch_all(conn)
        .await
        .map_err(&fail)?;
    for row in &ended {
        facts.push(row.facts()?);
    }
    Ok(facts)
}

/// Writes what a batch wants; whether all its runs were as it had read them.
async fn write(
    conn: &mut PgConnection,
    writes: &Writes,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let fail = failed("apply reports");
    let mut as_read = true;
    if !writes.started.is_empty() {
        let started = sqlx::query(START)
            .bind(column(&writes.started, |s| s.run))
            .bind(column(&writes.started, |s| int4(s.attempt)))
            .bind(column(&writes.started, |s| s.at.as_millis()))
            .bind(now.as_millis())
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
        as_read &= started.rows_affected() == writes.started.len() as u64;
    }
    if !writes.progress.is_empty() {
        let (ids, parts): (Vec<i64>, Vec<f64>) = writes.progress.iter().copied().unzip();
        sqlx::query(PROGRESS)
            .bind(ids)
            .bind(parts)
            .execute(&mut *conn)
            .await
            .map_err(&fail)?;
    }
    go_on(conn, &writes.again).await?;
    let ended: Vec<&Close> = writes.ended.iter().map(|(_, close)| close).collect();
    Ok(end(conn, &ended).await? && as_read)
}

async fn go_on(conn: &mut PgConnection, again: &[Close]) -> Result<(), StoreError> {
    if again.is_empty() {
        return Ok(());
    }
    sqlx::query(AGAIN)
        .bind(column(again, |c| c.id))
        .bind(column(again, |c| int4(c.from_attempt)))
        .bind(column(again, |c| int4(c.attempt)))
        .bind(column(again, |c| int4(c.retries)))
        .bind(column(again, |c| int4(c.reruns)))
        .bind(column(again, |c| c.due_at.map(Timestamp::as_millis)))
        .bind(column(again, |c| c.started_at.map(Timestamp::as_millis)))
        .bind(column(again, |c| c.exit_status))
        .bind(column(again, |c| c.message.as_deref()))
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("apply reports"))
}

async fn end(conn: &mut PgConnection, ended: &[&Close]) -> Result<bool, StoreError> {
    if ended.is_empty() {
        return Ok(true);
    }
    let (low, high) = bounds(ended.iter().map(|c| c.id));
    let count: i64 = sqlx::query_scalar(END)
        .bind(column(ended, |c| c.id))
        .bind(column(ended, |c| int4(c.from_attempt)))
        .bind(column(ended, |c| code(c.state)))
        .bind(column(ended, |c| c.started_at.map(Timestamp::as_millis)))
        .bind(column(ended, |c| c.ended_at.map(Timestamp::as_millis)))
        .bind(column(ended, |c| c.exit_status))
        .bind(column(ended, |c| c.message.as_deref()))
        .bind(column(ended, |c| c.output.as_deref()))
        .bind(low)
        .bind(high)
        .fetch_one(conn)
        .await
        .map_err(failed("apply reports"))?;
    Ok(count == crate::rows::int(ended.len()))
}

/// One column of a list.
fn column<'a, C, T>(list: &'a [C], of: impl Fn(&'a C) -> T) -> Vec<T> {
    list.iter().map(of).collect()
}

async fn note(
    conn: &mut PgConnection,
    how: &'static str,
    events: &[Event],
    now: Timestamp,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let (low, high) = bounds(events.iter().map(|e| e.run));
    sqlx::query(how)
        .bind(column(events, |e| e.run))
        .bind(column(events, |e| int4(e.attempt)))
        .bind(column(events, |e| e.event))
        .bind(column(events, |e| e.detail.as_str()))
        .bind(now.as_millis())
        .bind(low)
        .bind(high)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of runs"))
}
