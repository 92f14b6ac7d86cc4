//! The statements that write many rows.

use std::sync::Arc;

/// The most rows that one statement writes.
pub(super) const MAX_ROWS: usize = 1_024;

/// `excluded` is the new row. An entry only moves forward, so a repeated or older write changes nothing. A write
/// without a job, fire or outcome keeps the one that is there.
const UPSERT: &str = "
     ON CONFLICT (key) DO UPDATE SET
         seq     = iif(excluded.attempt > attempt, excluded.seq, seq),
         job     = coalesce(excluded.job, job),
         fire    = coalesce(excluded.fire, fire),
         outcome = iif(excluded.attempt > attempt, excluded.outcome, coalesce(excluded.outcome, outcome)),
         at      = excluded.at,
         state   = excluded.state,
         attempt = excluded.attempt
     WHERE excluded.attempt > attempt OR (excluded.attempt = attempt AND excluded.state > state)";

/// Runs before the statement that writes the entries. It adds the triggers of exactly those accepted entries that the
/// other will write: those that are new, or of a newer attempt.
const UNLESS_KNOWN: &str = ")
     INSERT INTO waiting (key, trigger) SELECT accepted.key, accepted.trigger FROM accepted
     WHERE accepted.key IS NOT NULL AND NOT EXISTS
         (SELECT 1 FROM entry WHERE entry.key = accepted.key AND entry.attempt >= accepted.attempt)
     ON CONFLICT (key) DO UPDATE SET trigger = excluded.trigger";

/// Up to this many entries are written by one call of the connection's thread, with the changes of their triggers.
///
/// An attempt waits for each call. With many entries that is little beside their work, and their texts would be many.
pub(super) const FEW_ROWS: usize = 4;

/// Removes the triggers of the keys in an array of JSON.
pub(super) const DELETE_TRIGGERS: &str =
    "DELETE FROM waiting WHERE key IN (SELECT value FROM json_each(?))";

/// A statement in its forms with 1, 2, 4 … [`MAX_ROWS`] rows, so that `SQLite` prepares few different ones.
#[derive(Debug)]
pub(super) struct RowsStatement {
    before: &'static str,
    row: &'static str,
    after: &'static str,
    texts: [Option<Arc<str>>; MAX_ROWS.ilog2() as usize + 1],
}

impl RowsStatement {
    /// Writes entries: key, attempt, state, seq, at, job, fire, outcome.
    pub(super) fn entries() -> Self {
        let before = "INSERT INTO entry (key, attempt, state, seq, at, job, fire, outcome) VALUES ";
        Self::new(before, "(?,?,?,?,?,?,?,?)", UPSERT)
    }

    /// Writes the triggers of accepted entries: key, attempt, trigger. Rows without a key are left out.
    pub(super) fn triggers() -> Self {
        let before = "WITH accepted (key, attempt, trigger) AS (VALUES ";
        Self::new(before, "(?,?,?)", UNLESS_KNOWN)
    }

    fn new(before: &'static str, row: &'static str, after: &'static str) -> Self {
        Self {
            before,
            row,
            after,
            texts: std::array::from_fn(|_| None),
        }
    }

    /// The form with this number of rows, which is a power of two.
    pub(super) fn text(&mut self, rows: usize) -> Arc<str> {
        let (before, row, after) = (self.before, self.row, self.after);
        let make = || format!("{before}{}{after}", vec![row; rows].join(",")).into();
        self.texts[rows.ilog2() as usize]
            .get_or_insert_with(make)
            .clone()
    }
}

/// The transactions that write one entry, or up to [`FEW_ROWS`].
///
/// Each has all statements, whether there are triggers or not. With one for each case, an executor would hold dozens of prepared
/// statements, and a process may have hundreds of executors.
#[derive(Debug, Default)]
pub(super) struct FewRowsTransactions {
    one: Option<Arc<str>>,
    few: Option<Arc<str>>,
}

impl FewRowsTransactions {
    /// The number of rows in the transaction that writes so many entries.
    pub(super) const fn rows(entries: usize) -> usize {
        if entries <= 1 { 1 } else { FEW_ROWS }
    }

    /// The transaction that removes triggers and then writes these rows of triggers and entries.
    pub(super) fn text(
        &mut self,
        rows: usize,
        triggers: &mut RowsStatement,
        entries: &mut RowsStatement,
    ) -> Arc<str> {
        let text = if rows == 1 {
            &mut self.one
        } else {
            &mut self.few
        };
        let make = || {
            let (add, write) = (triggers.text(rows), entries.text(rows));
            format!("BEGIN IMMEDIATE; {DELETE_TRIGGERS}; {add}; {write}; COMMIT").into()
        };
        text.get_or_insert_with(make).clone()
    }
}
