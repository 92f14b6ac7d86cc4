//! Scheduler nodes.

use cueline_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Identity of a scheduler process, from its registration to its end. A restarted process gets a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub i64);

/// The answer to [`Store::register_node`](crate::Store::register_node).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredNode {
    /// The identity of the registered process.
    pub node: NodeId,
    /// Whether no other node was alive. If so, each enabled `startup` job got its runs.
    pub first: bool,
}

/// The answer to [`Store::renew_lease`](crate::Store::renew_lease), if the lease had not expired.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenewedLease {
    /// Whether another node is alive.
    pub has_others: bool,
    /// When another live node last reached the broker, by its last renewal; the latest if there are several.
    pub other_reached_broker_at: Option<Timestamp>,
}
