//! The keys of the executors of a standalone server whose broker other processes can use.
//!
//! With the embedded broker, nothing is sealed: no other process can send a result. On a server's broker, others could,
//! and other schedulers may work on the same store. So each executor has a key there, like a worker, and the server
//! enrols it by a token of its own.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::Result;
use cueline_broker::{DeadLetter, DeadLetterSeal, QueueId};
use cueline_model::{ExecutorId, ExecutorName};
use cueline_protocol::origin::EnrolmentToken;
use cueline_store::Store;
use cueline_worker::KeyFile;
use rand::TryRng as _;

use crate::components::{StartupRetry, WorkerOrigin, enrolment_tokens};

/// The keys, by the names of their executors.
pub(super) struct WorkerKeys(HashMap<ExecutorName, WorkerOrigin>);

impl WorkerKeys {
    /// Reads the keys from the state directories of these executors, or makes them. Stores a token for each of them.
    pub(super) async fn open(
        executors: &[ExecutorId],
        state_dir: impl Fn(&ExecutorName) -> PathBuf,
        store: &dyn Store,
        retry: &StartupRetry,
    ) -> Result<Self> {
        let mut keys = HashMap::new();
        for executor in executors {
            let token = new_token()?;
            let store_token = async || {
                enrolment_tokens::store_for(store, &token, executor, "cueline standalone").await
            };
            retry.with("the store", store_token).await?;
            let file = KeyFile::in_state_dir(&state_dir(&executor.name));
            let origin = WorkerOrigin::open(&file, executor.clone(), Some(token))?;
            keys.insert(executor.name.clone(), origin);
        }
        Ok(Self(keys))
    }

    /// Seals each dead letter with the key of the executor whose queue the message was in. They share one connection.
    pub(super) fn dead_letter_seal(&self) -> DeadLetterSeal {
        let seals: HashMap<String, DeadLetterSeal> = self
            .0
            .values()
            .map(|origin| (queue(origin.executor()), origin.dead_letter_seal()))
            .collect();
        DeadLetterSeal::new(move |letter| {
            let queue = DeadLetter::decode(&letter).map(|letter| letter.queue);
            match queue.ok().and_then(|queue| seals.get(&queue)) {
                Some(seal) => seal.seal(&letter).to_vec(),
                None => letter,
            }
        })
    }

    pub(super) fn take(&mut self, executor: &ExecutorName) -> Option<WorkerOrigin> {
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

fn new_token() -> Result<EnrolmentToken> {
    let (mut id, mut secret) = ([0; 8], [0; 32]);
    rand::rngs::SysRng.try_fill_bytes(&mut id)?;
    rand::rngs::SysRng.try_fill_bytes(&mut secret)?;
    Ok(EnrolmentToken::new(id, secret))
}
