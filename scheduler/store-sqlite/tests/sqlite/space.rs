//! The space of deleted rows is given back to the file system while the store is open.

use std::path::Path;

use cueline_store::Store;
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Connection as _, SqliteConnection};

/// 60 MB of log lines.
const FILL: &str = "
    WITH RECURSIVE line (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM line WHERE n < 600)
    INSERT INTO run_log (run_id, cursor, at, stream, text) SELECT 1, n, 0, 'out', hex(zeroblob(50000)) FROM line";

async fn pages(conn: &mut SqliteConnection) -> (i64, i64) {
    sqlx::query_as("SELECT (SELECT page_count FROM pragma_page_count), (SELECT freelist_count FROM pragma_freelist_count)")
        .fetch_one(conn)
        .await
        .expect("counts")
}

async fn open(path: &Path) -> (SqliteStore, SqliteConnection) {
    let store = SqliteStore::open(path, SqliteOptions::default()).await;
    let url = format!("sqlite://{}", path.display());
    let conn = SqliteConnection::connect(&url).await.expect("connects");
    (store.expect("opens"), conn)
}

async fn run(conn: &mut SqliteConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(conn).await.expect("runs");
}

#[tokio::test]
async fn free_pages_beyond_the_reserve_are_given_back_in_small_steps() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, mut conn) = open(&dir.path().join("store.db")).await;
    assert!(!store.release_space().await.expect("releases"));
    run(&mut conn, FILL).await;
    let (full, _) = pages(&mut conn).await;
    assert!(full > 14_000, "{full}");
    assert!(
        !store.release_space().await.expect("releases"),
        "nothing is free"
    );
    run(&mut conn, "DELETE FROM run_log").await;
    let mut steps = 0;
    while store.release_space().await.expect("releases") {
        steps += 1;
        assert!(steps < 1_000, "it ends");
    }
    let (left, free) = pages(&mut conn).await;
    assert!(left < full / 2, "{left} of {full} pages are left");
    assert!(
        (3_500..=4_096).contains(&free),
        "{free} pages stay for new rows"
    );
    assert!(steps > 30, "{steps} steps");
    conn.close().await.expect("closes");
    store.close().await;
}
