//! Configuration of the roles: flags, environment variables, a file and defaults, in this order.
//!
//! [`roles`] declares each setting once, as a field of a clap struct. [`flags`], `environment` and `file` read what was
//! given, `settings` layers it and remembers where each value comes from, `values` and `rules` check it. Every mistake is
//! reported at once, with its place. See docs/adr/0016-configuration-by-clap.md for why no layering crate does this.

pub(crate) mod check;
mod environment;
mod file;
mod flags;
#[cfg(test)]
mod page_tests;
pub(crate) mod roles;
mod rules;
mod schema;
mod settings;
mod values;

pub(crate) use flags::{Loaded, RoleArgs};
pub(crate) use roles::{SchedulerConfig, StandaloneConfig, WorkerConfig};
pub(crate) use schema::is_role;
