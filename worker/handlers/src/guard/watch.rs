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

/// How long to wait for a renewal after a lease has run out. The renewal may still be in the pipe.
const LAST_RENEWAL: Duration = Duration::from_millis(100);

/// Runs the guard. `input` is the pipe from the worker; `clock` is the clock of its lease. Returns when dismissed.
/// Otherwise returns after the worker has ended and all its processes are dead.
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
            // A pipe that fails counts as closed.
            Ok(Ok(None) | Err(_)) => break,
            Err(expired) => lease = kill_expired(id, expired).await,
        }
    }
    orphans::kill_guarded(id).await.map(drop)
}

/// Kills the processes of this lease. Returns the lease of the oldest process that it spared.
async fn kill_expired(id: &GuardId, expired: LeaseDeadline) -> Option<LeaseDeadline> {
    // The worker may run again already. Processes that it has started under a newer lease are spared.
    let (newer, killed) = orphans::kill_expired(id, expired.proven_ms).await;
    if let Err(error) = killed {
        // The guard goes on: the worker may run again later.
        tracing::error!(%error, "failed to kill all processes of an expired lease; they may run beside those of another executor");
    }
    // The worker may be paused before it announces its newer lease, so derive the lease from its processes.
    let valid_ms = expired.end_by_ms - expired.proven_ms;
    newer.map(|proven_ms| LeaseDeadline {
        proven_ms,
        end_by_ms: proven_ms.saturating_add(valid_ms),
    })
}

/// Waits until the lease expires, then returns it. Never returns if there is no lease.
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
