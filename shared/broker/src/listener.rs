//! Announcements, and the listeners that they wait for.
//!
//! A bounded queue that loses the oldest when it is full, and counts the lost ones: the newest heartbeat of an executor
//! replaces the earlier ones, and a receiver that lost some must know it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::address::Channel;

/// A message on a [`Channel`].
#[derive(Debug, Clone)]
pub struct Announcement {
    /// The message.
    pub payload: Bytes,
    /// The channel for an answer, if the sender expects one.
    pub reply_to: Option<Channel>,
}

#[derive(Debug, Default)]
struct Waiting {
    announcements: VecDeque<Announcement>,
    /// Lost since the listener last asked.
    lost: u64,
    /// No more will arrive.
    ended: bool,
    /// The listener was dropped.
    abandoned: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Announcements arrived, or none will arrive any more.
    arrived: Notify,
    /// The listener was dropped.
    abandoned: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the announcements on a channel, from the moment of `listen` on.
#[derive(Debug)]
pub struct Listener(Arc<Shared>);

/// The side of a driver that delivers to one [`Listener`]. Dropping it ends the listener.
#[derive(Debug)]
pub struct ListenerSender {
    shared: Arc<Shared>,
    limit: usize,
}

/// A listener for which at most `limit` announcements wait, at least 1.
pub fn listener(limit: usize) -> (ListenerSender, Listener) {
    let shared = Arc::new(Shared::default());
    let sender = ListenerSender {
        shared: Arc::clone(&shared),
        limit: limit.max(1),
    };
    (sender, Listener(shared))
}

impl ListenerSender {
    /// Delivers an announcement, in place of the oldest one if the queue is full.
    pub fn send(&self, announcement: Announcement) {
        let mut waiting = self.shared.lock();
        if waiting.abandoned {
            return;
        }
        if waiting.announcements.len() >= self.limit {
            waiting.announcements.pop_front();
            waiting.lost += 1;
        }
        waiting.announcements.push_back(announcement);
        drop(waiting);
        self.shared.arrived.notify_one();
    }

    /// Whether the listener was dropped.
    pub fn is_abandoned(&self) -> bool {
        self.shared.lock().abandoned
    }

    /// Returns when the listener is dropped.
    pub async fn abandoned(&self) {
        loop {
            let abandoned = self.shared.abandoned.notified();
            if self.is_abandoned() {
                return;
            }
            abandoned.await;
        }
    }
}

impl Drop for ListenerSender {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.arrived.notify_one();
    }
}

impl Listener {
    /// The next announcement. `None` once the driver has ended the listener and nothing waits.
    pub async fn recv(&mut self) -> Option<Announcement> {
        while self.arrived().await {
            let first = self.0.lock().announcements.pop_front();
            if first.is_some() {
                return first;
            }
        }
        None
    }

    /// Waits until announcements wait. False once the driver has ended the listener and nothing waits.
    pub async fn arrived(&mut self) -> bool {
        loop {
            let arrived = self.0.arrived.notified();
            {
                let waiting = self.0.lock();
                if !waiting.announcements.is_empty() || waiting.ended {
                    return !waiting.announcements.is_empty();
                }
            }
            arrived.await;
        }
    }

    /// Appends up to `max` announcements that wait now. Returns their number.
    pub fn try_recv_many(&mut self, into: &mut Vec<Announcement>, max: usize) -> usize {
        let mut waiting = self.0.lock();
        let count = waiting.announcements.len().min(max);
        into.extend(waiting.announcements.drain(..count));
        count
    }

    /// Whether nothing waits now.
    pub fn is_empty(&self) -> bool {
        self.0.lock().announcements.is_empty()
    }

    /// How many announcements were lost since the last call, because too many waited.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.0.lock().lost)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.abandoned = true;
        waiting.announcements = VecDeque::new();
        drop(waiting);
        self.0.abandoned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(text: &'static str) -> Announcement {
        Announcement {
            payload: Bytes::from_static(text.as_bytes()),
            reply_to: None,
        }
    }

    #[tokio::test]
    async fn a_full_listener_loses_the_oldest_and_says_how_many() {
        let (sender, mut listener) = listener(2);
        for text in ["a", "b", "c", "d"] {
            sender.send(announcement(text));
        }
        assert_eq!(listener.take_lost(), 2);
        assert_eq!(listener.take_lost(), 0);
        let mut received = Vec::new();
        assert_eq!(listener.try_recv_many(&mut received, 10), 2);
        let texts: Vec<_> = received.iter().map(|a| &a.payload[..]).collect();
        assert_eq!(texts, [b"c", b"d"]);
        assert!(listener.is_empty());
    }

    #[tokio::test]
    async fn what_waits_is_received_after_the_end() {
        let (sender, mut listener) = listener(2);
        sender.send(announcement("last"));
        drop(sender);
        assert!(listener.recv().await.is_some());
        assert!(listener.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_dropped_listener_is_noticed() {
        let (sender, listener) = listener(2);
        assert!(!sender.is_abandoned());
        let waiting = tokio::spawn(async move { sender.abandoned().await });
        tokio::task::yield_now().await;
        drop(listener);
        waiting.await.expect("it returns");
    }
}
