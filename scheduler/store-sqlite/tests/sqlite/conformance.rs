//! The cases that every store adapter passes.

use std::future::{Ready, ready};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cueline_store::conformance::{Harness, TestClock};
use cueline_store::{Accounts, ClockOverride, Store};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Connection as _, SqliteConnection};

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
        store.expect("opens")
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
        let address = format!("sqlite://{}", self.path().display());
        let mut conn = SqliteConnection::connect(&address).await.expect("opens");
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
