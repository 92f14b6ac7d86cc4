//! Prepare: off the wheel, routed, marked, written.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::{AttemptId, ExecutorName};
use cueline_runtime::{Duty, Next};
use cueline_store::{ClaimedRun, DispatchRequest, StoreError};

use super::trigger::{Stamp, Triggers};
use crate::lock::lock;
use crate::parked;
use crate::route::Router;
use crate::shared::Shared;
use crate::wheel::Wheel;

/// As many as are looked for: they are begun with half a second ahead.
const LARGEST_CROWD: usize = 10_000;
/// Runs that are made ready in a millisecond: a low estimate.
const PREPARED_IN_A_MS: usize = 20;

/// Takes runs off the wheel and makes their triggers ready.
pub(crate) struct Prepare {
    shared: Arc<Shared>,
    router: Router,
    triggers: Triggers,
}

impl Duty for Prepare {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "prepare"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.prepare().await
    }
}

impl Prepare {
    pub(crate) fn new(shared: Arc<Shared>, router: Router) -> Self {
        let triggers = Triggers::new(shared.key.clone());
        Self {
            shared,
            router,
            triggers,
        }
    }

    pub(crate) async fn prepare(&mut self) -> Result<Next, StoreError> {
        let shared = self.shared.clone();
        let Some(node) = shared.node() else {
            return Ok(Next::After(Duration::from_millis(20)));
        };
        let runs = {
            let mut wheel = lock(&shared.wheel);
            let ahead = shared.now().plus_ms(self.lead_ms(&wheel));
            wheel.pop_due(ahead, shared.options.dispatch_batch)
        };
        if runs.is_empty() {
            return Ok(self.next());
        }
        let changes = shared.registry.changes();
        let (routed, homeless) = self.route(runs);
        let marks: Vec<DispatchRequest> = routed.iter().map(mark).collect();
        let taken = shared.store.begin_dispatch(node, &marks).await;
        let taken = match taken {
            Ok(taken) => taken,
            Err(e) => {
                // If they were marked all the same, it was for these executors, and they are found as such when the node claims anew.
                shared.doubt();
                let again = routed.into_iter().map(|(run, _)| run);
                shared.schedule(again.chain(homeless).collect());
                return Err(e);
            }
        };
        self.make_ready(routed, marks, taken);
        let parked = !homeless.is_empty();
        parked::park(&shared, homeless).await?;
        // Somebody has appeared since these found nobody, and nothing else would wake them.
        if parked && shared.registry.changes() != changes {
            parked::unpark(&shared);
        }
        Ok(self.next())
    }

    /// Puts the triggers of those that were taken into the outbox.
    fn make_ready(
        &mut self,
        routed: Vec<(ClaimedRun, ExecutorName)>,
        marks: Vec<DispatchRequest>,
        taken: Vec<AttemptId>,
    ) {
        let mut taken = taken.into_iter().peekable();
        let mut ready = Vec::with_capacity(routed.len());
        let stamp = Stamp::of(&self.shared);
        for ((run, executor), mark) in routed.into_iter().zip(marks) {
            if taken.next_if_eq(&run.attempt_id()).is_some() {
                ready.push(self.triggers.write(&run, executor, mark, stamp));
            } else {
                tracing::debug!(run = %run.id, "run was cancelled, paused or edited before its trigger went out");
            }
        }
        let mut outbox = lock(&self.shared.outbox);
        for item in ready {
            outbox.insert(item.due_at, item.priority, item.id.run, item);
        }
        drop(outbox);
        self.shared.wakers.publish.wake();
    }

    /// How long before it is due the first on the wheel may be taken off: the sooner, the more are due with it, because each takes its time to be
    /// routed, marked and signed.
    fn lead_ms(&self, wheel: &Wheel<ClaimedRun>) -> u64 {
        let ahead = self.shared.options.prepare_ahead_ms;
        let crowd = wheel.next_due().map_or(0, |first| {
            wheel.count_due(first.plus_ms(ahead), LARGEST_CROWD)
        });
        ahead + (crowd / PREPARED_IN_A_MS) as u64
    }

    /// A little later than need be, so that what is due one after the other is marked together; there is time until it is due.
    fn next(&self) -> Next {
        let shared = &self.shared;
        let (due, lead) = {
            let wheel = lock(&shared.wheel);
            (wheel.next_due(), self.lead_ms(&wheel).cast_signed())
        };
        let Some(due) = due else {
            return Next::After(Duration::from_secs(1));
        };
        let gather = shared.options.prepare_ahead_ms.cast_signed() / 2;
        match u64::try_from(due.since_ms(shared.now()) - lead + gather) {
            Ok(wait @ 1..) => Next::After(Duration::from_millis(wait)),
            _ => Next::Now,
        }
    }

    fn route(
        &mut self,
        runs: Vec<ClaimedRun>,
    ) -> (Vec<(ClaimedRun, ExecutorName)>, Vec<ClaimedRun>) {
        let mut routed = Vec::with_capacity(runs.len());
        let mut homeless = Vec::new();
        for run in runs {
            let chosen = if run.maybe_published {
                // It may be in that executor's queue already: anybody else would run it a second time.
                run.executor.clone()
            } else {
                let spec = &run.job.spec;
                let candidates = self
                    .shared
                    .registry
                    .candidates(&spec.group, &spec.handler.capability());
                self.router.choose(&run, &candidates)
            };
            match chosen {
                Some(executor) => routed.push((run, executor)),
                None => homeless.push(run),
            }
        }
        (routed, homeless)
    }
}

fn mark((run, executor): &(ClaimedRun, ExecutorName)) -> DispatchRequest {
    DispatchRequest {
        attempt: run.attempt_id(),
        job_version: run.job.version,
        executor: executor.clone(),
    }
}
