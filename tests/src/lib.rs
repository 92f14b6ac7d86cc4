//! The harness: Cueline as its users run it, as processes that are started, asked over the API, and killed.

pub mod books;
pub mod client;
pub mod cluster;
pub mod ended;
pub mod mount;
pub mod roles;
pub mod seed;
pub mod standalone;
pub mod storm;
pub mod testimony;
pub mod until;
pub mod witness;

pub use ended::{Ended, ended};
pub use mount::Tmpfs;
pub use seed::Seed;
pub use standalone::Standalone;
pub use until::{Patience, until};
pub use witness::Witness;
