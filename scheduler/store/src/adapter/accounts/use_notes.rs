//! Notes the uses of sessions and API tokens in the background, because no request should wait for a connection that
//! writes.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_model::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::StoreError;
use crate::accounts::SecretHash;

/// The most uses that wait. A further one is left out, and a later use of that session or token is noted instead.
const MAX_WAITING: usize = 1_000;

/// What is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Used {
    /// A session.
    Session,
    /// An API token.
    ApiToken,
}

/// A use that is not noted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingUse {
    /// What is used.
    pub used: Used,
    /// The hash of its secret.
    pub hash: SecretHash,
    /// When.
    pub at: Timestamp,
}

/// Notes uses, one after the other. It ends when it is dropped.
#[derive(Debug)]
pub struct UseNotes {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    wake: Notify,
}

/// Each session and each token at most once.
#[derive(Debug, Default)]
struct Pending {
    waiting: VecDeque<PendingUse>,
    hashes: HashSet<SecretHash>,
}

impl UseNotes {
    /// Starts the task that calls `note`. Call it in a Tokio runtime.
    pub fn start<N, F>(note: N) -> Self
    where
        N: Fn(PendingUse) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(run(Arc::clone(&shared), note));
        Self { shared, task }
    }

    /// Notes a use later. Returns at once.
    pub fn note(&self, pending: PendingUse) {
        if self.shared.pending().push(pending) {
            self.shared.wake.notify_one();
        }
    }

    /// Ends the task. Uses that still wait are left out.
    pub fn close(&self) {
        self.task.abort();
    }
}

impl Drop for UseNotes {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Returns whether it is new, and there is room.
    fn push(&mut self, pending: PendingUse) -> bool {
        let is_new = self.waiting.len() < MAX_WAITING && self.hashes.insert(pending.hash);
        if is_new {
            self.waiting.push_back(pending);
        }
        is_new
    }

    fn take(&mut self) -> Option<PendingUse> {
        let next = self.waiting.pop_front()?;
        self.hashes.remove(&next.hash);
        Some(next)
    }
}

async fn run<N, F>(shared: Arc<Shared>, note: N)
where
    N: Fn(PendingUse) -> F,
    F: Future<Output = Result<(), StoreError>>,
{
    loop {
        let next = shared.pending().take();
        let Some(pending) = next else {
            shared.wake.notified().await;
            continue;
        };
        if let Err(error) = note(pending).await {
            tracing::debug!(%error, "failed to note the use of a session or an API token; a later use is noted");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn pending(number: usize) -> PendingUse {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        PendingUse {
            used: Used::Session,
            hash: SecretHash(hash),
            at: Timestamp::from_millis(5),
        }
    }

    #[test]
    fn each_waits_once_and_there_is_a_bound() {
        let mut waiting = Pending::default();
        assert!(waiting.push(pending(0)));
        assert!(!waiting.push(pending(0)), "it waits");
        assert_eq!(waiting.take(), Some(pending(0)));
        for number in 0..MAX_WAITING {
            assert!(waiting.push(pending(number)), "{number}");
        }
        assert!(!waiting.push(pending(MAX_WAITING)), "there is no room");
        assert_eq!(waiting.take(), Some(pending(0)));
        assert!(waiting.push(pending(MAX_WAITING)));
    }

    /// In the order of their requests. One that fails keeps no other back.
    #[tokio::test]
    async fn uses_are_noted_one_after_the_other() {
        let (sender, mut noted) = mpsc::channel(9);
        let uses = UseNotes::start(move |pending| {
            let sender = sender.clone();
            async move {
                sender.send(pending).await.expect("is received");
                Err::<(), _>(StoreError::new(crate::ErrorKind::Transient, "a full disk"))
            }
        });
        for number in 1..=3 {
            uses.note(pending(number));
        }
        for number in 1..=3 {
            assert_eq!(noted.recv().await, Some(pending(number)));
        }
        drop(uses);
        assert_eq!(noted.recv().await, None, "the task has ended");
    }
}
