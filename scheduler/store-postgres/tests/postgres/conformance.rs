//! The cases that every store adapter passes.

use std::sync::Arc;

use async_trait::async_trait;
use cueline_store::conformance::{Harness, TestClock};
use cueline_store::{Accounts, ClockOverride, Store};
use cueline_store_postgres::{PgOptions, PgStore};

use crate::test_database::TestDatabase;

struct Database {
    database: TestDatabase,
    clock: TestClock,
}

impl Database {
    async fn store(&self) -> PgStore {
        let clock = self.clock.clone();
        let options = PgOptions {
            clock: Some(ClockOverride::new(move || clock.now())),
            ..PgOptions::default()
        };
        let store = PgStore::connect(&self.database.url(), options).await;
        store.expect("connects")
    }
}

#[async_trait]
impl Harness for Database {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store().await)
    }

    async fn open_accounts(&self) -> Arc<dyn Accounts> {
        Arc::new(self.store().await)
    }

    async fn sql(&self, statement: &'static str) -> String {
        self.database.sql(statement)
    }
}

async fn new_database(clock: TestClock) -> Database {
    Database {
        database: TestDatabase::migrated().await,
        clock,
    }
}

cueline_store::store_conformance!(new_database);
