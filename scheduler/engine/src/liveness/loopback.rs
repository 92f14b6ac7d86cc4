//! Loopback heartbeats: this node sends messages to itself over the broker. Receiving one that a majority of the
//! broker's servers has stored is evidence that this node would also receive heartbeats of executors.
//!
//! Without the majority, this node may be on the smaller side of a network partition. Executors on the other side would
//! seem dead to it. Executors on this side are fenced, because their heartbeats are not stored either.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerError, Channel, Listener};
use cueline_model::Timestamp;
use cueline_runtime::Stop;
use tokio::time::{Instant, sleep, timeout};

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
                Err(e) => {
                    tracing::warn!(
                        error = %e,
                        "failed to subscribe to loopback heartbeats; executor timeouts are paused, trying again. Check the broker"
                    );
                    self.self_check.set_loopback_failure(Some(e.to_string()));
                }
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
        let mut was_stored = true;
        self.declare_proofs().await;
        while last_received.elapsed() < intervals.resubscribe_after {
            let stored = self.send().await;
            if let Err(why) = &stored {
                if was_stored {
                    tracing::warn!(
                        error = %why,
                        "a loopback heartbeat was not stored; executor timeouts are paused. Check that a majority of the broker's servers is up, and that they reach each other"
                    );
                }
                // A broker may have lost the place of the proofs in a restart.
                self.declare_proofs().await;
            }
            was_stored = stored.is_ok();
            self.self_check.set_loopback_failure(stored.err());
            let is_fresh =
                |payload: &[u8]| !self.self_check.is_gap(decode(payload), self.clock.now());
            let record = || {
                if was_stored {
                    self.record();
                }
            };
            if receive(&mut inbox, intervals.every, is_fresh, record).await {
                last_received = Instant::now();
            }
        }
        Ok(())
    }

    /// Sends a loopback heartbeat, and waits until the broker has stored it. Otherwise returns why not.
    async fn send(&self) -> Result<(), String> {
        let payload = encode(self.clock.now());
        let sending = self.broker.announce_stored(&self.channel, payload);
        let within = self.self_check.intervals.store_within;
        match timeout(within, sending).await {
            Ok(stored) => stored.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {within:?}")),
        }
    }

    /// A failure is only logged. The next loopback heartbeat shows whether the place of the proofs exists.
    async fn declare_proofs(&self) {
        let within = self.self_check.intervals.resubscribe_after / 2;
        match timeout(within, self.broker.declare_proofs()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => {
                tracing::debug!(error = %e, "failed to declare the place of proofs; trying again");
            }
            Err(_) => tracing::debug!("the place of proofs was not declared in time; trying again"),
        }
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

    use cueline_broker::conformance::{Fault, Faulty, Operation};
    use cueline_broker::{Announcement, BrokerOptions, ErrorKind};
    use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
    use cueline_runtime::{Clock, SystemClock};
    use cueline_test_support::{SOON, eventually};

    use super::*;

    /// This node's server of the broker is cut off from the others, and serves this node as before.
    #[tokio::test]
    async fn a_loopback_heartbeat_that_is_received_and_not_stored_proves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("broker.db");
        let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default()).await;
        let driver = Faulty::new(Arc::new(driver.expect("a broker")));
        let faults = driver.faults();
        let not_stored = Fault::After(ErrorKind::Transient);
        faults.always(Operation::AnnounceStored, not_stored);
        let self_check = Arc::new(SelfCheck::new(7_500));
        let clock = Arc::new(DatabaseClock::new(Arc::new(SystemClock)));
        let database_clock = Arc::clone(&clock);
        let now = || database_clock.now();
        let broker = Broker::new(driver, BrokerOptions::default());
        let loopback = Loopback::new(broker.clone(), clock, Arc::clone(&self_check));
        let mut inbox = broker.listen(&loopback.channel).await.expect("a listener");
        let stop = Stop::new();
        let running = tokio::spawn(loopback.run(stop.clone()));
        for _ in 0..3 {
            assert!(inbox.recv().await.is_some());
        }
        // The third was sent after the wait for the first two.
        assert_eq!(self_check.listening_since(), None);
        assert!(faults.calls(Operation::DeclareProofs) >= 2);
        let problem = self_check.problem(now()).unwrap_or_default();
        assert!(problem.contains("AnnounceStored"), "{problem}");
        faults.clear();
        let listens = async || self_check.listening_since().ok_or("no gap has ended");
        eventually("a loopback heartbeat counts", SOON, listens)
            .await
            .expect("in time");
        let problem = self_check.problem(now()).unwrap_or_default();
        assert!(
            problem.contains("the store"),
            "nothing is flushed: {problem}"
        );
        stop.ask_soft();
        running.await.expect("no panic");
    }

    /// The virtual time of a test.
    #[derive(Debug)]
    struct TestClock(Instant);

    impl Clock for TestClock {
        fn now_ms(&self) -> i64 {
            let elapsed_ms = i64::try_from(self.0.elapsed().as_millis());
            1_800_000_000_000 + elapsed_ms.expect("a short test")
        }
    }

    /// A minute of a node whose messages to itself arrive at once.
    struct Minute {
        /// The longest time without a loopback heartbeat, in milliseconds. `None` if there was none at all.
        longest_silence_ms: Option<i64>,
        failure: Option<String>,
        subscriptions: u64,
    }

    impl Minute {
        fn assert_longest_silence(&self, expected_ms: i64) {
            let longest_ms = self.longest_silence_ms.expect("one arrived");
            let expected = expected_ms - 100..expected_ms + 50;
            assert!(expected.contains(&longest_ms), "{longest_ms} ms");
        }
    }

    /// The broker takes so long, in turn, to say that it has stored a message.
    async fn a_minute_with_answers_after(answers_ms: &[u64]) -> Minute {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("broker.db");
        let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default()).await;
        let driver = Faulty::new(Arc::new(driver.expect("a broker")));
        let faults = driver.faults();
        for answer_ms in answers_ms.iter().cycle().take(100) {
            let late = Fault::LateAnswer(Duration::from_millis(*answer_ms));
            faults.next(Operation::AnnounceStored, late, 1);
        }
        // What follows uses no file and no socket. So the time passes only while all tasks wait for it.
        tokio::time::pause();
        let clock = Arc::new(DatabaseClock::new(Arc::new(TestClock(Instant::now()))));
        let self_check = Arc::new(SelfCheck::new(30_000));
        let broker = Broker::new(driver, BrokerOptions::default());
        let loopback = Loopback::new(broker, Arc::clone(&clock), Arc::clone(&self_check));
        let stop = Stop::new();
        let running = tokio::spawn(loopback.run(stop.clone()));
        let mut longest_silence_ms = None;
        // Between the messages, whose times are multiples of 100 ms.
        sleep(Duration::from_millis(50)).await;
        for _ in 0..600 {
            sleep(Duration::from_millis(100)).await;
            let silence = self_check.loopback_heartbeat_at();
            longest_silence_ms = longest_silence_ms.max(silence.map(|at| clock.now().since_ms(at)));
        }
        let failure = self_check.loopback_failure();
        stop.ask_soft();
        running.await.expect("no panic");
        tokio::time::resume();
        Minute {
            longest_silence_ms,
            failure,
            subscriptions: faults.calls(Operation::Listen),
        }
    }

    #[tokio::test]
    async fn answers_within_3_s_leave_no_gap() {
        let cases: [(&[u64], i64); 3] = [(&[0], 1_000), (&[2_900], 3_900), (&[0, 2_900], 3_900)];
        for (answers_ms, longest_ms) in cases {
            let minute = a_minute_with_answers_after(answers_ms).await;
            minute.assert_longest_silence(longest_ms);
            assert_eq!(minute.failure, None, "{answers_ms:?}");
        }
    }

    /// The messages arrive all the same, so the subscription is not the problem.
    #[tokio::test]
    async fn messages_that_are_never_stored_in_time_prove_nothing() {
        let minute = a_minute_with_answers_after(&[3_100]).await;
        assert_eq!(minute.longest_silence_ms, None);
        let failure = minute.failure.expect("none was stored in time");
        assert!(failure.contains("no answer within 3s"), "{failure}");
        assert_eq!(minute.subscriptions, 1);
    }

    /// A gap begins after 4 s. A node that is cut off hands its claims over one and a half seconds later.
    #[tokio::test]
    async fn one_late_answer_among_others_is_a_gap_of_a_second() {
        let minute = a_minute_with_answers_after(&[0, 3_100]).await;
        minute.assert_longest_silence(5_000);
        let minute = a_minute_with_answers_after(&[0, 3_100, 3_100]).await;
        minute.assert_longest_silence(9_000);
    }

    /// Messages have piled up while the process was suspended.
    #[tokio::test(start_paused = true)]
    async fn old_messages_are_read_at_once_and_prove_nothing() {
        let self_check = SelfCheck::new(30_000);
        let now = Timestamp::from_millis(1_800_000_000_000);
        let (sender, mut inbox) = cueline_broker::listener::listener(100);
        let send = |payload| {
            let reply_to = None;
            sender.send(Announcement { payload, reply_to });
        };
        let is_fresh = |payload: &[u8]| !self_check.is_gap(decode(payload), now);
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
