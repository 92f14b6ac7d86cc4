//! Configuration of the roles: flags, environment variables, a file and defaults, in this order.
//!
//! [`roles`] declares each setting once, as a field of a clap struct. [`flags`], `environment` and `file` read the
//! given values. `settings` layers them and remembers the origin of each. `values`, `rules`, `tls` and `openid_rules` check them. All
//! mistakes are reported at once, each with its place. docs/adr/0016-configuration-by-clap.md explains why no layering
//! crate does this.

pub(crate) mod check;
mod environment;
mod file;
mod flags;
mod openid;
mod openid_rules;
#[cfg(test)]
mod page_tests;
pub(crate) mod roles;
mod rules;
mod schema;
mod settings;
mod tls;
mod values;

pub(crate) use flags::{Loaded, RoleArgs};
pub(crate) use roles::{SchedulerConfig, StandaloneConfig, WorkerConfig};
pub(crate) use schema::is_role;
