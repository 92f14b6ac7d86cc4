//! A worker's link to the broker with faults that a test switches on and off.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cueline_broker::{
    Announcement, Broker, BrokerError, BrokerOptions, BrokerStats, Capabilities, Channel, Delivery,
    Driver, ErrorKind, Listener, Outgoing, QueueId, Receipt, Refusal, Settlement, StartLog,
};
use cueline_protocol::{HeartbeatMessage, decode};
use tokio::sync::watch;

/// The longest wait of a fetch.
const MAX_FETCH_WAIT: Duration = Duration::from_millis(50);

/// A driver around the real one.
pub(crate) struct FaultyLink {
    driver: Arc<dyn Driver>,
    cut: AtomicBool,
    /// The number of echoes that are still to be lost.
    lose: AtomicUsize,
    cut_off_from_majority: AtomicBool,
    declaring_forbidden: AtomicBool,
    appends_fail: AtomicBool,
    accepting_held: watch::Sender<bool>,
    dead_letters_fail: AtomicBool,
    /// Failed moves to the dead letters.
    pub(crate) failed_dead: AtomicUsize,
    /// Records of the start log whose confirmations were not lost.
    pub(crate) confirmed_starts: AtomicUsize,
    /// Refused declarations.
    pub(crate) refused: AtomicUsize,
    /// Sent heartbeats, including lost ones.
    pub(crate) heartbeats: AtomicUsize,
    /// The ids of the published messages.
    pub(crate) message_ids: Mutex<BTreeSet<String>>,
}

impl FaultyLink {
    pub(crate) fn over(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver,
            cut: AtomicBool::default(),
            lose: AtomicUsize::default(),
            cut_off_from_majority: AtomicBool::default(),
            declaring_forbidden: AtomicBool::default(),
            appends_fail: AtomicBool::default(),
            accepting_held: watch::Sender::new(false),
            dead_letters_fail: AtomicBool::default(),
            failed_dead: AtomicUsize::default(),
            confirmed_starts: AtomicUsize::default(),
            refused: AtomicUsize::default(),
            heartbeats: AtomicUsize::default(),
            message_ids: Mutex::default(),
        })
    }

    pub(crate) fn broker(self: &Arc<Self>) -> Broker {
        let options = BrokerOptions {
            retry_for: Duration::from_millis(50),
            ..BrokerOptions::default()
        };
        Broker::from_arc(self.clone(), options)
    }

    /// Announcements are lost, and all other calls fail.
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    pub(crate) fn lose_echoes(&self, count: usize) {
        self.lose.store(count, Ordering::SeqCst);
    }

    /// As behind a server of a partition's smaller side: announcements reach listeners there, and nothing is stored.
    pub(crate) fn cut_off_from_majority(&self, cut_off: bool) {
        self.cut_off_from_majority.store(cut_off, Ordering::SeqCst);
    }

    pub(crate) fn forbid_declaring(&self, forbidden: bool) {
        self.declaring_forbidden.store(forbidden, Ordering::SeqCst);
    }

    /// Records of the start log are stored, and their confirmations are lost.
    pub(crate) fn lose_confirmations_of_starts(&self, lose: bool) {
        self.appends_fail.store(lose, Ordering::SeqCst);
    }

    /// As with a full dead-letter queue: the other settlements of a call are carried out.
    pub(crate) fn refuse_dead_letters(&self, refuse: bool) {
        self.dead_letters_fail.store(refuse, Ordering::SeqCst);
    }

    /// Heartbeats that accept triggers reach listeners, and their storing does not end.
    pub(crate) fn hold_accepting_heartbeats(&self, hold: bool) {
        self.accepting_held.send_replace(hold);
    }

    fn check(&self) -> Result<(), BrokerError> {
        if self.cut.load(Ordering::SeqCst) {
            let text = "failed to reach the broker: the link is cut";
            return Err(BrokerError::new(ErrorKind::Transient, text));
        }
        Ok(())
    }
}

#[async_trait]
impl Driver for FaultyLink {
    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.check()?;
        if self.declaring_forbidden.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            let text = "failed to declare: this user may not";
            return Err(BrokerError::new(ErrorKind::Permanent, text));
        }
        self.driver.declare(queue).await
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        self.driver.delete(queue, only_if_empty).await
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        self.check()?;
        let ids = batch.iter().map(|message| message.id.clone());
        self.message_ids.lock().expect("lock").extend(ids);
        self.driver.publish(batch).await
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        self.check()?;
        // A drain waits for the fetch that is under way.
        self.driver
            .fetch(queue, max, wait.min(MAX_FETCH_WAIT))
            .await
    }

    async fn stop_fetching(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.driver.stop_fetching(queue).await
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        self.check()?;
        let (dead, others): (Vec<_>, Vec<_>) = settlements
            .iter()
            .cloned()
            .partition(|(_, how)| matches!(how, Settlement::Dead(_)));
        if !dead.is_empty() && self.dead_letters_fail.load(Ordering::SeqCst) {
            self.driver.settle(queue, &others).await?;
            self.failed_dead.fetch_add(1, Ordering::SeqCst);
            let text = "failed to move a message: the dead-letter queue is full";
            return Err(BrokerError::new(ErrorKind::Transient, text));
        }
        self.driver.settle(queue, settlements).await
    }

    async fn stats(&self, queues: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        self.driver.stats(queues).await
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        if *channel == Channel::Heartbeats {
            self.heartbeats.fetch_add(1, Ordering::SeqCst);
        }
        if self.cut.load(Ordering::SeqCst) {
            return Ok(());
        }
        if matches!(channel, Channel::Control { .. }) {
            let less = |left: usize| left.checked_sub(1);
            let lost = self
                .lose
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
            if lost.is_ok() {
                return Ok(());
            }
        }
        self.driver.announce(channel, message).await
    }

    async fn announce_stored(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError> {
        let reply_to = None;
        let accepts = decode::<HeartbeatMessage>(&payload).is_ok_and(|m| !m.heartbeat.draining);
        self.announce(channel, Announcement { payload, reply_to })
            .await?;
        if accepts {
            let mut held = self.accepting_held.subscribe();
            // Waiting fails only without a sender, and `self` has it.
            let _ = held.wait_for(|held| !*held).await;
        }
        if self.cut_off_from_majority.load(Ordering::SeqCst) {
            let text = "failed to store an announcement: there is no majority";
            return Err(BrokerError::new(ErrorKind::Transient, text));
        }
        self.check()
    }

    async fn declare_proofs(&self) -> Result<(), BrokerError> {
        self.check()?;
        self.driver.declare_proofs().await
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.driver.listen(channel).await
    }

    async fn declare_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        self.check()?;
        self.driver.declare_log(log).await
    }

    async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        self.check()?;
        self.driver.is_log_empty(log).await
    }

    async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        self.check()?;
        let appended = self.driver.append(log, record).await;
        if self.appends_fail.load(Ordering::SeqCst) {
            let text = "no confirmation of the record";
            return Err(BrokerError::new(ErrorKind::Transient, text));
        }
        self.confirmed_starts.fetch_add(1, Ordering::SeqCst);
        appended
    }

    async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        self.check()?;
        self.driver.read_log(log).await
    }

    async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        self.check()?;
        self.driver.delete_log(log).await
    }
}
