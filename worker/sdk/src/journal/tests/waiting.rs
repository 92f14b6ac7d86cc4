//! The table of the waiting attempts' triggers.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use sqlx::AssertSqlSafe;

use super::{entry, known, run_sql};
use crate::journal::entry::{Entry, EntryState};
use crate::journal::file::Journal;

fn accepted(run: i64, attempt: u32, trigger: impl Into<Bytes>) -> Entry {
    Entry {
        trigger: Some(trigger.into()),
        ..entry(run, attempt, EntryState::Accepted)
    }
}

/// The rows of the table. The test's store has the number 0, so a key is the id of its run.
async fn rows(journal: &mut Journal) -> Vec<(i64, Vec<u8>)> {
    sqlx::query_as("SELECT key, trigger FROM waiting ORDER BY key")
        .fetch_all(&mut journal.connection)
        .await
        .expect("read")
}

fn row(run: i64, trigger: &str) -> (i64, Vec<u8>) {
    (run, trigger.into())
}

#[tokio::test]
async fn a_trigger_is_kept_while_the_newest_attempt_waits() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let steps = [
        (accepted(1, 2, "second"), Some("second")),
        // Repeated, and older.
        (accepted(1, 2, "other"), Some("second")),
        (accepted(1, 1, "first"), Some("second")),
        (entry(1, 1, EntryState::Started), Some("second")),
        (entry(1, 1, EntryState::Reported), Some("second")),
        // Newer.
        (accepted(1, 3, "third"), Some("third")),
        (entry(1, 3, EntryState::Started), None),
        // Older than the start, and than the end.
        (accepted(1, 3, "third"), None),
        (accepted(1, 2, "second"), None),
        (entry(1, 3, EntryState::Ended), None),
        (accepted(1, 3, "third"), None),
        (accepted(1, 4, "fourth"), Some("fourth")),
        // It ends without a start.
        (entry(1, 4, EntryState::Ended), None),
        (accepted(1, 5, "fifth"), Some("fifth")),
        // A newer attempt that starts at once.
        (entry(1, 6, EntryState::Started), None),
    ];
    for (step, (entry, expected)) in steps.into_iter().enumerate() {
        journal.write(&[entry]).await.expect("write");
        let expected: Vec<_> = expected
            .map(|trigger| row(1, trigger))
            .into_iter()
            .collect();
        assert_eq!(rows(&mut journal).await, expected, "step {step}");
    }
    assert_eq!(journal.waiting.attempts(), BTreeMap::new());
}

#[tokio::test]
async fn an_attempt_that_starts_in_the_write_that_accepts_it_has_no_row() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let entries = [
        entry(1, 1, EntryState::Started),
        accepted(2, 1, "two"),
        entry(3, 1, EntryState::Ended),
    ];
    journal.write(&entries).await.expect("write");
    assert_eq!(rows(&mut journal).await, [row(2, "two")]);
    assert_eq!(journal.waiting.attempts(), BTreeMap::from([(2, 1)]));
}

/// More than one statement writes at once, in numbers that are no powers of two.
#[tokio::test]
async fn many_attempts_wait_and_move_on_together() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let all: Vec<Entry> = (1..=2_500)
        .map(|run| accepted(run, 1, format!("trigger {run}")))
        .collect();
    journal.write(&all).await.expect("write");
    let expected: Vec<_> = (1..=2_500)
        .map(|run| row(run, &format!("trigger {run}")))
        .collect();
    assert_eq!(rows(&mut journal).await, expected);
    assert_eq!(journal.unreported().await.expect("read"), all);
    let started: Vec<Entry> = (1..=2_499)
        .map(|run| entry(run, 1, EntryState::Started))
        .collect();
    journal.write(&started).await.expect("write");
    assert_eq!(rows(&mut journal).await, [row(2_500, "trigger 2500")]);
    assert_eq!(journal.waiting.attempts(), BTreeMap::from([(2_500, 1)]));
}

#[tokio::test]
async fn waiting_attempts_move_on_after_a_restart() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let before = [accepted(1, 4, "one"), accepted(2, 1, "two")];
    journal.write(&before).await.expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.waiting.attempts(), BTreeMap::from([(1, 4), (2, 1)]));
    assert_eq!(journal.unreported().await.expect("read"), before);
    // The first is of an older attempt.
    for entry in [
        entry(1, 3, EntryState::Reported),
        entry(2, 1, EntryState::Ended),
    ] {
        journal.write(&[entry]).await.expect("write");
    }
    assert_eq!(rows(&mut journal).await, [row(1, "one")]);
    assert_eq!(journal.waiting.attempts(), BTreeMap::from([(1, 4)]));
}

#[tokio::test]
async fn triggers_of_attempts_that_do_not_wait_are_deleted_when_the_file_is_opened() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let entries = [entry(1, 1, EntryState::Started), accepted(2, 1, "two")];
    journal.write(&entries).await.expect("write");
    journal.close().await;
    let unused = "INSERT INTO waiting (key, trigger) VALUES (1, X'00'), (3, X'00')";
    run_sql(directory.path(), unused.to_owned()).await;
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(rows(&mut journal).await, [row(2, "two")]);
    assert_eq!(journal.waiting.attempts(), BTreeMap::from([(2, 1)]));
}

#[tokio::test]
async fn an_accepted_entry_without_its_trigger_is_read_as_such() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let entry = accepted(1, 1, "one");
    journal
        .write(std::slice::from_ref(&entry))
        .await
        .expect("write");
    journal.close().await;
    run_sql(directory.path(), "DELETE FROM waiting".to_owned()).await;
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    let bare = Entry {
        trigger: None,
        ..entry
    };
    assert_eq!(journal.unreported().await.expect("read"), [bare]);
}

async fn limit_pages(journal: &mut Journal, pages: u32) {
    let limit = format!("PRAGMA max_page_count = {pages}");
    let limited = sqlx::query(AssertSqlSafe(limit)).execute(&mut journal.connection);
    limited.await.expect("limited");
}

/// A file at its limit of pages fails as one on a full disk.
#[tokio::test]
async fn a_write_that_finds_no_room_changes_neither_table_and_works_later() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let before = [accepted(1, 1, "one"), accepted(2, 1, "two")];
    journal.write(&before).await.expect("write");
    // The limit is at least the present size.
    limit_pages(&mut journal, 1).await;
    let large = accepted(3, 1, vec![b'x'; 1 << 20]);
    let started = entry(1, 1, EntryState::Started);
    let newer = Entry {
        seq: 4,
        ..accepted(2, 2, "newer")
    };
    let batch = [started.clone(), large.clone(), newer.clone()];
    for _ in 0..2 {
        let error = journal.write(&batch).await.expect_err("there is no room");
        assert!(error.to_string().contains("full"), "{error}");
        assert_eq!(rows(&mut journal).await, [row(1, "one"), row(2, "two")]);
        assert_eq!(journal.unreported().await.expect("read"), before);
        assert_eq!(journal.waiting.attempts(), BTreeMap::from([(1, 1), (2, 1)]));
    }
    limit_pages(&mut journal, 1 << 20).await;
    journal.write(&batch).await.expect("write");
    let unreported = journal.unreported().await.expect("read");
    assert_eq!(unreported, [started, large, newer]);
    let keys: Vec<i64> = rows(&mut journal).await.iter().map(|row| row.0).collect();
    assert_eq!(keys, [2, 3]);
    assert_eq!(journal.waiting.attempts(), BTreeMap::from([(2, 2), (3, 1)]));
}

/// An entry: attempt, state, and the only byte of its trigger.
type Written = (u32, EntryState, Option<u8>);

/// The highest run of a batch.
const MAX_RUN: i64 = 3;

/// Entries by run.
type Batch = BTreeMap<i64, Written>;

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let state = prop::sample::select(vec![
        EntryState::Accepted,
        EntryState::Accepted,
        EntryState::Started,
        EntryState::Ended,
        EntryState::Reported,
    ]);
    let trigger = prop::option::weighted(0.9, any::<u8>());
    let written = (1..4_u32, state, trigger).prop_map(|(attempt, state, trigger)| {
        let trigger = trigger.filter(|_| state == EntryState::Accepted);
        (attempt, state, trigger)
    });
    prop::collection::vec(
        prop::collection::btree_map(1..=MAX_RUN, written, 1..4),
        1..12,
    )
}

/// The entries that are in the state to be reported, as the journal reads them.
async fn unreported(journal: &mut Journal) -> Batch {
    let entries = journal.unreported().await.expect("read");
    let written = entries.iter().map(|entry| {
        let trigger = entry.trigger.as_ref().map(|trigger| trigger[0]);
        let run = entry.key.run.run.0;
        (run, (entry.key.attempt, entry.state, trigger))
    });
    written.collect()
}

/// Compares the tables with the entries that there should be.
async fn check(journal: &mut Journal, expected: &Batch) {
    let mut open = expected.clone();
    open.retain(|_, (_, state, _)| *state < EntryState::Reported);
    assert_eq!(unreported(journal).await, open);
    let with_trigger = |(run, written): (&i64, &Written)| Some((*run, vec![written.2?]));
    let triggers: Vec<_> = expected.iter().filter_map(with_trigger).collect();
    assert_eq!(rows(journal).await, triggers);
    let attempts = journal.waiting.attempts();
    for (run, _) in triggers {
        assert_eq!(attempts.get(&run), Some(&expected[&run].0), "run {run}");
    }
    for run in 0..=MAX_RUN + 1 {
        let found = known(journal, run).await;
        let found = found.map(|entry| (entry.key.attempt, entry.state));
        let written = expected.get(&run);
        assert_eq!(found, written.map(|of| (of.0, of.1)), "run {run}");
    }
}

async fn write_and_check(batches: Vec<Batch>) {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let mut expected = Batch::new();
    for batch in batches {
        let entries: Vec<Entry> = batch
            .iter()
            .map(|(run, (attempt, state, trigger))| Entry {
                trigger: trigger.map(|byte| Bytes::from(vec![byte])),
                ..entry(*run, *attempt, *state)
            })
            .collect();
        journal.write(&entries).await.expect("write");
        for (run, new) in batch {
            let old = expected.get(&run);
            if old.is_none_or(|old| (new.0, new.1) > (old.0, old.1)) {
                expected.insert(run, new);
            }
        }
        check(&mut journal, &expected).await;
    }
    journal.close().await;
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    check(&mut journal, &expected).await;
    let with_trigger = expected.iter().filter(|(_, written)| written.2.is_some());
    let attempts: BTreeMap<i64, u32> = with_trigger.map(|(run, of)| (*run, of.0)).collect();
    assert_eq!(journal.waiting.attempts(), attempts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_tables_follow_the_rules_in_any_order_of_writes(batches in batches()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(write_and_check(batches));
    }
}
