//! The journal on a real disk.

mod migration;
mod waiting;

use std::path::Path;

use bytes::Bytes;
use cueline_model::{AttemptId, RunId, Session, StoreId};
use cueline_test_support::SqliteThreads;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::entry::{Entry, EntryState, LeaseRecord};
use super::error::JournalError;
use super::file::Journal;
use super::prune::{KEEP_REPORTED_MS, MAX_REPORTED};
use crate::identity::AttemptKey;

const STORE: StoreId = StoreId(u128::MAX - 1);

fn key(run: i64, attempt: u32) -> AttemptKey {
    let run = RunId(run);
    AttemptKey::new(STORE, AttemptId { run, attempt })
}

fn entry(run: i64, attempt: u32, state: EntryState) -> Entry {
    Entry {
        key: key(run, attempt),
        state,
        seq: run,
        at_ms: 1_000 + run,
        job: (state < EntryState::Reported).then(|| "report".parse().expect("a name")),
        fire: (state < EntryState::Reported).then_some(-run),
        trigger: (state == EntryState::Accepted).then(|| Bytes::from_static(b"{}")),
        outcome: (state == EntryState::Ended).then(|| format!("\"{run}:{attempt}\"")),
    }
}

async fn known(journal: &mut Journal, run: i64) -> Option<Entry> {
    let run = key(run, 1).run;
    let mut found = journal.known([run].into_iter()).await.expect("read");
    found.remove(&run)
}

#[tokio::test]
async fn other_users_can_read_none_of_its_files() {
    use std::os::unix::fs::PermissionsExt as _;

    let home = tempfile::tempdir().expect("directory");
    let directory = home.path().join("state");
    let mut journal = Journal::open(&directory).await.expect("open");
    let written = journal.write(&[entry(1, 1, EntryState::Accepted)]).await;
    written.expect("write");
    let mode = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).expect("it exists");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(&directory), 0o700);
    let mut files: Vec<(String, u32)> = std::fs::read_dir(&directory)
        .expect("readable")
        .map(|file| file.expect("an entry"))
        .map(|file| {
            (
                file.file_name().to_string_lossy().into_owned(),
                mode(&file.path()),
            )
        })
        .collect();
    files.sort();
    let names = [
        "journal.db",
        "journal.db-shm",
        "journal.db-wal",
        "worker.lock",
    ];
    let private: Vec<(String, u32)> = names.map(|name| (name.to_owned(), 0o600)).into();
    assert_eq!(files, private);
    journal.close().await;
}

#[tokio::test]
async fn an_entry_only_moves_forward() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    assert_eq!(known(&mut journal, 1).await, None);
    for entry in [
        entry(1, 2, EntryState::Accepted),
        entry(1, 2, EntryState::Ended),
        entry(1, 2, EntryState::Started),
        entry(1, 2, EntryState::Accepted),
        entry(1, 1, EntryState::Ended),
    ] {
        journal.write(&[entry]).await.expect("write");
    }
    let ended = entry(1, 2, EntryState::Ended);
    assert_eq!(known(&mut journal, 1).await, Some(ended.clone()));
    let reported = entry(1, 2, EntryState::Reported);
    journal.write(&[reported]).await.expect("write");
    let reported = Entry {
        state: EntryState::Reported,
        ..ended
    };
    assert_eq!(known(&mut journal, 1).await, Some(reported.clone()));
    let newer = entry(1, 3, EntryState::Started);
    journal
        .write(std::slice::from_ref(&newer))
        .await
        .expect("write");
    assert_eq!(known(&mut journal, 1).await, Some(newer));
}

#[tokio::test]
async fn runs_of_two_stores_with_the_same_id_are_two_runs() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let first = entry(1, 1, EntryState::Started);
    let other_store = AttemptKey::new(StoreId(7), first.key.id());
    let second = Entry {
        key: other_store,
        ..entry(1, 1, EntryState::Ended)
    };
    journal
        .write(&[first.clone(), second.clone()])
        .await
        .expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    let runs = [first.key.run, second.key.run];
    let found = journal.known(runs.into_iter()).await.expect("read");
    assert_eq!(found.get(&runs[0]), Some(&first));
    assert_eq!(found.get(&runs[1]), Some(&second));
    let unreported = journal.unreported().await.expect("read");
    assert_eq!(unreported.len(), 2);
    assert!(unreported.contains(&first) && unreported.contains(&second));
}

#[tokio::test]
async fn unreported_entries_return_in_order_after_a_restart() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let entries: Vec<Entry> = (1..=3_000)
        .rev()
        .map(|run| match run % 4 {
            0 => entry(run, 1, EntryState::Accepted),
            1 => entry(run, 1, EntryState::Started),
            2 => entry(run, 1, EntryState::Ended),
            _ => entry(run, 1, EntryState::Reported),
        })
        .collect();
    journal.write(&entries).await.expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    let unreported = journal.unreported().await.expect("read");
    assert_eq!(unreported.len(), 2_250);
    assert!(unreported.is_sorted_by_key(|entry| entry.seq));
    let keeps_trigger = |e: &Entry| (e.state == EntryState::Accepted) == e.trigger.is_some();
    assert!(unreported.iter().all(keeps_trigger));
    assert_eq!(journal.reported, 750);
}

/// After a crash the attempt ends `lost`, and that is reported under the job's name.
#[tokio::test]
async fn a_start_keeps_the_job_and_the_fire_of_its_entry() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let accepted = entry(1, 1, EntryState::Accepted);
    let started = Entry {
        job: None,
        fire: None,
        ..entry(1, 1, EntryState::Started)
    };
    for entry in [accepted.clone(), started.clone()] {
        journal.write(&[entry]).await.expect("write");
    }
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    let expected = Entry {
        job: accepted.job,
        fire: accepted.fire,
        ..started
    };
    assert_eq!(journal.unreported().await.expect("read"), [expected]);
}

#[tokio::test]
async fn only_old_reported_entries_are_pruned() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let entries = [
        entry(1, 1, EntryState::Reported),
        entry(2, 1, EntryState::Ended),
        entry(3, 1, EntryState::Accepted),
        entry(9_000, 1, EntryState::Reported),
    ];
    journal.write(&entries).await.expect("write");
    let now = 1_002 + KEEP_REPORTED_MS;
    assert_eq!(journal.prune(now).await.expect("prune"), 1);
    assert_eq!(known(&mut journal, 1).await, None);
    for run in [2, 3, 9_000] {
        assert!(known(&mut journal, run).await.is_some(), "run {run}");
    }
}

/// Schedulers take a missing attempt for a lost trigger otherwise.
#[tokio::test]
async fn the_journal_tells_until_when_it_has_forgotten_attempts_of_a_store() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let entries = [1, 2, 3].map(|run| entry(run, 1, EntryState::Reported));
    journal.write(&entries).await.expect("write");
    let other = StoreId(7);
    let mut elsewhere = entry(4, 1, EntryState::Reported);
    elsewhere.key = AttemptKey::new(other, elsewhere.key.id());
    journal.write(&[elsewhere]).await.expect("write");
    assert_eq!(journal.prune(KEEP_REPORTED_MS).await.expect("prune"), 0);
    assert_eq!(journal.forgotten_until(STORE), None);
    let now = 1_003 + KEEP_REPORTED_MS;
    assert_eq!(journal.prune(now).await.expect("prune"), 2);
    let until = journal.forgotten_until(STORE).expect("two are forgotten");
    assert!(until >= 1_002, "{until}");
    assert_eq!(journal.forgotten_until(other), None);
    drop(journal);
    let journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.forgotten_until(STORE), Some(until));
    assert_eq!(journal.forgotten_until(other), None);
}

/// A retry replaces the entry of its predecessor. Otherwise a worker with a million retries would forget each attempt at
/// once, and would start it again when its trigger is delivered again.
#[tokio::test]
async fn replaced_entries_do_not_count_towards_the_limit() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    for attempt in 1..=3 {
        for state in [EntryState::Ended, EntryState::Reported] {
            let written = journal.write(&[entry(1, attempt, state)]).await;
            written.expect("write");
        }
    }
    // As if a million more retries had been written.
    journal.reported += MAX_REPORTED;
    assert_eq!(journal.prune(1_000).await.expect("prune"), 0);
    let kept = known(&mut journal, 1).await.expect("the last attempt");
    assert_eq!(kept.key.attempt, 3);
    assert_eq!(journal.reported, 1, "there is one entry");
    assert!(!journal.is_over_limit());
}

/// sqlx takes a statement during which the thread ends for one that changed nothing.
#[tokio::test]
async fn a_journal_whose_thread_has_ended_fails_for_good_and_claims_no_write() {
    let threads = SqliteThreads::watch();
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let written = entry(1, 1, EntryState::Accepted);
    let before = journal.write(std::slice::from_ref(&written)).await;
    before.expect("write");
    threads.end_next("journal-");
    for run in [2, 3] {
        let lost = journal.write(&[entry(run, 1, EntryState::Accepted)]).await;
        let error = lost.expect_err("the thread has ended");
        assert!(error.is_final(), "{error}");
    }
    let error = journal.prune(0).await.expect_err("the thread has ended");
    assert!(error.is_final(), "{error}");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.unreported().await.expect("read"), [written]);
}

/// sqlx also takes it for one that found nothing. A further statement may then wait for ever.
#[tokio::test]
async fn a_read_during_which_the_thread_ends_is_the_last_call() {
    for is_prune in [true, false] {
        let threads = SqliteThreads::watch();
        let directory = tempfile::tempdir().expect("directory");
        let mut journal = Journal::open(directory.path()).await.expect("open");
        let written = entry(1, 1, EntryState::Accepted);
        let written = journal.write(std::slice::from_ref(&written)).await;
        written.expect("write");
        threads.end_next("journal-");
        let error = if is_prune {
            journal.prune(0).await.expect_err("the thread has ended")
        } else {
            let known = journal.known([key(1, 1).run].into_iter()).await;
            known.expect_err("the thread has ended")
        };
        assert!(error.is_final(), "{is_prune}: {error}");
    }
}

#[tokio::test]
async fn one_worker_at_a_time_uses_a_state_directory() {
    let directory = tempfile::tempdir().expect("directory");
    let first = Journal::open(directory.path()).await.expect("open");
    let second = Journal::open(directory.path()).await;
    assert!(matches!(second, Err(JournalError::Locked(_))));
    drop(first);
    Journal::open(directory.path()).await.expect("free again");
}

/// The next journal would read the file before that write.
#[tokio::test]
async fn a_dropped_journal_keeps_the_directory_until_its_last_write_has_ended() {
    let directory = tempfile::tempdir().expect("directory");
    let mut first = Journal::open(directory.path()).await.expect("open");
    // The first write adds a store, in several statements.
    let written = first.write(&[entry(1, 1, EntryState::Started)]).await;
    written.expect("write");
    let mut other = connect(directory.path()).await;
    let begin = sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await;
    begin.expect("the write lock");

    let late = [entry(2, 1, EntryState::Started)];
    let mut write = Box::pin(first.write(&late));
    assert!(futures_util::poll!(&mut write).is_pending());
    drop(write);
    drop(first);
    let second = Journal::open(directory.path()).await;
    assert!(matches!(second, Err(JournalError::Locked(_))), "{second:?}");
    other.close().await.expect("close");
    let mut second = Journal::open(directory.path()).await.expect("free again");
    assert!(known(&mut second, 2).await.is_some());
}

#[tokio::test]
async fn the_file_is_not_read_for_a_new_run() {
    let threads = SqliteThreads::watch();
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    for run in [1, 3] {
        let written = journal.write(&[entry(run, 1, EntryState::Started)]).await;
        written.expect("write");
    }
    // Any read fails.
    threads.end_next("journal-");
    for run in [2, 4] {
        assert_eq!(known(&mut journal, run).await, None);
    }
    let read = journal.known([key(3, 1).run].into_iter()).await;
    read.expect_err("it is not new");
}

/// Runs these statements on the journal's file, which is made if there is none.
async fn run_sql(directory: &Path, sql: String) {
    let mut other = connect(directory).await;
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut other).await;
    done.expect("done");
    other.close().await.expect("closed");
}

async fn connect(directory: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(directory.join("journal.db"));
    let connection = options.create_if_missing(true).connect().await;
    connection.expect("a database")
}

/// The error of opening a file that these statements have made. The file has to stay unchanged.
async fn refusal(sql: impl Into<String>) -> String {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("journal.db");
    run_sql(directory.path(), sql.into()).await;
    let before = std::fs::read(&path).expect("readable");
    let error = Journal::open(directory.path()).await.expect_err("refused");
    let after = std::fs::read(&path).expect("readable");
    assert_eq!(after, before, "the file was changed");
    error.to_string()
}

#[tokio::test]
async fn files_that_are_no_journals_are_refused_and_left_unchanged() {
    let foreign = refusal("CREATE TABLE notes (text)").await;
    assert!(foreign.contains("of another program"), "{foreign}");
    let newer = refusal("PRAGMA application_id = 0x4375654a; PRAGMA user_version = 7").await;
    assert!(
        newer.contains("version 7") && newer.contains("newer program"),
        "{newer}"
    );
}

#[tokio::test]
async fn the_lease_is_written_with_the_next_entries() {
    let lease = |wall_ms| LeaseRecord {
        wall_ms,
        boot_ms: wall_ms / 2,
        boot_id: "b".to_owned(),
        session: Session(wall_ms * 3),
    };
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    assert_eq!(journal.last_lease().await.expect("read"), None);
    journal.record_lease(lease(10));
    journal.record_lease(lease(20));
    assert_eq!(journal.last_lease().await.expect("read"), None);
    let entries = [entry(1, 1, EntryState::Accepted)];
    journal.write(&entries).await.expect("write");
    assert_eq!(journal.last_lease().await.expect("read"), Some(lease(20)));
    assert!(known(&mut journal, 1).await.is_some());
    journal.record_lease(lease(30));
    journal.write(&[]).await.expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.last_lease().await.expect("read"), Some(lease(30)));
}
