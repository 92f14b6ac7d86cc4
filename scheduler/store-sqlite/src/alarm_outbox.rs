//! The outbox of alarms: events become deliveries, and deliveries are claimed and settled. Lists of both.

use std::collections::{BTreeMap, BTreeSet};

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
use sqlx::types::Json;

use crate::alarms::insert_events;
use crate::error::Result;
use crate::{SqliteStore, audit};

pub(crate) const WAITING: &str = "
    SELECT e.id, e.at, e.rule_id, e.rule, e.kind, e.facts FROM alarm_event e
    WHERE e.send_at IS NOT NULL AND e.rule_id IN (SELECT d.rule_id FROM alarm_event d WHERE d.send_at <= ?1)
    ORDER BY e.rule_id, e.id LIMIT ?2 + 0";

pub(crate) const DECIDE: &str = "
    UPDATE alarm_event SET send_at = NULL, fate = e.value ->> 1, reference = e.value ->> 2
    FROM json_each(?1) e WHERE alarm_event.id = e.value ->> 0";

/// A delivery with an answer is not sent.
const INSERT_DELIVERIES: &str = "
    INSERT INTO alarm_delivery (batch, namespace, rule, channel, events, answer, created_at, state, next_at, ended_at)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, ?2, iif(value ->> 5 = '', 0, 2),
        iif(value ->> 5 = '', ?2, NULL), iif(value ->> 5 = '', NULL, ?2) FROM json_each(?1) RETURNING id";

pub(crate) const WAITING_OF_CHANNELS: &str = "
    SELECT d.channel, count(*) FROM alarm_delivery d WHERE d.next_at IS NOT NULL AND d.channel IN (SELECT value FROM json_each(?1))
    GROUP BY d.channel";

const INSERT_TEST: &str = "
    INSERT INTO alarm_event (at, namespace, rule_id, rule, key, kind, facts) VALUES (?1, ?2, 0, ?3, 'test', ?4, ?5)
    RETURNING id";

/// What was sent before and is too old. A delivery that is being sent is not due.
pub(crate) const GIVE_UP_OLD: &str = "
    UPDATE alarm_delivery SET state = 2, next_at = NULL, ended_at = ?1, answer = ?3 || iif(answer = '', 'none', answer)
    WHERE id IN (SELECT d.id FROM alarm_delivery d WHERE d.next_at <= ?1 AND d.created_at <= ?2 AND d.attempts > 0
        ORDER BY d.next_at LIMIT ?4)";

/// A few of each channel, so that one that does not answer cannot take all places.
pub(crate) const DUE: &str = "
    SELECT r.id, r.namespace, r.channel, EXISTS (SELECT 1 FROM alarm_delivery f WHERE f.channel = r.channel AND f.next_at IS NOT NULL
        AND f.attempts > 0 AND (f.answer <> '' OR f.next_at <= ?1))
    FROM (SELECT d.id, d.namespace, d.channel, d.attempts > 0 AS was_sent, d.next_at,
            row_number() OVER (PARTITION BY d.channel ORDER BY d.attempts > 0, d.next_at, d.id) AS place
        FROM alarm_delivery d WHERE d.next_at <= ?1 AND d.channel NOT IN (SELECT value FROM json_each(?2))) r
    WHERE r.place <= ?3 ORDER BY r.was_sent, r.next_at, r.id LIMIT ?4";

pub(crate) const CLAIM: &str = "
    UPDATE alarm_delivery SET attempts = attempts + 1, next_at = ?2 WHERE id IN (SELECT value FROM json_each(?1))
    RETURNING id, attempts, batch, rule, channel, events";

pub(crate) const OF_BATCHES: &str = "
    SELECT b.value, e.at, e.kind, e.facts FROM json_each(?1) b CROSS JOIN alarm_event e
    WHERE e.fate = 1 AND e.reference = b.value AND e.id <= coalesce(
        (SELECT l.id FROM alarm_event l WHERE l.fate = 1 AND l.reference = b.value ORDER BY l.id LIMIT 1 OFFSET ?2 - 1), e.id)
    ORDER BY b.value, e.id";

pub(crate) const SETTLE: &str = "
    UPDATE alarm_delivery SET state = ?3, next_at = ?4, ended_at = ?5, answer = ?6
    WHERE id = ?1 AND attempts = ?2 AND state = 0";

pub(crate) const NEXT: &str = "
    SELECT min(at) FROM (SELECT min(send_at) AS at FROM alarm_event WHERE send_at IS NOT NULL
        UNION ALL SELECT min(next_at) FROM alarm_delivery WHERE next_at IS NOT NULL)";

const HOLD: &str =
    "UPDATE alarm_checker SET holder = ?1, until = ?3 WHERE holder = ?1 OR until <= ?2";

/// The due time of a run that was released is postponed. That of a first attempt follows from its fire time, unless it is a
/// child (2) or of a backfill (4).
/// ?3 bounds what is read of each job.
pub(crate) const LOADS: &str = "
    WITH counted AS MATERIALIZED (SELECT e.value ->> 0 AS job_id, (
        SELECT json_array(count(*), w.id, min(w.due_at)) FROM (
            SELECT r.id, iif(r.attempt = 1 AND r.kind NOT IN (2, 4), min(r.due_at, r.fire_at + (e.value ->> 1)), r.due_at) AS due_at
            FROM run r WHERE r.job_id = e.value ->> 0 AND r.ended_at IS NULL AND r.state < 3
                AND iif(r.attempt = 1 AND r.kind NOT IN (2, 4), min(r.due_at, r.fire_at + (e.value ->> 1)), r.due_at) <= ?2
            LIMIT ?3) w) AS load FROM json_each(?1) e)
    SELECT job_id, load ->> 0, load ->> 1, load ->> 2 FROM counted WHERE load ->> 0 > 0";

const LEVELS: &str = "SELECT subject, absent_checks FROM alarm_level";

/// Those in ?1 did not hold in one check more, and those in ?2 hold again.
const COUNT_ABSENT: &str = "
    UPDATE alarm_level SET absent_checks = iif(subject IN (SELECT value FROM json_each(?1)), absent_checks + 1, 0)
    WHERE subject IN (SELECT value FROM json_each(?1) UNION ALL SELECT value FROM json_each(?2))";

const FORGET_LEVELS: &str =
    "DELETE FROM alarm_level WHERE subject IN (SELECT value FROM json_each(?1))";

const NOTE_LEVELS: &str = "
    INSERT INTO alarm_level (subject, since) SELECT value, ?2 FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING";

pub(crate) const EVENTS: &str = "
    SELECT id, at, rule, kind, facts, send_at, fate, reference FROM alarm_event
    WHERE namespace = ?1 AND (?2 IS NULL OR rule = ?2) AND (?3 IS NULL OR job = ?3) AND id < ?4
    ORDER BY id DESC LIMIT ?5";

pub(crate) const DELIVERIES: &str = "
    SELECT id, batch, rule, channel, events, created_at, state, attempts, next_at, ended_at, answer
    FROM alarm_delivery WHERE namespace = ?1 AND (?2 IS NULL OR rule = ?2) AND id < ?3 ORDER BY id DESC LIMIT ?4";

pub(crate) const PRUNE_EVENTS: &str = "
    DELETE FROM alarm_event WHERE id IN (SELECT e.id FROM alarm_event e
        WHERE e.at < ?1 AND e.send_at IS NULL AND NOT EXISTS
            (SELECT 1 FROM alarm_delivery d WHERE d.batch = e.reference AND d.next_at IS NOT NULL AND e.fate = 1)
        ORDER BY e.at LIMIT ?2)";

pub(crate) const PRUNE_DELIVERIES: &str = "
    DELETE FROM alarm_delivery WHERE id IN (SELECT id FROM alarm_delivery WHERE ended_at < ?1 ORDER BY ended_at LIMIT ?2)";

const PRUNE_STREAKS: &str = "
    DELETE FROM alarm_streak AS s WHERE NOT EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = s.job_id)";

impl SqliteStore {
    async fn test_channel(&self, channel: &ChannelName, by: &Actor) -> Result<i64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let book = self.present_book(&mut tx).await?;
        if book.channel(channel).is_none() {
            let message = format!("there is no alarm channel {:?}", channel.local());
            return Err(StoreError::new(ErrorKind::NotFound, message).into());
        }
        room_for_test(channel, &waiting_of(&mut tx, &[channel.as_str()]).await?)?;
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
        let now = self.db.now();
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
        let channels = collected.deliveries.iter().map(|row| row.3.as_str());
        let waiting = waiting_of(&mut tx, &channels.collect::<Vec<_>>()).await?;
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
        let now = self.db.now();
        sqlx::query(GIVE_UP_OLD)
            .bind(now.as_millis())
            .bind(now.minus_ms(MAX_DELIVERY_AGE_MS).as_millis())
            .bind(GIVEN_UP)
            .bind(MAX_LOOKED_AT)
            .execute(&mut *tx)
            .await?;
        let busy: BTreeSet<&str> = sending.iter().map(|send| send.channel.as_str()).collect();
        let due: Vec<DueRow> = sqlx::query_as(DUE)
            .bind(now.as_millis())
            .bind(Json(busy))
            .bind(to_i64(MAX_CLAIMED_OF_CHANNEL))
            .bind(MAX_LOOKED_AT)
            .fetch_all(&mut *tx)
            .await?;
        let rows: Vec<ClaimedRow> = sqlx::query_as(CLAIM)
            .bind(Json(choose_deliveries(&due, sending, limit)))
            .bind(now.plus_ms(lease_ms).as_millis())
            .fetch_all(&mut *tx)
            .await?;
        if rows.is_empty() {
            tx.commit().await?;
            return Ok(Vec::new());
        }
        let batches: BTreeSet<i64> = rows.iter().map(|row| row.2).collect();
        let events: Vec<MessageRow> = sqlx::query_as(OF_BATCHES)
            .bind(Json(batches))
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
        let now = self.db.now();
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
        let mut conn = self.db.read().await?;
        let next: Option<i64> = sqlx::query_scalar(NEXT).fetch_one(&mut *conn).await?;
        Ok(next.map(Timestamp::from_millis))
    }

    async fn hold_alarm_checks(&self, holder: &str, lease_ms: u64) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
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
        let mut conn = self.db.read().await?;
        let now = self.db.now();
        let jobs = jobs.iter().map(|job| (job.id, job.jitter.as_millis()));
        let rows: Vec<LoadRow> = sqlx::query_as(LOADS)
            .bind(Json(jobs.collect::<Vec<_>>()))
            .bind(now.as_millis())
            .bind(MAX_COUNTED_WAITING)
            .fetch_all(&mut *conn)
            .await?;
        Ok(loads(rows))
    }

    async fn note_alarm_levels(&self, found: &[LevelFound]) -> Result<NotedLevels> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let noted: Vec<LevelRow> = sqlx::query_as(LEVELS).fetch_all(&mut *tx).await?;
        let changes = level_changes(noted, found, now);
        let noted = changes.noted;
        if changes.is_empty() {
            return Ok(NotedLevels { raised: 0, noted });
        }
        sqlx::query(COUNT_ABSENT)
            .bind(Json(&changes.absent))
            .bind(Json(&changes.back))
            .execute(&mut *tx)
            .await?;
        sqlx::query(FORGET_LEVELS)
            .bind(Json(&changes.over))
            .execute(&mut *tx)
            .await?;
        sqlx::query(NOTE_LEVELS)
            .bind(Json(&changes.begun))
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
        let before = self.db.now().minus_ms(older_than_ms).as_millis();
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
    channels: &[&str],
) -> Result<Vec<WaitingOfChannelRow>> {
    if channels.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_as(WAITING_OF_CHANNELS)
        .bind(Json(channels))
        .fetch_all(&mut **tx)
        .await?)
}

/// Writes what becomes of events, and their deliveries. Returns the numbers of the deliveries.
async fn write_collected(
    tx: &mut crate::database::WriteTx,
    collected: &Collected,
    now: Timestamp,
) -> Result<Vec<i64>> {
    sqlx::query(DECIDE)
        .bind(Json(&collected.fates))
        .execute(&mut **tx)
        .await?;
    let deliveries = &collected.deliveries;
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar(INSERT_DELIVERIES)
        .bind(Json(deliveries))
        .bind(now.as_millis())
        .fetch_all(&mut **tx)
        .await?)
}

macro_rules! implement_alarms {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl AlarmStore for SqliteStore {
            $(async fn $method(&self, $($arg: $type),*) -> std::result::Result<$answer, StoreError> {
                self.$method($($arg),*).await.map_err(|error| error.failed_to($what))
            })*
        }
    };
}

cueline_store::with_alarm_methods!(implement_alarms);
