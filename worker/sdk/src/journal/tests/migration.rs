//! Files of earlier versions.

use std::collections::BTreeMap;

use super::{entry, known, refusal, run_sql};
use crate::journal::entry::EntryState;
use crate::journal::file::Journal;

/// A journal of version 1, with an entry in each state. Its triggers are in the table of the entries.
const VERSION_1: &str = r#"
    PRAGMA journal_mode = WAL;
    CREATE TABLE store (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, forgotten INTEGER) STRICT;
    CREATE TABLE entry (
        key     INTEGER PRIMARY KEY,
        attempt INTEGER NOT NULL,
        state   INTEGER NOT NULL,
        seq     INTEGER NOT NULL,
        at      INTEGER NOT NULL,
        job     TEXT,
        fire    INTEGER,
        trigger BLOB,
        outcome TEXT
    ) STRICT;
    CREATE INDEX entry_reported ON entry (at) WHERE state = 3;
    CREATE TABLE lease (
        id      INTEGER PRIMARY KEY CHECK (id = 1),
        wall    INTEGER NOT NULL,
        up      INTEGER NOT NULL,
        boot    TEXT NOT NULL,
        session INTEGER NOT NULL
    ) STRICT;
    INSERT INTO store VALUES (0, X'fffffffffffffffffffffffffffffffe', NULL);
    INSERT INTO entry VALUES
        (1, 2, 0, 1, 1001, 'report', -1, X'7b7d', NULL),
        (2, 1, 1, 2, 1002, 'report', -2, NULL, NULL),
        (3, 1, 2, 3, 1003, 'report', -3, NULL, '"3:1"'),
        (4, 1, 3, 4, 1004, 'report', -4, NULL, '"4:1"'),
        (5, 1, 0, 5, 1005, 'report', -5, NULL, NULL);
    PRAGMA application_id = 0x4375654a;
    PRAGMA user_version = 1;
"#;

async fn number(journal: &mut Journal, sql: &'static str) -> i64 {
    let read = sqlx::query_scalar(sql).fetch_one(&mut journal.connection);
    read.await.expect("read")
}

#[tokio::test]
async fn a_journal_of_version_1_is_migrated_with_all_entries() {
    let directory = tempfile::tempdir().expect("directory");
    run_sql(directory.path(), VERSION_1.to_owned()).await;
    let mut without_trigger = entry(5, 1, EntryState::Accepted);
    without_trigger.trigger = None;
    let expected = [
        entry(1, 2, EntryState::Accepted),
        entry(2, 1, EntryState::Started),
        entry(3, 1, EntryState::Ended),
        without_trigger,
    ];
    // The second time it has the present version.
    for _ in 0..2 {
        let mut journal = Journal::open(directory.path()).await.expect("open");
        assert_eq!(journal.unreported().await.expect("read"), expected);
        let reported = known(&mut journal, 4).await.expect("it is kept");
        assert_eq!(reported.state, EntryState::Reported);
        assert_eq!(reported.outcome.as_deref(), Some("\"4:1\""));
        assert_eq!(journal.reported, 1);
        assert_eq!(journal.waiting.attempts(), BTreeMap::from([(1, 2)]));
        let version = "SELECT user_version FROM pragma_user_version";
        assert_eq!(number(&mut journal, version).await, 2);
        let columns = "SELECT count(*) FROM pragma_table_info('entry') WHERE name = 'trigger'";
        assert_eq!(number(&mut journal, columns).await, 0);
        journal.close().await;
    }
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let started = entry(1, 2, EntryState::Started);
    journal.write(&[started]).await.expect("write");
    let left = number(&mut journal, "SELECT count(*) FROM waiting").await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_migration_that_fails_changes_nothing() {
    // Its name is that of the new table.
    let occupied = format!("{VERSION_1} CREATE TABLE waiting (text);");
    let error = refusal(occupied).await;
    assert!(error.contains("waiting"), "{error}");
}
