//! The keys of the executors of a standalone server whose broker other processes can use.
//!
//! With the embedded broker, nothing is sealed: no other process can send a result. On a server's broker, others could,
//! and other schedulers may work on the same store. So each executor has a key there, like a worker, and the server
//! enrols it by a token of its own. The token has the id of the key, so starts that fail leave no more than one for each
//! executor.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use anyhow::Result;
use cueline_broker::{DeadLetter, DeadLetterSeal, QueueId};
use cueline_model::{Actor, ActorKind, ExecutorId, ExecutorName};
use cueline_protocol::origin::{EnrolmentToken, WorkerKeyId};
use cueline_store::{Store, WorkerKeyState};
use cueline_worker::{KeyFile, WorkerIdentity};
use rand::TryRng as _;

use crate::adapters::OpenError;
use crate::components::{StartupRetry, enrolment_tokens};

/// The name of the scheduler in this process.
pub(super) const NODE: &str = "standalone";
/// Keys read at once.
const PAGE: usize = 1_000;
/// The most pages read, enough for all keys of a store. A key that is not read then gets a token that it does not need.
const MAX_PAGES: usize = 200;

/// The keys, by the names of their executors.
pub(super) struct WorkerKeys(HashMap<ExecutorName, WorkerIdentity>);

impl WorkerKeys {
    /// Reads the keys from the state directories of these executors, or makes them. Stores a token for each key that
    /// is not enrolled.
    pub(super) async fn open(
        executors: &[ExecutorId],
        state_dir: impl Fn(&ExecutorName) -> PathBuf,
        store: &dyn Store,
        retry: &StartupRetry,
    ) -> Result<Self> {
        let read_enrolled = async || enrolled_keys(executors, store).await;
        let enrolled = retry.with("the store", read_enrolled).await?;
        let by = Actor::new(ActorKind::Node, NODE);
        let mut keys = HashMap::new();
        for executor in executors {
            let file = KeyFile::in_state_dir(&state_dir(&executor.name));
            let key = file.read_or_create()?.public();
            let id = key.id();
            let token = if enrolled.contains(&(executor.clone(), *key.as_bytes())) {
                let delete = async || enrolment_tokens::delete(store, id.as_str(), &by).await;
                retry.with("the store", delete).await?;
                None
            } else {
                let token = new_token(&id)?;
                let store_token =
                    async || enrolment_tokens::store_for(store, &token, executor, &by).await;
                retry.with("the store", store_token).await?;
                Some(token)
            };
            let identity = WorkerIdentity::with_key_file(executor.clone(), &file)?;
            keys.insert(executor.name.clone(), identity.enrolment(token));
        }
        Ok(Self(keys))
    }

    /// Seals each dead letter with the key of the executor whose queue the message was in. They share one connection.
    pub(super) fn dead_letter_seal(&self) -> DeadLetterSeal {
        let seals: HashMap<String, DeadLetterSeal> = self
            .0
            .values()
            .map(|identity| (queue(identity.executor()), identity.dead_letter_seal()))
            .collect();
        DeadLetterSeal::new(move |letter| {
            let queue = DeadLetter::decode(&letter).map(|letter| letter.queue);
            match queue.ok().and_then(|queue| seals.get(&queue)) {
                Some(seal) => seal.seal(&letter).to_vec(),
                None => letter,
            }
        })
    }

    pub(super) fn take(&mut self, executor: &ExecutorName) -> Option<WorkerIdentity> {
        self.0.remove(executor)
    }
}

fn queue(executor: &ExecutorId) -> String {
    let queue = QueueId::Executor {
        group: executor.group.to_string(),
        executor: executor.name.to_string(),
    };
    queue.to_string()
}

/// The allowed keys of these executors.
async fn enrolled_keys(
    executors: &[ExecutorId],
    store: &dyn Store,
) -> Result<HashSet<(ExecutorId, [u8; 32])>, OpenError> {
    let (mut enrolled, mut version) = (HashSet::new(), 0);
    for _ in 0..MAX_PAGES {
        let page = store.worker_keys(version, PAGE).await;
        let page =
            page.map_err(|error| enrolment_tokens::failed("read the keys of workers", &error))?;
        let is_last = page.keys.len() < PAGE;
        version = page.version;
        let own = page.keys.into_iter().filter(|key| {
            key.state == WorkerKeyState::Allowed && executors.contains(&key.executor)
        });
        enrolled.extend(own.map(|key| (key.executor, key.key)));
        if is_last {
            break;
        }
    }
    Ok(enrolled)
}

/// A token with the id of the key that it is for.
fn new_token(key: &WorkerKeyId) -> Result<EnrolmentToken> {
    let id = u64::from_str_radix(key.as_str(), 16)?.to_be_bytes();
    let mut secret = [0; 32];
    rand::rngs::SysRng.try_fill_bytes(&mut secret)?;
    Ok(EnrolmentToken::new(id, secret))
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use cueline_store::{EnrolOutcome, KeyOrigin, NewWorkerKey};
    use cueline_store_sqlite::{SqliteOptions, SqliteStore};

    use super::*;

    async fn tokens(store: &dyn Store) -> Vec<String> {
        let tokens = store.enrolment_tokens().await.expect("lists");
        let mut ids: Vec<_> = tokens.into_iter().map(|token| token.id).collect();
        ids.sort();
        ids
    }

    #[tokio::test]
    async fn a_start_leaves_one_token_for_each_key_that_is_not_enrolled() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        let store = SqliteStore::open(&path, SqliteOptions::default()).await;
        let store: &dyn Store = &store.expect("opens");
        let executors = ["one", "two"].map(|name| ExecutorId {
            group: "default".parse().expect("a name"),
            name: name.parse().expect("a name"),
        });
        let state_dir = |name: &ExecutorName| folder.path().join(name.as_str());
        let start = async || {
            let opened =
                WorkerKeys::open(&executors, state_dir, store, &StartupRetry::none()).await;
            assert_eq!(opened.expect("opens").0.len(), executors.len());
        };
        for _ in 0..3 {
            start().await;
        }
        let [one, two] = ["one", "two"].map(|name| {
            let file = KeyFile::in_state_dir(&folder.path().join(name));
            file.read().expect("it was made").public()
        });
        let mut ids = [one, two].map(|key| key.id().to_string());
        ids.sort();
        assert_eq!(tokens(store).await, ids);
        let enrolled = NewWorkerKey {
            executor: executors[0].clone(),
            key: *one.as_bytes(),
            key_id: one.id().to_string(),
            by: KeyOrigin::Token(one.id().to_string()),
        };
        let enrolled = store.enrol_workers(&[enrolled]).await.expect("answers");
        assert_eq!(enrolled, [EnrolOutcome::Enrolled]);
        start().await;
        assert_eq!(tokens(store).await, [two.id().to_string()]);
    }
}
