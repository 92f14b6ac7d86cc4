//! Logs.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Writes logs to standard error: at `default` and above unless `CUELINE_LOG` names other filters, as JSON lines if
/// `json`; in colours only to a terminal whose user has not set `NO_COLOR`. Call it once, first thing.
pub fn init(default: &str, json: bool) {
    let filter = EnvFilter::try_from_env("CUELINE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && !unwanted)
        .with_writer(std::io::stderr);
    let done = if json {
        logs.json().try_init()
    } else {
        logs.with_target(false).try_init()
    };
    if done.is_err() {
        tracing::debug!("logs were set up already");
    }
}
