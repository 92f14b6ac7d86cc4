//! What a worker is told to be.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, QueueId};
use cueline_model::{ExecutorName, GroupName};
use cueline_protocol::VerifyingKeys;
use cueline_runtime::{BootClock, Clock};

use crate::error::BoxError;
use crate::registry::Registry;

type HookFuture = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// Called before anything is started.
pub(crate) type Hook = Box<dyn FnOnce() -> HookFuture + Send>;

/// How far the last proof of contact reaches, in milliseconds on the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// When contact was proven: what [`Context::contact_proven_ms`](crate::Context::contact_proven_ms) says to what is started meanwhile.
    pub proven_ms: i64,
    /// What was started by the right of this proof has to have ended at this time, unless contact is proven again.
    pub ends_by_ms: i64,
}

/// Told how far contact reaches.
#[derive(Clone)]
pub(crate) struct Lease(pub(crate) Arc<dyn Fn(Reach) + Send + Sync>);

impl Lease {
    pub(crate) fn tell(&self, reach: Reach) {
        (self.0)(reach);
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lease")
    }
}

/// What a worker is made of, checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) group: GroupName,
    pub(crate) name: ExecutorName,
    pub(crate) incarnation: String,
    pub(crate) broker: Broker,
    pub(crate) state_dir: PathBuf,
    pub(crate) handlers: Registry,
    pub(crate) trust: VerifyingKeys,
    pub(crate) concurrency: usize,
    pub(crate) log_bytes: usize,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) drain_timeout: Duration,
    pub(crate) beat_every: Duration,
    /// None when the schedulers end with this process.
    pub(crate) limits: Option<Limits>,
    pub(crate) lease: Option<Lease>,
    pub(crate) boot: Arc<dyn BootClock>,
}

impl Settings {
    /// The queue of this executor's triggers.
    pub(crate) fn queue(&self) -> QueueId {
        QueueId::Executor {
            group: self.group.to_string(),
            executor: self.name.to_string(),
        }
    }
}

/// How long a worker may be without contact.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From then on it is fenced.
    pub(crate) fence_after: Duration,
    /// From then on the schedulers may give its work to others.
    pub(crate) failover_after: Duration,
}

impl Limits {
    /// Two thirds of `failover_after` for whoever does not say otherwise.
    pub(crate) fn usual_fence(failover_after: Duration) -> Duration {
        failover_after * 2 / 3
    }

    /// How often it gives a sign of life when nothing else is said: several are lost before it is fenced.
    pub(crate) fn beat_every(&self) -> Duration {
        LONGEST_BEAT.min(self.fence_after / 4)
    }

    /// What the fence stops has ended this long before the schedulers may give it to others; it is also how long a final stop may take: 2 s, less where
    /// all times are short.
    pub(crate) fn margin(&self) -> Duration {
        LONGEST_MARGIN.min(self.failover_after / 15)
    }

    /// After so long without contact what waits is given back: half-way between the fence and the last instant. A scheduler that is slow to take in the
    /// beat that proved contact again has the other half to do so, before it takes for its own what has been started since.
    pub(crate) fn keeps_for(&self) -> Duration {
        let last = self.failover_after.saturating_sub(self.margin());
        (self.fence_after + last.max(self.fence_after)) / 2
    }

    /// How often beats follow one another at least while no echo comes back: each second, more often where all times are short.
    pub(crate) fn search_every(&self) -> Duration {
        Duration::from_secs(1).min(self.fence_after / 20)
    }

    /// How long the sending of one beat may take; it is then given up, and the next one follows.
    pub(crate) fn send_within(&self) -> Duration {
        Duration::from_secs(2).min(self.fence_after / 5)
    }

    /// One without contact that has heard nothing for so long listens anew: it may be the listening that is broken.
    pub(crate) fn deaf_after(&self) -> Duration {
        Duration::from_secs(10).min(self.fence_after / 2)
    }
}

/// Signs of life are no rarer than this.
const LONGEST_BEAT: Duration = Duration::from_secs(5);
pub(crate) const LONGEST_MARGIN: Duration = Duration::from_secs(2);
