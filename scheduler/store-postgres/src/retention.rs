//! Deletes what has expired, and what operators prune. Keeps the rules of groups.
//!
//! With a retention of at least two days, the partitions of a day are dropped once its last run has expired (see
//! [`drop_day`](crate::drop_day)), or replaced if a few of its runs are kept longer (see
//! [`rewrite_day`](crate::rewrite_day)). With a shorter retention, or if a long run or many kept ones keep the day, runs are
//! deleted one by one. So are those that expire earlier than others by the rules of their jobs and groups.

use std::collections::BTreeSet;

use async_trait::async_trait;
use cueline_model::{Actor, GroupName, Retention, RunId};
use cueline_store::adapter::audit::retention_changed;
use cueline_store::adapter::convert::to_i64;
use cueline_store::adapter::retention::{
    GroupRow, Horizon, PruneRow, Step, Sweep, WINDOW, Window, check_prune, group_retention,
    plan_prune, room_for_rule, rule_columns,
};
use cueline_store::{
    ExpireRequest, Expired, GroupRetention, PruneRequest, Pruned, RetentionStore, StoreError,
};
use sqlx::postgres::PgConnection;

use crate::columns::id_range;
use crate::database::WriteTx;
use crate::drop_day::{DropRequest, MAX_WINDOWS};
use crate::error::Result;
use crate::partitions::{DAY_MS, Day, existing_partitions, share_old_days};
use crate::{PgStore, audit};

/// A window of runs by id: the highest id, the earliest time of writing, and the ids of the expired runs. A shard is
/// kept as long as another shard of its fire is live, because the follow-ups of the last end depend on all shards. The
/// same holds for the runs of a flow run with a live child run.
pub(crate) const EXPIRED: &str = "
    SELECT max(id), min(created_at), coalesce(array_agg(id) FILTER (WHERE ended_at < $4 AND (shard_total = 1 OR NOT EXISTS
        (SELECT FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
            AND s.id >= $5 AND s.id < $2 AND s.ended_at IS NULL))
            AND NOT EXISTS (SELECT FROM run c WHERE c.fire_key = CASE
                    WHEN part.kind IN (1, 2) THEN part.fire_key
                    WHEN part.shard_total = 1 THEN part.id
                    ELSE (SELECT min(s.id) FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                        AND s.id >= $5 AND s.id < $2) END
                AND c.kind = 2 AND c.id >= $5 AND c.id < $2 AND c.ended_at IS NULL)), '{}')
    FROM (SELECT id, created_at, ended_at, shard_total, fire_key, job_id, kind FROM run
        WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3) part";

/// The same where rules exist. $6 is the present time. The newest run of a job has the number `run_count - 1`. Also the ids of
/// runs that stay while their log or output expires.
pub(crate) const EXPIRED_BY_RULES: &str = "
    SELECT max(id), min(created_at),
        coalesce(array_agg(id) FILTER (WHERE expired AND (shard_total = 1 OR NOT EXISTS
            (SELECT FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                AND s.id >= $5 AND s.id < $2 AND s.ended_at IS NULL))
            AND NOT EXISTS (SELECT FROM run c WHERE c.fire_key = CASE
                    WHEN part.kind IN (1, 2) THEN part.fire_key
                    WHEN part.shard_total = 1 THEN part.id
                    ELSE (SELECT min(s.id) FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
                        AND s.id >= $5 AND s.id < $2) END
                AND c.kind = 2 AND c.id >= $5 AND c.id < $2 AND c.ended_at IS NULL)), '{}'),
        coalesce(array_agg(id) FILTER (WHERE NOT expired AND log_expired AND EXISTS
            (SELECT FROM run_log l WHERE l.run_id = part.id AND l.run_id >= $5 AND l.run_id < $2)), '{}'),
        coalesce(array_agg(id) FILTER (WHERE NOT expired AND output_expired), '{}')
    FROM (
        SELECT r.id, r.created_at, r.shard_total, r.fire_key, r.job_id, r.kind,
            coalesce(r.ended_at < coalesce($6 - coalesce(j.keep_age_ms, g.age_ms), $4), false)
                OR (r.ended_at IS NOT NULL AND coalesce(r.sequence < d.run_count - coalesce(j.keep_runs, g.runs), false)) AS expired,
            coalesce(r.ended_at < $6 - coalesce(j.keep_logs_ms, g.logs_ms), false) AS log_expired,
            r.has_output AND coalesce(r.ended_at < $6 - coalesce(j.keep_outputs_ms, g.outputs_ms), false) AS output_expired
        FROM (SELECT id, created_at, ended_at, sequence, shard_total, fire_key, job_id, kind, output IS NOT NULL AS has_output
                FROM run WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3) r
            LEFT JOIN job j ON j.id = r.job_id LEFT JOIN group_retention g ON g.group_name = j.group_name
            LEFT JOIN job_due d ON d.job_id = r.job_id) part";

/// The columns of [`RulesRow`](cueline_store::adapter::retention::RulesRow), and a digest of the ages.
const RULES: &str = "
    SELECT min(least(age_ms, logs_ms, outputs_ms)), max(age_ms), bool_or(runs IS NOT NULL),
        coalesce(sum(hashtext(concat_ws(' ', owner, age_ms))), 0)::bigint
    FROM (SELECT id::text AS owner, keep_age_ms AS age_ms, keep_runs AS runs, keep_logs_ms AS logs_ms, keep_outputs_ms AS outputs_ms
            FROM job WHERE coalesce(keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms) IS NOT NULL
        UNION ALL SELECT group_name, age_ms, runs, logs_ms, outputs_ms FROM group_retention) rule";

/// The ledger needs to know which fire times had runs.
const NOTE_PRUNED: &str = "
    INSERT INTO pruned_until (job_id, fire_at)
    SELECT r.job_id, max(r.fire_at) FROM unnest($1::bigint[]) e (id) JOIN run r ON r.id = e.id AND r.id BETWEEN $2 AND $3
    WHERE r.kind = 0 GROUP BY r.job_id ORDER BY r.job_id
    ON CONFLICT (job_id) DO UPDATE SET fire_at = greatest(pruned_until.fire_at, excluded.fire_at)";

/// Keys end with the retention of runs without a rule. Other keys are deleted with their day.
const DELETE_KEYS: &str = "
    DELETE FROM trigger_key k USING unnest($1::bigint[]) e (id) JOIN run r ON r.id = e.id AND r.id BETWEEN $2 AND $3
    WHERE k.first_run = e.id AND k.first_run BETWEEN $2 AND $3 AND r.ended_at < $4";

const DELETE_LOGS: &str = "DELETE FROM run_log l USING unnest($1::bigint[]) e (id) WHERE l.run_id = e.id AND l.run_id BETWEEN $2 AND $3";

const DELETE_OUTPUTS: &str = "
    UPDATE run r SET output = NULL FROM unnest($1::bigint[]) e (id) WHERE r.id = e.id AND r.id BETWEEN $2 AND $3";

const DELETES: [&str; 3] = [
    DELETE_LOGS,
    "DELETE FROM run_event v USING unnest($1::bigint[]) e (id) WHERE v.run_id = e.id AND v.run_id BETWEEN $2 AND $3",
    "DELETE FROM run r USING unnest($1::bigint[]) e (id) WHERE r.id = e.id AND r.id BETWEEN $2 AND $3",
];

/// Executors whose last heartbeat has expired too, and that hold no run. The live runs are read once, not once for each
/// executor.
const DELETE_EXECUTORS: &str = "
    DELETE FROM executor WHERE last_heartbeat_at < $1
        AND name NOT IN (SELECT l.executor FROM run_live l WHERE l.state IN (1, 2, 3) AND l.executor IS NOT NULL)";

/// The columns of [`PruneRow`].
pub(crate) const TO_PRUNE: &str = "
    SELECT r.id, j.name, j.group_name, r.ended_at IS NOT NULL AND (r.shard_total = 1 OR NOT EXISTS
        (SELECT FROM run s WHERE s.fire_key = r.fire_key AND s.job_id = r.job_id AND s.kind = r.kind AND s.id >= $4 AND s.id < $5
            AND s.ended_at IS NULL))
        AND NOT EXISTS (SELECT FROM run c WHERE c.fire_key = CASE
                WHEN r.kind IN (1, 2) THEN r.fire_key
                WHEN r.shard_total = 1 THEN r.id
                ELSE (SELECT min(s.id) FROM run s WHERE s.fire_key = r.fire_key AND s.job_id = r.job_id AND s.kind = r.kind
                    AND s.id >= $4 AND s.id < $5) END
            AND c.kind = 2 AND c.id >= $4 AND c.id < $5 AND c.ended_at IS NULL)
    FROM unnest($1::bigint[]) e (id) JOIN run r ON r.id = e.id AND r.id BETWEEN $2 AND $3 JOIN job j ON j.id = r.job_id";

const PRUNE_LETTERS: &str = "
    DELETE FROM dead_letter WHERE id IN (
        SELECT id FROM (SELECT id, at FROM dead_letter ORDER BY id LIMIT $2) oldest WHERE at < $1)";

const GROUP_RULES: &str = "
    SELECT group_name, age_ms, runs, logs_ms, outputs_ms FROM group_retention
    WHERE $1::text IS NULL OR group_name = $1 ORDER BY group_name";

/// Changes of rules run one after the other.
const LOCK_RULES: &str = "LOCK TABLE group_retention IN SHARE ROW EXCLUSIVE MODE";

const OTHER_RULES: &str = "SELECT count(*) FROM group_retention WHERE group_name <> $1";

const WRITE_RULE: &str = "
    INSERT INTO group_retention (group_name, age_ms, runs, logs_ms, outputs_ms) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (group_name) DO UPDATE SET age_ms = excluded.age_ms, runs = excluded.runs, logs_ms = excluded.logs_ms,
        outputs_ms = excluded.outputs_ms";

const DELETE_RULE: &str = "DELETE FROM group_retention WHERE group_name = $1";

/// With at least this retention, runs are kept until their whole day is dropped.
const WHOLE_DAYS_FROM_MS: u64 = 2 * DAY_MS;

/// A day that still has not been dropped after this time is kept by a long run. Its other runs are deleted one by one.
const KEEP_WHOLE_MS: u64 = DAY_MS;

/// The columns of [`EXPIRED_BY_RULES`].
type WindowRow = (Option<i64>, Option<i64>, Vec<i64>, Vec<i64>, Vec<i64>);

impl PgStore {
    pub(crate) async fn expire_runs(&self, request: ExpireRequest) -> Result<Expired> {
        let mut conn = self.db.autocommit().await?;
        let now = self.db.now(&mut conn).await?;
        let (shortest, longest, by_number, digest): (Option<i64>, Option<i64>, Option<bool>, i64) =
            sqlx::query_as(RULES).fetch_one(&mut *conn).await?;
        let horizon = Horizon::new(now, request.age_ms, (shortest, longest, by_number));
        let days = existing_partitions(&mut conn).await?;
        conn.keep();
        self.day_checks.retain(&days);
        let mut windows = MAX_WINDOWS;
        let whole_days = request.age_ms >= WHOLE_DAYS_FROM_MS;
        let mut dropped = 0;
        let mut one_by_one = Vec::new();
        for day in days {
            let is_over = |at| day.end().is_some_and(|end| end <= at);
            let overdue = is_over(horizon.before.minus_ms(KEEP_WHOLE_MS));
            let drop = DropRequest {
                day,
                horizon: &horizon,
                rules: horizon.has_longer.then_some(digest),
            };
            if (whole_days || overdue)
                && is_over(horizon.before)
                && let Some(runs) = self.drop_expired_day(drop, &mut windows).await?
            {
                dropped += runs;
            } else if !whole_days || overdue || horizon.has_shorter {
                one_by_one.push(day);
            }
        }
        let mut sweep = Sweep::new(&request);
        self.find_expired(&mut sweep, &one_by_one, &horizon).await?;
        self.delete_expired(&sweep, &horizon, request.after).await?;
        let mut expired = sweep.expired();
        expired.runs += dropped;
        Ok(expired)
    }

    /// Finds what has expired in these days before the transaction that deletes it. An expired run stays expired, unless
    /// its rule is changed at this moment.
    async fn find_expired(&self, sweep: &mut Sweep, days: &[Day], horizon: &Horizon) -> Result<()> {
        let mut conn = self.db.autocommit().await?;
        let days = days.iter().map(|day| day.ids());
        let start = sweep.position();
        for (first, end) in days.filter(|(_, end)| *end > start) {
            sweep.enter_range(first);
            loop {
                let ids = (sweep.position() + 1, end, first);
                let window = read_window(&mut conn, ids, horizon).await?;
                match sweep.take(window, horizon.until) {
                    Step::Window => {}
                    Step::NextCall => return Ok(()),
                    Step::EndOfRange => break,
                }
            }
        }
        sweep.end();
        Ok(())
    }

    async fn delete_expired(
        &self,
        sweep: &Sweep,
        horizon: &Horizon,
        after: Option<RunId>,
    ) -> Result<()> {
        if sweep.is_empty() && after.is_some() {
            return Ok(());
        }
        let mut tx = self.db.write().await?;
        let all = [&sweep.runs, &sweep.logs, &sweep.outputs];
        share_days(&mut tx, all.into_iter().flatten()).await?;
        let before = horizon.before.as_millis();
        if !sweep.runs.is_empty() {
            let (low, high) = id_range(sweep.runs.iter().copied());
            sqlx::query(DELETE_KEYS)
                .bind(&sweep.runs)
                .bind(low)
                .bind(high)
                .bind(before)
                .execute(&mut *tx)
                .await?;
        }
        delete_runs(&mut tx, &sweep.runs).await?;
        for (statement, runs) in [(DELETE_LOGS, &sweep.logs), (DELETE_OUTPUTS, &sweep.outputs)] {
            execute_for(&mut tx, statement, runs).await?;
        }
        if after.is_none() {
            sqlx::query(DELETE_EXECUTORS)
                .bind(before)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await
    }

    pub(crate) async fn prune_runs(&self, request: &PruneRequest, by: &Actor) -> Result<Pruned> {
        check_prune(request)?;
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let mut runs: Vec<i64> = request.runs.iter().map(|run| run.0).collect();
        runs.sort_unstable();
        share_days(&mut tx, &runs).await?;
        let (low, high) = id_range(runs.iter().copied());
        let rows: Vec<PruneRow> = sqlx::query_as(TO_PRUNE)
            .bind(&runs)
            .bind(low)
            .bind(high)
            // Shards of a fire have the same day.
            .bind(Day::of_run(low).ids().0)
            .bind(Day::of_run(high).ids().1)
            .fetch_all(&mut *tx)
            .await?;
        let plan = plan_prune(request, rows, by)?;
        if plan.runs.is_empty() {
            tx.roll_back().await;
        } else {
            delete_runs(&mut tx, &plan.runs).await?;
            audit::write(&mut tx, &plan.entries, now).await?;
            tx.commit().await?;
        }
        Ok(plan.pruned)
    }

    pub(crate) async fn prune_dead_letters(&self, older_than_ms: u64, limit: usize) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let before = tx.now.minus_ms(older_than_ms);
        let deleted = sqlx::query(PRUNE_LETTERS)
            .bind(before.as_millis())
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
        let now = tx.now;
        sqlx::query(LOCK_RULES).execute(&mut *tx).await?;
        let present = read_rules(&mut tx, Some(group)).await?;
        let before = present.first().map(|present| present.rule);
        let after = (!rule.is_empty()).then_some(*rule);
        if before == after {
            tx.roll_back().await;
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

/// The window of runs from the first id on, and below the second one. The third one is where the day begins.
async fn read_window(
    conn: &mut PgConnection,
    (from, end, day): (i64, i64, i64),
    horizon: &Horizon,
) -> Result<Window> {
    let before = horizon.before.as_millis();
    if !horizon.has_rules {
        let (last, earliest, runs): (Option<i64>, Option<i64>, Vec<i64>) = sqlx::query_as(EXPIRED)
            .bind(from)
            .bind(end)
            .bind(to_i64(WINDOW))
            .bind(before)
            .bind(day)
            .fetch_one(conn)
            .await?;
        return Ok(Window {
            last,
            earliest,
            runs,
            ..Window::default()
        });
    }
    let (last, earliest, runs, logs, outputs): WindowRow = sqlx::query_as(EXPIRED_BY_RULES)
        .bind(from)
        .bind(end)
        .bind(to_i64(WINDOW))
        .bind(before)
        .bind(day)
        .bind(horizon.now.as_millis())
        .fetch_one(conn)
        .await?;
    Ok(Window {
        last,
        earliest,
        runs,
        logs,
        outputs,
    })
}

/// Notes that the transaction changes these runs.
async fn share_days(tx: &mut WriteTx, runs: impl IntoIterator<Item = &i64>) -> Result<()> {
    let days: BTreeSet<Day> = runs.into_iter().map(|run| Day::of_run(*run)).collect();
    let now = tx.now;
    share_old_days(tx, &days, now).await
}

/// Deletes ended runs with their logs and timelines.
async fn delete_runs(conn: &mut PgConnection, runs: &[i64]) -> Result<()> {
    execute_for(conn, NOTE_PRUNED, runs).await?;
    for delete in DELETES {
        execute_for(conn, delete, runs).await?;
    }
    Ok(())
}

async fn execute_for(conn: &mut PgConnection, statement: &'static str, runs: &[i64]) -> Result<()> {
    if !runs.is_empty() {
        let (low, high) = id_range(runs.iter().copied());
        sqlx::query(statement)
            .bind(runs)
            .bind(low)
            .bind(high)
            .execute(conn)
            .await?;
    }
    Ok(())
}

async fn read_rules(
    conn: &mut PgConnection,
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
        impl RetentionStore for PgStore {
            $(async fn $method(&self, $($arg: $type),*) -> std::result::Result<$answer, StoreError> {
                self.$method($($arg),*).await.map_err(|error| error.failed_to($what))
            })*
        }
    };
}

cueline_store::with_retention_methods!(implement_retention);
