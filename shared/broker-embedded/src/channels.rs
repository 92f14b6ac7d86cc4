//! Announcements: delivered to the present listeners in this process and not stored.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_broker::{Announcement, Channel, Listener};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The announcements that wait for one listener. A full `mpsc` would drop the newest; the port promises to drop the
/// oldest.
#[derive(Default)]
struct Ring {
    waiting: Mutex<VecDeque<Announcement>>,
    arrived: Notify,
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Announcement>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, announcement: Announcement, limit: usize) {
        let mut waiting = self.lock();
        if waiting.len() >= limit {
            waiting.pop_front();
        }
        waiting.push_back(announcement);
        drop(waiting);
        self.arrived.notify_one();
    }
}

type Listeners = Mutex<HashMap<Channel, Vec<Arc<Ring>>>>;

/// All channels of one driver.
pub(crate) struct Channels {
    listeners: Arc<Listeners>,
    buffer: usize,
}

impl Channels {
    pub(crate) fn new(buffer: usize) -> Self {
        Self {
            listeners: Arc::default(),
            buffer,
        }
    }

    pub(crate) fn announce(&self, channel: &Channel, announcement: &Announcement) {
        if let Some(rings) = lock(&self.listeners).get(channel) {
            for ring in rings {
                ring.push(announcement.clone(), self.buffer);
            }
        }
    }

    /// Listens until the listener is dropped or `closed`. Each listener has one task, which forwards announcements.
    pub(crate) fn listen(
        &self,
        channel: &Channel,
        tasks: &TaskTracker,
        closed: CancellationToken,
    ) -> Listener {
        let ring = Arc::new(Ring::default());
        lock(&self.listeners)
            .entry(channel.clone())
            .or_default()
            .push(Arc::clone(&ring));
        let (sender, listener) = mpsc::channel(1);
        let (listeners, channel) = (Arc::clone(&self.listeners), channel.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = pass_on(&ring, &sender) => {}
                () = sender.closed() => {}
                () = closed.cancelled() => {}
            }
            forget(&listeners, &channel, &ring);
        });
        listener
    }
}

async fn pass_on(ring: &Ring, sender: &mpsc::Sender<Announcement>) {
    loop {
        // Reserve a slot before taking an announcement: announcements that wait stay in the ring, where the oldest can
        // be dropped.
        let Ok(room) = sender.reserve().await else {
            return;
        };
        let next = ring.lock().pop_front();
        match next {
            Some(announcement) => room.send(announcement),
            None => ring.arrived.notified().await,
        }
    }
}

fn forget(listeners: &Listeners, channel: &Channel, ring: &Arc<Ring>) {
    let mut listeners = lock(listeners);
    if let Some(rings) = listeners.get_mut(channel) {
        rings.retain(|other| !Arc::ptr_eq(other, ring));
        if rings.is_empty() {
            listeners.remove(channel);
        }
    }
}

fn lock(listeners: &Listeners) -> MutexGuard<'_, HashMap<Channel, Vec<Arc<Ring>>>> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}
