//! TLS of a server: its files, and the certificate that new connections get.
//!
//! A connection keeps the certificate that it began with, so a change of the files ends no connection. This module
//! knows nothing of HTTP.

mod config;
mod files;
mod reload;

pub use files::{TlsError, TlsFile, TlsFiles};
pub use reload::{Tls, TlsReload};
