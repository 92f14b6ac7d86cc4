//! Dispatch: route, mark, publish.
//!
//! Two stages, so that nothing slow lies between a run's due time and its trigger's publication. *Prepare* takes runs off the
//! wheel a little ahead of time, chooses executors, marks the runs `dispatching` in the store (which fails for whatever was cancelled, paused or
//! edited: the mark is the fence of G3) and writes the triggers. *Publish* sends them when they are due.

mod prepare;
mod publish;
mod trigger;

pub(crate) use prepare::Prepare;
pub(crate) use publish::Publish;
