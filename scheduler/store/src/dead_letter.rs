//! Dead letters: messages that their receiver refused.

use cueline_model::{GroupName, Namespace, Timestamp};
use serde::{Deserialize, Serialize};

use crate::list::Order;

/// The most stored dead letters. Beyond this number the oldest are deleted.
pub const MAX_DEAD_LETTERS: usize = 100_000;

/// A refused message that is about to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The same for each delivery of one dead letter, so that a second delivery is not stored.
    pub key: String,
    /// The queue that the message was in, as the broker displays it.
    pub queue: String,
    /// The topic; for a trigger the name of its job.
    pub topic: String,
    /// Why the message was refused.
    pub reason: String,
    /// When the message was refused, by the broker's clock.
    pub at: Timestamp,
    /// The message, unchanged. Without an `origin` it may be only the beginning, and the reason says so.
    pub payload: Vec<u8>,
    /// Who refused the message: `scheduler`, or `executor <group>/<name>`. `None` if that is not verified.
    pub origin: Option<String>,
    /// The namespace that the letter belongs to. It follows from the verified origin, and never from what the message says
    /// (G18). `None` if it is not verified: the letter is then seen with rights in all namespaces only.
    pub namespace: Option<Namespace>,
}

/// A stored dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Ids ascend. The id of a deleted dead letter is never used again.
    pub id: i64,
    /// The queue that the message was in, as the broker displays it.
    pub queue: String,
    /// The topic; for a trigger the name of its job.
    pub topic: String,
    /// Why the message was refused.
    pub reason: String,
    /// When the message was refused, by the broker's clock.
    pub at: Timestamp,
    /// The message, unchanged. Without an `origin` it may be only the beginning, and the reason says so.
    pub payload: Vec<u8>,
    /// Who refused the message: `scheduler`, or `executor <group>/<name>`. `None` if that is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The namespace that the letter belongs to. `None` if that is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
}

/// Selects the dead letters to list. An empty list of values does not filter; of several values, one must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Letters of this namespace (G18). `None` for all letters, also those of no namespace.
    pub namespace: Option<Namespace>,
    /// Letters that were in one of these queues.
    pub queues: Vec<String>,
    /// Letters with one of these topics.
    pub topics: Vec<String>,
    /// Letters that one of these refused: `scheduler`, or `executor <group>/<name>`.
    pub origins: Vec<String>,
    /// Letters that an executor of one of these groups refused.
    pub groups: Vec<GroupName>,
    /// Letters that were refused at this time or later.
    pub since: Option<Timestamp>,
    /// Letters that were refused before this time.
    pub until: Option<Timestamp>,
    /// The direction of the list, which is sorted by id.
    pub order: Order,
    /// Letters behind this one in the order of the list.
    pub after: Option<i64>,
    /// The most letters to return.
    pub limit: usize,
}
