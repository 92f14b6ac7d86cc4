//! Loopback heartbeats: this node sends messages to itself over the broker. Receiving them is evidence that it would
//! also receive heartbeats of executors.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerError, Channel, Listener};
use cueline_model::Timestamp;
use cueline_runtime::Stop;
use tokio::time::{Instant, sleep};

use super::self_check::SelfCheck;
use crate::database_clock::DatabaseClock;

/// Sends and receives loopback heartbeats.
pub(crate) struct Loopback {
    broker: Broker,
    clock: Arc<DatabaseClock>,
    self_check: Arc<SelfCheck>,
    /// Only this process listens on this channel.
    channel: Channel,
}

impl Loopback {
    pub(crate) fn new(
        broker: Broker,
        clock: Arc<DatabaseClock>,
        self_check: Arc<SelfCheck>,
    ) -> Self {
        // Not drawn from the seeded generator: it only identifies this process and decides nothing.
        let process_nonce = RandomState::new().hash_one(std::process::id());
        Self {
            broker,
            clock,
            self_check,
            channel: Channel::Replies(format!("self-{process_nonce:016x}")),
        }
    }

    /// Runs until the stop.
    pub(crate) async fn run(self, stop: Stop) {
        while !stop.is_soft() {
            let listened = tokio::select! {
                listened = self.listen() => listened,
                () = stop.soft() => return,
            };
            match listened {
                Ok(()) => tracing::warn!(
                    "received no loopback heartbeat; executor timeouts are paused, subscribing again. Check the broker"
                ),
                Err(e) => tracing::warn!(
                    error = %e,
                    "failed to subscribe to loopback heartbeats; executor timeouts are paused, trying again. Check the broker"
                ),
            }
            tokio::select! {
                () = sleep(self.self_check.intervals.every) => {}
                () = stop.soft() => return,
            }
        }
    }

    /// Subscribes and sends. Returns after `resubscribe_after` without a loopback heartbeat.
    async fn listen(&self) -> Result<(), BrokerError> {
        let intervals = self.self_check.intervals;
        let mut inbox = self.broker.listen(&self.channel).await?;
        let mut last_received = Instant::now();
        while last_received.elapsed() < intervals.resubscribe_after {
            // The error is ignored: a message that was not sent is not received either.
            let _ = self
                .broker
                .announce(&self.channel, encode(self.clock.now()))
                .await;
            let is_fresh =
                |payload: &[u8]| !self.self_check.is_gap(decode(payload), self.clock.now());
            if receive(&mut inbox, intervals.every, is_fresh, || self.record()).await {
                last_received = Instant::now();
            }
        }
        Ok(())
    }

    /// Records that a loopback heartbeat was received now.
    pub(crate) fn record(&self) {
        if self.self_check.record_loopback(self.clock.now()) {
            tracing::info!("loopback heartbeats arrive; executor timeouts resume");
        }
    }
}

/// The payload is the time of sending.
fn encode(now: Timestamp) -> Bytes {
    Bytes::copy_from_slice(&now.as_millis().to_be_bytes())
}

fn decode(payload: &[u8]) -> Option<Timestamp> {
    let bytes = <[u8; 8]>::try_from(payload).ok()?;
    Some(Timestamp::from_millis(i64::from_be_bytes(bytes)))
}

/// Receives all messages that arrive within `wait`, and calls `record` for each fresh one. Returns whether one was
/// fresh.
///
/// A message may be old because the broker was slow or this process was suspended. An old message proves nothing about
/// the present. Old messages are read without waiting, so that they do not delay a fresh one.
async fn receive(
    inbox: &mut Listener,
    wait: Duration,
    is_fresh: impl Fn(&[u8]) -> bool,
    record: impl Fn(),
) -> bool {
    let timeout = sleep(wait);
    tokio::pin!(timeout);
    let mut received = false;
    loop {
        tokio::select! {
            Some(message) = inbox.recv() => {
                if is_fresh(&message.payload) {
                    record();
                    received = true;
                }
            }
            () = &mut timeout => return received,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use cueline_broker::Announcement;

    use super::*;

    /// Messages have piled up while the process was suspended.
    #[tokio::test]
    async fn old_messages_are_read_at_once_and_prove_nothing() {
        let check = SelfCheck::new(30_000);
        let now = Timestamp::from_millis(1_800_000_000_000);
        let (sender, mut inbox) = cueline_broker::listener::listener(100);
        let send = |payload| {
            let reply_to = None;
            sender.send(Announcement { payload, reply_to });
        };
        let is_fresh = |payload: &[u8]| !check.is_gap(decode(payload), now);
        let wait = Duration::from_millis(20);
        for _ in 0..50 {
            send(encode(now.minus_ms(4_001)));
        }
        send(Bytes::from_static(b"no time"));
        let count = Cell::new(0);
        let record = || count.set(count.get() + 1);
        assert!(!receive(&mut inbox, wait, is_fresh, record).await);
        assert!(inbox.is_empty());
        send(encode(now.minus_ms(4_000)));
        send(encode(now));
        assert!(receive(&mut inbox, wait, is_fresh, record).await);
        assert_eq!(count.get(), 2);
    }
}
