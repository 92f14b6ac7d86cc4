//! Runs of the route `any` that wait until an executor has room.
//!
//! They stay `scheduled` and claimed by this node. An end that it ingests, a heartbeat and a new executor let it try them
//! again, and so does a short time. A run that is cancelled, paused or edited meanwhile is refused when it is tried. A node
//! that ends leaves its waiting runs in the store, where the next claim finds them.

use std::sync::Arc;

use cueline_model::{AttemptId, Route};
use cueline_runtime::Activator;
use cueline_store::{ClaimedRun, NodeId, Store, StoreError};

use crate::claims::NodeClaims;
use crate::database_clock::DatabaseClock;
use crate::liveness::registry::Registry;
use crate::route::Router;

/// A run beyond the memory limit stays in the store for this long before it is claimed again.
const IN_STORE_MS: u64 = 10_000;

pub(crate) struct RoomQueue {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) claim: Activator,
    /// The most runs held in memory.
    pub(crate) max_held: usize,
}

impl RoomQueue {
    /// Adds the waiting runs that have room now to the runs of a batch, and removes those that have to wait behind others.
    pub(crate) fn take(
        &self,
        due: Vec<ClaimedRun>,
        max: usize,
        router: &mut Router,
    ) -> Vec<ClaimedRun> {
        let mut waits = self.claims.room_waits();
        if waits.is_empty() {
            return due;
        }
        let now = self.clock.now();
        let mut runs = Vec::with_capacity(due.len());
        for run in due {
            let queues = run.job.spec.route == Route::Any
                && run.executor.is_none()
                && waits.len() < self.max_held
                && waits.has_queue(&run.job.spec);
            if queues {
                waits.hold(run);
            } else {
                runs.push(run);
            }
        }
        let mut all = waits.pop(now, max, |first| {
            let candidates = self.registry.candidates(&first.job.spec);
            if candidates.is_empty() {
                // They wait for an executor like all others.
                return u64::MAX;
            }
            router.room(&first.job.spec.group, &candidates, &*self.registry, now)
        });
        all.append(&mut runs);
        all
    }

    /// Holds runs until an executor has room. Releases those beyond the memory limit to the store.
    pub(crate) async fn hold(&self, node: NodeId, runs: Vec<ClaimedRun>) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut beyond: Vec<AttemptId> = Vec::new();
        {
            let mut waits = self.claims.room_waits();
            for run in runs {
                if waits.len() < self.max_held {
                    waits.hold(run);
                } else {
                    beyond.push(run.attempt_id());
                }
            }
        }
        if beyond.is_empty() {
            return Ok(());
        }
        let due_at = Some(self.clock.now().plus_ms(IN_STORE_MS));
        let released = self.store.release_claims(node, &beyond, due_at).await;
        if released.is_err() {
            self.claims.set_uncertain();
        }
        self.claim.wake();
        released
    }
}
