//! What all drivers share.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    ///
    /// An error means that nothing is known of any message. What a later try was refused as [full](Refusal::Full) or for want of a
    /// queue is [unknown](Refusal::Unknown) when there was no answer to an earlier one, which may have been taken.
    pub async fn publish(
        &self,
        messages: &[Outgoing],
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for batch in messages.chunks(self.capabilities().max_batch.max(1)) {
            match self.publish_batch(batch).await {
                Ok(mut part) => answers.append(&mut part),
                Err(e) if answers.is_empty() => return Err(e),
                Err(e) => {
                    // What was answered stays so; the rest was not reached, or not answered.
                    let rest = &messages[answers.len()..];
                    answers.extend(rest.iter().map(|message| Err(unknown(message, &e))));
                    break;
                }
            }
        }
        Ok(answers)
    }

    async fn publish_batch(
        &self,
        batch: &[Outgoing],
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let doubt = OnceLock::new();
        let mut answers = self
            .patiently("publish", || self.publish_once(batch, &doubt))
            .await?;
        self.declare_and_retry(batch, &mut answers, &doubt).await;
        if let Some(why) = doubt.get() {
            for (message, answer) in batch.iter().zip(&mut answers) {
                if matches!(answer, Err(Refusal::Full { .. } | Refusal::NoQueue(_))) {
                    *answer = Err(unknown(message, why));
                }
            }
        }
        Ok(answers)
    }

    /// Tells `doubt` of the first try without an answer.
    async fn publish_once(
        &self,
        batch: &[Outgoing],
        doubt: &OnceLock<String>,
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let published = self.driver.publish(batch).await;
        if let Err(e) = &published {
            doubt.get_or_init(|| e.to_string());
        }
        published
    }

    /// Those that could not be declared, or were not answered then, keep or get a refusal: the others have been taken.
    async fn declare_and_retry(
        &self,
        batch: &[Outgoing],
        answers: &mut [Result<(), Refusal>],
        doubt: &OnceLock<String>,
    ) {
        let missing: BTreeSet<&QueueId> = batch
            .iter()
            .zip(&*answers)
            .filter(|(_, answer)| matches!(answer, Err(Refusal::NoQueue(_))))
            .map(|(message, _)| &message.queue)
            .collect();
        let mut declared = BTreeSet::new();
        for queue in missing {
            match self.declare(queue).await {
                Ok(()) => drop(declared.insert(queue)),
                Err(e) => tracing::warn!(%queue, error = %e, "there is no such queue"),
            }
        }
        let places: Vec<usize> = (0..batch.len())
            .filter(|at| {
                matches!(answers[*at], Err(Refusal::NoQueue(_)))
                    && declared.contains(&batch[*at].queue)
            })
            .collect();
        if places.is_empty() {
            return;
        }
        let again: Vec<Outgoing> = places.iter().map(|at| batch[*at].clone()).collect();
        let second = self.patiently("publish", || self.publish_once(&again, doubt));
        match second.await {
            Ok(second) => {
                for (at, answer) in places.into_iter().zip(second) {
                    answers[at] = answer;
                }
            }
            Err(e) => {
                for at in places {
                    answers[at] = Err(unknown(&batch[at], &e));
                }
            }
        }
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

    /// How full `queues` are, those that exist, and all others that the product lists.
    pub async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError> {
        self.driver.stats(queues).await
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

fn unknown(message: &Outgoing, why: impl fmt::Display) -> Refusal {
    Refusal::Unknown {
        queue: message.queue.to_string(),
        why: why.to_string(),
    }
}
