//! A database of its own for a test, on the server that all tests of the binary share.

use std::sync::Arc;

use cueline_test_servers::postgres::Postgres;
use tokio::sync::Mutex;

/// A database of its own.
pub(crate) struct Fresh {
    pub(crate) server: Arc<Postgres>,
    pub(crate) name: String,
}

/// Serialises the making of the template: nobody may be connected to it while it is copied.
static TEMPLATE: Mutex<()> = Mutex::const_new(());

/// A database with the schema, that others are copies of.
const MIGRATED: &str = "cueline_template";

impl Fresh {
    /// An empty database.
    #[allow(dead_code, reason = "not each test binary needs both")]
    pub(crate) fn empty() -> Self {
        let server = Postgres::shared().expect("PostgreSQL starts");
        let name = server.create_database().expect("creates a database");
        Self { server, name }
    }

    /// A database with the schema.
    #[allow(dead_code, reason = "not each test binary needs both")]
    pub(crate) async fn migrated() -> Self {
        let server = Postgres::shared().expect("PostgreSQL starts");
        let making = TEMPLATE.lock().await;
        let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{MIGRATED}'");
        if server.sql("postgres", &there).expect("answers") == "0" {
            let create = format!("CREATE DATABASE {MIGRATED}");
            server
                .sql("postgres", &create)
                .expect("creates the template");
            let url = server.url(MIGRATED);
            cueline_store_postgres::migrate(&url)
                .await
                .expect("migrates");
        }
        let name = server.create_from(MIGRATED).expect("copies the template");
        drop(making);
        Self { server, name }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }
}
