//! Configuration: one schema, read from flags, environment variables and a file, in this order.
//!
//! [`settings`] says what there is; everything else here follows from it. What a value means is said where a role is read, in
//! [`roles`] and, for brokers, in `broker`. Secrets are never shown: see [`redacted`].

mod broker;
pub mod check;
pub mod file;
pub mod flags;
pub mod nearest;
#[cfg(test)]
mod page;
pub mod raw;
pub mod reader;
pub mod redacted;
pub mod roles;
pub mod settings;
pub mod variables;

use std::path::PathBuf;

pub use broker::BrokerSettings;
pub use file::ConfigFile;
pub use flags::RoleArgs;
pub use reader::{Outcome, Reader};
pub use redacted::Redacted;
pub use roles::{Kind, SchedulerConfig, StandaloneConfig, WorkerConfig};
pub use settings::Role;

/// A reader over everything that was said to a role: its flags, the environment, and the file.
pub fn reader(args: &RoleArgs) -> Reader {
    let named = args.config.clone().or_else(|| {
        let path = std::env::var_os("CUELINE_CONFIG")?;
        (!path.is_empty()).then(|| PathBuf::from(path))
    });
    let (file, mut problems) = ConfigFile::read(named.as_deref());
    let (variables, wrong) = variables::read(args.role, std::env::vars_os());
    problems.extend(wrong);
    Reader::new(args.role, file, variables, args.given.clone(), problems)
}
