//! The journal on a real disk.

use super::*;

fn row(run: i64, attempt: u32, state: State) -> Row {
    Row {
        id: AttemptKey {
            run: RunKey::from_number(run),
            attempt,
        },
        state,
        seq: run,
        at_ms: 1_000 + run,
        job: (state < State::Reported).then(|| "report".to_owned()),
        trigger: (state == State::Accepted).then(|| Bytes::from_static(b"{}")),
        outcome: (state == State::Ended).then(|| format!("\"{run}:{attempt}\"")),
    }
}

async fn known(journal: &mut Journal, run: i64) -> Option<Known> {
    let mut found = journal
        .known([RunKey::from_number(run)].into_iter())
        .await
        .expect("read");
    found.remove(&RunKey::from_number(run))
}

#[tokio::test]
async fn an_entry_only_moves_on() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    assert_eq!(known(&mut journal, 1).await, None);
    for state in [
        State::Accepted,
        State::Ended,
        State::Started,
        State::Accepted,
    ] {
        journal.write(&[row(1, 2, state)]).await.expect("write");
    }
    journal
        .write(&[row(1, 1, State::Ended)])
        .await
        .expect("write");
    let ended = Known {
        attempt: 2,
        state: State::Ended,
        at_ms: 1_001,
        job: Some("report".to_owned()),
        outcome: Some("\"1:2\"".to_owned()),
    };
    assert_eq!(known(&mut journal, 1).await, Some(ended.clone()));
    journal
        .write(&[row(1, 2, State::Reported)])
        .await
        .expect("write");
    let reported = Known {
        state: State::Reported,
        ..ended
    };
    assert_eq!(known(&mut journal, 1).await, Some(reported.clone()));
    journal
        .write(&[row(1, 3, State::Started)])
        .await
        .expect("write");
    let newer = Known {
        attempt: 3,
        state: State::Started,
        outcome: None,
        ..reported
    };
    assert_eq!(known(&mut journal, 1).await, Some(newer));
}

#[tokio::test]
async fn what_is_open_comes_back_in_order_after_a_restart() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let rows: Vec<Row> = (1..=3_000)
        .rev()
        .map(|run| match run % 4 {
            0 => row(run, 1, State::Accepted),
            1 => row(run, 1, State::Started),
            2 => row(run, 1, State::Ended),
            _ => row(run, 1, State::Reported),
        })
        .collect();
    journal.write(&rows).await.expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    let open = journal.open_entries().await.expect("read");
    assert_eq!(open.len(), 2_250);
    assert!(open.is_sorted_by_key(|o| o.seq));
    assert!(
        open.iter()
            .all(|o| (o.state == State::Accepted) == o.trigger.is_some())
    );
    assert_eq!(journal.reported, 750);
}

#[tokio::test]
async fn only_old_reported_entries_are_pruned() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let rows = [
        row(1, 1, State::Reported),
        row(2, 1, State::Ended),
        row(3, 1, State::Accepted),
        row(9_000, 1, State::Reported),
    ];
    journal.write(&rows).await.expect("write");
    let now = 1_002 + KEEP_REPORTED_MS;
    assert_eq!(journal.prune(now).await.expect("prune"), 1);
    assert_eq!(known(&mut journal, 1).await, None);
    for run in [2, 3, 9_000] {
        assert!(known(&mut journal, run).await.is_some(), "run {run}");
    }
}

#[tokio::test]
async fn a_directory_has_one_worker() {
    let directory = tempfile::tempdir().expect("directory");
    let first = Journal::open(directory.path()).await.expect("open");
    let second = Journal::open(directory.path()).await;
    assert!(matches!(second, Err(JournalError::Locked(_))));
    drop(first);
    Journal::open(directory.path()).await.expect("free again");
}

/// The file is what `sql` makes it; what opening it as a journal says.
async fn refusal(sql: &'static str) -> String {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("journal.db");
    let mut other = SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true)
        .connect()
        .await
        .expect("a database");
    sqlx::raw_sql(sql).execute(&mut other).await.expect("made");
    sqlx::Connection::close(other).await.expect("closed");
    let before = std::fs::read(&path).expect("there");
    let error = Journal::open(directory.path()).await.expect_err("refused");
    assert_eq!(
        std::fs::read(&path).expect("there"),
        before,
        "it was changed"
    );
    error.to_string()
}

#[tokio::test]
async fn files_that_are_no_journals_are_refused_and_left_as_they_are() {
    let foreign = refusal("CREATE TABLE notes (text)").await;
    assert!(foreign.contains("of another program"), "{foreign}");
    let newer = refusal("PRAGMA application_id = 0x4375654a; PRAGMA user_version = 7").await;
    assert!(
        newer.contains("version 7") && newer.contains("newer program"),
        "{newer}"
    );
}

fn last(at_ms: i64) -> LastContact {
    LastContact {
        at_ms,
        up_ms: at_ms / 2,
        boot_id: "b".to_owned(),
    }
}

#[tokio::test]
async fn the_last_contact_goes_with_the_next_write() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    assert_eq!(journal.last_contact().await.expect("read"), None);
    journal.note_contact(last(10));
    journal.note_contact(last(20));
    assert_eq!(journal.last_contact().await.expect("read"), None);
    let rows = [row(1, 1, State::Accepted)];
    journal.write(&rows).await.expect("write");
    assert_eq!(journal.last_contact().await.expect("read"), Some(last(20)));
    assert!(known(&mut journal, 1).await.is_some());
    journal.note_contact(last(30));
    journal.write(&[]).await.expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.last_contact().await.expect("read"), Some(last(30)));
}

/// A journal as an earlier version of the program left it, by what `sql` takes away again.
async fn of_an_earlier_version(sql: &'static str) -> Journal {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let rows = [row(1, 1, State::Accepted)];
    journal.write(&rows).await.expect("write");
    sqlx::raw_sql(sql)
        .execute(&mut journal.connection)
        .await
        .expect("as it was");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.open_entries().await.expect("read").len(), 1);
    assert_eq!(journal.stores().await.expect("read"), []);
    journal
}

#[tokio::test]
async fn journals_of_the_versions_before_are_taken_over() {
    let first = "DROP TABLE contact; DROP TABLE store; PRAGMA user_version = 1";
    let mut journal = of_an_earlier_version(first).await;
    assert_eq!(journal.last_contact().await.expect("read"), None);
    of_an_earlier_version("DROP TABLE store; PRAGMA user_version = 2").await;
}

#[tokio::test]
async fn stores_go_with_the_next_write() {
    let directory = tempfile::tempdir().expect("directory");
    let mut journal = Journal::open(directory.path()).await.expect("open");
    let known = crate::stores::Stores::default();
    for id in [0xa, 0xb] {
        known.key(StoreId(id), cueline_model::RunId(1));
    }
    let both = known.unwritten();
    journal.note_stores(both.clone());
    assert_eq!(journal.stores().await.expect("read"), []);
    journal.write(&[]).await.expect("write");
    // A second try after a write of which nothing was heard.
    journal.note_stores(both.clone());
    journal.write(&[]).await.expect("write");
    drop(journal);
    let mut journal = Journal::open(directory.path()).await.expect("open again");
    assert_eq!(journal.stores().await.expect("read"), both);
}
