//! Parked runs: due, and nobody alive to run them.
//!
//! They wait in memory until an executor appears, past the bound in the store, and end `unroutable` after their dispatch deadline.

use cueline_model::{OutcomeKind, Timestamp};
use cueline_store::{Report, StoreError, WaitingRun};

use crate::finding::ended;
use crate::lock::lock;
use crate::shared::Shared;

/// So long a run that found no room here is left in the store before it is looked at again.
const IN_STORE_MS: u64 = 10_000;

/// Parks runs that found nobody.
pub(crate) async fn park(shared: &Shared, homeless: Vec<WaitingRun>) -> Result<(), StoreError> {
    let mut homeless = homeless.into_iter();
    {
        let mut parked = lock(&shared.parked);
        let room = shared.options.max_parked.saturating_sub(parked.len());
        parked.extend(homeless.by_ref().take(room));
    }
    let now = shared.now();
    let (expired, rest): (Vec<_>, Vec<_>) = homeless.partition(|run| give_up_at(run) <= now);
    end(shared, expired, now).await?;
    let Some(node) = shared.node().filter(|_| !rest.is_empty()) else {
        return Ok(());
    };
    let ids: Vec<_> = rest.iter().map(WaitingRun::attempt_id).collect();
    let released = shared
        .store
        .release_runs(node, &ids, Some(now.plus_ms(IN_STORE_MS)))
        .await;
    if released.is_err() {
        shared.schedule(rest);
    }
    released
}

/// Lets them try again: somebody has appeared, or gone.
pub(crate) fn unpark(shared: &Shared) {
    let parked = std::mem::take(&mut *lock(&shared.parked));
    shared.schedule(parked);
}

/// Ends those that have been without a live executor for too long.
pub(crate) async fn give_up(shared: &Shared) -> Result<(), StoreError> {
    let now = shared.now();
    let expired: Vec<WaitingRun> = lock(&shared.parked)
        .extract_if(.., |run| give_up_at(run) <= now)
        .collect();
    end(shared, expired, now).await
}

/// Runs that were left in the store had their due time put off: a first attempt's waiting began at its fire time all the same.
fn give_up_at(run: &WaitingRun) -> Timestamp {
    let since = if run.attempt == 1 {
        run.fire_at
    } else {
        run.due_at
    };
    since.plus_ms(run.job.spec.jitter.as_millis() + run.job.spec.dispatch_deadline.as_millis())
}

async fn end(shared: &Shared, expired: Vec<WaitingRun>, now: Timestamp) -> Result<(), StoreError> {
    if expired.is_empty() {
        return Ok(());
    }
    let reports: Vec<Report> = expired.iter().map(|run| unroutable(run, now)).collect();
    if let Err(e) = shared.store.ingest(&reports).await {
        lock(&shared.parked).extend(expired);
        return Err(e);
    }
    // Their retry policy may give them another attempt.
    shared.wakers.claim.wake();
    Ok(())
}

fn unroutable(run: &WaitingRun, now: Timestamp) -> Report {
    let spec = &run.job.spec;
    let message = format!(
        "no live executor of group {} that can run {} within {}",
        spec.group,
        spec.handler.capability(),
        spec.dispatch_deadline
    );
    ended(run.attempt_id(), OutcomeKind::Unroutable, now, message)
}
