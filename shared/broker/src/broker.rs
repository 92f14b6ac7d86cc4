//! What all drivers share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::address::{Channel, QueueId};
use crate::driver::{
    Announcement, Capabilities, Delivery, Driver, Listener, Outgoing, QueueStats, Receipt, Refusal,
    Settlement,
};
use crate::error::{BrokerError, ErrorKind};

/// Limits of a [`Broker`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerOptions {
    /// How long a call is repeated while it fails with a transient error; 30 s by default. After that the error is
    /// returned and the caller's duty tries again on its next turn.
    pub retry_for: Duration,
    /// The first wait between two tries, doubled each time up to 1 s; 20 ms by default.
    pub first_wait: Duration,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            retry_for: Duration::from_secs(30),
            first_wait: Duration::from_millis(20),
        }
    }
}

const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A broker as the rest of Cueline uses it. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    driver: Arc<dyn Driver>,
    options: BrokerOptions,
    asks: Arc<Asks>,
}

/// Names the channels on which answers are expected, apart from those of every other process on the same broker.
struct Asks {
    asker: u64,
    next: AtomicU64,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("driver", &self.capabilities().name)
            .finish_non_exhaustive()
    }
}

impl Broker {
    /// A broker over `driver`.
    pub fn new(driver: impl Driver, options: BrokerOptions) -> Self {
        Self::from_arc(Arc::new(driver), options)
    }

    /// A broker over a driver that others hold as well.
    pub fn from_arc(driver: Arc<dyn Driver>, options: BrokerOptions) -> Self {
        Self {
            driver,
            options,
            // An identity, not a decision: nothing that a seed should reproduce depends on it.
            asks: Arc::new(Asks {
                asker: RandomState::new().hash_one(std::process::id()),
                next: AtomicU64::new(0),
            }),
        }
    }

    /// What the driver can do.
    pub fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    /// Makes sure that the queue exists.
    pub async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.patiently("declare", || self.driver.declare(queue))
            .await
    }

    /// Deletes a queue; see [`Driver::delete`].
    pub async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        self.patiently("delete", || self.driver.delete(queue, only_if_empty))
            .await
    }

    /// Publishes messages, in as many batches as the driver needs. The answer has one entry for each message, in
    /// the order given; a queue that is not there is declared and the message tried once more.
    pub async fn publish(
        &self,
        messages: &[Outgoing],
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for batch in messages.chunks(self.capabilities().max_batch.max(1)) {
            let mut part = self
                .patiently("publish", || self.driver.publish(batch))
                .await?;
            self.declare_and_retry(batch, &mut part).await?;
            answers.append(&mut part);
        }
        Ok(answers)
    }

    async fn declare_and_retry(
        &self,
        batch: &[Outgoing],
        answers: &mut [Result<(), Refusal>],
    ) -> Result<(), BrokerError> {
        let missing: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| matches!(answer, Err(Refusal::NoQueue(_))))
            .map(|(i, _)| i)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let again: Vec<Outgoing> = missing.iter().map(|i| batch[*i].clone()).collect();
        for queue in again
            .iter()
            .map(|m| &m.queue)
            .collect::<std::collections::BTreeSet<_>>()
        {
            self.declare(queue).await?;
        }
        let second = self
            .patiently("publish", || self.driver.publish(&again))
            .await?;
        for (i, answer) in missing.into_iter().zip(second) {
            answers[i] = answer;
        }
        Ok(())
    }

    /// Hands out up to `max` messages, waiting up to `wait` for the first. Not repeated on errors: the caller loops
    /// anyway.
    pub async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        self.driver.fetch(queue, max, wait).await
    }

    /// Settles deliveries.
    pub async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        if settlements.is_empty() {
            return Ok(());
        }
        self.patiently("settle", || self.driver.settle(queue, settlements))
            .await
    }

    /// How full the queues are.
    pub async fn stats(&self) -> Result<Vec<QueueStats>, BrokerError> {
        self.driver.stats().await
    }

    /// Sends to whoever listens now.
    pub async fn announce(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError> {
        self.driver
            .announce(
                channel,
                Announcement {
                    payload,
                    reply_to: None,
                },
            )
            .await
    }

    /// Starts to listen.
    pub async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.patiently("listen", || self.driver.listen(channel))
            .await
    }

    /// Asks whoever listens on `channel` and waits up to `wait` for the first answer; `None` when there was none.
    pub async fn ask(
        &self,
        channel: &Channel,
        payload: Bytes,
        wait: Duration,
    ) -> Result<Option<Bytes>, BrokerError> {
        let number = self.asks.next.fetch_add(1, Ordering::Relaxed);
        let reply = Channel::Replies(format!("{:016x}-{number}", self.asks.asker));
        let mut listener = self.driver.listen(&reply).await?;
        self.driver
            .announce(
                channel,
                Announcement {
                    payload,
                    reply_to: Some(reply),
                },
            )
            .await?;
        match timeout(wait, listener.recv()).await {
            Ok(Some(answer)) => Ok(Some(answer.payload)),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    async fn patiently<T, F, Fut>(&self, what: &'static str, mut call: F) -> Result<T, BrokerError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, BrokerError>>,
    {
        let start = Instant::now();
        let mut wait = self.options.first_wait;
        loop {
            match call().await {
                Err(e)
                    if e.kind() == ErrorKind::Transient
                        && start.elapsed() + wait < self.options.retry_for =>
                {
                    tracing::warn!(what, error = %e, wait_ms = wait.as_millis(), "broker call failed; trying again");
                    sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                done => return done,
            }
        }
    }
}
