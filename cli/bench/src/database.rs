//! The benchmark's own database on the user's server, and the server's statistics about it.

use std::str::FromStr as _;

use anyhow::{Context as _, Result};
use reqwest::Url;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

/// The server's counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    pub(crate) transactions: f64,
    /// `None` without the extension `pg_stat_statements`.
    pub(crate) statements: Option<f64>,
    /// Bytes of the whole server's write-ahead log.
    pub(crate) wal_bytes: f64,
}

/// A database that is dropped at the end.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) url: String,
    name: String,
    admin: PgConnectOptions,
    counts_statements: bool,
}

impl Database {
    /// Creates a database on the server that `url` names.
    pub(crate) async fn create(url: &str, name: &str) -> Result<Self> {
        let admin = PgConnectOptions::from_str(url)?.application_name("cueline bench");
        // The name stands without quotes in statements, and a scenario is called `lane-gap`.
        let name = format!("cueline_bench_{}_{name}", std::process::id()).replace('-', "_");
        let mut connection = PgConnection::connect_with(&admin)
            .await
            .context("--store: failed to connect")?;
        connection
            .execute(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .await
            .context("--store: failed to create a database; the user needs the right CREATEDB")?;
        connection.close().await?;
        let mut url = Url::parse(url)?;
        url.set_path(&name);
        let mut database = Self {
            url: url.to_string(),
            name,
            admin,
            counts_statements: false,
        };
        let mut connection = database.connect().await?;
        let _ = connection
            .execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            .await;
        let counts = sqlx::query("SELECT FROM pg_stat_statements LIMIT 1")
            .execute(&mut connection)
            .await;
        database.counts_statements = counts.is_ok();
        Ok(database)
    }

    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let options = self.admin.clone().database(&self.name);
        Ok(PgConnection::connect_with(&options).await?)
    }

    /// Updates statistics and flushes to disk, as the server does by itself over time.
    pub(crate) async fn settle(&self) -> Result<()> {
        let mut connection = self.connect().await?;
        connection.execute("VACUUM ANALYZE").await?;
        // Only a superuser may do this. Without it, the server chooses the time.
        let _ = connection.execute("CHECKPOINT").await;
        Ok(())
    }

    pub(crate) async fn counted(&self) -> Result<Counted> {
        let mut connection = self.connect().await?;
        let transactions = sqlx::query_scalar(
            "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()",
        );
        let transactions = transactions.fetch_one(&mut connection).await?;
        let wal = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8";
        let wal_bytes = sqlx::query_scalar(wal).fetch_one(&mut connection).await?;
        let statements = if self.counts_statements {
            let sum = "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements
                WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
            Some(sqlx::query_scalar(sum).fetch_one(&mut connection).await?)
        } else {
            None
        };
        Ok(Counted {
            transactions,
            statements,
            wal_bytes,
        })
    }

    /// The number of all runs, and of runs that succeeded at the first attempt.
    pub(crate) async fn runs(&self) -> Result<(u64, u64)> {
        let mut connection = self.connect().await?;
        let count = "SELECT count(*), count(*) FILTER (WHERE unsuccessful_state IS NULL AND state IS NOT NULL AND attempt = 1) FROM run";
        let (all, good): (i64, i64) = sqlx::query_as(count).fetch_one(&mut connection).await?;
        Ok((all.unsigned_abs(), good.unsigned_abs()))
    }

    pub(crate) async fn drop(self) -> Result<()> {
        let mut connection = PgConnection::connect_with(&self.admin).await?;
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        connection.execute(AssertSqlSafe(statement)).await?;
        Ok(())
    }
}

/// Whether any run has not ended.
pub(crate) async fn has_live_runs(connection: &mut PgConnection) -> Result<bool> {
    let any = "SELECT EXISTS (SELECT FROM run_live)";
    Ok(sqlx::query_scalar(any).fetch_one(connection).await?)
}
