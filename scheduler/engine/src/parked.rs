//! Parked runs: due, and nobody alive to run them.
//!
//! They wait in memory until an executor appears, past the bound in the store, and end `unroutable` after their dispatch deadline.

use std::collections::{BTreeSet, HashMap};

use cueline_model::{JobId, OutcomeKind, RunKind, Timestamp};
use cueline_store::{AttemptReport, ClaimedRun, StoreError};

use crate::finding::ended;
use crate::lock::lock;
use crate::shared::Shared;

/// So long a run that found no room here is left in the store before it is looked at again.
const IN_STORE_MS: u64 = 10_000;

/// Parks runs that found nobody.
pub(crate) async fn park(shared: &Shared, homeless: Vec<ClaimedRun>) -> Result<(), StoreError> {
    let mut homeless = homeless.into_iter();
    {
        let mut parked = lock(&shared.parked);
        let room = shared.options.max_parked.saturating_sub(parked.len());
        parked.extend(homeless.by_ref().take(room));
    }
    let now = shared.now();
    let (expired, rest): (Vec<_>, Vec<_>) =
        homeless.partition(|run| give_up_at(shared, run) <= now);
    // Both, also if one fails: nobody else has these runs in mind.
    let ended = end(shared, expired, now).await;
    let left = leave_in_store(shared, rest, now).await;
    ended.and(left)
}

async fn leave_in_store(
    shared: &Shared,
    rest: Vec<ClaimedRun>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(node) = shared.node().filter(|_| !rest.is_empty()) else {
        return Ok(());
    };
    let ids: Vec<_> = rest.iter().map(ClaimedRun::attempt_id).collect();
    let released = shared
        .store
        .release_claims(node, &ids, Some(now.plus_ms(IN_STORE_MS)))
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
    let mut expired: Vec<ClaimedRun> = lock(&shared.parked)
        .extract_if(.., |run| give_up_at(shared, run) <= now)
        .collect();
    if expired.is_empty() {
        return Ok(());
    }
    let ids: BTreeSet<JobId> = expired.iter().map(|run| run.job.id).collect();
    let ids: Vec<JobId> = ids.into_iter().collect();
    let present = match shared.store.definitions(&ids).await {
        Ok(present) => present,
        Err(e) => {
            lock(&shared.parked).extend(expired);
            return Err(e);
        }
    };
    // An edit has released what waits; its deadline is another's matter, and perhaps another one.
    let present: HashMap<JobId, i64> = present.iter().map(|job| (job.id, job.version)).collect();
    expired.retain(|run| present.get(&run.job.id) == Some(&run.job.version));
    end(shared, expired, now).await
}

/// Runs that were left in the store had their due time put off: a first attempt's waiting began at its fire time all the same. A child's
/// fire time is its parent's, which may have worked for long. And for as long as this node has not heard executors, it cannot tell whether
/// there are any.
fn give_up_at(shared: &Shared, run: &ClaimedRun) -> Timestamp {
    let since = if run.attempt == 1 && run.kind != RunKind::Child {
        run.fire_at
    } else {
        run.due_at
    };
    let since = since.max(shared.hears_since());
    since.plus_ms(run.job.spec.jitter.as_millis() + run.job.spec.dispatch_deadline.as_millis())
}

async fn end(shared: &Shared, expired: Vec<ClaimedRun>, now: Timestamp) -> Result<(), StoreError> {
    if expired.is_empty() {
        return Ok(());
    }
    let reports: Vec<AttemptReport> = expired.iter().map(|run| unroutable(run, now)).collect();
    if let Err(e) = shared.store.ingest_reports(&reports).await {
        lock(&shared.parked).extend(expired);
        return Err(e);
    }
    // Their retry policy may give them another attempt.
    shared.wakers.claim.wake();
    Ok(())
}

fn unroutable(run: &ClaimedRun, now: Timestamp) -> AttemptReport {
    let spec = &run.job.spec;
    let message = format!(
        "no live executor of group {} that can run {} within {}",
        spec.group,
        spec.handler.capability(),
        spec.dispatch_deadline
    );
    ended(run.attempt_id(), OutcomeKind::Unroutable, now, message)
}
