//! Reads entries.

use std::collections::HashMap;

use cueline_model::{JobName, Session};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::entry::{Entry, LeaseRecord};
use super::error::JournalError;
use super::file::Journal;
use super::keys::{StoreNumbers, json_array};
use crate::identity::{AttemptKey, RunKey};

/// An entry as [`Journal::known`] reads it: key, attempt, state, seq, at, job, fire, outcome.
type KnownRow = (
    i64,
    u32,
    i64,
    i64,
    i64,
    Option<JobName>,
    Option<i64>,
    Option<String>,
);

impl Journal {
    /// The entries of these runs, without their triggers. For new runs the file is not read. Otherwise one statement
    /// returns one row of JSON, however many runs there are.
    pub(crate) async fn known(
        &mut self,
        runs: impl Iterator<Item = RunKey>,
    ) -> Result<HashMap<RunKey, Entry>, JournalError> {
        self.check_thread("read")?;
        let keys = runs.filter_map(|run| self.stores.key(run));
        let keys: Vec<i64> = keys.filter(|key| self.recent.may_have(*key)).collect();
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let keys = json_array(keys.into_iter());
        let text: String = sqlx::query_scalar(
            "SELECT json_group_array(json_array(key, attempt, state, seq, at, job, fire, outcome))
             FROM entry WHERE key IN (SELECT value FROM json_each(?1))",
        )
        .bind(keys)
        .fetch_one(&mut self.connection)
        .await
        .map_err(JournalError::database("read"))?;
        if text == "[]" {
            return Ok(HashMap::new());
        }
        let rows: Vec<KnownRow> =
            serde_json::from_str(&text).map_err(|e| JournalError::Corrupt(e.to_string()))?;
        rows.into_iter()
            .map(|(key, attempt, state, seq, at_ms, job, fire, outcome)| {
                let entry = Entry {
                    key: attempt_key(&self.stores, key, attempt)?,
                    state: state.try_into()?,
                    seq,
                    at_ms,
                    job,
                    fire,
                    trigger: None,
                    outcome,
                };
                Ok((entry.key.run, entry))
            })
            .collect()
    }

    /// All entries that are not reported yet, in the order of acceptance. Those that wait have their triggers.
    pub(crate) async fn unreported(&mut self) -> Result<Vec<Entry>, JournalError> {
        sqlx::query(
            "SELECT entry.key, attempt, state, seq, at, job, fire, trigger, outcome
             FROM entry LEFT JOIN waiting ON waiting.key = entry.key AND entry.state = 0
             WHERE entry.state < 3 ORDER BY seq",
        )
        .fetch_all(&mut self.connection)
        .await
        .map_err(JournalError::database("read"))?
        .iter()
        .map(|row| entry_of(row, &self.stores))
        .collect()
    }

    /// The last recorded proof of the broker lease. There may have been newer ones.
    pub(crate) async fn last_lease(&mut self) -> Result<Option<LeaseRecord>, JournalError> {
        let row: Option<(i64, i64, String, i64)> =
            sqlx::query_as("SELECT wall, up, boot, session FROM lease WHERE id = 1")
                .fetch_optional(&mut self.connection)
                .await
                .map_err(JournalError::database("read"))?;
        Ok(row.map(|(wall_ms, boot_ms, boot_id, session)| LeaseRecord {
            wall_ms,
            boot_ms,
            boot_id,
            session: Session(session),
        }))
    }
}

fn entry_of(row: &SqliteRow, stores: &StoreNumbers) -> Result<Entry, JournalError> {
    fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T, JournalError>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        row.try_get(column).map_err(JournalError::database("read"))
    }
    let key = attempt_key(stores, get(row, 0)?, get(row, 1)?)?;
    let job: Option<&str> = get(row, 5)?;
    let trigger: Option<Vec<u8>> = get(row, 7)?;
    let corrupt = || JournalError::Corrupt(format!("job of run {}", key.run));
    Ok(Entry {
        key,
        state: get::<i64>(row, 2)?.try_into()?,
        seq: get(row, 3)?,
        at_ms: get(row, 4)?,
        job: job.map(str::parse).transpose().map_err(|_| corrupt())?,
        fire: get(row, 6)?,
        trigger: trigger.map(Into::into),
        outcome: get(row, 8)?,
    })
}

fn attempt_key(stores: &StoreNumbers, key: i64, attempt: u32) -> Result<AttemptKey, JournalError> {
    let run = stores.run(key);
    let run = run.ok_or_else(|| JournalError::Corrupt(format!("store of entry {key}")))?;
    Ok(AttemptKey { run, attempt })
}
