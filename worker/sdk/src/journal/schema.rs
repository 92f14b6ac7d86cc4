//! The tables of the journal.

/// Marks the file as a journal, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueJ`.
pub(super) const APPLICATION_ID: i64 = 0x4375_654a;

/// Version of the schema.
pub(super) const VERSION: i64 = 1;

/// Runs come first in the index: `known` looks up run ids, whatever their store.
///
/// Entries are stored by row id. Sorted by their key (`WITHOUT ROWID`), whole entries with their triggers would be the
/// keys of the tree, and the standalone server would fire a third less.
pub(super) const SCHEMA: &str = "
    CREATE TABLE entry (
        run     INTEGER NOT NULL,
        store   BLOB NOT NULL,
        attempt INTEGER NOT NULL,
        state   INTEGER NOT NULL,
        seq     INTEGER NOT NULL,
        at      INTEGER NOT NULL,
        job     TEXT,
        trigger BLOB,
        outcome TEXT,
        UNIQUE (run, store)
    ) STRICT;
    CREATE INDEX entry_reported ON entry (at) WHERE state = 3;
    CREATE TABLE lease (
        id   INTEGER PRIMARY KEY CHECK (id = 1),
        wall INTEGER NOT NULL,
        up   INTEGER NOT NULL,
        boot TEXT NOT NULL
    ) STRICT;";
