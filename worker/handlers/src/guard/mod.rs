//! The guard: a second process that ends what a worker has started when the worker itself cannot.
//!
//! A worker whose broker lease ends stops its processes before the schedulers may give its work to others. A worker
//! that was killed or paused (SIGSTOP) cannot do that. Its processes would then run beside those of the executor that
//! takes over. A worker therefore starts a guard: the same program, as its child. The worker writes each renewal of its
//! lease to a pipe. The guard kills the processes when the last renewal has run out. It also kills them when the pipe
//! is closed without a dismissal. The system closes the pipe whenever the worker ends.
//!
//! The guard finds the processes by a variable in their environment, as [`kill_orphans`](crate::kill_orphans) does.
//! Its value differs after each start of a worker, so that a late guard never ends processes of the next start.
//!
//! It cannot help if it is paused or killed together with the worker. (A frozen container freezes the processes as
//! well.) It cannot end processes that `kill_orphans` cannot find. A guard that is killed alone is replaced.

mod keeper;
mod message;
mod watch;

pub use keeper::Guard;
pub use watch::watch;
