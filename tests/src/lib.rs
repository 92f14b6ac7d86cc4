//! The harness of the scenarios: it runs Cueline as its users do, as processes that it starts, calls over the API, and
//! kills.

#![expect(
    missing_docs,
    reason = "a field or variant whose name says everything needs no sentence"
)]

pub mod client;
pub mod cluster;
pub mod consistency;
pub mod execution_log;
pub mod finished;
pub mod process;
pub mod program;
pub mod seed;
pub mod standalone;
pub mod storm;
pub mod tmpfs;
pub mod walk_through;

pub use execution_log::ExecutionLog;
pub use finished::{Finished, finish};
pub use process::Process;
pub use seed::Seed;
pub use standalone::Standalone;
pub use tmpfs::Tmpfs;
