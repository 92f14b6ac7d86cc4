//! The start: subscribes to the control channel and declares the queues, however long that takes.

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
    let mut listener = None;
    loop {
        // The heartbeat asks schedulers to accept the worker's key, so the worker first listens for their answer. If it
        // cannot yet, it tries again behind the queues.
        let _ = try_listen(settings, &mut listener).await;
        // The worker itself may not be allowed to declare its queue. A scheduler that receives this heartbeat
        // declares it.
        heartbeats.send(HeartbeatKind::Starting).await;
        match try_connect(settings, &mut listener).await {
            Ok(()) => return Ok(listener),
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

/// Subscribes to the control channel unless that is done.
async fn try_listen(settings: &Settings, listener: &mut Option<Listener>) -> Result<(), NotReady> {
    if listener.is_none() {
        let listening = control::listen(settings).await;
        *listener = Some(listening.map_err(|error| NotReady { error, queue: None })?);
    }
    Ok(())
}

async fn try_connect(settings: &Settings, listener: &mut Option<Listener>) -> Result<(), NotReady> {
    for queue in [settings.queue(), QueueId::Results, QueueId::Dead] {
        let declared = settings.broker.declare(&queue).await;
        declared.map_err(|error| NotReady {
            error,
            queue: Some(queue),
        })?;
    }
    try_listen(settings, listener).await
}
