//! Heartbeats: gathered from the broker, written to the store in batches, and handed to the registry.

use cueline_model::Heartbeat;
use std::collections::BTreeMap;
use std::sync::Arc;

use cueline_broker::{Announcement, Listener};
use cueline_protocol::{HeartbeatMessage, decode};
use cueline_runtime::Stop;
use cueline_store::StoreError;

use crate::hearing::{caught_up, look_every};
use crate::parked::unpark;
use crate::shared::Shared;

fn read(announcement: &Announcement) -> Option<Heartbeat> {
    let beat: HeartbeatMessage = match decode(&announcement.payload) {
        Ok(message) => message,
        Err(e) => {
            tracing::warn!(error = %e, "a heartbeat could not be read");
            return None;
        }
    };
    Some(beat.heartbeat)
}

/// Takes note of heartbeats that have arrived.
pub(crate) async fn hear(
    shared: &Shared,
    announcements: &[Announcement],
) -> Result<(), StoreError> {
    // Of each executor the last one: it says all that those before it said, as far as that is still so.
    let beats: BTreeMap<_, Heartbeat> = announcements
        .iter()
        .filter_map(read)
        .map(|beat| (beat.executor.clone(), beat))
        .collect();
    if beats.is_empty() {
        return Ok(());
    }
    let beats: Vec<Heartbeat> = beats.into_values().collect();
    // The store first: a broadcast is planned from what it knows.
    shared.store.record_heartbeats(&beats).await?;
    let now = shared.now();
    let (mut changed, mut wanted) = (false, false);
    for beat in beats {
        let news = shared.registry.hear(&beat, now);
        // One that takes nothing may be waiting for its queue: its own rights may not do for making one.
        if (news || beat.draining) && !beat.gone {
            wanted |= shared
                .queues
                .want((beat.executor.group, beat.executor.name), news, now);
        }
        changed |= news;
    }
    if wanted {
        shared.wakers.queues.wake();
    }
    if changed {
        unpark(shared);
    }
    Ok(())
}

/// Takes over who was heard lately, by whichever node: one that starts need not wait for the next signs of life before it has somebody to
/// route to.
pub(crate) async fn remember(shared: &Shared) -> Result<(), StoreError> {
    let now = shared.now();
    for known in shared.store.executors().await? {
        let heard_at = known.last_heartbeat_at.min(now);
        shared.registry.remember(&known.heartbeat, heard_at, now);
    }
    Ok(())
}

/// At most so many heartbeats are written at once.
const MAX_BEATS: usize = 500;

/// Listens until the stop.
pub(crate) async fn listen(shared: Arc<Shared>, mut heartbeats: Listener, stop: Stop) {
    let mut batch = Vec::new();
    let idle = look_every(&shared);
    // Heartbeats are listened to until the hard stop: an executor that drains during the soft one is still heard.
    loop {
        tokio::select! {
            n = heartbeats.recv_many(&mut batch, MAX_BEATS) => {
                if n == 0 { return; }
                match hear(&shared, &batch).await {
                    // A full batch may have more behind it.
                    Ok(()) if n < MAX_BEATS => caught_up(&shared),
                    Ok(()) => {}
                    Err(e) => tracing::error!(error = %e, "failed to write down heartbeats; the next ones will tell the same"),
                }
                batch.clear();
            }
            () = tokio::time::sleep(idle) => caught_up(&shared),
            () = stop.soft() => return,
        }
        if shared.registry.expire(shared.now()) {
            unpark(&shared);
        }
    }
}
