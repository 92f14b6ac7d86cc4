//! Deletes what has expired, and what operators prune. Keeps the rules of groups.

use async_trait::async_trait;
use cueline_model::{Actor, GroupName, Retention};
use cueline_store::adapter::audit::retention_changed;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::retention::{
    GroupRow, Horizon, PruneRow, RulesRow, Step, Sweep, WINDOW, Window, check_prune,
    group_retention, plan_prune, room_for_rule, rule_columns,
};
use cueline_store::{
    ExpireRequest, Expired, GroupRetention, PruneRequest, Pruned, RetentionStore, StoreError,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, audit};

/// A window of runs by id: the highest id, the earliest time of writing, the highest id of those that were written before
/// ?2, and the ids of the expired runs. A shard is kept as long as another shard of its fire is live, because the
/// follow-ups of the last end depend on all shards. The same holds for the runs of a flow run with a live child run.
pub(crate) const EXPIRED: &str = "
    SELECT max(id), min(created_at), max(id) FILTER (WHERE created_at < ?2),
        json_group_array(id) FILTER (WHERE ended_at < ?2 AND (shard_total = 1 OR NOT EXISTS
            (SELECT 1 FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                AND s.ended_at IS NULL))
            AND NOT EXISTS (SELECT 1 FROM run c WHERE c.fire_key = CASE
                    WHEN part.kind IN (1, 2) THEN part.fire_key
                    WHEN part.shard_total = 1 THEN part.id
                    ELSE (SELECT min(s.id) FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind) END
                AND c.kind = 2 AND c.ended_at IS NULL))
    FROM (SELECT id, created_at, ended_at, shard_total, fire_key, job_id, kind FROM run WHERE id > ?1 ORDER BY id LIMIT ?3) part";

/// The same where rules exist. ?4 is the present time. The newest run of a job has the number run_count - 1. Also the ids of
/// runs that stay while their log or output expires.
pub(crate) const EXPIRED_BY_RULES: &str = "
    SELECT max(id), min(created_at), max(id) FILTER (WHERE created_at < ?2),
        json_group_array(id) FILTER (WHERE expired AND (shard_total = 1 OR NOT EXISTS
            (SELECT 1 FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                AND s.ended_at IS NULL))
            AND NOT EXISTS (SELECT 1 FROM run c WHERE c.fire_key = CASE
                    WHEN part.kind IN (1, 2) THEN part.fire_key
                    WHEN part.shard_total = 1 THEN part.id
                    ELSE (SELECT min(s.id) FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind) END
                AND c.kind = 2 AND c.ended_at IS NULL)),
        json_group_array(id) FILTER (WHERE NOT expired AND log_expired AND EXISTS (SELECT 1 FROM run_log l WHERE l.run_id = part.id)),
        json_group_array(id) FILTER (WHERE NOT expired AND output_expired)
    FROM (
        SELECT r.id, r.created_at, r.shard_total, r.fire_key, r.job_id, r.kind,
            coalesce(r.ended_at < coalesce(?4 - coalesce(j.keep_age_ms, g.age_ms), ?2), 0)
                OR (r.ended_at IS NOT NULL AND coalesce(r.sequence < d.run_count - coalesce(j.keep_runs, g.runs), 0)) AS expired,
            coalesce(r.ended_at < ?4 - coalesce(j.keep_logs_ms, g.logs_ms), 0) AS log_expired,
            r.has_output AND coalesce(r.ended_at < ?4 - coalesce(j.keep_outputs_ms, g.outputs_ms), 0) AS output_expired
        FROM (SELECT id, created_at, ended_at, sequence, shard_total, fire_key, job_id, kind, output IS NOT NULL AS has_output
                FROM run WHERE id > ?1 ORDER BY id LIMIT ?3) r
            LEFT JOIN job j ON j.id = r.job_id LEFT JOIN group_retention g ON g.group_name = j.group_name
            LEFT JOIN job_due d ON d.job_id = r.job_id) part";

/// The columns of [`RulesRow`].
const RULES: &str = "
    SELECT nullif(min(min(ifnull(age_ms, 9223372036854775807), ifnull(logs_ms, 9223372036854775807),
            ifnull(outputs_ms, 9223372036854775807))), 9223372036854775807),
        max(age_ms), max(runs IS NOT NULL)
    FROM (SELECT keep_age_ms AS age_ms, keep_runs AS runs, keep_logs_ms AS logs_ms, keep_outputs_ms AS outputs_ms FROM job
            WHERE coalesce(keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms) IS NOT NULL
        UNION ALL SELECT age_ms, runs, logs_ms, outputs_ms FROM group_retention)";

/// The ledger needs to know which fire times had runs.
const NOTE_PRUNED: &str = "
    INSERT INTO pruned_until (job_id, fire_at)
    SELECT r.job_id, max(r.fire_at) FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value WHERE r.kind = 0 GROUP BY r.job_id
    ON CONFLICT (job_id) DO UPDATE SET fire_at = max(fire_at, excluded.fire_at)";

const DELETE_LOGS: &str = "DELETE FROM run_log WHERE run_id IN (SELECT value FROM json_each(?1))";

const DELETE_OUTPUTS: &str =
    "UPDATE run SET output = NULL WHERE id IN (SELECT value FROM json_each(?1))";

const DELETES: [&str; 3] = [
    DELETE_LOGS,
    "DELETE FROM run_event WHERE run_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run WHERE id IN (SELECT value FROM json_each(?1))",
];

/// Keys of requests up to run ?1 whose run ended before ?2, or is gone. At most ?3.
pub(crate) const DELETE_KEYS: &str = "
    DELETE FROM trigger_key WHERE (job_id, key) IN (
        SELECT k.job_id, k.key FROM trigger_key k WHERE k.first_run <= ?1
            AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = k.first_run AND (r.ended_at IS NULL OR r.ended_at >= ?2))
        LIMIT ?3)";

/// Executors whose last heartbeat has expired too, and that hold no run. The live runs are read once, not once for each
/// executor.
const DELETE_EXECUTORS: &str = "
    DELETE FROM executor WHERE last_heartbeat_at < ?1
        AND name NOT IN (SELECT r.executor FROM run r WHERE r.state IN (1, 2, 3) AND r.state < 10 AND r.executor IS NOT NULL)";

/// The columns of [`PruneRow`].
pub(crate) const TO_PRUNE: &str = "
    SELECT r.id, j.name, j.group_name, r.ended_at IS NOT NULL AND (r.shard_total = 1 OR NOT EXISTS
        (SELECT 1 FROM run s WHERE s.fire_key = r.fire_key AND s.job_id = r.job_id AND s.kind = r.kind AND s.ended_at IS NULL))
        AND NOT EXISTS (SELECT 1 FROM run c WHERE c.fire_key = CASE
                WHEN r.kind IN (1, 2) THEN r.fire_key
                WHEN r.shard_total = 1 THEN r.id
                ELSE (SELECT min(s.id) FROM run s WHERE s.fire_key = r.fire_key AND s.job_id = r.job_id AND s.kind = r.kind) END
            AND c.kind = 2 AND c.ended_at IS NULL)
    FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value CROSS JOIN job j ON j.id = r.job_id";

const PRUNE_LETTERS: &str = "
    DELETE FROM dead_letter WHERE id IN (
        SELECT id FROM (SELECT id, at FROM dead_letter ORDER BY id LIMIT ?2) WHERE at < ?1)";

const GROUP_RULES: &str = "
    SELECT group_name, age_ms, runs, logs_ms, outputs_ms FROM group_retention
    WHERE ?1 IS NULL OR group_name = ?1 ORDER BY group_name";

const OTHER_RULES: &str = "SELECT count(*) FROM group_retention WHERE group_name <> ?1";

const WRITE_RULE: &str = "
    INSERT INTO group_retention (group_name, age_ms, runs, logs_ms, outputs_ms) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (group_name) DO UPDATE SET age_ms = excluded.age_ms, runs = excluded.runs, logs_ms = excluded.logs_ms,
        outputs_ms = excluded.outputs_ms";

const DELETE_RULE: &str = "DELETE FROM group_retention WHERE group_name = ?1";

/// What was found, and the run up to which idempotency keys may have expired.
struct Found {
    sweep: Sweep,
    keys_to: Option<i64>,
    horizon: Horizon,
}

impl SqliteStore {
    pub(crate) async fn expire_runs(&self, request: ExpireRequest) -> Result<Expired> {
        let Found {
            sweep,
            keys_to,
            horizon,
        } = self.find_expired(request).await?;
        let begins = request.after.is_none();
        if !sweep.is_empty() || keys_to.is_some() || begins {
            let mut tx = self.db.write().await?;
            let before = horizon.before.as_millis();
            delete_runs(&mut tx, &sweep.runs).await?;
            for (statement, runs) in [(DELETE_LOGS, &sweep.logs), (DELETE_OUTPUTS, &sweep.outputs)]
            {
                if !runs.is_empty() {
                    sqlx::query(statement)
                        .bind(Json(runs))
                        .execute(&mut *tx)
                        .await?;
                }
            }
            if let Some(run) = keys_to {
                sqlx::query(DELETE_KEYS)
                    .bind(run)
                    .bind(before)
                    .bind(to_i64(request.limit))
                    .execute(&mut *tx)
                    .await?;
            }
            if begins {
                sqlx::query(DELETE_EXECUTORS)
                    .bind(before)
                    .execute(&mut *tx)
                    .await?;
            }
            tx.commit().await?;
        }
        Ok(sweep.expired())
    }

    /// What has expired is found before the transaction that deletes it, because all writers wait for that one. An
    /// expired run stays expired, unless its rule is changed at this moment.
    async fn find_expired(&self, request: ExpireRequest) -> Result<Found> {
        let mut conn = self.db.read().await?;
        let rules: RulesRow = sqlx::query_as(RULES).fetch_one(&mut *conn).await?;
        let horizon = Horizon::new(self.db.now(), request.age_ms, rules);
        let mut sweep = Sweep::new(&request);
        let mut keys_to = None;
        loop {
            let (window, old) = read_window(&mut conn, sweep.position(), &horizon).await?;
            keys_to = keys_to.max(old);
            match sweep.take(window, horizon.until) {
                Step::Window => {}
                Step::NextCall => break,
                Step::EndOfRange => {
                    sweep.end();
                    break;
                }
            }
        }
        Ok(Found {
            sweep,
            keys_to,
            horizon,
        })
    }

    pub(crate) async fn prune_runs(&self, request: &PruneRequest, by: &Actor) -> Result<Pruned> {
        check_prune(request)?;
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let rows: Vec<PruneRow> = sqlx::query_as(TO_PRUNE)
            .bind(Json(&request.runs))
            .fetch_all(&mut *tx)
            .await?;
        let plan = plan_prune(request, rows, by)?;
        if !plan.runs.is_empty() {
            delete_runs(&mut tx, &plan.runs).await?;
            audit::write(&mut tx, &plan.entries, now).await?;
            tx.commit().await?;
        }
        Ok(plan.pruned)
    }

    pub(crate) async fn prune_dead_letters(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let deleted = sqlx::query(PRUNE_LETTERS)
            .bind(self.db.now().minus_ms(older_than_ms).as_millis())
            .bind(to_i64(limit))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(deleted)
    }

    pub(crate) async fn retention_rules(
        &self,
        group: Option<&GroupName>,
    ) -> Result<Vec<GroupRetention>> {
        let mut conn = self.db.read().await?;
        read_rules(&mut conn, group).await
    }

    pub(crate) async fn set_retention(
        &self,
        group: &GroupName,
        rule: &Retention,
        by: &Actor,
    ) -> Result<bool> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let present = read_rules(&mut tx, Some(group)).await?;
        let before = present.first().map(|present| present.rule);
        let after = (!rule.is_empty()).then_some(*rule);
        if before == after {
            return Ok(false);
        }
        if after.is_some() {
            let others: i64 = sqlx::query_scalar(OTHER_RULES)
                .bind(group.as_str())
                .fetch_one(&mut *tx)
                .await?;
            room_for_rule(others)?;
            let (age, runs, logs, outputs) = rule_columns(rule);
            sqlx::query(WRITE_RULE)
                .bind(group.as_str())
                .bind(age)
                .bind(runs)
                .bind(logs)
                .bind(outputs)
                .execute(&mut *tx)
                .await?;
        } else {
            sqlx::query(DELETE_RULE)
                .bind(group.as_str())
                .execute(&mut *tx)
                .await?;
        }
        let entry = retention_changed(by, group, before.as_ref(), after.as_ref());
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// The window behind this run, and the highest run of it that is older than runs without a rule are kept.
async fn read_window(
    conn: &mut SqliteConnection,
    after: i64,
    horizon: &Horizon,
) -> Result<(Window, Option<i64>)> {
    type Ids = Json<Vec<i64>>;
    let before = horizon.before.as_millis();
    if !horizon.has_rules {
        let (last, earliest, old, runs): (Option<i64>, Option<i64>, Option<i64>, Ids) =
            sqlx::query_as(EXPIRED)
                .bind(after)
                .bind(before)
                .bind(to_i64(WINDOW))
                .fetch_one(conn)
                .await?;
        let window = Window {
            last,
            earliest,
            runs: runs.0,
            ..Window::default()
        };
        return Ok((window, old));
    }
    let (last, earliest, old, runs, logs, outputs): (
        Option<i64>,
        Option<i64>,
        Option<i64>,
        Ids,
        Ids,
        Ids,
    ) = sqlx::query_as(EXPIRED_BY_RULES)
        .bind(after)
        .bind(before)
        .bind(to_i64(WINDOW))
        .bind(horizon.now.as_millis())
        .fetch_one(conn)
        .await?;
    let window = Window {
        last,
        earliest,
        runs: runs.0,
        logs: logs.0,
        outputs: outputs.0,
    };
    Ok((window, old))
}

/// Deletes ended runs with their logs and timelines.
async fn delete_runs(conn: &mut SqliteConnection, runs: &[i64]) -> Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    sqlx::query(NOTE_PRUNED)
        .bind(Json(runs))
        .execute(&mut *conn)
        .await?;
    for delete in DELETES {
        sqlx::query(delete)
            .bind(Json(runs))
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

async fn read_rules(
    conn: &mut SqliteConnection,
    group: Option<&GroupName>,
) -> Result<Vec<GroupRetention>> {
    let rows: Vec<GroupRow> = sqlx::query_as(GROUP_RULES)
        .bind(group.map(GroupName::as_str))
        .fetch_all(conn)
        .await?;
    rows.into_iter()
        .map(|row| Ok(group_retention(row)?))
        .collect()
}

macro_rules! implement_retention {
    ($($kind:ident $method:ident($($arg:ident: $type:ty),*) -> $answer:ty: $what:literal;)*) => {
        #[async_trait]
        impl RetentionStore for SqliteStore {
            $(async fn $method(&self, $($arg: $type),*) -> std::result::Result<$answer, StoreError> {
                self.$method($($arg),*).await.map_err(|error| error.failed_to($what))
            })*
        }
    };
}

cueline_store::with_retention_methods!(implement_retention);
