//! Reads entries.

use std::collections::HashMap;
use std::fmt::Write as _;

use cueline_model::{AttemptId, JobName, RunId, StoreId};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::entry::{Entry, LeaseRecord};
use super::error::JournalError;
use super::file::Journal;
use crate::identity::{AttemptKey, RunKey};

/// An entry as [`Journal::known`] reads it: store in hexadecimal, run, attempt, state, seq, at, job, outcome.
type KnownRow = (
    String,
    i64,
    u32,
    i64,
    i64,
    i64,
    Option<JobName>,
    Option<String>,
);

impl Journal {
    /// The entries of these runs, without their triggers. One statement returns one row of JSON, however many runs
    /// there are.
    pub(crate) async fn known(
        &mut self,
        runs: impl Iterator<Item = RunKey>,
    ) -> Result<HashMap<RunKey, Entry>, JournalError> {
        // Runs of other stores with the same numbers are read as well; their keys differ.
        let text: String = sqlx::query_scalar(
            "SELECT json_group_array(json_array(hex(store), run, attempt, state, seq, at, job, outcome))
             FROM entry WHERE run IN (SELECT value FROM json_each(?1))",
        )
        .bind(json_array(runs.map(|key| key.run)))
        .fetch_one(&mut self.connection)
        .await
        .map_err(JournalError::database("read"))?;
        if text == "[]" {
            return Ok(HashMap::new());
        }
        let rows: Vec<KnownRow> =
            serde_json::from_str(&text).map_err(|e| JournalError::Corrupt(e.to_string()))?;
        rows.into_iter()
            .map(|(store, run, attempt, state, seq, at_ms, job, outcome)| {
                let store: StoreId = store
                    .parse()
                    .map_err(|e| JournalError::Corrupt(format!("store of run {run}: {e}")))?;
                let id = AttemptId {
                    run: RunId(run),
                    attempt,
                };
                let entry = Entry {
                    key: AttemptKey::new(store, id),
                    state: state.try_into()?,
                    seq,
                    at_ms,
                    job,
                    trigger: None,
                    outcome,
                };
                Ok((entry.key.run, entry))
            })
            .collect()
    }

    /// All entries that are not reported yet, in the order of acceptance.
    pub(crate) async fn unreported(&mut self) -> Result<Vec<Entry>, JournalError> {
        sqlx::query(
            "SELECT store, run, attempt, state, seq, at, job, trigger, outcome FROM entry
             WHERE state < 3 ORDER BY seq",
        )
        .fetch_all(&mut self.connection)
        .await
        .map_err(JournalError::database("read"))?
        .iter()
        .map(entry_of)
        .collect()
    }

    /// The last recorded proof of the broker lease. There may have been newer ones.
    pub(crate) async fn last_lease(&mut self) -> Result<Option<LeaseRecord>, JournalError> {
        let row: Option<(i64, i64, String)> =
            sqlx::query_as("SELECT wall, up, boot FROM lease WHERE id = 1")
                .fetch_optional(&mut self.connection)
                .await
                .map_err(JournalError::database("read"))?;
        Ok(row.map(|(wall_ms, boot_ms, boot_id)| LeaseRecord {
            wall_ms,
            boot_ms,
            boot_id,
        }))
    }
}

fn entry_of(row: &SqliteRow) -> Result<Entry, JournalError> {
    fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T, JournalError>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        row.try_get(column).map_err(JournalError::database("read"))
    }
    let (store, run): (&[u8], i64) = (get(row, 0)?, get(row, 1)?);
    let corrupt = |what: &str| JournalError::Corrupt(format!("{what} of run {run}"));
    let store: [u8; 16] = store.try_into().map_err(|_| corrupt("store"))?;
    let attempt: i64 = get(row, 2)?;
    let id = AttemptId {
        run: RunId(run),
        attempt: u32::try_from(attempt).map_err(|_| corrupt("attempt"))?,
    };
    let job: Option<&str> = get(row, 6)?;
    let trigger: Option<Vec<u8>> = get(row, 7)?;
    Ok(Entry {
        key: AttemptKey::new(StoreId(u128::from_be_bytes(store)), id),
        state: get::<i64>(row, 3)?.try_into()?,
        seq: get(row, 4)?,
        at_ms: get(row, 5)?,
        job: job
            .map(str::parse)
            .transpose()
            .map_err(|_| corrupt("job"))?,
        trigger: trigger.map(Into::into),
        outcome: get(row, 8)?,
    })
}

fn json_array(runs: impl Iterator<Item = RunId>) -> String {
    let mut text = String::from("[");
    for (i, run) in runs.enumerate() {
        let comma = if i == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{run}");
    }
    text.push(']');
    text
}
