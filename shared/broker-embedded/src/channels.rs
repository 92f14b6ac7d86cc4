//! Announcements: delivered to the present listeners in this process and not stored.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cueline_broker::listener::listener;
use cueline_broker::{Announcement, Channel, Listener, ListenerSender};

#[derive(Default)]
struct Listeners {
    by_channel: HashMap<Channel, Vec<ListenerSender>>,
    /// New listeners end at once.
    ended: bool,
}

/// All channels of one driver.
pub(crate) struct Channels {
    listeners: Mutex<Listeners>,
    /// The most announcements that wait for one listener.
    limit: usize,
}

impl Channels {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            listeners: Mutex::default(),
            limit,
        }
    }

    pub(crate) fn announce(&self, channel: &Channel, announcement: &Announcement) {
        if let Some(senders) = self.lock().by_channel.get(channel) {
            for sender in senders {
                sender.send(announcement.clone());
            }
        }
    }

    /// Listens until the listener is dropped or [`end`](Self::end) is called.
    pub(crate) fn listen(&self, channel: &Channel) -> Listener {
        let mut listeners = self.lock();
        listeners.by_channel.retain(|_, senders| {
            senders.retain(|sender| !sender.is_abandoned());
            !senders.is_empty()
        });
        let (sender, listener) = listener(self.limit);
        if !listeners.ended {
            let senders = listeners.by_channel.entry(channel.clone());
            senders.or_default().push(sender);
        }
        listener
    }

    /// Ends all listeners.
    pub(crate) fn end(&self) {
        let mut listeners = self.lock();
        listeners.ended = true;
        listeners.by_channel.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
