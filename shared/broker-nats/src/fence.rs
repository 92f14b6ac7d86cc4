//! How long a publish may take effect. What was sent and not answered may lie anywhere on the way, in buffers of this process, of a system or
//! of a server that stands still, and reach the stream at any time; by then others may rely on it that nothing comes any more. So each
//! trigger says until when the stream may take it in, by the server's clock, and whoever is handed one that came later ends it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::HeaderName;
use cueline_broker::BrokerError;
use tokio::time::Instant;

use crate::api::found;
use crate::pipeline::Pipeline;

/// A reading of the server's clock is good for so long.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(30);

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
    asked: Instant,
    /// What it answered.
    ms: i64,
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
    reading: Reading,
    within: Duration,
}

impl Fence {
    /// Until when, by this process's clock and as the header's value, for what is sent at `now`.
    pub(crate) fn until(self, now: Instant) -> (Instant, String) {
        let until = now + self.within;
        // A part of a millisecond more rather than less.
        (until, (self.reading.at(until) + 1).to_string())
    }
}

/// The clock of the server that leads the stream of triggers.
#[derive(Debug)]
pub(crate) struct ServerClock {
    stream: String,
    within: Duration,
    last: Mutex<Option<(u64, Reading)>>,
}

impl ServerClock {
    pub(crate) fn new(stream: String, within: Duration) -> Self {
        Self {
            stream,
            within,
            last: Mutex::default(),
        }
    }

    /// How long what was sent may take effect.
    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// Reads the clock where that was not done lately on this connection. `None` without a stream, or for one who may not look.
    pub(crate) async fn fence(&self, pipeline: &Pipeline) -> Result<Option<Fence>, BrokerError> {
        let (asked, connection) = (Instant::now(), pipeline.connection());
        let last = *self.last();
        let reading = match last {
            Some((of, reading)) if of == connection && asked - reading.asked < READ_AGAIN_AFTER => {
                reading
            }
            _ => {
                let info = match found(pipeline.stream_info(&self.stream).await) {
                    Ok(info) => info,
                    Err(e) if e.is_denied() => None,
                    Err(e) => return Err(e.error("read the server's clock")),
                };
                let Some(ts) = info.and_then(|info| info.ts) else {
                    return Ok(None);
                };
                let ms = ts.as_millisecond();
                let reading = Reading { asked, ms };
                *self.last() = Some((connection, reading));
                reading
            }
        };
        Ok(Some(Fence {
            reading,
            within: self.within,
        }))
    }

    fn last(&self) -> MutexGuard<'_, Option<(u64, Reading)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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
