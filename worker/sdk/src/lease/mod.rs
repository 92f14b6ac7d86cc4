//! The broker lease: the worker may run attempts while it can prove that its heartbeats pass through the broker.
//!
//! With each heartbeat the broker stores a proof on a majority of its servers. Only then the worker sends an echo to
//! itself. An echo that returns proves two things: the heartbeat reached the side of the broker on which schedulers may
//! judge, and the worker receives orders. It renews the lease as of the time at which the heartbeat was sent. Nothing
//! else renews it.
//!
//! The lease is *overdue* once half of `fence_after` has passed since its last proof. The worker then accepts and starts
//! nothing until the next proof, because the lease may end before an attempt that starts now. What was started before goes
//! on. A broker that restarts delivers triggers and takes records of starts before it can store heartbeats.
//!
//! The lease ends `fence_after` its last proof. The worker is then *fenced*, because the schedulers may soon give its
//! work to other executors. It starts nothing, and its running attempts must end before that. Waiting attempts stay
//! until halfway between the fence and that end, and are then returned. Only the event loop lifts the fence, after it
//! has stopped running attempts and, if due, returned waiting ones.
//!
//! Times are measured on a clock that goes on while the machine sleeps and while the process is paused. Code that is
//! about to start something reads the state of the lease; a notification could come too late.

mod broker_lease;
mod echoes;
mod proof;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod timings;

pub(crate) use broker_lease::BrokerLease;
pub use proof::LeaseDeadline;
pub(crate) use proof::OnLeaseRenewed;
pub(crate) use state::FenceStage;
pub(crate) use timings::LeaseTimings;
