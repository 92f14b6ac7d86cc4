//! The tables of the journal.

/// Marks the file as a journal, <https://www.sqlite.org/pragma.html#pragma_application_id>: `CueJ`.
pub(super) const APPLICATION_ID: i64 = 0x4375_654a;

/// Version of the schema.
pub(super) const VERSION: i64 = 2;

/// All tables but [`WAITING`]. See [`keys`](super::keys) for the keys of entries.
pub(super) const SCHEMA: &str = "
    CREATE TABLE store (
        number    INTEGER PRIMARY KEY,
        id        BLOB NOT NULL UNIQUE,
        forgotten INTEGER
    ) STRICT;
    CREATE TABLE entry (
        key     INTEGER PRIMARY KEY,
        attempt INTEGER NOT NULL,
        state   INTEGER NOT NULL,
        seq     INTEGER NOT NULL,
        at      INTEGER NOT NULL,
        job     TEXT,
        fire    INTEGER,
        outcome TEXT
    ) STRICT;
    CREATE INDEX entry_reported ON entry (at) WHERE state = 3;
    CREATE TABLE lease (
        id      INTEGER PRIMARY KEY CHECK (id = 1),
        wall    INTEGER NOT NULL,
        up      INTEGER NOT NULL,
        boot    TEXT NOT NULL,
        session INTEGER NOT NULL
    ) STRICT;";

/// The triggers of accepted entries, see [`waiting`](super::waiting).
pub(super) const WAITING: &str = "
    CREATE TABLE waiting (
        key     INTEGER PRIMARY KEY,
        trigger BLOB NOT NULL
    ) STRICT;";

/// In version 1 the triggers were in the table of the entries.
pub(super) const MOVE_TRIGGERS: &str = "
    INSERT INTO waiting (key, trigger) SELECT key, trigger FROM entry WHERE state = 0 AND trigger IS NOT NULL;
    ALTER TABLE entry DROP COLUMN trigger;";
