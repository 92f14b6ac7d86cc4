//! Retry, batching and declaration on demand, once for all drivers.

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
    replies: Arc<ReplyChannels>,
}

/// Makes names for reply channels that no other process on the same broker uses.
struct ReplyChannels {
    process: u64,
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

    /// A broker over a shared driver.
    pub fn from_arc(driver: Arc<dyn Driver>, options: BrokerOptions) -> Self {
        Self {
            driver,
            options,
            // An identity, not a decision: nothing that a seed should reproduce depends on it.
            replies: Arc::new(ReplyChannels {
                process: RandomState::new().hash_one(std::process::id()),
                next: AtomicU64::new(0),
            }),
        }
    }

    /// What the driver can do.
    pub fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    /// Makes sure that the queue exists.
    ///
    /// # Errors
    ///
    /// The last error of the driver, after [`BrokerOptions::retry_for`] where it is transient.
    pub async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.with_retry("declare", || self.driver.declare(queue))
            .await
    }

    /// Deletes a queue; see [`Driver::delete`].
    ///
    /// # Errors
    ///
    /// The last error of the driver, after [`BrokerOptions::retry_for`] where it is transient.
    pub async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        self.with_retry("delete", || self.driver.delete(queue, only_if_empty))
            .await
    }

    /// Publishes messages, in as many batches as the driver needs. The answer has one entry for each message, in the order given. A missing
    /// queue is declared and its messages are published once more.
    ///
    /// A message is [unknown](Refusal::Unknown), not [full](Refusal::Full) or without a queue, when an earlier try had no answer: that try may
    /// have succeeded.
    ///
    /// # Errors
    ///
    /// The last error of the driver, if no message of the first batch was answered. All messages are then unknown.
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
                    // Earlier batches keep their answers; this batch and the rest are unknown.
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
        let unanswered = OnceLock::new();
        let mut answers = self
            .with_retry("publish", || self.publish_once(batch, &unanswered))
            .await?;
        self.declare_and_retry(batch, &mut answers, &unanswered)
            .await;
        if let Some(why) = unanswered.get() {
            for (message, answer) in batch.iter().zip(&mut answers) {
                if matches!(answer, Err(Refusal::Full { .. } | Refusal::NoQueue(_))) {
                    *answer = Err(unknown(message, why));
                }
            }
        }
        Ok(answers)
    }

    /// Publishes once. `unanswered` keeps the error of the first try without an answer.
    async fn publish_once(
        &self,
        batch: &[Outgoing],
        unanswered: &OnceLock<String>,
    ) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let published = self.driver.publish(batch).await;
        if let Err(e) = &published {
            unanswered.get_or_init(|| e.to_string());
        }
        published
    }

    /// Declares missing queues and publishes their messages again. Messages whose queue could not be declared keep their refusal.
    async fn declare_and_retry(
        &self,
        batch: &[Outgoing],
        answers: &mut [Result<(), Refusal>],
        unanswered: &OnceLock<String>,
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
                Err(e) => {
                    tracing::warn!(%queue, error = %e, "failed to declare a missing queue; its messages are published again later");
                }
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
        let second = self.with_retry("publish", || self.publish_once(&again, unanswered));
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

    /// Delivers up to `max` messages, waiting up to `wait` for the first. Not repeated on errors, because the caller loops anyway.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        self.driver.fetch(queue, max, wait).await
    }

    /// Settles deliveries.
    ///
    /// # Errors
    ///
    /// The last error of the driver, after [`BrokerOptions::retry_for`] where it is transient. The deliveries then come again.
    pub async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        if settlements.is_empty() {
            return Ok(());
        }
        self.with_retry("settle", || self.driver.settle(queue, settlements))
            .await
    }

    /// The depth of those of `queues` that exist, and of all others that the product lists.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub async fn stats(&self, queues: &[QueueId]) -> Result<Vec<QueueStats>, BrokerError> {
        self.driver.stats(queues).await
    }

    /// Sends to all present listeners. Not repeated on errors.
    ///
    /// # Errors
    ///
    /// The error of the driver.
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
    ///
    /// # Errors
    ///
    /// The last error of the driver, after [`BrokerOptions::retry_for`] where it is transient.
    pub async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.with_retry("listen", || self.driver.listen(channel))
            .await
    }

    /// Sends a request to the listeners of `channel` and waits up to `wait` for the first answer; `None` when there was none.
    ///
    /// # Errors
    ///
    /// The error of the driver, if the request could not be sent.
    pub async fn ask(
        &self,
        channel: &Channel,
        payload: Bytes,
        wait: Duration,
    ) -> Result<Option<Bytes>, BrokerError> {
        let number = self.replies.next.fetch_add(1, Ordering::Relaxed);
        let reply = Channel::Replies(format!("{:016x}-{number}", self.replies.process));
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

    async fn with_retry<T, F, Fut>(&self, what: &'static str, mut call: F) -> Result<T, BrokerError>
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
                    tracing::warn!(what, error = %e, wait_ms = wait.as_millis(), "broker call failed; retrying");
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
