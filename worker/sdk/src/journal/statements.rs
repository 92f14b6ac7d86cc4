//! The statements that write many rows.

use std::collections::HashMap;
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

/// The transactions that write up to [`FEW_ROWS`] entries: whether they remove triggers, their rows of triggers and of entries.
/// There are at most 24.
#[derive(Debug, Default)]
pub(super) struct FewRowsTransactions(HashMap<(bool, usize, usize), Arc<str>>);

impl FewRowsTransactions {
    /// The transaction of these statements. Those of triggers are left out if there is nothing to do.
    pub(super) fn text(
        &mut self,
        removes: bool,
        triggers: Option<&(usize, Arc<str>)>,
        entries: &(usize, Arc<str>),
    ) -> Arc<str> {
        let key = (removes, triggers.map_or(0, |t| t.0), entries.0);
        let make = || {
            let delete = removes.then_some(DELETE_TRIGGERS);
            let add = triggers.map(|(_, text)| text.as_ref());
            let steps = [
                Some("BEGIN IMMEDIATE"),
                delete,
                add,
                Some(&entries.1),
                Some("COMMIT"),
            ];
            steps
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; ")
                .into()
        };
        self.0.entry(key).or_insert_with(make).clone()
    }
}
