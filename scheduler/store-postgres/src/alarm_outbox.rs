//! The outbox of alarms: events become deliveries, and deliveries are claimed and settled. Lists of both.

use std::collections::BTreeMap;

use async_trait::async_trait;
use cueline_model::alarm::{AlarmFacts, ConditionKind, JobLoad, LevelFound, MAX_LISTED_EVENTS};
use cueline_model::{Actor, ChannelName, Timestamp};
use cueline_store::adapter::alarm_deliveries::{
    ClaimedRow, DeliveryRow, DueRow, GIVEN_UP, MAX_LOOKED_AT, MessageRow, WaitingOfChannelRow,
    choose_deliveries, claimed_deliveries, delivery, kept_answer, refuse_beyond_bound,
    room_for_test, settled, test_rule,
};
use cueline_store::adapter::alarm_events::{
    Collected, EventRow, FATE_SENT, LevelRow, LoadRow, WaitingRow, collect, event, facts_text,
    level_changes, loads,
};
use cueline_store::adapter::audit::channel_tested;
use cueline_store::adapter::convert::to_i64;
use cueline_store::{
    AlarmDelivery, AlarmEvent, AlarmFilter, AlarmStore, ClaimedDelivery, CollectedAlarms,
    CountedJob, ErrorKind, MAX_CLAIMED_OF_CHANNEL, MAX_COUNTED_WAITING, MAX_DELIVERY_AGE_MS,
    NotedLevels, SendInProgress, SendOutcome, StoreError,
};

use crate::alarms::{LOCK, insert_events};
use crate::columns::column;
use crate::error::Result;
use crate::{PgStore, audit};

/// If another scheduler collects at this moment, this one does not.
const LOCK_COLLECTOR: &str = "SELECT 1 FROM alarm_revision FOR UPDATE SKIP LOCKED";

/// The rules are an array and no join. Without statistics, a join would compare the waiting events of a rule with each other.
pub(crate) const WAITING: &str = "
    SELECT e.id, e.at, e.rule_id, e.rule, e.kind, e.facts FROM alarm_event e
    WHERE e.send_at IS NOT NULL AND e.rule_id = ANY (ARRAY(SELECT DISTINCT d.rule_id FROM alarm_event d WHERE d.send_at <= $1))
    ORDER BY e.rule_id, e.id LIMIT $2";

pub(crate) const DECIDE: &str = "
    UPDATE alarm_event SET send_at = NULL, fate = e.fate, reference = e.reference
    FROM unnest($1::bigint[], $2::smallint[], $3::bigint[]) e (id, fate, reference) WHERE alarm_event.id = e.id";

/// A delivery with an answer is not sent.
const INSERT_DELIVERIES: &str = "
    INSERT INTO alarm_delivery (batch, namespace, rule, channel, events, answer, created_at, state, next_at, ended_at)
    SELECT e.*, $7, CASE WHEN e.answer = '' THEN 0 ELSE 2 END, CASE WHEN e.answer = '' THEN $7 END, CASE WHEN e.answer <> '' THEN $7 END
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[])
        e (batch, namespace, rule, channel, events, answer) RETURNING id";

pub(crate) const WAITING_OF_CHANNELS: &str = "
    SELECT d.channel, count(*) FROM alarm_delivery d WHERE d.next_at IS NOT NULL AND d.channel = ANY ($1::text[]) GROUP BY d.channel";

const INSERT_TEST: &str = "
    INSERT INTO alarm_event (at, namespace, rule_id, rule, key, kind, facts) VALUES ($1, $2, 0, $3, 'test', $4, $5)
    RETURNING id";

/// What was sent before and is too old. A delivery that is being sent is not due.
pub(crate) const GIVE_UP_OLD: &str = "
    UPDATE alarm_delivery SET state = 2, next_at = NULL, ended_at = $1, answer = $3 || CASE WHEN answer = '' THEN 'none' ELSE answer END
    WHERE id IN (SELECT d.id FROM alarm_delivery d WHERE d.next_at <= $1 AND d.created_at <= $2 AND d.attempts > 0
        ORDER BY d.next_at LIMIT $4 FOR UPDATE SKIP LOCKED)";

/// A few of each channel, so that one that does not answer cannot take all places.
pub(crate) const DUE: &str = "
    SELECT r.id, r.namespace, r.channel, EXISTS (SELECT FROM alarm_delivery f WHERE f.channel = r.channel AND f.next_at IS NOT NULL
        AND f.attempts > 0 AND (f.answer <> '' OR f.next_at <= $1))
    FROM (SELECT d.id, d.namespace, d.channel, d.attempts > 0 AS was_sent, d.next_at,
            row_number() OVER (PARTITION BY d.channel ORDER BY d.attempts > 0, d.next_at, d.id) AS place
        FROM alarm_delivery d WHERE d.next_at <= $1 AND d.channel <> ALL ($2::text[])) r
    WHERE r.place <= $3 ORDER BY r.was_sent, r.next_at, r.id LIMIT $4";

pub(crate) const CLAIM: &str = "
    UPDATE alarm_delivery d SET attempts = d.attempts + 1, next_at = $3
    FROM (SELECT id FROM alarm_delivery WHERE id = ANY ($1::bigint[]) AND next_at <= $2 ORDER BY id FOR UPDATE SKIP LOCKED) c
    WHERE d.id = c.id RETURNING d.id, d.attempts::bigint, d.batch, d.rule, d.channel, d.events";

pub(crate) const OF_BATCHES: &str = "
    SELECT b.id, e.at, e.kind, e.facts FROM unnest($1::bigint[]) b (id)
    CROSS JOIN LATERAL (SELECT * FROM alarm_event e WHERE e.fate = 1 AND e.reference = b.id ORDER BY e.id LIMIT $2) e
    ORDER BY b.id, e.id";

pub(crate) const SETTLE: &str = "
    UPDATE alarm_delivery SET state = $3::smallint, next_at = $4, ended_at = $5, answer = $6
    WHERE id = $1 AND attempts = $2::integer AND state = 0";

pub(crate) const NEXT: &str = "
    SELECT least((SELECT min(send_at) FROM alarm_event WHERE send_at IS NOT NULL),
        (SELECT min(next_at) FROM alarm_delivery WHERE next_at IS NOT NULL))";

const HOLD: &str =
    "UPDATE alarm_checker SET holder = $1, until = $3 WHERE holder = $1 OR until <= $2";

/// The due time of a run that was released is postponed. That of a first attempt follows from its fire time, unless it is a
/// child (2) or of a backfill (4).
pub(crate) const LOADS: &str = "
    SELECT j.id, w.waiting, w.oldest_run, w.oldest_due_at FROM unnest($1::bigint[], $4::bigint[]) j (id, jitter)
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting, (array_agg(l.id ORDER BY l.due_at, l.id))[1] AS oldest_run, min(l.due_at) AS oldest_due_at
        FROM (SELECT d.id, d.due_at FROM (
                SELECT r.id, CASE WHEN r.attempt = 1 AND r.kind NOT IN (2, 4) THEN least(r.due_at, r.fire_at + j.jitter) ELSE r.due_at END AS due_at
                FROM run_live r WHERE r.job_id = j.id AND r.state < 3) d
            WHERE d.due_at <= $2 LIMIT $3) l) w
    WHERE w.waiting > 0";

const LEVELS: &str = "SELECT subject, absent_checks::bigint FROM alarm_level FOR UPDATE";

/// Those in $1 did not hold in one check more, and those in $2 hold again.
const COUNT_ABSENT: &str = "
    UPDATE alarm_level SET absent_checks = CASE WHEN subject = ANY ($1::text[]) THEN absent_checks + 1 ELSE 0 END
    WHERE subject = ANY ($1::text[]) OR subject = ANY ($2::text[])";

pub(crate) const FORGET_LEVELS: &str = "DELETE FROM alarm_level WHERE subject = ANY ($1::text[])";

pub(crate) const NOTE_LEVELS: &str = "
    INSERT INTO alarm_level (subject, since) SELECT e.subject, $2 FROM unnest($1::text[]) e (subject) ON CONFLICT DO NOTHING";

pub(crate) const EVENTS: &str = "
    SELECT id, at, rule, kind, facts, send_at, fate::bigint, reference FROM alarm_event
    WHERE namespace = $1 AND ($2::text IS NULL OR rule = $2) AND ($3::text IS NULL OR job = $3) AND id < $4
    ORDER BY id DESC LIMIT $5";

pub(crate) const DELIVERIES: &str = "
    SELECT id, batch, rule, channel, events, created_at, state::bigint, attempts::bigint, next_at, ended_at, answer
    FROM alarm_delivery WHERE namespace = $1 AND ($2::text IS NULL OR rule = $2) AND id < $3 ORDER BY id DESC LIMIT $4";

pub(crate) const PRUNE_EVENTS: &str = "
    DELETE FROM alarm_event WHERE id IN (SELECT e.id FROM alarm_event e
        WHERE e.at < $1 AND e.send_at IS NULL AND NOT EXISTS
            (SELECT FROM alarm_delivery d WHERE d.batch = e.reference AND d.next_at IS NOT NULL AND e.fate = 1)
        ORDER BY e.at LIMIT $2)";

pub(crate) const PRUNE_DELIVERIES: &str = "
    DELETE FROM alarm_delivery WHERE id IN (SELECT id FROM alarm_delivery WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)";

pub(crate) const PRUNE_STREAKS: &str = "
    DELETE FROM alarm_streak s WHERE NOT EXISTS (SELECT FROM job_due d WHERE d.job_id = s.job_id)";

impl PgStore {
    async fn test_channel(&self, channel: &ChannelName, by: &Actor) -> Result<i64> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let book = self.present_book(&mut tx).await?;
        if book.channel(channel).is_none() {
            let message = format!("there is no alarm channel {:?}", channel.local());
            return Err(StoreError::new(ErrorKind::NotFound, message).into());
        }
        sqlx::query(LOCK).execute(&mut *tx).await?;
        room_for_test(channel, &waiting_of(&mut tx, vec![channel.as_str()]).await?)?;
        let (namespace, rule) = (channel.namespace(), test_rule(channel)?);
        let batch: i64 = sqlx::query_scalar(INSERT_TEST)
            .bind(now.as_millis())
            .bind(namespace.as_str())
            .bind(&rule)
            .bind(ConditionKind::Test.as_str())
            .bind(facts_text(&AlarmFacts::default()))
            .fetch_one(&mut *tx)
            .await?;
        let delivery = (
            batch,
            namespace.to_string(),
            rule,
            channel.to_string(),
            1,
            String::new(),
        );
        let decided = Collected {
            fates: vec![(batch, FATE_SENT, Some(batch))],
            deliveries: vec![delivery],
            silenced: 0,
        };
        let ids = write_collected(&mut tx, &decided, now).await?;
        let entry = channel_tested(by, channel.as_str(), &namespace);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(ids.first().copied().unwrap_or_default())
    }

    async fn collect_alarms(&self, limit: usize) -> Result<CollectedAlarms> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let locked = sqlx::query(LOCK_COLLECTOR).fetch_optional(&mut *tx).await?;
        if locked.is_none() {
            return Ok(CollectedAlarms::default());
        }
        let rows: Vec<WaitingRow> = sqlx::query_as(WAITING)
            .bind(now.as_millis())
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        if rows.is_empty() {
            return Ok(CollectedAlarms::default());
        }
        let book = self.present_book(&mut tx).await?;
        let mut collected = collect(&book, &rows, now);
        let channels = column(&collected.deliveries, |row| row.3.as_str());
        let waiting = waiting_of(&mut tx, channels).await?;
        let refused = refuse_beyond_bound(&mut collected, waiting);
        write_collected(&mut tx, &collected, now).await?;
        tx.commit().await?;
        Ok(CollectedAlarms {
            events: rows.len(),
            deliveries: collected.deliveries.len(),
            refused,
            silenced: collected.silenced,
        })
    }

    async fn claim_alarm_deliveries(
        &self,
        lease_ms: u64,
        sending: &[SendInProgress],
        limit: usize,
    ) -> Result<Vec<ClaimedDelivery>> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        sqlx::query(GIVE_UP_OLD)
            .bind(now.as_millis())
            .bind(now.minus_ms(MAX_DELIVERY_AGE_MS).as_millis())
            .bind(GIVEN_UP)
            .bind(MAX_LOOKED_AT)
            .execute(&mut *tx)
            .await?;
        let due: Vec<DueRow> = sqlx::query_as(DUE)
            .bind(now.as_millis())
            .bind(column(sending, |send| send.channel.as_str()))
            .bind(to_i64(MAX_CLAIMED_OF_CHANNEL))
            .bind(MAX_LOOKED_AT)
            .fetch_all(&mut *tx)
            .await?;
        let rows: Vec<ClaimedRow> = sqlx::query_as(CLAIM)
            .bind(choose_deliveries(&due, sending, limit))
            .bind(now.as_millis())
            .bind(now.plus_ms(lease_ms).as_millis())
            .fetch_all(&mut *tx)
            .await?;
        if rows.is_empty() {
            tx.commit().await?;
            return Ok(Vec::new());
        }
        let mut batches: Vec<i64> = column(&rows, |row| row.2);
        batches.sort_unstable();
        batches.dedup();
        let events: Vec<MessageRow> = sqlx::query_as(OF_BATCHES)
            .bind(batches)
            .bind(to_i64(MAX_LISTED_EVENTS))
            .fetch_all(&mut *tx)
            .await?;
        let book = self.present_book(&mut tx).await?;
        tx.commit().await?;
        Ok(claimed_deliveries(&book, &due, rows, &events))
    }

    async fn settle_alarm_delivery(
        &self,
        id: i64,
        attempt: u32,
        outcome: &SendOutcome,
    ) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let (state, next_at, ended_at) = settled(outcome, now);
        let written = sqlx::query(SETTLE)
            .bind(id)
            .bind(i64::from(attempt))
            .bind(state)
            .bind(next_at)
            .bind(ended_at)
            .bind(kept_answer(&outcome.answer))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(written.rows_affected() == 1)
    }

    async fn next_alarm_at(&self) -> Result<Option<Timestamp>> {
        let mut conn = self.db.autocommit().await?;
        let next: Option<i64> = sqlx::query_scalar(NEXT).fetch_one(&mut *conn).await?;
        conn.keep();
        Ok(next.map(Timestamp::from_millis))
    }

    async fn hold_alarm_checks(&self, holder: &str, lease_ms: u64) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let held = sqlx::query(HOLD)
            .bind(holder)
            .bind(now.as_millis())
            .bind(now.plus_ms(lease_ms).as_millis())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(held.rows_affected() == 1)
    }

    async fn job_loads(&self, jobs: &[CountedJob]) -> Result<BTreeMap<i64, JobLoad>> {
        let mut conn = self.db.autocommit().await?;
        let now = self.db.now(&mut conn).await?;
        let rows: Vec<LoadRow> = sqlx::query_as(LOADS)
            .bind(column(jobs, |job| job.id.0))
            .bind(now.as_millis())
            .bind(MAX_COUNTED_WAITING)
            .bind(column(jobs, |job| to_i64(job.jitter.as_millis())))
            .fetch_all(&mut *conn)
            .await?;
        conn.keep();
        Ok(loads(rows))
    }

    async fn note_alarm_levels(&self, found: &[LevelFound]) -> Result<NotedLevels> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let noted: Vec<LevelRow> = sqlx::query_as(LEVELS).fetch_all(&mut *tx).await?;
        let changes = level_changes(noted, found, now);
        let noted = changes.noted;
        if changes.is_empty() {
            return Ok(NotedLevels { raised: 0, noted });
        }
        sqlx::query(COUNT_ABSENT)
            .bind(&changes.absent)
            .bind(&changes.back)
            .execute(&mut *tx)
            .await?;
        sqlx::query(FORGET_LEVELS)
            .bind(&changes.over)
            .execute(&mut *tx)
            .await?;
        sqlx::query(NOTE_LEVELS)
            .bind(&changes.begun)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        let raised = insert_events(&mut tx, &changes.events).await?;
        tx.commit().await?;
        Ok(NotedLevels { raised, noted })
    }

    async fn alarm_events(&self, filter: &AlarmFilter) -> Result<Vec<AlarmEvent>> {
        let mut conn = self.db.read().await?;
        let rows: Vec<EventRow> = sqlx::query_as(EVENTS)
            .bind(filter.namespace.as_str())
            .bind(filter.rule.as_ref().map(cueline_model::RuleName::as_str))
            .bind(filter.job.as_ref().map(cueline_model::JobName::as_str))
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(to_i64(filter.limit))
            .fetch_all(&mut *conn)
            .await?;
        rows.into_iter().map(|row| Ok(event(row)?)).collect()
    }

    async fn alarm_deliveries(&self, filter: &AlarmFilter) -> Result<Vec<AlarmDelivery>> {
        let mut conn = self.db.read().await?;
        let rows: Vec<DeliveryRow> = sqlx::query_as(DELIVERIES)
            .bind(filter.namespace.as_str())
            .bind(filter.rule.as_ref().map(cueline_model::RuleName::as_str))
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(to_i64(filter.limit))
            .fetch_all(&mut *conn)
            .await?;
        rows.into_iter().map(|row| Ok(delivery(row)?)).collect()
    }

    async fn prune_alarms(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let before = tx.now.minus_ms(older_than_ms).as_millis();
        let mut most = 0;
        for statement in [PRUNE_EVENTS, PRUNE_DELIVERIES] {
            let deleted = sqlx::query(statement)
                .bind(before)
                .bind(to_i64(limit))
                .execute(&mut *tx)
                .await?;
            most = most.max(deleted.rows_affected());
        }
        sqlx::query(PRUNE_STREAKS).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(most)
    }
}

/// How many messages of these channels wait.
async fn waiting_of(
    tx: &mut crate::database::WriteTx,
    channels: Vec<&str>,
) -> Result<Vec<WaitingOfChannelRow>> {
    if channels.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_as(WAITING_OF_CHANNELS)
        .bind(channels)
        .fetch_all(&mut **tx)
        .await?)
}

/// Writes what becomes of events, and their deliveries. Returns the numbers of the deliveries.
async fn write_collected(
    tx: &mut crate::database::WriteTx,
    collected: &Collected,
    now: Timestamp,
) -> Result<Vec<i64>> {
    let fates = &collected.fates;
    sqlx::query(DECIDE)
        .bind(column(fates, |row| row.0))
        .bind(column(fates, |row| {
            i16::try_from(row.1).unwrap_or_default()
        }))
        .bind(column(fates, |row| row.2))
        .execute(&mut **tx)
        .await?;
    let deliveries = &collected.deliveries;
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar(INSERT_DELIVERIES)
        .bind(column(deliveries, |row| row.0))
        .bind(column(deliveries, |row| row.1.as_str()))
        .bind(column(deliveries, |row| row.2.as_str()))
        .bind(column(deliveries, |row| row.3.as_str()))
        .bind(column(deliveries, |row| row.4))
        .bind(column(deliveries, |row| row.5.as_str()))
        .bind(now.as_millis())
        .fetch_all(&mut **tx)
        .await?)
}

macro_rules! implement_alarms {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl AlarmStore for PgStore {
            $(async fn $method(&self, $($arg: $type),*) -> std::result::Result<$answer, StoreError> {
                self.$kind($what, || self.$method($($arg),*)).await
            })*
        }
    };
}

cueline_store::with_alarm_methods!(implement_alarms);
