//! The URL of a database, and the settings of each connection to it.

use std::fmt::Display;
use std::str::FromStr as _;
use std::time::Duration;

use cueline_store::{ErrorKind, StoreError};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::PgOptions;
use crate::error::Result;

/// Cached prepared statements per connection. It is more than the program has.
const STATEMENTS: usize = 200;

/// The connection settings for a URL.
pub(crate) fn parse(url: &str, options: &PgOptions) -> Result<PgConnectOptions> {
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(invalid(&"it does not begin with postgres:// or postgresql://").into());
    }
    let base = PgConnectOptions::from_str(url).map_err(|error| invalid(&error))?;
    require_tls_files(url)?;
    let ms = |time: Duration| time.as_millis().to_string();
    // The server sends the first probe after two thirds of this time without traffic, and five in the last third.
    let idle = (options.keepalive.as_secs() * 2 / 3).max(1).to_string();
    let interval = (options.keepalive.as_secs() / 15).max(1).to_string();
    Ok(base
        .application_name(&options.application_name)
        .statement_cache_capacity(STATEMENTS)
        .disable_statement_logging()
        .options([
            ("lock_timeout", ms(options.lock_timeout)),
            ("statement_timeout", ms(options.statement_timeout)),
            (
                "idle_in_transaction_session_timeout",
                ms(options.idle_in_transaction_timeout),
            ),
            ("tcp_keepalives_idle", idle),
            ("tcp_keepalives_interval", interval),
            ("tcp_keepalives_count", "5".to_owned()),
            ("tcp_user_timeout", ms(options.keepalive)),
            ("default_transaction_isolation", "read committed".to_owned()),
            // The bounds of a batch leave one or two partitions. Planning for these is faster than starting a generic
            // plan for all.
            ("plan_cache_mode", "force_custom_plan".to_owned()),
            ("jit", "off".to_owned()),
            // Batches are joined by key. Without statistics the planner would materialize one side and compare every
            // pair of rows. With more rows than estimated, that is a thousand times the work.
            ("enable_material", "off".to_owned()),
            ("max_parallel_workers_per_gather", "0".to_owned()),
        ]))
}

/// The URL holds a password, so the message does not repeat it.
fn invalid(reason: &dyn Display) -> StoreError {
    StoreError::new(
        ErrorKind::Invalid,
        format!(
            "failed to open the store: its URL is not one of PostgreSQL (postgres://user:password@host:port/database): {reason}"
        ),
    )
}

/// Names a TLS file that cannot be read. sqlx says only that some file is missing.
fn require_tls_files(url: &str) -> std::result::Result<(), StoreError> {
    let settings = url.split_once('?').map_or("", |(_, settings)| settings);
    for (name, file) in settings.split('&').filter_map(|s| s.split_once('=')) {
        let is_file = ["sslrootcert", "sslcert", "sslkey"].contains(&name);
        // sqlx resolves escaped names, and the word that stands for the system's authorities.
        if !is_file || file.contains('%') || file == "system" {
            continue;
        }
        std::fs::File::open(file).map_err(|error| {
            StoreError::new(
                ErrorKind::Broken,
                format!("failed to open the store: {name}: {file} cannot be read: {error}"),
            )
        })?;
    }
    Ok(())
}
