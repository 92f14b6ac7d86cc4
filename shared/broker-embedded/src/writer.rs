//! The only task that writes to the file. It collects waiting requests, writes them in one transaction, and answers
//! after the commit. It knows nothing of fetches.

use std::collections::HashMap;
use std::iter;
use std::sync::{Arc, PoisonError, RwLock};

use cueline_broker::{DeadLetter, ErrorKind, QueueId, StartLog};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::file::Failure;
use crate::memory::{MOST_QUEUES, Message, Shared};
use crate::queue::{Held, Queue};
use crate::request::{Request, Work, gather};
use crate::{start_logs, statements};

/// All queues by name.
pub(crate) type Registry = RwLock<HashMap<QueueId, Arc<Queue>>>;

pub(crate) fn queue(registry: &Registry, id: &QueueId) -> Option<Arc<Queue>> {
    let queues = registry.read().unwrap_or_else(PoisonError::into_inner);
    queues.get(id).map(Arc::clone)
}

/// The state of the writer's task.
pub(crate) struct Writer {
    /// `None` after its thread has ended. The next request opens a new connection.
    pub(crate) conn: Option<SqliteConnection>,
    pub(crate) options: SqliteConnectOptions,
    pub(crate) registry: Arc<Registry>,
    pub(crate) shared: Arc<Shared>,
    /// The disk is full. The writer must first copy the WAL back, which needs room itself. Further writes would use
    /// that room and grow the WAL until the disk stays full for good.
    pub(crate) no_room: bool,
}

impl Writer {
    /// Serves requests until `closed` or until all senders are dropped. Requests sent before are still written.
    pub(crate) async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        closed: CancellationToken,
    ) {
        let mut kept = None;
        loop {
            let next = if kept.is_some() {
                kept.take()
            } else {
                next_request(&mut requests, &closed).await
            };
            match next {
                None => break,
                Some(Request::Write(first)) => {
                    let group;
                    (group, kept) = gather(first, &mut requests);
                    self.write(group).await;
                }
                Some(Request::Declare { queue, answer }) => {
                    let _ = answer.send(self.declare(queue).await);
                }
                Some(Request::Delete {
                    queue,
                    only_if_empty,
                    answer,
                }) => {
                    let _ = answer.send(self.delete(&queue, only_if_empty).await);
                }
                Some(Request::DeclareLog { log, answer }) => {
                    let _ = answer.send(self.declare_log(&log).await);
                }
                Some(Request::DeleteLog { log, answer }) => {
                    let _ = answer.send(self.delete_log(&log).await);
                }
            }
        }
        if let Some(conn) = self.conn.take()
            && let Err(e) = conn.close().await
        {
            tracing::warn!(error = %e, "failed to close the broker's file; the next start recovers it");
        }
    }

    /// Writes a group in one transaction. After a permanent error it writes each request alone, so that one bad request
    /// does not fail the others.
    async fn write(&mut self, mut group: Vec<Work>) {
        match self.transact(&mut group).await {
            Ok(()) => group.into_iter().for_each(Work::succeed),
            Err(failure) if failure.kind == ErrorKind::Permanent && group.len() > 1 => {
                for work in group {
                    let mut alone = [work];
                    let written = self.transact(&mut alone).await;
                    let [work] = alone;
                    match written {
                        Ok(()) => work.succeed(),
                        Err(failure) => work.fail(failure),
                    }
                }
            }
            Err(failure) => {
                tracing::warn!(
                    error = failure.message,
                    "failed to write to the broker's file; callers try again"
                );
                for work in group {
                    work.fail(failure.clone());
                }
            }
        }
    }

    /// Commits all requests and lets fetches see them, or writes nothing and drops all reservations.
    async fn transact(&mut self, group: &mut [Work]) -> Result<(), Failure> {
        let dead_queue = queue(&self.registry, &QueueId::Dead);
        let mut letters = Vec::new();
        let shared = Arc::clone(&self.shared);
        if self.no_room {
            let made = statements::make_room(self.connection().await?).await;
            made.map_err(|e| self.failed(&e))?;
            self.no_room = false;
        }
        let conn = self.connection().await?;
        let written = transact(conn, group, dead_queue.as_deref(), &mut letters, &shared).await;
        let Err(e) = written else {
            let letters = dead_queue.iter().cycle().map(Arc::clone).zip(letters);
            publish_committed(group, letters, &shared);
            return Ok(());
        };
        let failure = Failure::new("write to", &e);
        statements::roll_back(conn, &e).await;
        let no_room = failure.no_room && statements::make_room(conn).await.is_err();
        if let Some(queue) = dead_queue {
            queue.release(letters.len() as u64);
        }
        group.iter_mut().for_each(Work::undo);
        self.no_room = no_room;
        if failure.connection_lost {
            self.conn = None;
        }
        Err(failure)
    }

    fn failed(&mut self, error: &sqlx::Error) -> Failure {
        let failure = Failure::new("write to", error);
        if failure.connection_lost {
            self.conn = None;
        }
        failure
    }

    async fn connection(&mut self) -> Result<&mut SqliteConnection, Failure> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => (self.options.connect().await).map_err(|e| Failure::new("reopen", &e))?,
        };
        Ok(self.conn.insert(conn))
    }

    async fn declare(&mut self, id: QueueId) -> Result<(), Failure> {
        if queue(&self.registry, &id).is_some() {
            return Ok(());
        }
        let key = match statements::insert_queue(self.connection().await?, &id).await {
            Ok(key) => key,
            Err(e) => return Err(self.failed(&e)),
        };
        if key > MOST_QUEUES {
            let _ = statements::delete_queue(self.connection().await?, key).await;
            return Err(Failure {
                kind: ErrorKind::Permanent,
                message: format!("failed to declare queue {id}: there are {MOST_QUEUES} already"),
                connection_lost: false,
                no_room: false,
            });
        }
        let declared = Arc::new(Queue::new(id.clone(), key, 0, 0));
        self.registry
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, declared);
        Ok(())
    }

    async fn delete(&mut self, id: &QueueId, only_if_empty: bool) -> Result<bool, Failure> {
        let Some(found) = queue(&self.registry, id) else {
            return Ok(true);
        };
        // Nothing can be added now: all additions come through this task.
        if only_if_empty && !found.is_empty() {
            return Ok(false);
        }
        let conn = self.connection().await?;
        let deleted = async {
            statements::begin(conn).await?;
            statements::delete_queue(conn, found.key).await?;
            statements::commit(conn).await
        }
        .await;
        if let Err(e) = deleted {
            statements::roll_back(conn, &e).await;
            return Err(self.failed(&e));
        }
        self.registry
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
        found.delete(&self.shared);
        Ok(true)
    }

    async fn declare_log(&mut self, log: &StartLog) -> Result<(), Failure> {
        let inserted = start_logs::insert_log(self.connection().await?, log).await;
        inserted.map_err(|e| self.failed(&e))
    }

    async fn delete_log(&mut self, log: &StartLog) -> Result<(), Failure> {
        let conn = self.connection().await?;
        let deleted = async {
            statements::begin(conn).await?;
            start_logs::delete_log(conn, log).await?;
            statements::commit(conn).await
        }
        .await;
        if let Err(e) = deleted {
            statements::roll_back(conn, &e).await;
            return Err(self.failed(&e));
        }
        Ok(())
    }
}

async fn next_request(
    requests: &mut mpsc::Receiver<Request>,
    closed: &CancellationToken,
) -> Option<Request> {
    tokio::select! {
        biased;
        request = requests.recv() => request,
        () = closed.cancelled() => {
            requests.close();
            requests.recv().await
        }
    }
}

/// Runs one transaction. `letters` collects the dead letters with a reserved id, even if the transaction fails.
///
/// Messages that one statement writes need no `BEGIN` and `COMMIT`: a single statement is a transaction of its own.
async fn transact(
    conn: &mut SqliteConnection,
    group: &mut [Work],
    dead_queue: Option<&Queue>,
    letters: &mut Vec<Message>,
    shared: &Shared,
) -> sqlx::Result<()> {
    let only_inserts = group.iter().all(|work| matches!(work, Work::Publish(_)));
    if !only_inserts {
        statements::begin(conn).await?;
    }
    let mut gone = Vec::new();
    for work in group.iter_mut() {
        match work {
            Work::Publish(publish) => publish.reserve(shared),
            Work::Settle(settle) => {
                gone.extend(settle.settling.acks.iter().map(|held| held.id));
                for (held, reason) in &settle.settling.dead {
                    let Some(letter) = dead_letter(conn, &settle.queue, *held, reason).await?
                    else {
                        continue;
                    };
                    // A dead letter that is refused again replaces itself, so it needs no further room.
                    let limit = if settle.queue.id == QueueId::Dead {
                        u64::MAX
                    } else {
                        shared.queue_limit
                    };
                    match dead_queue.map(|queue| queue.reserve(limit)) {
                        Some(Ok(id)) => {
                            letters.push(Message { id, ..letter });
                            gone.push(held.id);
                        }
                        _ => settle.unmoved.push(*held),
                    }
                }
            }
            Work::Append(append) => {
                append.written = start_logs::append(conn, &append.log, &append.record).await?;
            }
        }
    }
    let fresh: Vec<&Message> = group
        .iter()
        .flat_map(Work::entries)
        .map(|entry| &entry.message)
        .chain(letters.iter())
        .collect();
    if only_inserts {
        if statements::is_one_insert(fresh.len()) {
            return statements::insert_messages(conn, &fresh).await;
        }
        statements::begin(conn).await?;
    }
    statements::insert_messages(conn, &fresh).await?;
    statements::delete_messages(conn, gone).await?;
    statements::commit(conn).await
}

/// Lets fetches see the committed messages, queue by queue, in the order of ids.
fn publish_committed(
    group: &mut [Work],
    letters: impl Iterator<Item = (Arc<Queue>, Message)>,
    shared: &Shared,
) {
    let mut fresh: Vec<(Arc<Queue>, Message)> = group
        .iter_mut()
        .flat_map(Work::take_entries)
        .map(|entry| (entry.queue, entry.message))
        .chain(letters)
        .collect();
    fresh.sort_by_key(|(_, message)| message.id);
    let mut fresh = fresh.into_iter().peekable();
    while let Some((queue, first)) = fresh.next() {
        let others =
            iter::from_fn(|| fresh.next_if(|(other, _)| other.key == queue.key)).map(|(_, m)| m);
        queue.committed(iter::once(first).chain(others), shared);
    }
}

/// Makes the dead letter of a message, still without an id. `None` if the message is gone. A dead letter that is
/// refused again keeps its first reason and moves to the end.
async fn dead_letter(
    conn: &mut SqliteConnection,
    from: &Queue,
    held: Held,
    reason: &str,
) -> sqlx::Result<Option<Message>> {
    let Some((message, at_ms)) = statements::message_and_time(conn, held.id).await? else {
        return Ok(None);
    };
    if from.id == QueueId::Dead {
        return Ok(Some(message));
    }
    let letter = DeadLetter {
        reason: reason.to_owned(),
        queue: from.id.to_string(),
        topic: message.topic.clone(),
        at_ms,
        payload: message.payload,
    };
    let payload = letter
        .encode()
        .map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    Ok(Some(Message {
        id: 0,
        topic: message.topic,
        payload,
    }))
}
