//! The cases that every store adapter passes.

use std::future::{Ready, ready};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cueline_store::conformance::{Harness, TestClock};
use cueline_store::{Accounts, ClockOverride, Store};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

struct File {
    dir: tempfile::TempDir,
    clock: TestClock,
}

impl File {
    fn path(&self) -> PathBuf {
        self.dir.path().join("cueline.db")
    }

    async fn store(&self) -> SqliteStore {
        let clock = self.clock.clone();
        let options = SqliteOptions {
            clock: Some(ClockOverride::new(move || clock.now())),
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(&self.path(), options).await;
        let store = store.expect("opens");
        self.check_ends().await;
        store
    }

    async fn connect(&self) -> SqliteConnection {
        let address = format!("sqlite://{}", self.path().display());
        SqliteConnection::connect(&address).await.expect("opens")
    }

    /// Makes the file refuse a run with an end that has not ended, and the reverse: the index of lanes relies on that.
    async fn check_ends(&self) {
        let mut conn = self.connect().await;
        for (name, event) in [("inserted", "INSERT"), ("updated", "UPDATE")] {
            let trigger = format!(
                "CREATE TRIGGER IF NOT EXISTS {name}_end AFTER {event} ON run WHEN (NEW.state < 10) <> (NEW.ended_at IS NULL)
                BEGIN SELECT raise(ABORT, 'the state and the end of a run differ'); END"
            );
            let created = sqlx::query(AssertSqlSafe(trigger)).execute(&mut conn);
            created.await.expect("creates a trigger");
        }
        conn.close().await.expect("closes");
    }
}

#[async_trait]
impl Harness for File {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store().await)
    }

    async fn open_accounts(&self) -> Arc<dyn Accounts> {
        Arc::new(self.store().await)
    }

    async fn sql(&self, statement: &'static str) -> String {
        let mut conn = self.connect().await;
        let selected: Option<String> = sqlx::query_scalar(statement)
            .fetch_optional(&mut conn)
            .await
            .expect("runs");
        conn.close().await.expect("closes");
        selected.unwrap_or_default()
    }
}

fn fresh(clock: TestClock) -> Ready<File> {
    let dir = tempfile::tempdir().expect("a directory for the case");
    ready(File { dir, clock })
}

cueline_store::store_conformance!(fresh);
