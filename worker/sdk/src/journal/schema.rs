//! The tables of the journal.

/// Marks the file as a journal, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueJ`.
pub(super) const APPLICATION_ID: i64 = 0x4375_654a;

/// Version of the schema.
pub(super) const VERSION: i64 = 1;

/// Runs come first in the key: `known` looks up run ids, whatever their store.
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
        PRIMARY KEY (run, store)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX entry_reported ON entry (at) WHERE state = 3;
    CREATE TABLE lease (
        id   INTEGER PRIMARY KEY CHECK (id = 1),
        wall INTEGER NOT NULL,
        up   INTEGER NOT NULL,
        boot TEXT NOT NULL
    ) STRICT;";
