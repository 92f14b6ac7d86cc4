//! The deadline by which a stream must store a trigger, by the clock of the stream's leader.
//!
//! An unconfirmed publish may wait in a buffer of this process, of a system or of a paused server. It may reach the
//! stream at any time, even after the run was given to another executor. Each trigger therefore carries a deadline in a
//! header. A driver that fetches a trigger stored after its deadline drops it.
//!
//! `Nats-TTL` cannot replace this: its time starts when the stream stores the message.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::HeaderName;
use cueline_broker::BrokerError;
use tokio::time::Instant;

use crate::jetstream_api::if_exists;
use crate::requests::Requester;

/// The driver reads the server's clock again after this time, and on each new connection.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// The header with the latest time at which the stream may store the message, in milliseconds since the Unix epoch.
fn header() -> HeaderName {
    HeaderName::from_static("Cueline-Until")
}

/// Whether the stream stored the message, at `stored_at_ms`, after its deadline.
pub(crate) fn is_expired(headers: &HeaderMap, stored_at_ms: i64) -> bool {
    headers
        .get(header())
        .and_then(|until| until.as_str().parse::<i64>().ok())
        .is_some_and(|until| stored_at_ms > until)
}

/// A reading of the server's clock, the basis of deadlines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerTime {
    /// Just before the request. The server read its clock later, so deadlines computed from here are never too early.
    requested_at: Instant,
    server_ms: i64,
    valid_for: Duration,
}

impl ServerTime {
    /// Adds the deadline of a message that is sent at `now`. Returns the same deadline by this process's clock.
    pub(crate) fn add_deadline(self, headers: &mut HeaderMap, now: Instant) -> Instant {
        let deadline = now + self.valid_for;
        let since = deadline.saturating_duration_since(self.requested_at);
        let since_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        // Round up to a whole millisecond.
        let until = self.server_ms.saturating_add(since_ms).saturating_add(1);
        headers.insert(header(), until.to_string());
        deadline
    }
}

/// The clock of the server that leads the stream of triggers.
#[derive(Debug)]
pub(crate) struct ServerClock {
    stream: String,
    /// Time from sending a trigger to its deadline.
    pub(crate) valid_for: Duration,
    /// The last reading, and the number of the connection that it was made on.
    last: Mutex<Option<(u64, ServerTime)>>,
}

impl ServerClock {
    pub(crate) fn new(stream: String, valid_for: Duration) -> Self {
        Self {
            stream,
            valid_for,
            last: Mutex::default(),
        }
    }

    /// Reads the clock. `None` if the stream does not exist or this user may not look it up.
    pub(crate) async fn read(
        &self,
        requester: &Requester,
    ) -> Result<Option<ServerTime>, BrokerError> {
        let (requested_at, connects) = (Instant::now(), requester.connection.connects());
        if let Some((connection, time)) = *self.last()
            && connection == connects
            && requested_at - time.requested_at < READ_INTERVAL
        {
            return Ok(Some(time));
        }
        let info = match if_exists(requester.stream_info(&self.stream).await) {
            Err(e) if e.is_denied() => return Ok(None),
            info => info?,
        };
        let Some(ts) = info.and_then(|info| info.ts) else {
            return Ok(None);
        };
        let time = ServerTime {
            requested_at,
            server_ms: ts.as_millisecond(),
            valid_for: self.valid_for,
        };
        *self.last() = Some((connects, time));
        Ok(Some(time))
    }

    fn last(&self) -> MutexGuard<'_, Option<(u64, ServerTime)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_too_early_and_a_message_stored_after_it_has_expired() {
        let requested_at = Instant::now();
        let time = ServerTime {
            requested_at,
            server_ms: 5_000,
            valid_for: Duration::from_secs(10),
        };
        let mut headers = HeaderMap::new();
        assert!(!is_expired(&headers, i64::MAX), "there is no deadline");
        // The server may have read its clock at any time since the request.
        let now = requested_at + Duration::from_millis(300);
        let deadline = time.add_deadline(&mut headers, now);
        assert_eq!(deadline, now + Duration::from_secs(10));
        assert_eq!(headers.get(header()).unwrap().as_str(), "15301");
        assert!(!is_expired(&headers, 15_301));
        assert!(is_expired(&headers, 15_302));
        headers.insert(header(), "soon");
        assert!(!is_expired(&headers, i64::MAX));
    }
}
