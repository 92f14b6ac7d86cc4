//! Reading: what is known of runs, and what was open when the last worker stopped.

use std::collections::HashMap;

use cueline_model::StoreId;
use sqlx::Row as _;

use super::{Journal, JournalError, LastContact, State, json_of};
use crate::stores::{AttemptKey, RunKey, StoreNumber};

/// The newest attempt of a run that the journal knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) attempt: u32,
    pub(crate) state: State,
    /// Since when it is in this state.
    pub(crate) at_ms: i64,
    pub(crate) job: Option<String>,
    /// JSON, once it has ended.
    pub(crate) outcome: Option<String>,
}

/// What is read of an entry that is known.
type KnownEntry = (i64, u32, i64, i64, Option<String>, Option<String>);

/// An entry whose outcome has not been reported yet.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: AttemptKey,
    pub(crate) state: State,
    pub(crate) seq: i64,
    pub(crate) at_ms: i64,
    pub(crate) job: String,
    pub(crate) trigger: Option<Vec<u8>>,
    pub(crate) outcome: Option<String>,
}

impl Journal {
    /// What is known of these runs. One statement and one row, whatever their number.
    pub(crate) async fn known(
        &mut self,
        runs: impl Iterator<Item = RunKey>,
    ) -> Result<HashMap<RunKey, Known>, JournalError> {
        let text: String = sqlx::query_scalar(
            "SELECT json_group_array(json_array(run, attempt, state, at, job, outcome))
             FROM entry WHERE run IN (SELECT value FROM json_each(?1))",
        )
        .bind(json_of(runs))
        .fetch_one(&mut self.connection)
        .await
        .map_err(JournalError::database("read"))?;
        if text == "[]" {
            return Ok(HashMap::new());
        }
        let entries: Vec<KnownEntry> =
            serde_json::from_str(&text).map_err(|e| JournalError::Corrupt(e.to_string()))?;
        entries
            .into_iter()
            .map(|(run, attempt, state, at_ms, job, outcome)| {
                let known = Known {
                    attempt,
                    state: state_of(state)?,
                    at_ms,
                    job,
                    outcome,
                };
                Ok((RunKey::from_number(run), known))
            })
            .collect()
    }

    /// When the worker was in contact for the last time, as far as it was written down: never later than it was.
    pub(crate) async fn last_contact(&mut self) -> Result<Option<LastContact>, JournalError> {
        let row: Option<(i64, i64, String)> =
            sqlx::query_as("SELECT at, up, boot FROM contact WHERE id = 1")
                .fetch_optional(&mut self.connection)
                .await
                .map_err(JournalError::database("read"))?;
        Ok(row.map(|(at_ms, up_ms, boot_id)| LastContact {
            at_ms,
            up_ms,
            boot_id,
        }))
    }

    /// The stores that triggers have come from.
    pub(crate) async fn stores(&mut self) -> Result<Vec<(StoreNumber, StoreId)>, JournalError> {
        let rows: Vec<(i64, String)> =
            sqlx::query_as("SELECT number, id FROM store ORDER BY number")
                .fetch_all(&mut self.connection)
                .await
                .map_err(JournalError::database("read"))?;
        rows.into_iter()
            .map(|(number, id)| {
                let number = number.try_into().map_err(JournalError::Corrupt)?;
                let id = id
                    .parse()
                    .map_err(|e| JournalError::Corrupt(format!("store {id}: {e}")))?;
                Ok((number, id))
            })
            .collect()
    }

    /// Everything that is not reported yet, in the order of acceptance. Read once, at the start.
    pub(crate) async fn open_entries(&mut self) -> Result<Vec<Open>, JournalError> {
        sqlx::query(
            "SELECT run, attempt, state, seq, at, job, trigger, outcome FROM entry
             WHERE state < 3 ORDER BY seq",
        )
        .fetch_all(&mut self.connection)
        .await
        .map_err(JournalError::database("read"))?
        .iter()
        .map(open_of)
        .collect()
    }
}

fn open_of(row: &sqlx::sqlite::SqliteRow) -> Result<Open, JournalError> {
    let database = || JournalError::database("read");
    let attempt: i64 = row.try_get(1).map_err(database())?;
    let state: i64 = row.try_get(2).map_err(database())?;
    let job: Option<String> = row.try_get(5).map_err(database())?;
    Ok(Open {
        id: AttemptKey {
            run: RunKey::from_number(row.try_get(0).map_err(database())?),
            attempt: u32::try_from(attempt)
                .map_err(|_| JournalError::Corrupt(format!("attempt {attempt}")))?,
        },
        state: state_of(state)?,
        seq: row.try_get(3).map_err(database())?,
        at_ms: row.try_get(4).map_err(database())?,
        job: job.unwrap_or_default(),
        trigger: row.try_get(6).map_err(database())?,
        outcome: row.try_get(7).map_err(database())?,
    })
}

fn state_of(code: i64) -> Result<State, JournalError> {
    match code {
        0 => Ok(State::Accepted),
        1 => Ok(State::Started),
        2 => Ok(State::Ended),
        3 => Ok(State::Reported),
        other => Err(JournalError::Corrupt(format!("state {other}"))),
    }
}
