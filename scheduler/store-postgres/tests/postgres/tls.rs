//! TLS to the database: `sslmode=verify-full` connects only to the intended server.

use std::path::{Path, PathBuf};

use cueline_store::{ErrorKind, Store, StoreError};
use cueline_store_postgres::{PgOptions, PgStore};
use cueline_test_servers::postgres::Postgres;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/postgres/tls_files")
        .join(name)
}

/// A server with this certificate, and a database on it.
fn server(name: &str) -> (Postgres, String) {
    let (certificate, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
    let server = Postgres::start_with_tls(&certificate, &key).expect("PostgreSQL starts");
    let database = server.create_database().expect("creates a database");
    (server, database)
}

async fn open(url: &str) -> Result<PgStore, StoreError> {
    PgStore::connect(url, PgOptions::default()).await
}

async fn refused(url: &str, says: &str) {
    let error = open(url).await.expect_err("is refused");
    let text = error.to_string();
    // Trying again would not help.
    assert_eq!(error.kind(), ErrorKind::Broken, "{text}");
    assert!(text.contains(says), "{text} says {says:?}");
    println!("{text}");
}

/// The number of the store's connections, and how many of them are encrypted.
fn connections(server: &Postgres, database: &str) -> (usize, usize) {
    let count = "SELECT count(*) || ' ' || count(*) FILTER (WHERE ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name LIKE 'cueline%'";
    let told = server.sql(database, count).expect("counts");
    let mut numbers = told.split(' ').map(|n| n.parse().expect("a number"));
    let mut next = || numbers.next().expect("two numbers");
    (next(), next())
}

#[tokio::test]
async fn verify_full_connects_to_the_right_server_alone() {
    let (right, database) = server("server");
    let url = right.url_with_tls(&database, "verify-full", &file("authority.pem"));
    let store = open(&url).await.expect("opens");
    store.store_id().await.expect("answers");
    let (all, encrypted) = connections(&right, &database);
    assert!(all > 0 && all == encrypted, "{encrypted} of {all}");
    store.close().await;

    let stranger = right.url_with_tls(&database, "verify-full", &file("stranger.pem"));
    refused(&stranger, "certificate is not accepted").await;
    let missing = right.url_with_tls(&database, "verify-full", &file("no-such-file.pem"));
    refused(&missing, "no-such-file.pem").await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_in_full_mode_only() {
    let (elsewhere, database) = server("elsewhere");
    let authority = file("authority.pem");
    let full = elsewhere.url_with_tls(&database, "verify-full", &authority);
    refused(&full, "certificate is not accepted").await;
    let authority_alone = elsewhere.url_with_tls(&database, "verify-ca", &authority);
    let store = open(&authority_alone).await.expect("opens");
    store.close().await;
}

/// If TLS is required, there is no unencrypted connection.
#[tokio::test]
async fn a_server_without_tls_is_refused() {
    let plain = Postgres::start().expect("PostgreSQL starts");
    let database = plain.create_database().expect("creates a database");
    let url = plain.url_with_tls(&database, "verify-full", &file("authority.pem"));
    refused(&url, "TLS").await;
}
