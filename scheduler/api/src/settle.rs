//! "Stop means stop": the answer to a change waits until no trigger of the old definition can be published any more.

use std::collections::HashSet;
use std::time::Duration;

use cueline_model::{AttemptId, JobId};
use cueline_runtime::Backoff;
use cueline_store::ErrorKind;
use tokio::time::Instant;

use crate::ApiState;
use crate::problem::Problem;

const FIRST_WAIT: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_millis(100);
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Waits until the broker has confirmed the attempts of `jobs` that were `dispatching` when the change was made. Later
/// attempts use the new definition. After the time limit, the error says that the change is made and that old triggers
/// may still be published.
pub(crate) async fn settle(state: &ApiState, jobs: &[JobId]) -> Result<(), Problem> {
    settle_within(state, jobs, TIME_LIMIT).await
}

async fn settle_within(
    state: &ApiState,
    jobs: &[JobId],
    time_limit: Duration,
) -> Result<(), Problem> {
    if jobs.is_empty() {
        return Ok(());
    }
    let deadline = Instant::now() + time_limit;
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut left: Option<HashSet<AttemptId>> = None;
    loop {
        match state.store.dispatching_attempts(jobs).await {
            Ok(now) => {
                let mut now: HashSet<AttemptId> = now.into_iter().collect();
                // Only attempts of the first listing count. Later ones use the new definition.
                if let Some(before) = left {
                    now.retain(|id| before.contains(id));
                }
                left = Some(now);
            }
            Err(error) if error.kind() == ErrorKind::Transient => {}
            Err(error) => return Err(error.into()),
        }
        if left.as_ref().is_some_and(HashSet::is_empty) {
            return Ok(());
        }
        if Instant::now() >= deadline || state.stop.is_soft() {
            return Err(Problem::still_publishing(format!(
                "the change is made, but {} still being published and may reach an executor; \
                 asking again is safe",
                match left.map_or(0, |left| left.len()) {
                    0 => "it is not known whether triggers of the old definition are".to_owned(),
                    1 => "1 trigger of the old definition is".to_owned(),
                    n => format!("{n} triggers of the old definition are"),
                }
            )));
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}
