//! One process of an attempt, from its start to its end. It knows nothing of scripts and interpreters.

mod group;
pub(crate) mod lines;
mod pipes;
#[cfg(target_os = "linux")]
pub(crate) mod procfs;
mod run;
mod spawn;

pub(crate) use group::ProcessGroup;
pub(crate) use run::run;
pub(crate) use spawn::Launch;
