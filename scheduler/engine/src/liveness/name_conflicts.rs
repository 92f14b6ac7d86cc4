//! Tells two processes with one executor name about each other, in the background, so that a slow broker cannot delay
//! heartbeats.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cueline_broker::Broker;
use cueline_protocol::{Control, VERSION, encode};
use cueline_runtime::{Activator, Stop};

use super::incarnations::NameConflict;
use crate::addresses::control_channel;
use crate::lock::lock;

/// The most conflicts that wait to be sent. Further ones are dropped; the next heartbeat of the refused process repeats
/// them.
const MAX_WAITING: usize = 1_000;

pub(crate) struct NameConflicts {
    broker: Broker,
    /// By the refused incarnation.
    waiting: Mutex<BTreeMap<String, NameConflict>>,
    added: Activator,
}

impl NameConflicts {
    pub(crate) fn new(broker: Broker) -> Self {
        Self {
            broker,
            waiting: Mutex::default(),
            added: Activator::new(),
        }
    }

    /// Logs a new conflict, and has both processes told about it.
    pub(crate) fn add(&self, conflict: NameConflict) {
        if conflict.is_new {
            let (kept, refused) = (&conflict.kept, &conflict.refused);
            tracing::error!(
                group = %conflict.executor.group,
                executor = %conflict.executor.name,
                kept_host = kept.process.host.as_deref().unwrap_or("unknown"),
                kept_pid = kept.process.pid,
                refused_host = refused.process.host.as_deref().unwrap_or("unknown"),
                refused_pid = refused.process.pid,
                "two workers run under one name; the one that started later was refused. Give each worker its own --name"
            );
        }
        let mut waiting = lock(&self.waiting);
        let id = &conflict.refused.incarnation;
        if waiting.len() < MAX_WAITING || waiting.contains_key(id) {
            waiting.insert(id.clone(), conflict);
            self.added.wake();
        }
    }

    /// Sends what is added, until the stop.
    pub(crate) async fn run(self: Arc<Self>, stop: Stop) {
        loop {
            tokio::select! {
                () = self.added.woken() => {}
                () = stop.soft() => return,
            }
            tokio::select! {
                () = self.send_all() => {}
                () = stop.soft() => return,
            }
        }
    }

    /// Sends all that waits. A failure is only logged: the next heartbeat of the refused process repeats it.
    pub(crate) async fn send_all(&self) {
        while let Some(conflict) = self.next() {
            let channel = control_channel(&conflict.executor);
            let message = Control::NameConflict {
                v: VERSION,
                kept: conflict.kept,
                refused: conflict.refused,
            };
            let sent = self
                .broker
                .announce(&channel, Bytes::from(encode(&message)));
            if let Err(error) = sent.await {
                tracing::warn!(%error, "failed to tell two workers with one name about each other; trying again. Check the broker");
            }
        }
    }

    fn next(&self) -> Option<NameConflict> {
        lock(&self.waiting)
            .pop_first()
            .map(|(_, conflict)| conflict)
    }
}
