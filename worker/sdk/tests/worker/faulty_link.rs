//! A worker's link to the broker with faults that a test switches on and off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::{
    Announcement, Broker, BrokerError, BrokerOptions, Capabilities, Channel, Delivery, Driver,
    ErrorKind, Listener, Outgoing, QueueId, QueueStats, Receipt, Refusal, Settlement,
};

/// The longest wait of a fetch.
const MAX_FETCH_WAIT: Duration = Duration::from_millis(50);

/// A driver around the real one.
pub(crate) struct FaultyLink {
    driver: Arc<dyn Driver>,
    cut: AtomicBool,
    /// The number of echoes that are still to be lost.
    lose: AtomicUsize,
    declaring_forbidden: AtomicBool,
    /// Refused declarations.
    pub(crate) refused: AtomicUsize,
    /// Sent heartbeats, including lost ones.
    pub(crate) heartbeats: AtomicUsize,
}

impl FaultyLink {
    pub(crate) fn over(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver,
            cut: AtomicBool::default(),
            lose: AtomicUsize::default(),
            declaring_forbidden: AtomicBool::default(),
            refused: AtomicUsize::default(),
            heartbeats: AtomicUsize::default(),
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

    pub(crate) fn forbid_declaring(&self, forbidden: bool) {
        self.declaring_forbidden.store(forbidden, Ordering::SeqCst);
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

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        self.check()?;
        self.driver.settle(queue, settlements).await
    }

    async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError> {
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

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.driver.listen(channel).await
    }
}
