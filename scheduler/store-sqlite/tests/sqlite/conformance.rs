//! The cases that every store adapter passes.

use std::future::{Ready, ready};
use std::sync::Arc;

use async_trait::async_trait;
use cueline_store::conformance::{Harness, TestClock};
use cueline_store::{ClockOverride, Store};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};

struct File {
    dir: tempfile::TempDir,
    clock: TestClock,
}

#[async_trait]
impl Harness for File {
    async fn open(&self) -> Arc<dyn Store> {
        let clock = self.clock.clone();
        let options = SqliteOptions {
            clock: Some(ClockOverride::new(move || clock.now())),
            ..SqliteOptions::default()
        };
        let path = self.dir.path().join("cueline.db");
        Arc::new(SqliteStore::open(&path, options).await.expect("opens"))
    }
}

fn fresh(clock: TestClock) -> Ready<File> {
    let dir = tempfile::tempdir().expect("a directory for the case");
    ready(File { dir, clock })
}

cueline_store::store_conformance!(fresh);
