//! The guard's side: waits for the end of the lease or of the worker.

use std::time::Duration;

use cueline_worker::{BootClock, LeaseDeadline};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::time::timeout;

use super::message::GuardMessage;
use crate::marks::GuardId;
use crate::orphan_error::OrphanError;
use crate::orphans;

/// Timers do not count the machine's sleep, so the clock is read at least this often.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// When a lease has run out, its renewal may still be in the pipe.
const LAST_RENEWAL: Duration = Duration::from_millis(100);

/// Runs the guard. `input` is the pipe from the worker; `clock` is the clock of its lease. Returns after the
/// dismissal, or when the worker has ended and so have all of its processes.
///
/// # Errors
///
/// [`OrphanError`] if the worker has ended and some of its processes could not be killed.
pub async fn watch(
    input: impl AsyncBufRead + Unpin,
    id: &GuardId,
    clock: &dyn BootClock,
) -> Result<(), OrphanError> {
    let mut lines = input.lines();
    let mut lease: Option<LeaseDeadline> = None;
    loop {
        let line = tokio::select! {
            biased;
            line = lines.next_line() => Ok(line),
            expired = expiry(clock, lease) => match timeout(LAST_RENEWAL, lines.next_line()).await {
                Ok(line) => Ok(line),
                Err(_) => Err(expired),
            }
        };
        match line {
            Ok(Ok(Some(line))) => match GuardMessage::parse(&line) {
                Some(GuardMessage::Dismissed) => return Ok(()),
                Some(GuardMessage::Lease(renewed)) => lease = Some(renewed),
                None => {}
            },
            // A pipe that fails is closed as well.
            Ok(Ok(None) | Err(_)) => break,
            Err(expired) => lease = kill_expired(id, expired).await,
        }
    }
    orphans::kill_guarded(id).await.map(drop)
}

/// Kills the processes of this lease, and returns the next lease that runs out.
async fn kill_expired(id: &GuardId, expired: LeaseDeadline) -> Option<LeaseDeadline> {
    // The worker may be back already. Processes that it has started under a newer lease are spared.
    let (newer, killed) = orphans::kill_expired(id, expired.proven_ms).await;
    if let Err(error) = killed {
        // The guard stays: the worker may be back later.
        tracing::error!(%error, "failed to kill all processes of an expired lease; they may run beside those of another executor");
    }
    // A worker that is paused again never announces its newer lease.
    let valid_ms = expired.end_by_ms - expired.proven_ms;
    newer.map(|proven_ms| LeaseDeadline {
        proven_ms,
        end_by_ms: proven_ms.saturating_add(valid_ms),
    })
}

/// Returns the lease when it has run out; never without one.
async fn expiry(clock: &dyn BootClock, lease: Option<LeaseDeadline>) -> LeaseDeadline {
    let Some(lease) = lease else {
        return std::future::pending().await;
    };
    while let Some(left_ms) = u64::try_from(lease.end_by_ms.saturating_sub(clock.up_ms()))
        .ok()
        .filter(|left| *left > 0)
    {
        tokio::time::sleep(Duration::from_millis(left_ms).min(MAX_SLEEP)).await;
    }
    lease
}
