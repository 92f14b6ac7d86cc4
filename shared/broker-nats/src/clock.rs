//! The server's clock, by which a [fence](crate::fence) is set.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_broker::BrokerError;
use tokio::time::Instant;

use crate::api::found;
use crate::fence::{Fence, Reading};
use crate::pipeline::Pipeline;

/// A reading of the server's clock is good for so long.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(30);

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
