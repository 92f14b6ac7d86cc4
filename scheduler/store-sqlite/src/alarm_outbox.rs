//! The outbox of alarms: events become deliveries, and deliveries are claimed and settled. Lists of both.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use cueline_model::alarm::{AlarmFacts, ConditionKind, JobLoad, LevelFound, MAX_LISTED_EVENTS};
use cueline_model::{Actor, ChannelName, JobId, Timestamp};
use cueline_store::adapter::alarm_events::{
    ClaimedRow, Collected, DeliveryRow, EventRow, FATE_SENT, LevelChanges, LoadRow, MessageRow,
    WaitingRow, claimed_deliveries, collect, delivery, event, facts_text, kept_answer,
    level_changes, loads, settled, test_rule,
};
use cueline_store::adapter::audit::channel_tested;
use cueline_store::adapter::convert::to_i64;
use cueline_store::{
    AlarmDelivery, AlarmEvent, AlarmFilter, AlarmStore, ClaimedDelivery, CollectedAlarms,
    ErrorKind, MAX_CLAIMED_OF_CHANNEL, SendOutcome, StoreError,
};
use sqlx::types::Json;

use crate::alarms::insert_events;
use crate::error::Result;
use crate::{SqliteStore, audit};

pub(crate) const WAITING: &str = "
    SELECT e.id, e.at, e.rule_id, e.rule, e.kind, e.facts FROM alarm_event e
    WHERE e.send_at IS NOT NULL AND e.rule_id IN (SELECT d.rule_id FROM alarm_event d WHERE d.send_at <= ?1)
    ORDER BY e.rule_id, e.id LIMIT ?2";

pub(crate) const DECIDE: &str = "
    UPDATE alarm_event SET send_at = NULL, fate = e.value ->> 1, reference = e.value ->> 2
    FROM json_each(?1) e WHERE alarm_event.id = e.value ->> 0";

const INSERT_DELIVERIES: &str = "
    INSERT INTO alarm_delivery (batch, namespace, rule, channel, events, created_at, next_at)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, ?2, ?2 FROM json_each(?1) RETURNING id";

const INSERT_TEST: &str = "
    INSERT INTO alarm_event (at, namespace, rule_id, rule, key, kind, facts) VALUES (?1, ?2, 0, ?3, 'test', ?4, ?5)
    RETURNING id";

/// A few of each channel, so that one that does not answer cannot take all places.
pub(crate) const CLAIM: &str = "
    UPDATE alarm_delivery SET attempts = attempts + 1, next_at = ?5 WHERE id IN (
        SELECT r.id FROM (
            SELECT d.id, d.next_at, row_number() OVER (PARTITION BY d.channel ORDER BY d.next_at, d.id) AS place
            FROM alarm_delivery d WHERE d.next_at <= ?1 AND d.channel NOT IN (SELECT value FROM json_each(?2))) r
        WHERE r.place <= ?3 ORDER BY r.next_at, r.id LIMIT ?4)
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

pub(crate) const LOADS: &str = "
    SELECT r.job_id, count(*), r.id, min(r.due_at) FROM json_each(?1) e CROSS JOIN run r
    WHERE r.job_id = e.value AND r.state < 10 AND r.state < 3 AND r.due_at <= ?2 GROUP BY r.job_id";

const LEVELS: &str = "SELECT subject FROM alarm_level";

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
        let (namespace, rule) = (channel.namespace(), test_rule(channel)?);
        let batch: i64 = sqlx::query_scalar(INSERT_TEST)
            .bind(now.as_millis())
            .bind(namespace.as_str())
            .bind(&rule)
            .bind(ConditionKind::Test.as_str())
            .bind(facts_text(&AlarmFacts::default()))
            .fetch_one(&mut *tx)
            .await?;
        let decided = Collected {
            fates: vec![(batch, FATE_SENT, Some(batch))],
            deliveries: vec![(batch, namespace.to_string(), rule, channel.to_string(), 1)],
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
        let collected = collect(&book, &rows, now);
        write_collected(&mut tx, &collected, now).await?;
        tx.commit().await?;
        Ok(CollectedAlarms {
            events: rows.len(),
            deliveries: collected.deliveries.len(),
            silenced: collected.silenced,
        })
    }

    async fn claim_alarm_deliveries(
        &self,
        lease_ms: u64,
        busy: &[ChannelName],
        limit: usize,
    ) -> Result<Vec<ClaimedDelivery>> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let rows: Vec<ClaimedRow> = sqlx::query_as(CLAIM)
            .bind(now.as_millis())
            .bind(Json(busy))
            .bind(MAX_CLAIMED_OF_CHANNEL)
            .bind(to_i64(limit))
            .bind(now.plus_ms(lease_ms).as_millis())
            .fetch_all(&mut *tx)
            .await?;
        if rows.is_empty() {
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
        Ok(claimed_deliveries(&book, rows, &events))
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

    async fn job_loads(&self, jobs: &[JobId]) -> Result<BTreeMap<i64, JobLoad>> {
        let mut conn = self.db.read().await?;
        let now = self.db.now();
        let rows: Vec<LoadRow> = sqlx::query_as(LOADS)
            .bind(Json(jobs))
            .bind(now.as_millis())
            .fetch_all(&mut *conn)
            .await?;
        Ok(loads(rows))
    }

    async fn note_alarm_levels(&self, found: &[LevelFound]) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let noted: Vec<String> = sqlx::query_scalar(LEVELS).fetch_all(&mut *tx).await?;
        let changes = level_changes(noted, found, now);
        if changes == LevelChanges::default() {
            return Ok(0);
        }
        sqlx::query(FORGET_LEVELS)
            .bind(Json(&changes.over))
            .execute(&mut *tx)
            .await?;
        sqlx::query(NOTE_LEVELS)
            .bind(Json(&changes.begun))
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        let inserted = insert_events(&mut tx, &changes.events).await?;
        tx.commit().await?;
        Ok(inserted)
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
