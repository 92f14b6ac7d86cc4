//! A missing database, one of another program, and one of another version are refused with a clear message.

use cueline_model::{Actor, ActorKind};
use cueline_store::{
    Accounts, Audit, AuditFilter, ErrorKind, Login, NewUser, SecretHash, Store, StoreError,
};
use cueline_store_postgres::{PgOptions, PgStore, migrate, renew_store_id};
use cueline_test_servers::free_port;
use cueline_test_servers::postgres::WITH_PASSWORD;

use crate::test_database::TestDatabase;

async fn open(url: &str) -> Result<PgStore, StoreError> {
    PgStore::connect(url, PgOptions::default()).await
}

async fn only_look(url: &str) -> Result<PgStore, StoreError> {
    let options = PgOptions {
        migrate: false,
        ..PgOptions::default()
    };
    PgStore::connect(url, options).await
}

fn refused(result: Result<PgStore, StoreError>, kind: ErrorKind, says: &str) {
    let error = result.expect_err("is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error} says {says:?}");
}

#[tokio::test]
async fn an_invalid_url_is_named_in_the_error() {
    refused(open("sqlite://x").await, ErrorKind::Invalid, "postgres://");
}

#[tokio::test]
async fn an_unreachable_server_is_transient() {
    let port = free_port().expect("a port");
    let url = format!("postgres://me:secret@127.0.0.1:{port}/db?sslmode=disable");
    let error = open(&url).await.expect_err("no server is there");
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn missing_database_is_named() {
    let database = TestDatabase::empty();
    let url = database.server.url("no_such_database");
    refused(open(&url).await, ErrorKind::Broken, "no_such_database");
}

#[tokio::test]
async fn a_wrong_password_is_named_in_the_error() {
    let database = TestDatabase::empty();
    let role = format!("CREATE ROLE {WITH_PASSWORD} LOGIN SUPERUSER PASSWORD 'right'");
    database
        .server
        .sql("postgres", &role)
        .expect("creates a role");
    let right = database.server.url_with_password("right", &database.name);
    open(&right).await.expect("opens").close().await;
    let wrong = database.server.url_with_password("wrong", &database.name);
    refused(
        open(&wrong).await,
        ErrorKind::Broken,
        "password authentication failed",
    );
}

#[tokio::test]
async fn another_programs_database_is_left_alone() {
    let database = TestDatabase::empty();
    let theirs = "CREATE TABLE theirs (x int)";
    database.sql(theirs);
    refused(
        open(&database.url()).await,
        ErrorKind::Broken,
        "another program",
    );
    assert!(migrate(&database.url()).await.is_err());
    let tables = "SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(database.sql(tables), "theirs");
}

/// Such a database refuses results and definitions whose texts it lacks characters for.
#[tokio::test]
async fn a_database_that_cannot_keep_every_text_is_refused() {
    let database = TestDatabase::empty();
    let name = format!("{}_latin", database.name);
    let create = format!(
        "CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    );
    database
        .server
        .sql("postgres", &create)
        .expect("creates it");
    let url = database.server.url(&name);
    refused(open(&url).await, ErrorKind::Broken, "LATIN1");
    assert!(migrate(&url).await.is_err());
}

#[tokio::test]
async fn empty_database_is_filled_only_if_allowed() {
    let database = TestDatabase::empty();
    refused(
        only_look(&database.url()).await,
        ErrorKind::Broken,
        "cueline migrate",
    );
    let first = migrate(&database.url()).await.expect("migrates");
    assert_eq!(
        migrate(&database.url()).await.expect("changes nothing"),
        first
    );
    let store = only_look(&database.url()).await.expect("opens");
    assert_eq!(store.stats().await.expect("counts").jobs, 0);
}

/// Several nodes start at the same time on an empty database.
#[tokio::test(flavor = "multi_thread")]
async fn many_may_migrate_at_once() {
    let database = TestDatabase::empty();
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let url = database.url();
        tasks.push(tokio::spawn(async move { open(&url).await.map(drop) }));
    }
    for task in tasks {
        task.await.expect("no panic").expect("opens");
    }
}

async fn with_version(
    version: i32,
    compatible_from: i32,
) -> (TestDatabase, Result<PgStore, StoreError>) {
    let database = TestDatabase::migrated().await;
    let newer = format!(
        "UPDATE cueline_schema SET version = {version}, compatible_from = {compatible_from};
         ALTER TABLE job ADD COLUMN of_later_times text DEFAULT 'x'"
    );
    database.sql(&newer);
    let opened = open(&database.url()).await;
    (database, opened)
}

#[tokio::test]
async fn an_older_program_works_with_added_columns_and_tables() {
    let (_database, opened) = with_version(99, 1).await;
    let store = opened.expect("opens");
    let spec = serde_json::from_value(serde_json::json!({
        "name": "a", "group": "default", "schedule": { "every": "1s" }, "handler": { "native": "noop" },
    }));
    let spec = spec.expect("a definition");
    store
        .apply_jobs(&[spec], false, &Actor::new(ActorKind::User, "a test"))
        .await
        .expect("applies");
    assert_eq!(store.stats().await.expect("counts").jobs, 1);
}

/// Before the first release, migrations were edited. A database of such a build lacks tables or columns.
#[tokio::test]
async fn a_database_of_an_unreleased_build_is_refused() {
    for edited in [
        "UPDATE cueline_migration SET sha256 = 'of an unreleased build' WHERE version = 1",
        "DROP TABLE cueline_migration",
    ] {
        let database = TestDatabase::migrated().await;
        database.sql(edited);
        for opened in [
            open(&database.url()).await,
            only_look(&database.url()).await,
        ] {
            refused(opened, ErrorKind::Broken, "unreleased build");
        }
        let error = migrate(&database.url()).await.expect_err("is refused");
        assert!(error.to_string().contains("an empty database"), "{error}");
    }
}

#[tokio::test]
async fn schema_that_is_too_new_is_refused() {
    let (_database, opened) = with_version(99, 98).await;
    refused(opened, ErrorKind::Broken, "version 99");
}

#[tokio::test]
async fn each_store_has_an_id_of_its_own() {
    let (one, two) = (TestDatabase::empty(), TestDatabase::empty());
    let id = async |database: &TestDatabase| {
        let store = open(&database.url()).await.expect("opens");
        store.store_id().await.expect("has an id")
    };
    let first = id(&one).await;
    assert_ne!(first, id(&two).await);
    assert_eq!(first, id(&one).await);
    let renewed = renew_store_id(&one.url()).await.expect("renews");
    assert_ne!(renewed, first);
    assert_eq!(renewed, id(&one).await);
}

#[tokio::test]
async fn an_older_schema_is_refused_where_migration_is_off() {
    let database = TestDatabase::migrated().await;
    database.sql("UPDATE cueline_schema SET version = 0");
    refused(
        only_look(&database.url()).await,
        ErrorKind::Broken,
        "has version 0, this program needs version 3",
    );
}

/// A session that was ended after the backup is back, and its secret may be known.
#[tokio::test]
async fn a_restored_store_has_no_session_and_an_entry_about_it() {
    let database = TestDatabase::empty();
    let store = open(&database.url()).await.expect("opens");
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
    let renewed = renew_store_id(&database.url()).await.expect("renews");
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
