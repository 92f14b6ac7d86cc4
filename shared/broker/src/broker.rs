//! Adds retries, batching and the declaration of missing queues to any driver.

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
    BrokerStats, Capabilities, Delivery, Driver, Outgoing, Receipt, Refusal, Settlement,
};
use crate::error::{BrokerError, ErrorKind};
use crate::listener::{Announcement, Listener};
use crate::start_log::StartLog;

/// Settings of a [`Broker`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerOptions {
    /// How long a call is repeated after transient errors; 30 s by default. After that time the call returns the error,
    /// and the caller tries again on its next turn.
    pub retry_for: Duration,
    /// The wait before the second try; 20 ms by default. Later waits double, up to 1 s.
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

/// The broker as the rest of Cueline uses it. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    driver: Arc<dyn Driver>,
    options: BrokerOptions,
    replies: Arc<ReplyChannels>,
}

/// Makes names for reply channels that are unique among all processes of the broker.
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
    /// Makes a broker from `driver`.
    pub fn new(driver: impl Driver, options: BrokerOptions) -> Self {
        Self::from_arc(Arc::new(driver), options)
    }

    /// Makes a broker from a shared driver.
    pub fn from_arc(driver: Arc<dyn Driver>, options: BrokerOptions) -> Self {
        Self {
            driver,
            options,
            // The random number only identifies this process. No decision depends on it, so it needs no seed.
            replies: Arc::new(ReplyChannels {
                process: RandomState::new().hash_one(std::process::id()),
                next: AtomicU64::new(0),
            }),
        }
    }

    /// The capabilities of the driver.
    pub fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    /// Declares the queue if it is missing.
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first.
    pub async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.with_retry("declare", || self.driver.declare(queue))
            .await
    }

    /// Deletes a queue; see [`Driver::delete`].
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first.
    pub async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        self.with_retry("delete", || self.driver.delete(queue, only_if_empty))
            .await
    }

    /// Publishes messages, in as many batches as the driver needs. Returns one answer for each message, in the order
    /// given. A missing queue is declared, and its messages are published once more. The start log of its executor is
    /// declared first: a broker that has lost the queue has lost the log too.
    ///
    /// An earlier try without an answer may have stored a message. If the message is then [full](Refusal::Full) or
    /// without a queue, it counts as [unknown](Refusal::Unknown).
    ///
    /// # Errors
    ///
    /// The last error of the driver, if no message of the first batch has an answer. All messages are then unknown.
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
                    // Earlier batches keep their answers. This batch and the rest are unknown.
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
        // An earlier try without an answer may have stored the messages, so these refusals prove nothing.
        if let Some(why) = unanswered.get() {
            for (message, answer) in batch.iter().zip(&mut answers) {
                if matches!(answer, Err(Refusal::Full { .. } | Refusal::NoQueue(_))) {
                    *answer = Err(unknown(message, why));
                }
            }
        }
        Ok(answers)
    }

    /// Publishes once. `unanswered` holds the error of the first try without an answer.
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

    /// Declares missing queues and publishes their messages again. Messages keep their refusal if their queue cannot be
    /// declared.
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
            self.declare_log_of(queue).await;
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

    /// Declares the start log of the executor whose queue this is. Without its log the executor starts nothing, but it
    /// can take the messages.
    async fn declare_log_of(&self, queue: &QueueId) {
        let QueueId::Executor { group, executor } = queue else {
            return;
        };
        let log = StartLog {
            group: group.clone(),
            executor: executor.clone(),
        };
        if let Err(e) = self.declare_log(&log).await {
            tracing::warn!(%log, error = %e, "failed to declare a missing start log; the executor starts nothing until a scheduler declares it");
        }
    }

    /// Delivers up to `max` messages, and waits up to `wait` for the first. Errors are not retried, because callers
    /// fetch in a loop.
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
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first. The
    /// deliveries then come again.
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

    /// Ends deliveries ahead of a fetch; see [`Driver::stop_fetching`]. Errors are not retried.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub async fn stop_fetching(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.driver.stop_fetching(queue).await
    }

    /// Counts the messages of those `queues` that exist, and of all other queues that the product lists.
    /// Queues that do not answer are listed.
    ///
    /// # Errors
    ///
    /// The error of the driver. A single queue that does not answer is none.
    pub async fn stats(&self, queues: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        self.driver.stats(queues).await
    }

    /// Sends to all present listeners. Errors are not retried.
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

    /// Sends to all present listeners, and returns once a majority of the servers has stored a proof of it; see
    /// [`Driver::announce_stored`]. Errors are not retried.
    ///
    /// # Errors
    ///
    /// The error of the driver. Listeners may have received the announcement.
    pub async fn announce_stored(
        &self,
        channel: &Channel,
        payload: Bytes,
    ) -> Result<(), BrokerError> {
        self.driver.announce_stored(channel, payload).await
    }

    /// Declares the place of the proofs if it is missing. Errors are not retried, because callers repeat the call.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub async fn declare_proofs(&self) -> Result<(), BrokerError> {
        self.driver.declare_proofs().await
    }

    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first.
    pub async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.with_retry("listen", || self.driver.listen(channel))
            .await
    }

    /// Sends a request to the listeners of `channel` and waits up to `wait` for the first answer. `None` if none came.
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
        self.ask_for(channel, payload, wait, Some).await
    }

    /// Like [`ask`](Self::ask), but waits for the first answer from which `read` returns a value. Others are ignored.
    ///
    /// # Errors
    ///
    /// The error of the driver, if the request could not be sent.
    pub async fn ask_for<T>(
        &self,
        channel: &Channel,
        payload: Bytes,
        wait: Duration,
        mut read: impl FnMut(Bytes) -> Option<T>,
    ) -> Result<Option<T>, BrokerError> {
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
        let answered = async {
            while let Some(answer) = listener.recv().await {
                if let Some(value) = read(answer.payload) {
                    return Some(value);
                }
            }
            None
        };
        Ok(timeout(wait, answered).await.unwrap_or_default())
    }

    /// Declares the log if it is missing.
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first.
    pub async fn declare_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        self.with_retry("declare_log", || self.driver.declare_log(log))
            .await
    }

    /// Whether the log has no records; see [`Driver::is_log_empty`]. Errors are not retried.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        self.driver.is_log_empty(log).await
    }

    /// Appends a record; see [`Driver::append`]. A try without an answer may have stored the record, so a retry can
    /// store it twice.
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first. The record
    /// may be in the log after an error.
    pub async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        self.with_retry("append", || self.driver.append(log, record.clone()))
            .await
    }

    /// Reads all records that are kept, oldest first; see [`Driver::read_log`].
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first.
    pub async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        self.with_retry("read_log", || self.driver.read_log(log))
            .await
    }

    /// Deletes a log with its records. A missing log counts as deleted.
    ///
    /// # Errors
    ///
    /// The last error of the driver. Transient errors are retried for [`BrokerOptions::retry_for`] first.
    pub async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        self.with_retry("delete_log", || self.driver.delete_log(log))
            .await
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
