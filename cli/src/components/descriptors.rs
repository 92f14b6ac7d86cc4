//! The descriptors of this process: how many there may be, and how many the API may use.

use cueline_api::MAX_EVENT_STREAMS;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The soft limit is raised to the hard one, but not beyond this. Processes of jobs inherit the limit, and some programs
/// close every possible descriptor at their start.
const MOST: u64 = 65_536;

/// Kept for the store, the broker, files, and the processes of clients.
const KEPT_FOR_STORE_AND_BROKER: u64 = 256;

/// Kept for each handler that may run: three pipes while its process starts, and the answer of a request.
const KEPT_FOR_EACH_HANDLER: u64 = 8;

/// The API has at least this many connections, so that an operator reaches a process with a low limit.
const LEAST_CONNECTIONS: u64 = 16;

/// The most connections of a worker's health checks.
pub(crate) const HEALTH_CONNECTIONS: usize = 64;

/// Raises the limit of descriptors and returns it.
pub(crate) fn raise() -> u64 {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::warn!(%error, "failed to read the limit of descriptors; raise it yourself (LimitNOFILE)");
            return 0;
        }
    };
    let wanted = hard.min(MOST);
    if soft >= wanted {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, soft, wanted, "failed to raise the limit of descriptors; raise it yourself (LimitNOFILE)");
            soft
        }
    }
}

/// How many connections the API may have: `wanted`, or what a limit of `descriptors` leaves beside `handlers` running
/// handlers.
pub(crate) fn connections(wanted: u32, descriptors: u64, handlers: u64) -> usize {
    let kept = kept_for(handlers);
    let left = descriptors.saturating_sub(kept);
    if left < u64::from(wanted) {
        tracing::warn!(
            descriptors,
            kept,
            wanted,
            "the API got fewer connections than max_connections; raise the limit of descriptors (LimitNOFILE)"
        );
    }
    let most = u64::from(wanted).min(left.max(LEAST_CONNECTIONS));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Warns if a limit of `descriptors` is too low for `handlers` running handlers.
pub(crate) fn check_handlers(descriptors: u64, handlers: u64) {
    let kept = kept_for(handlers);
    if descriptors < kept {
        tracing::warn!(
            descriptors,
            needed = kept,
            "the limit of descriptors is too low for the concurrency; raise it (LimitNOFILE), or lower concurrency"
        );
    }
}

const fn kept_for(handlers: u64) -> u64 {
    KEPT_FOR_STORE_AND_BROKER.saturating_add(handlers.saturating_mul(KEPT_FOR_EACH_HANDLER))
}

/// The event streams that may be open with this number of connections: at most half of them. Other requests keep the rest,
/// because a stream does not give way to them.
pub(crate) fn event_streams(connections: usize) -> usize {
    MAX_EVENT_STREAMS.min(connections / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_streams_leave_connections_for_other_requests() {
        for (connections, expected) in [(1_000, 200), (400, 200), (100, 50), (16, 8), (1, 1)] {
            assert_eq!(event_streams(connections), expected, "{connections}");
        }
    }

    #[test]
    fn connections_leave_descriptors_for_store_and_handlers() {
        for (wanted, descriptors, handlers, expected) in [
            (1_000, 65_536, 64, 1_000),
            (1_000, 1_024, 0, 768),
            (1_000, 1_024, 64, 256),
            (1_000, 1_024, 1_000, 16),
            (16, 1_024, 1_000, 16),
            (1_000, 0, u64::MAX, 16),
        ] {
            let given = format!("{wanted}, {descriptors}, {handlers}");
            assert_eq!(
                connections(wanted, descriptors, handlers),
                expected,
                "{given}"
            );
        }
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        let raised = raise();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
        assert_eq!(soft, raised);
        assert!(soft >= hard.min(MOST), "{soft} of {hard}");
    }
}
