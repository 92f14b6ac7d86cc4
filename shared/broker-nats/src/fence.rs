//! How long a publish may take effect. What was sent and not answered may lie anywhere on the way, in buffers of this process, of a system or
//! of a server that stands still, and reach the stream at any time; by then others may rely on it that nothing comes any more. So each
//! trigger says until when the stream may take it in, by the server's clock, and whoever is handed one that came later ends it.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::HeaderName;
use tokio::time::Instant;

/// Until when a message may be taken in, in milliseconds since the Unix epoch.
pub(crate) fn header() -> HeaderName {
    HeaderName::from_static("Cueline-Until")
}

/// The stream took the message in, at `at_ms`, later than it was meant to.
pub(crate) fn is_late(headers: &HeaderMap, at_ms: i64) -> bool {
    headers
        .get(header())
        .and_then(|until| until.as_str().parse::<i64>().ok())
        .is_some_and(|until| at_ms > until)
}

/// What the server's clock shows: at most this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Before the server was asked.
    pub(crate) asked: Instant,
    /// What it answered.
    pub(crate) ms: i64,
}

impl Reading {
    fn at(self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.asked);
        self.ms
            .saturating_add(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// The bound for what is sent now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence {
    pub(crate) reading: Reading,
    pub(crate) within: Duration,
}

impl Fence {
    /// Until when, by this process's clock and as the header's value, for what is sent at `now`.
    pub(crate) fn until(self, now: Instant) -> (Instant, String) {
        let until = now + self.within;
        // A part of a millisecond more rather than less.
        (until, (self.reading.at(until) + 1).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_never_too_early_and_what_came_after_it_is_late() {
        let asked = Instant::now();
        let fence = Fence {
            reading: Reading { asked, ms: 5_000 },
            within: Duration::from_secs(10),
        };
        // The server may have answered at any time since it was asked.
        let now = asked + Duration::from_millis(300);
        let (until, value) = fence.until(now);
        assert_eq!(until, now + Duration::from_secs(10));
        assert_eq!(value, "15301");
        let mut headers = HeaderMap::new();
        assert!(!is_late(&headers, i64::MAX), "nothing is said");
        headers.insert(header(), value);
        assert!(!is_late(&headers, 15_301));
        assert!(is_late(&headers, 15_302));
        headers.insert(header(), "soon");
        assert!(!is_late(&headers, i64::MAX));
    }
}
