//! Lanes: the order in which a worker starts the attempts that it has accepted.
//!
//! Pure: [`LaneRequest`]s go in, [`Step`]s come out, and the caller carries them out. It knows no I/O, no clock and
//! no tokio.
//!
//! The attempts that wait in a lane start by fire time, whatever the order in which their triggers arrived. A retry counts
//! from the time when it is due.
//!
//! A lane is busy while an attempt of it runs or waits. All lanes share the worker's capacity. Of the lanes that
//! could start an attempt, the one with the highest priority goes first, and equals take turns. The backlog of one
//! job therefore never holds up another job.

mod lane;
mod machine;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use machine::Lanes;
pub(crate) use request::{LaneKey, LaneRequest, NotStarted, Step};
