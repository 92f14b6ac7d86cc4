//! Liveness: this node is alive while its lease is renewed, an executor while its heartbeats arrive.
//!
//! [`heartbeat_reader`] verifies heartbeats. [`heartbeats`] stores them and updates the [`registry`], from which runs are
//! routed. [`failover`] moves the work of silent executors, each as in [`executor_failover`], and [`forget`] removes
//! those that stay silent. Both act only while [`self_check`] shows that this node would have received a heartbeat;
//! [`loopback`] provides that evidence.
//! [`start_evidence`] tells which attempts may have started. [`reconcile`] finds attempts that live executors do not
//! hold. It asks them through [`holdings`], and [`unanswered`] tells which of them answer nothing. [`not_held`] remembers
//! those that may have started, and [`republish_limit`] bounds how often the others are published again.
//! [`results_queue`] tells which results are in the store.
//! [`pings`] finds out which executors answer, for routing.
//! [`node_lease`] keeps the claims of this node, or hands them over if [`broker_reach`] finds that others reach the broker and
//! this node does not. [`incarnations`] recognises two processes under one executor name, and
//! [`lease_times`] workers that would stop too late.

pub(crate) mod broker_reach;
pub(crate) mod executor_attempts;
pub(crate) mod executor_failover;
pub(crate) mod failover;
pub(crate) mod forget;
pub(crate) mod heartbeat_reader;
pub(crate) mod heartbeats;
pub(crate) mod holdings;
pub(crate) mod incarnations;
pub(crate) mod lease_times;
pub(crate) mod loopback;
pub(crate) mod name_conflicts;
pub(crate) mod node_lease;
pub(crate) mod not_held;
pub(crate) mod pings;
pub(crate) mod queue_counts;
pub(crate) mod queue_provisioner;
pub(crate) mod reconcile;
pub(crate) mod registry;
pub(crate) mod republish_limit;
pub(crate) mod results_queue;
#[cfg(test)]
mod route_model;
pub(crate) mod self_check;
pub(crate) mod start_evidence;
pub(crate) mod unanswered;
