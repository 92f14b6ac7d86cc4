-- Messages that nobody could take, kept for people.

CREATE TABLE dead_letter (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    key     TEXT    NOT NULL,
    queue   TEXT    NOT NULL,
    topic   TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    payload BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX dead_letter_key ON dead_letter (key);
