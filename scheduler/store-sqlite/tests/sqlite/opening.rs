//! Files of other programs, of other versions, and damaged files are refused with a clear message.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use cueline_model::{Actor, ActorKind};
use cueline_store::{Accounts, Audit, AuditFilter, ErrorKind, Login, NewUser, SecretHash, Store};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Connection, SqliteConnection};

async fn open(path: &Path) -> Result<SqliteStore, cueline_store::StoreError> {
    SqliteStore::open(path, SqliteOptions::default()).await
}

async fn broken(path: &Path, says: &str) {
    let error = open(path).await.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

async fn sql(path: &Path, statement: &'static str) {
    let url = format!("sqlite://{}?mode=rwc", path.display());
    let mut conn = SqliteConnection::connect(&url).await.expect("opens");
    sqlx::raw_sql(statement)
        .execute(&mut conn)
        .await
        .expect("runs");
    conn.close().await.expect("closes");
}

#[tokio::test]
async fn a_text_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notes.txt");
    let text = "These are only notes, and more than a header of them.\n".repeat(100);
    std::fs::write(&path, text).expect("writes");
    broken(&path, "not a Cueline store").await;
}

#[tokio::test]
async fn another_programs_database_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("other.db");
    sql(&path, "CREATE TABLE theirs (x)").await;
    let before = std::fs::read(&path).expect("reads");
    broken(&path, "another program").await;
    assert_eq!(std::fs::read(&path).expect("reads"), before);
}

#[tokio::test]
async fn newer_schema_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cueline.db");
    open(&path).await.expect("creates").close().await;
    open(&path).await.expect("opens again").close().await;
    sql(&path, "PRAGMA user_version = 99").await;
    broken(&path, "version 99").await;
}

/// Before the first release, migrations were edited. A file of such a build lacks tables or columns.
#[tokio::test]
async fn a_file_of_an_unreleased_build_is_refused() {
    for edited in [
        "UPDATE cueline_migration SET sha256 = 'of an unreleased build' WHERE version = 1",
        "DROP TABLE cueline_migration",
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cueline.db");
        open(&path).await.expect("creates").close().await;
        sql(&path, edited).await;
        broken(&path, "unreleased build").await;
        let only_look = SqliteOptions {
            migrate: false,
            ..SqliteOptions::default()
        };
        let opened = SqliteStore::open(&path, only_look).await;
        let error = opened.expect_err("is refused");
        assert!(error.to_string().contains("an empty database"), "{error}");
    }
}

#[tokio::test]
async fn damage_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cueline.db");
    open(&path).await.expect("creates").close().await;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opens");
    // Everything after the header: the page of the schema and the pages of the tables.
    file.seek(SeekFrom::Start(100)).expect("seeks");
    file.write_all(&vec![0xa5; 40_000]).expect("writes");
    drop(file);
    broken(&path, "damaged").await;
}

#[tokio::test]
async fn missing_directory_is_transient() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = open(&dir.path().join("no/such/place.db")).await;
    let error = error.expect_err("cannot be opened");
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("cannot be opened"), "{error}");
}

#[tokio::test]
async fn full_disk_is_transient_and_passes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cueline.db");
    let store = open(&path).await.expect("creates");
    let spec = |n: usize| -> cueline_model::JobSpec {
        let text = format!(
            r#"{{"name":"j{n}","group":"default","schedule":{{"every":"1s"}},"handler":{{"native":"x"}},"description":"{}"}}"#,
            "long ".repeat(2_000)
        );
        serde_json::from_str(&text).expect("a definition")
    };
    store.limit_pages(60).await.expect("limits");
    let many: Vec<_> = (0..100).map(spec).collect();
    let error = store
        .apply_jobs(&many, false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(store.stats().await.expect("counts").jobs, 0);
    store.limit_pages(1_000_000).await.expect("makes room");
    store
        .apply_jobs(&many, false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("goes on");
    assert_eq!(store.stats().await.expect("counts").jobs, 100);
}

#[tokio::test]
async fn each_store_has_an_id_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (dir.path().join("one.db"), dir.path().join("two.db"));
    let id = async |path: &Path| {
        let store = open(path).await.expect("opens");
        let id = store.store_id().await.expect("has an id");
        store.close().await;
        id
    };
    let first = id(&one).await;
    assert_ne!(first, id(&two).await);
    assert_eq!(first, id(&one).await);
    let store = open(&one).await.expect("opens");
    let renewed = store.renew_store_id().await.expect("renews");
    store.close().await;
    assert_ne!(renewed, first);
    assert_eq!(renewed, id(&one).await);
}

/// A session that was ended after the backup is back, and its secret may be known.
#[tokio::test]
async fn a_restored_store_has_no_session_and_an_entry_about_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir.path().join("one.db")).await.expect("opens");
    let by = Actor::new(ActorKind::User, "root");
    let ann = NewUser {
        name: "ann".to_owned(),
        display_name: String::new(),
        login: Login::None,
        grants: Vec::new(),
        idempotency_key: None,
    };
    let session = SecretHash([1; 32]);
    let ann = store.create_user(&ann, &by).await.expect("creates");
    let started = store.create_session(ann, &Login::None, session, 600_000, &by);
    started.await.expect("starts");
    let renewed = store.renew_store_id().await.expect("renews");
    let found = store.session(session, 600_000).await;
    assert_eq!(found.expect("answers"), None);
    let filter = AuditFilter {
        actions: vec!["store.restore".to_owned()],
        limit: 9,
        ..AuditFilter::default()
    };
    let entries = store.audit_entries(&filter).await.expect("lists");
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].entry.object, renewed.to_string());
    assert_eq!(entries[0].entry.detail, "sessions ended: 1");
}
