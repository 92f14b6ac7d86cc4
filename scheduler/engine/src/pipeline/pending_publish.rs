//! A trigger on its way to the broker.

use cueline_broker::Outgoing;
use cueline_model::Timestamp;
use cueline_store::DispatchRequest;

/// A trigger whose run is `dispatching` in the store, to be published when it is due.
#[derive(Debug)]
pub(crate) struct PendingPublish {
    /// Attempt, job version and executor, as marked in the store.
    pub(crate) mark: DispatchRequest,
    /// The mark may no longer stand. It has to be set again before the trigger is published.
    pub(crate) mark_uncertain: bool,
    /// An earlier publish had no answer, so the trigger may be in its queue. From then on it is published until the broker
    /// accepts it; it is never released to be routed again.
    pub(crate) maybe_published: bool,
    /// A trigger published after this instant is written anew, because its deadline has come too close.
    pub(crate) fresh_until: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) priority: u8,
    pub(crate) message: Outgoing,
}

impl PendingPublish {
    /// After a publish without an answer: the trigger may be in its queue, and its run may go on from there.
    pub(crate) fn unanswered(self) -> Self {
        Self {
            mark_uncertain: true,
            maybe_published: true,
            ..self
        }
    }
}
