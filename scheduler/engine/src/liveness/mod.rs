//! Liveness: this node is alive while its lease is renewed, an executor while its heartbeats arrive.
//!
//! [`heartbeats`] stores heartbeats and updates the [`registry`], from which runs are routed. [`failover`] moves the
//! work of silent executors. It acts only while [`self_check`] shows that this node would have received a heartbeat;
//! [`loopback`] provides that evidence. [`reconcile`] finds triggers that were lost on the way to a live executor.
//! [`node_lease`] keeps the claims of this node.

pub(crate) mod executor_attempts;
pub(crate) mod failover;
pub(crate) mod heartbeats;
pub(crate) mod loopback;
pub(crate) mod node_lease;
pub(crate) mod queue_provisioner;
pub(crate) mod reconcile;
pub(crate) mod registry;
pub(crate) mod self_check;
