//! The start: declares the queues and subscribes to the control channel, however long that takes.

use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind, Listener, QueueId};
use cueline_runtime::{Backoff, Stop};

use crate::control;
use crate::error::Result;
use crate::heartbeats::{HeartbeatKind, Heartbeats};
use crate::settings::Settings;

/// Why the worker cannot start yet, and the queue that causes it.
struct NotReady {
    error: BrokerError,
    queue: Option<QueueId>,
}

/// Returns the subscription to the control channel, or `None` if the worker was asked to stop.
pub(crate) async fn connect(
    settings: &Settings,
    heartbeats: &Heartbeats,
    stop: &Stop,
) -> Result<Option<Listener>> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        // The worker itself may not be allowed to declare its queue. A scheduler that receives this heartbeat
        // declares it.
        heartbeats.send(HeartbeatKind::Starting).await;
        match try_connect(settings).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(NotReady { error, .. }) if error.kind() == ErrorKind::Transient => {
                tracing::warn!(%error, "failed to reach the broker; trying again");
            }
            Err(NotReady {
                error,
                queue: Some(queue),
            }) if error.kind() == ErrorKind::Permanent => {
                tracing::warn!(%error, %queue, "the queue cannot be used: either no scheduler has declared it yet, or the worker's user has no right to it; \
                    trying again");
            }
            Err(NotReady { error, .. }) => return Err(error.into()),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = stop.soft() => return Ok(None),
        }
    }
}

async fn try_connect(settings: &Settings) -> Result<Listener, NotReady> {
    for queue in [settings.queue(), QueueId::Results, QueueId::Dead] {
        let declared = settings.broker.declare(&queue).await;
        declared.map_err(|error| NotReady {
            error,
            queue: Some(queue),
        })?;
    }
    let listening = control::listen(settings).await;
    listening.map_err(|error| NotReady { error, queue: None })
}
