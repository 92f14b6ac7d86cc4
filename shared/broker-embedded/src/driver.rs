//! The driver: connects the queues in memory, the writer, the readers and the channels.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cueline_broker::{
    Announcement, BrokerError, BrokerStats, Capabilities, Channel, Coverage, Delivery, Driver,
    ErrorKind, Listener, Outgoing, QueueId, QueueStats, Receipt, Refusal, Settlement, StartLog,
};
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqlitePool;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::channels::Channels;
use crate::file::{self, Failure, Opened};
use crate::memory::{Message, Shared, later};
use crate::options::EmbeddedOptions;
use crate::queue::{Queue, Taken};
use crate::request::{Answer, Append, Entry, Publish, Request, Settle, WAITING_REQUESTS, Work};
use crate::writer::{Registry, Writer, queue};
use crate::{start_logs, statements};

/// A broker in one `SQLite` file, which only this process has open.
///
/// Dropping it loses no confirmed message. [`close`](Self::close) also waits until the file is unlocked.
pub struct EmbeddedDriver {
    options: EmbeddedOptions,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    channels: Channels,
    requests: mpsc::Sender<Request>,
    readers: SqlitePool,
    tasks: TaskTracker,
    closed: CancellationToken,
    _close_on_drop: DropGuard,
    lock: Arc<File>,
}

impl std::fmt::Debug for EmbeddedDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedDriver")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Each opening of the file has its own range of receipts. After 2⁴⁰ deliveries it overlaps the next range, which is
/// harmless.
const RECEIPT_BITS: u32 = 40;

impl EmbeddedDriver {
    /// Opens or creates the file at `path`. Its directory must exist. Files ending in `-wal`, `-shm` and `-lock` lie
    /// beside it.
    ///
    /// Fails permanently if the file is damaged, has a newer version or belongs to another program. Fails transiently
    /// if another process has it open.
    // Boxed, so that its code is in this crate only, and not again in each that calls it.
    pub fn open(path: &Path, options: EmbeddedOptions) -> BoxFuture<'_, Result<Self, BrokerError>> {
        Box::pin(async move {
            options.validate()?;
            let Opened {
                writer,
                writer_options,
                readers,
                queues,
                openings,
                lock,
            } = file::open(path, &options).await?;
            let shared = Arc::new(Shared {
                ack_wait: options.ack_wait,
                queue_limit: options.queue_limit,
                window_messages: options.window_messages,
                memory_bytes: options.memory_bytes,
                held_bytes: AtomicUsize::new(0),
                next_receipt: AtomicU64::new(openings.cast_unsigned() << RECEIPT_BITS),
            });
            let queues: HashMap<QueueId, Arc<Queue>> = queues
                .into_iter()
                .map(|found| {
                    let queue = Queue::new(found.id.clone(), found.key, found.messages, found.last);
                    (found.id, Arc::new(queue))
                })
                .collect();
            let registry = Arc::new(RwLock::new(queues));
            let (requests, waiting) = mpsc::channel(WAITING_REQUESTS);
            let (tasks, closed) = (TaskTracker::new(), CancellationToken::new());
            let lock = Arc::new(lock);
            let writer = Writer {
                conn: Some(writer),
                options: writer_options,
                registry: Arc::clone(&registry),
                shared: Arc::clone(&shared),
                no_room: false,
            };
            let (stop, held) = (closed.clone(), Arc::clone(&lock));
            tasks.spawn(async move {
                writer.run(waiting, stop).await;
                // Hold the lock until the last transaction has ended, so that no other process opens the file before.
                drop(held);
            });
            let driver = Self {
                channels: Channels::new(options.listener_buffer),
                options,
                registry,
                shared,
                requests,
                readers,
                tasks,
                _close_on_drop: closed.clone().drop_guard(),
                closed,
                lock,
            };
            driver.declare(&QueueId::Dead).await?;
            Ok(driver)
        })
    }

    /// Writes the waiting requests, ends the tasks and unlocks the file. Later calls fail with [`ErrorKind::Closed`].
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.closed.cancel();
            self.channels.end();
            self.tasks.close();
            self.tasks.wait().await;
            self.readers.close().await;
            if let Err(e) = self.lock.unlock() {
                tracing::warn!(error = %e, "failed to unlock the broker's file; it stays locked until this process ends");
            }
        })
    }

    fn queue(&self, id: &QueueId) -> Option<Arc<Queue>> {
        queue(&self.registry, id)
    }

    /// Sends a request to the writer and waits for the answer. `request` is called only when the channel has room. A
    /// caller that is dropped while it waits has therefore started nothing.
    async fn write<T>(
        &self,
        request: impl FnOnce(Answer<T>) -> Option<Request>,
    ) -> Result<Option<T>, BrokerError> {
        let place = self.requests.reserve().await.map_err(|_| closed())?;
        let (answer, answered) = oneshot::channel();
        let Some(request) = request(answer) else {
            return Ok(None);
        };
        place.send(request);
        match answered.await {
            Ok(done) => Ok(Some(done?)),
            Err(_) => Err(closed()),
        }
    }

    /// Splits a batch into entries to write, and refusals that need no writer.
    fn entries(&self, batch: &[Outgoing]) -> (Vec<Entry>, Vec<(usize, Refusal)>) {
        let (mut entries, mut refused) = (Vec::with_capacity(batch.len()), Vec::new());
        let limit = self.options.max_payload_bytes;
        let queues = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        for (place, outgoing) in batch.iter().enumerate() {
            let bytes = outgoing.payload.len();
            if bytes > limit {
                refused.push((place, Refusal::TooLarge { bytes, limit }));
            } else if let Some(queue) = queues.get(&outgoing.queue) {
                entries.push(Entry {
                    place,
                    queue: Arc::clone(queue),
                    message: Message {
                        id: 0,
                        topic: outgoing.topic.clone(),
                        payload: outgoing.payload.clone(),
                    },
                });
            } else {
                refused.push((place, Refusal::NoQueue(outgoing.queue.to_string())));
            }
        }
        (entries, refused)
    }

    /// Loads from the file what the next `max` messages need.
    async fn load(&self, queue: &Queue, max: usize) -> Result<(), BrokerError> {
        if queue.load_wanted(max, Instant::now()).is_none() {
            return Ok(());
        }
        let _only_one = queue.loading.lock().await;
        // Check again: another fetch may have loaded it.
        if let Some(load) = queue.load_wanted(max, Instant::now()) {
            let (messages, complete) =
                statements::load(&self.readers, &load, self.shared.load_bytes())
                    .await
                    .map_err(|e| BrokerError::from(Failure::new("read from", &e)).caused_by(e))?;
            queue.loaded(&load, messages, complete, &self.shared);
        }
        Ok(())
    }
}

fn closed() -> BrokerError {
    BrokerError::new(ErrorKind::Closed, "failed to use the broker: it is closed")
}

fn no_queue(id: &QueueId) -> BrokerError {
    BrokerError::new(
        ErrorKind::Permanent,
        format!("failed to fetch from {id}: there is no such queue"),
    )
}

#[async_trait]
impl Driver for EmbeddedDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "embedded",
            durable: true,
            deduplicates: false,
            delayed_retry: true,
            counts_across_restart: false,
            shared_by_processes: false,
            exact_limit: true,
            max_batch: self.options.max_batch,
            max_payload_bytes: self.options.max_payload_bytes,
        }
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        if self.queue(queue).is_none() {
            let queue = queue.clone();
            self.write(|answer| Some(Request::Declare { queue, answer }))
                .await?;
        }
        Ok(())
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        let queue = queue.clone();
        let deleted = self
            .write(|answer| {
                Some(Request::Delete {
                    queue,
                    only_if_empty,
                    answer,
                })
            })
            .await?;
        Ok(deleted.unwrap_or(true))
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        if batch.len() > self.options.max_batch {
            return Err(BrokerError::new(
                ErrorKind::Permanent,
                format!(
                    "failed to publish {} messages: at most {} are allowed at once",
                    batch.len(),
                    self.options.max_batch
                ),
            ));
        }
        let (entries, mut refused) = self.entries(batch);
        if !entries.is_empty() {
            let work = |answer| {
                let refused = Vec::new();
                Some(Request::Write(Work::Publish(Publish {
                    entries,
                    refused,
                    answer,
                })))
            };
            refused.extend(self.write(work).await?.unwrap_or_default());
        } else if self.closed.is_cancelled() {
            return Err(closed());
        }
        let mut answers = vec![Ok(()); batch.len()];
        for (place, refusal) in refused {
            answers[place] = Err(refusal);
        }
        Ok(answers)
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        let found = self.queue(queue).ok_or_else(|| no_queue(queue))?;
        let deadline = later(Instant::now(), wait);
        loop {
            if self.closed.is_cancelled() {
                return Err(closed());
            }
            // Register before the check, so that no change in between is missed.
            let mut changed = std::pin::pin!(found.changed.notified());
            changed.as_mut().enable();
            let loaded = self.load(&found, max).await;
            let next = match found.take(max, Instant::now(), &self.shared) {
                Taken::Messages(messages) => return Ok(messages),
                Taken::Gone => return Err(no_queue(queue)),
                Taken::Nothing(next) => next,
            };
            loaded?;
            if max == 0 || Instant::now() >= deadline {
                return Ok(Vec::new());
            }
            // Another fetch may have taken the loaded messages while the file has more.
            if found.load_wanted(max, Instant::now()).is_some() {
                continue;
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(next.map_or(deadline, |next| next.min(deadline))) => {}
                () = self.closed.cancelled() => {}
            }
        }
    }

    /// Messages are delivered only to a fetch.
    async fn stop_fetching(&self, _queue: &QueueId) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        let Some(found) = self.queue(queue) else {
            return Ok(());
        };
        if settlements
            .iter()
            .any(|(_, how)| matches!(how, Settlement::Dead(_)))
        {
            // Another caller may have deleted the queue.
            self.declare(&QueueId::Dead).await?;
        }
        self.write(|answer| {
            let settling = found.settle(settlements, Instant::now());
            (!settling.is_empty()).then(|| {
                Request::Write(Work::Settle(Settle {
                    queue: found,
                    settling,
                    unmoved: Vec::new(),
                    answer,
                }))
            })
        })
        .await?;
        Ok(())
    }

    async fn stats(&self, _queues: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        // `queues` is ignored: this lists all queues.
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        let mut queues: Vec<QueueStats> = registry
            .values()
            .map(|queue| {
                let (ready, unsettled) = queue.counts();
                QueueStats {
                    queue: queue.id.clone(),
                    ready,
                    unsettled,
                    coverage: Coverage::All,
                    settled: None,
                }
            })
            .collect();
        queues.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(BrokerStats {
            queues,
            unanswered: Vec::new(),
        })
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        self.channels.announce(channel, &message);
        Ok(())
    }

    /// No server of this broker can be cut off from another one.
    async fn announce_stored(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError> {
        let reply_to = None;
        self.announce(channel, Announcement { payload, reply_to })
            .await
    }

    async fn declare_proofs(&self) -> Result<(), BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        Ok(())
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        Ok(self.channels.listen(channel))
    }

    async fn declare_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        let log = log.clone();
        self.write(|answer| Some(Request::DeclareLog { log, answer }))
            .await
            .map(drop)
    }

    async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        start_logs::is_empty(&self.readers, log)
            .await
            .map_err(|e| BrokerError::from(Failure::new("read from", &e)).caused_by(e))
    }

    async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        log.check_size(&record)?;
        let append = |answer| {
            Some(Request::Write(Work::Append(Append {
                log: log.clone(),
                record,
                written: false,
                answer,
            })))
        };
        match self.write(append).await? {
            Some(true) => Ok(()),
            Some(false) | None => Err(log.missing()),
        }
    }

    async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        start_logs::read(&self.readers, log)
            .await
            .map_err(|e| BrokerError::from(Failure::new("read from", &e)).caused_by(e))
    }

    async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        let log = log.clone();
        self.write(|answer| Some(Request::DeleteLog { log, answer }))
            .await
            .map(drop)
    }
}
