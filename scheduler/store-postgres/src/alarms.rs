//! Alarms: definitions, and what the ends of runs and missed fire times raise in their transactions (G9).

use std::collections::BTreeSet;
use std::sync::Arc;

use cueline_model::alarm::NewAlarmEvent;
use cueline_model::{Actor, AlarmBook, AlarmSilence, Namespace};
use cueline_store::adapter::alarm_events::{
    EventColumns, StreakRow, alarming_ends, end_writes, event_columns, has_missed, missed_events,
    raise_nothing,
};
use cueline_store::adapter::alarms::{
    DefinitionRow, SILENCE, audit_name, audit_word, change_definition, definition_to_delete,
    parse_book, room_for_silence, silence_to_end,
};
use cueline_store::adapter::audit::alarm_changed;
use cueline_store::adapter::convert::corrupt;
use cueline_store::adapter::definitions::JobsById;
use cueline_store::adapter::new_run::NewRun;
use cueline_store::adapter::report_batch::BatchWrites;
use cueline_store::{
    AlarmDefinition, AlarmName, AppliedAlarm, Change, MAX_WAITING_EVENTS, Precondition, Revision,
};
use sqlx::postgres::PgConnection;

use crate::columns::column;
use crate::database::WriteTx;
use crate::error::Result;
use crate::{PgStore, audit};

const REVISION: &str = "SELECT revision FROM alarm_revision";

/// One change of definitions at a time.
pub(crate) const LOCK: &str = "SELECT revision FROM alarm_revision FOR UPDATE";

const NEXT_REVISION: &str = "UPDATE alarm_revision SET revision = revision + 1";

/// One statement, so that the definitions belong to the revision.
const BOOK: &str = "
    SELECT r.revision, coalesce((SELECT json_agg(json_build_array(d.id, d.kind, d.name, d.version, d.definition) ORDER BY d.id)
        FROM alarm_definition d), '[]'::json)::text
    FROM alarm_revision r";

const DEFINITIONS: &str =
    "SELECT id, kind::bigint, name, version, definition FROM alarm_definition ORDER BY id";

const INSERT_DEFINITION: &str = "
    INSERT INTO alarm_definition (kind, name, version, definition) VALUES ($1::smallint, $2, 1, $3) RETURNING id";

const UPDATE_DEFINITION: &str =
    "UPDATE alarm_definition SET version = version + 1, definition = $2 WHERE id = $1";

const DELETE_DEFINITIONS: &str = "DELETE FROM alarm_definition WHERE id = ANY ($1::bigint[])";

pub(crate) const STREAKS: &str = "
    SELECT job_id, failures, first_run, since FROM alarm_streak WHERE job_id = ANY ($1::bigint[])";

pub(crate) const WRITE_STREAKS: &str = "
    INSERT INTO alarm_streak (job_id, failures, first_run, since)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
    ON CONFLICT (job_id) DO UPDATE SET failures = excluded.failures, first_run = excluded.first_run, since = excluded.since";

pub(crate) const DELETE_STREAKS: &str =
    "DELETE FROM alarm_streak WHERE job_id = ANY ($1::bigint[])";

/// Most failures change nothing here: only the first one of a streak does, and its end.
pub(crate) const SET_FAILING: &str = "
    UPDATE job_due SET failing = $2 WHERE job_id = ANY ($1::bigint[]) AND failing <> $2";

/// An event that is there already is left out, and so are those of a rule that has very many.
pub(crate) const INSERT_EVENTS: &str = "
    INSERT INTO alarm_event (at, namespace, rule_id, rule, key, kind, job, facts, send_at)
    SELECT e.* FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::bigint[]) e (at, namespace, rule_id, rule, key, kind, job, facts, send_at)
    WHERE (SELECT count(*) FROM (SELECT FROM alarm_event w WHERE w.rule_id = e.rule_id AND w.send_at IS NOT NULL LIMIT $10) waiting) < $10
    ON CONFLICT DO NOTHING";

impl PgStore {
    /// The present definitions. A transaction that has changed them reads its own.
    pub(crate) async fn present_book(&self, conn: &mut PgConnection) -> Result<Arc<AlarmBook>> {
        let revision: i64 = sqlx::query_scalar(REVISION).fetch_one(&mut *conn).await?;
        if let Some(book) = self.alarms.exactly(revision) {
            return Ok(book);
        }
        let (revision, rows): (i64, String) = sqlx::query_as(BOOK).fetch_one(conn).await?;
        let rows: Vec<DefinitionRow> = serde_json::from_str(&rows)
            .map_err(|e| corrupt("failed to read alarm definitions", e))?;
        let book = Arc::new(parse_book(revision, rows));
        // Changes read it before they write, so it is a committed one.
        self.alarms.keep(&book);
        Ok(book)
    }

    /// Writes the alarms that the ends of a batch raise. Without a failure, and without a success of a job that has failed
    /// before, it does nothing.
    pub(crate) async fn raise_alarms(
        &self,
        tx: &mut WriteTx,
        writes: &BatchWrites,
        jobs: &JobsById,
    ) -> Result<()> {
        let now = tx.now;
        let ends = alarming_ends(writes, jobs);
        if ends.is_empty() {
            return Ok(());
        }
        let book = self.present_book(&mut *tx).await?;
        if raise_nothing(&book, &ends) {
            return Ok(());
        }
        let jobs: BTreeSet<i64> = ends.iter().map(|end| end.job.id.0).collect();
        let streaks: Vec<StreakRow> = sqlx::query_as(STREAKS)
            .bind(jobs.into_iter().collect::<Vec<_>>())
            .fetch_all(&mut **tx)
            .await?;
        let writes = end_writes(&book, &ends, streaks, now);
        if !writes.streaks.is_empty() {
            let streaks = &writes.streaks;
            sqlx::query(WRITE_STREAKS)
                .bind(column(streaks, |row| row.0))
                .bind(column(streaks, |row| row.1))
                .bind(column(streaks, |row| row.2))
                .bind(column(streaks, |row| row.3))
                .execute(&mut **tx)
                .await?;
            set_failing(tx, column(streaks, |row| row.0), true).await?;
        }
        if !writes.ended_streaks.is_empty() {
            sqlx::query(DELETE_STREAKS)
                .bind(&writes.ended_streaks)
                .execute(&mut **tx)
                .await?;
            set_failing(tx, writes.ended_streaks.clone(), false).await?;
        }
        insert_events(tx, &writes.events).await?;
        Ok(())
    }

    /// Writes the alarms about fire times that were found too late.
    pub(crate) async fn raise_missed(
        &self,
        tx: &mut WriteTx,
        runs: &[NewRun],
        left_out: &BTreeSet<i64>,
    ) -> Result<()> {
        if !has_missed(runs) {
            return Ok(());
        }
        let book = self.present_book(&mut *tx).await?;
        let events = missed_events(&book, runs, left_out, tx.now);
        insert_events(tx, &events).await?;
        Ok(())
    }

    pub(crate) async fn alarm_book(&self) -> Result<Arc<AlarmBook>> {
        let mut conn = self.db.read().await?;
        self.present_book(&mut conn).await
    }

    pub(crate) async fn put_alarm(
        &self,
        definition: &AlarmDefinition,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<AppliedAlarm> {
        let mut tx = self.db.write().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let rows: Vec<DefinitionRow> = sqlx::query_as(DEFINITIONS).fetch_all(&mut *tx).await?;
        let change = change_definition(definition, &rows, condition)?;
        let revision = match (&change.before, change.change) {
            (Some((id, version, _)), Change::Unchanged) => Revision {
                id: *id,
                version: *version,
            },
            (Some((id, version, _)), _) => {
                sqlx::query(UPDATE_DEFINITION)
                    .bind(id)
                    .bind(&change.text)
                    .execute(&mut *tx)
                    .await?;
                Revision {
                    id: *id,
                    version: version + 1,
                }
            }
            (None, _) => Revision {
                id: sqlx::query_scalar(INSERT_DEFINITION)
                    .bind(change.kind)
                    .bind(&change.name)
                    .bind(&change.text)
                    .fetch_one(&mut *tx)
                    .await?,
                version: 1,
            },
        };
        let applied = AppliedAlarm {
            revision,
            change: change.change,
        };
        if change.change == Change::Unchanged {
            return Ok(applied);
        }
        let name = (
            audit_word(change.kind),
            change.name.as_str(),
            &change.namespace,
        );
        let before = change.before.map(|(_, _, text)| text);
        let entry = alarm_changed(by, name, before, Some(change.text));
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let now = tx.now;
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(applied)
    }

    pub(crate) async fn delete_alarm(
        &self,
        name: &AlarmName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<()> {
        let mut tx = self.db.write().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let rows: Vec<DefinitionRow> = sqlx::query_as(DEFINITIONS).fetch_all(&mut *tx).await?;
        let (id, text) = definition_to_delete(name, &rows, condition)?;
        sqlx::query(DELETE_DEFINITIONS)
            .bind(vec![id])
            .execute(&mut *tx)
            .await?;
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let (word, object, namespace) = audit_name(name);
        let entry = alarm_changed(by, (word, object, &namespace), Some(text), None);
        let now = tx.now;
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await
    }

    pub(crate) async fn add_silence(&self, spec: &AlarmSilence, by: &Actor) -> Result<i64> {
        let mut tx = self.db.write().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let now = tx.now;
        let book = self.present_book(&mut tx).await?;
        let over = room_for_silence(&book, &spec.namespace, now)?;
        sqlx::query(DELETE_DEFINITIONS)
            .bind(over)
            .execute(&mut *tx)
            .await?;
        let text = silence_text(spec)?;
        let id: i64 = sqlx::query_scalar(INSERT_DEFINITION)
            .bind(SILENCE)
            .bind("")
            .bind(&text)
            .fetch_one(&mut *tx)
            .await?;
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let name = (audit_word(SILENCE), &*id.to_string(), &spec.namespace);
        let entry = alarm_changed(by, name, None, Some(text));
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(id)
    }

    pub(crate) async fn end_silence(
        &self,
        namespace: &Namespace,
        id: i64,
        by: &Actor,
    ) -> Result<()> {
        let mut tx = self.db.write().await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let now = tx.now;
        let book = self.present_book(&mut tx).await?;
        let text = silence_text(silence_to_end(&book, namespace, id)?)?;
        sqlx::query(DELETE_DEFINITIONS)
            .bind(vec![id])
            .execute(&mut *tx)
            .await?;
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let name = (audit_word(SILENCE), &*id.to_string(), namespace);
        let entry = alarm_changed(by, name, Some(text), None);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await
    }
}

fn silence_text(spec: &AlarmSilence) -> Result<String> {
    let text = serde_json::to_string(spec);
    Ok(text.map_err(|e| corrupt("failed to write a silence", e))?)
}

async fn set_failing(tx: &mut WriteTx, jobs: Vec<i64>, failing: bool) -> Result<()> {
    sqlx::query(SET_FAILING)
        .bind(jobs)
        .bind(failing)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Writes events that are not there yet. Returns their number.
pub(crate) async fn insert_events(tx: &mut WriteTx, events: &[NewAlarmEvent]) -> Result<u64> {
    if events.is_empty() {
        return Ok(0);
    }
    let rows: Vec<EventColumns> = event_columns(events);
    let inserted = sqlx::query(INSERT_EVENTS)
        .bind(column(&rows, |row| row.0))
        .bind(column(&rows, |row| row.1.as_str()))
        .bind(column(&rows, |row| row.2))
        .bind(column(&rows, |row| row.3.as_str()))
        .bind(column(&rows, |row| row.4.as_str()))
        .bind(column(&rows, |row| row.5))
        .bind(column(&rows, |row| row.6.as_deref()))
        .bind(column(&rows, |row| row.7.as_str()))
        .bind(column(&rows, |row| row.8))
        .bind(MAX_WAITING_EVENTS)
        .execute(&mut **tx)
        .await?;
    Ok(inserted.rows_affected())
}
