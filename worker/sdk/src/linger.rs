//! How long each kind of batch in a worker waits for more entries.

use std::time::Duration;

use cueline_runtime::Linger;

/// Acks of triggers, and reports. New triggers go first.
pub(crate) const PUBLISH: Linger = Linger::new(512, Duration::from_millis(5));

/// Ended attempts, before their outcomes are journalled. A crash within this time makes them `lost`.
pub(crate) const ENDED: Linger = Linger::new(usize::MAX, Duration::from_millis(2));

/// Ended attempts during a burst of triggers, or after many starts: the next triggers are journalled together with them.
pub(crate) const ENDED_IN_BURST: Linger = Linger::new(usize::MAX, Duration::from_millis(25));

/// Outcomes that the broker has confirmed, before the journal marks them. A crash within this time reports them again.
pub(crate) const CONFIRMED: Linger = Linger::new(512, Duration::from_millis(250));
