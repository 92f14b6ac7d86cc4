//! The store port: one method per use case, each one atomic transaction.
//!
//! The store is the truth about jobs and runs. No transaction type crosses this port; where a use case needs a decision in the
//! middle of its transaction, the decision is a pure function of `cueline-model` or comes in as a [`Planner`].
//! Due-ness and leases use the database's clock; [`Store::now`] tells it.

pub mod adapter;
pub mod admin;
pub mod error;
pub mod port;
pub mod types;

pub use error::{ErrorKind, StoreError};
pub use port::{Planner, Store};
pub use types::*;

#[cfg(feature = "conformance")]
#[expect(
    clippy::missing_panics_doc,
    reason = "a case says that an adapter fails it by panicking"
)]
pub mod conformance;
