//! The harness: Cueline as its users run it, as processes that are started, asked over the API, and killed.

pub mod seed;
pub mod standalone;
pub mod witness;

pub use seed::Seed;
pub use standalone::Standalone;
pub use witness::Witness;
