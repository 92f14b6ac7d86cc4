//! A database for one test, on the server that all tests of the binary share.

use std::sync::Arc;

use cueline_test_servers::postgres::Postgres;
use tokio::sync::Mutex;

/// A database for one test.
pub(crate) struct TestDatabase {
    pub(crate) server: Arc<Postgres>,
    pub(crate) name: String,
}

/// PostgreSQL copies a template only while no connection uses it.
static TEMPLATE_LOCK: Mutex<()> = Mutex::const_new(());

/// A migrated database that others are copied from.
const TEMPLATE: &str = "cueline_template";

impl TestDatabase {
    /// An empty database.
    pub(crate) fn empty() -> Self {
        let server = Postgres::shared().expect("PostgreSQL starts");
        let name = server.create_database().expect("creates a database");
        Self { server, name }
    }

    /// A database with the schema.
    pub(crate) async fn migrated() -> Self {
        let server = Postgres::shared().expect("PostgreSQL starts");
        let lock = TEMPLATE_LOCK.lock().await;
        let count = format!("SELECT count(*) FROM pg_database WHERE datname = '{TEMPLATE}'");
        if server.sql("postgres", &count).expect("answers") == "0" {
            let create = format!("CREATE DATABASE {TEMPLATE}");
            server
                .sql("postgres", &create)
                .expect("creates the template");
            let url = server.url(TEMPLATE);
            cueline_store_postgres::migrate(&url)
                .await
                .expect("migrates");
        }
        let name = server.create_from(TEMPLATE).expect("copies the template");
        drop(lock);
        Self { server, name }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Runs statements in this database. Returns the single value that they print.
    pub(crate) fn sql(&self, statements: &str) -> String {
        self.server.sql(&self.name, statements).expect("runs")
    }
}
