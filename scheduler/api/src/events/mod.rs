//! Streams of server-sent events: changes of runs, jobs and executors, and the live log of a run.
//!
//! All streams of changes share one feed: a task that reads the store while there are subscribers, and keeps the
//! last events. Changes come from the store and not from this process, because any scheduler may make them. Events are
//! hints: a client that was told `lagged`, `overflow` or `resync` reads the lists.

pub(crate) mod change_stream;
mod event;
mod feed;
mod life;
pub(crate) mod log_stream;
mod places;
mod poller;
mod ring;
mod snapshots;
mod watched_runs;

pub(crate) use change_stream::changes;
pub(crate) use feed::Events;
pub(crate) use log_stream::log;
pub(crate) use snapshots::state_of as executor_state;

/// The streams of one process that are open at a time by default. Further ones are answered with 503. One user or token has
/// at most a quarter of them.
pub const MAX_EVENT_STREAMS: usize = 200;
