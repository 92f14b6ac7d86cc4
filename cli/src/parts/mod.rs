//! What the roles are composed of: each part starts, says when it breaks, and stops. Which parts make a role is said in the modules of
//! the roles, nowhere here.

pub mod executors;
pub mod http;
pub mod patience;
pub mod scheduling;
pub mod signals;

pub use executors::{ExecutorOptions, Executors, Fate};
pub use http::Http;
pub use patience::Patience;
pub use scheduling::Scheduling;
pub use signals::Signals;

/// What a process that lost a part says as it ends.
pub fn broken(what: &str) -> anyhow::Error {
    anyhow::anyhow!("{what}; ended so that whoever supervises this process starts it anew")
}

/// Prints what a person wants to see at the start. That nobody reads it is no reason to end.
pub fn say(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}
