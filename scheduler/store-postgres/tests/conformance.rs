//! The cases that every store adapter passes.

mod fresh;

use std::sync::Arc;

use async_trait::async_trait;
use cueline_store::Store;
use cueline_store::conformance::{Harness, TestClock};
use cueline_store_postgres::{PgOptions, PgStore};

use crate::fresh::Fresh;

struct Database {
    fresh: Fresh,
    clock: TestClock,
}

#[async_trait]
impl Harness for Database {
    async fn open(&self) -> Arc<dyn Store> {
        let clock = self.clock.clone();
        let options = PgOptions {
            now: Some(Arc::new(move || clock.now())),
            ..PgOptions::default()
        };
        let store = PgStore::connect(&self.fresh.url(), options).await;
        Arc::new(store.expect("connects"))
    }
}

async fn fresh(clock: TestClock) -> Database {
    Database {
        fresh: Fresh::migrated().await,
        clock,
    }
}

cueline_store::store_conformance!(fresh);
