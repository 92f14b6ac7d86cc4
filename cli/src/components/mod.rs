//! What the roles are composed of: each part starts, says when it breaks, and stops. Which parts make a role is said in the modules of
//! the roles, nowhere here.

pub(crate) mod engine;
pub(crate) mod executors;
pub(crate) mod http;
pub(crate) mod signals;
pub(crate) mod startup_retry;

pub(crate) use engine::RunningEngine;
pub(crate) use executors::{ExecutorOptions, Executors, Failover, HandlerKind};
pub(crate) use http::Http;
pub(crate) use signals::Signals;
pub(crate) use startup_retry::StartupRetry;

/// What a process that lost a part says as it ends.
pub(crate) fn unexpected_end(what: &str) -> anyhow::Error {
    anyhow::anyhow!("{what}; ended so that whoever supervises this process starts it anew")
}

/// Prints what a person wants to see at the start. That nobody reads it is no reason to end.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}
