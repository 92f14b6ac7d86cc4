//! Forgetting what is old, and repairing what should not happen.

use cueline_model::Timestamp;
use cueline_store::StoreError;

use crate::SqliteStore;
use crate::database::commit;
use crate::error::failed;
use crate::follow::SET_NEXT;
use crate::rows::{decode, encode, int};

/// A window of runs by id: the highest id, the earliest time of writing, and those that are old enough.
pub(crate) const OLD: &str = "
    SELECT max(id), min(created_at), json_group_array(id) FILTER (WHERE ended_at < ?2 AND (shard_total = 1 OR NOT EXISTS
        (SELECT 1 FROM run s WHERE s.fire_key = part.fire_key AND s.job_id = part.job_id AND s.kind = part.kind
            AND s.ended_at IS NULL)))
    FROM (SELECT id, created_at, ended_at, shard_total, fire_key, job_id, kind FROM run WHERE id > ?1 ORDER BY id LIMIT ?3) part";

const DELETES: [&str; 4] = [
    "DELETE FROM run_log WHERE run_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run_event WHERE run_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM trigger_key WHERE first_run IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run WHERE id IN (SELECT value FROM json_each(?1))",
];

/// Executors that were silent for as long have nothing that is known of them any more.
const FORGET_EXECUTORS: &str = "
    DELETE FROM executor WHERE last_heartbeat_at < ?1
        AND NOT EXISTS (SELECT 1 FROM run WHERE state IN (1, 2, 3) AND state < 10 AND run.executor = executor.name)";

pub(crate) const RESTING: &str = "
    SELECT json_group_array(json_array(d.job_id, d.version)) FROM job_due d
    WHERE d.fixed_delay = 1 AND d.enabled = 1 AND d.next_fire_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = d.job_id AND r.awaited = 1 AND r.state < 10)";

/// Runs looked at by one statement.
const WINDOW: usize = 5_000;

impl SqliteStore {
    pub(crate) async fn forget(&self, older_than_ms: u64, limit: usize) -> Result<u64, StoreError> {
        let fail = failed("delete old runs");
        let mut tx = self.db.write().await?;
        let before = self.db.now().minus_ms(older_than_ms).as_millis();
        let mut after = 0_i64;
        let mut old: Vec<i64> = Vec::new();
        while old.len() < limit {
            let (last, earliest, ids): (Option<i64>, Option<i64>, String) = sqlx::query_as(OLD)
                .bind(after)
                .bind(before)
                .bind(int(WINDOW))
                .fetch_one(&mut *tx)
                .await
                .map_err(&fail)?;
            old.extend(decode::<i64>(&ids)?);
            // What was written later cannot have ended earlier.
            match (last, earliest) {
                (Some(last), Some(earliest)) if earliest < before => after = last,
                _ => break,
            }
        }
        old.truncate(limit);
        if !old.is_empty() {
            let list = encode(&old)?;
            for delete in DELETES {
                sqlx::query(delete)
                    .bind(&list)
                    .execute(&mut *tx)
                    .await
                    .map_err(&fail)?;
            }
        }
        sqlx::query(FORGET_EXECUTORS)
            .bind(before)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        commit(tx).await?;
        Ok(old.len() as u64)
    }

    pub(crate) async fn mend(&self) -> Result<u64, StoreError> {
        let fail = failed("repair fixed-delay jobs");
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let text: String = sqlx::query_scalar(RESTING)
            .fetch_one(&mut *tx)
            .await
            .map_err(&fail)?;
        let resting: Vec<(i64, i64)> = decode(&text)?;
        let jobs = self
            .definitions
            .of(&mut tx, resting.iter().copied())
            .await?;
        let mut next: Vec<(i64, Timestamp)> = Vec::new();
        for (id, _) in resting {
            // None: its end has passed, it rests for good.
            let at = jobs.get(&id).and_then(|job| job.spec.next_fire(now));
            next.extend(at.map(|at| (id, at)));
        }
        if !next.is_empty() {
            sqlx::query(SET_NEXT)
                .bind(encode(&next)?)
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        }
        commit(tx).await?;
        Ok(next.len() as u64)
    }
}
