//! Components of the roles. Each one starts, reports an unexpected end, and stops. The modules of the roles compose
//! them.

pub(crate) mod alarms;
pub(crate) mod descriptors;
pub(crate) mod engine;
pub(crate) mod enrolment_tokens;
pub(crate) mod executors;
pub(crate) mod http;
pub(crate) mod setup_hint;
pub(crate) mod signals;
pub(crate) mod startup_retry;
pub(crate) mod worker_metrics;

pub(crate) use engine::RunningEngine;
pub use executors::Native;
pub(crate) use executors::{ExecutorOptions, Executors, Failover, HandlerKind};
pub(crate) use http::Http;
pub(crate) use setup_hint::setup_hint;
pub(crate) use signals::Signals;
pub(crate) use startup_retry::StartupRetry;

use cueline_interface::BadInput;

/// The result of a process with executors. `ended` names a task that has ended unexpectedly, and `wrong_input` is the error
/// of an executor that would return after a restart with the same configuration.
pub(crate) fn ended_by(ended: Option<String>, wrong_input: Option<String>) -> anyhow::Result<()> {
    match wrong_input {
        Some(why) => Err(BadInput(why).into()),
        None => ended.map_or(Ok(()), |what| Err(unexpected_end(&what))),
    }
}

/// The error of a process that ends because one of its tasks has ended.
pub(crate) fn unexpected_end(what: &str) -> anyhow::Error {
    anyhow::anyhow!("{what}; the process ends, so that its supervisor restarts it")
}

/// Prints a text on standard output. A closed output is no error, because a server does not need it.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}
