//! Opens the messages of workers: verifies who has sent them.

use std::sync::Arc;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::origin::{Purpose, Sealed, WorkerKeyId};
use cueline_store::{Store, StoreError};
use tokio::time::Instant;

use super::forged::Forged;
use super::key_table::KeyStanding;
use super::keys::EnrolledKeys;

/// How this scheduler knows which worker has sent a message.
#[derive(Debug, Clone)]
pub enum Origins {
    /// All workers are in this process, and no other process can use the broker. Their messages have no seals, and count
    /// as they are.
    InProcess,
    /// Each worker seals its messages with a key of its own, which is enrolled in the store.
    Enrolled(Arc<EnrolledKeys>),
}

/// A message whose origin is verified.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened<'a> {
    /// The executor that has sent it. `None` in a process without seals; the message itself names its executor there.
    pub(crate) executor: Option<ExecutorId>,
    /// The key that has sealed it.
    pub(crate) key: Option<WorkerKeyId>,
    /// The message without its seal.
    pub(crate) body: &'a [u8],
}

impl Opened<'_> {
    /// Checks that the message names the executor that has sealed it.
    pub(crate) fn check_names(&self, named: &ExecutorId) -> Result<(), Forged> {
        match &self.executor {
            Some(sealer) if sealer != named => Err(Forged::OtherExecutor {
                sealer: sealer.clone(),
                named: named.clone(),
            }),
            _ => Ok(()),
        }
    }
}

impl Origins {
    /// Workers whose keys are enrolled in this store.
    pub fn enrolled(store: Arc<dyn Store>) -> Self {
        Self::Enrolled(Arc::new(EnrolledKeys::new(store)))
    }

    pub(crate) fn keys(&self) -> Option<Arc<EnrolledKeys>> {
        match self {
            Self::InProcess => None,
            Self::Enrolled(keys) => Some(keys.clone()),
        }
    }

    /// Reads all keys, so that the first messages can be verified.
    pub(crate) async fn load(&self) -> Result<(), StoreError> {
        match self {
            Self::InProcess => Ok(()),
            Self::Enrolled(keys) => keys.refresh_now().await,
        }
    }

    /// Whether one of these messages names a key that is not known. Another node may have enrolled it a moment ago.
    pub(crate) fn names_unknown_key<'a>(
        &self,
        mut payloads: impl Iterator<Item = &'a [u8]>,
        now: Timestamp,
    ) -> bool {
        let Self::Enrolled(keys) = self else {
            return false;
        };
        payloads.any(|payload| {
            let sealed = Sealed::parse(payload);
            sealed.is_ok_and(|s| keys.find(&s.executor, &s.key, now).is_none())
        })
    }

    /// Reads the keys that have changed. After this call, an unknown key of a message that had arrived before is not
    /// enrolled.
    pub(crate) async fn learn_keys(&self) -> Result<(), StoreError> {
        match self {
            Self::InProcess => Ok(()),
            Self::Enrolled(keys) => keys.refresh_since(Instant::now()).await,
        }
    }

    /// Has the keys that have changed read soon.
    pub(crate) fn want_keys(&self) {
        if let Self::Enrolled(keys) = self {
            keys.wanted.wake();
        }
    }

    /// Verifies the seal of a message with the keys that are known.
    pub(crate) fn open<'a>(
        &self,
        purpose: Purpose,
        payload: &'a [u8],
        now: Timestamp,
    ) -> Result<Opened<'a>, Forged> {
        let Self::Enrolled(keys) = self else {
            return Ok(Opened {
                executor: None,
                key: None,
                body: payload,
            });
        };
        open_sealed(keys, purpose, Sealed::parse(payload)?, now)
    }
}

fn open_sealed<'a>(
    keys: &EnrolledKeys,
    purpose: Purpose,
    sealed: Sealed<'a>,
    now: Timestamp,
) -> Result<Opened<'a>, Forged> {
    let Some((public, standing)) = keys.find(&sealed.executor, &sealed.key, now) else {
        return Err(Forged::NotEnrolled {
            executor: sealed.executor,
            key: sealed.key,
        });
    };
    let counts = match standing {
        KeyStanding::Allowed => true,
        KeyStanding::JustReplaced => may_be_queued(purpose),
        KeyStanding::Revoked => false,
    };
    if !counts {
        return Err(Forged::Revoked {
            executor: sealed.executor,
            key: sealed.key,
        });
    }
    sealed.verify(purpose, &public)?;
    Ok(Opened {
        executor: Some(sealed.executor),
        key: Some(sealed.key),
        body: sealed.body,
    })
}

/// Whether such messages wait in a queue, so that they may be older than the replacement of their key. The others speak of
/// now. While a worker's key is being replaced, each second heartbeat has the seal of the next one, and counts.
fn may_be_queued(purpose: Purpose) -> bool {
    match purpose {
        Purpose::Reports | Purpose::DeadLetter => true,
        Purpose::Heartbeat | Purpose::Holdings => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_one_process_messages_count_as_they_are() {
        let now = Timestamp::from_millis(0);
        let opened = Origins::InProcess.open(Purpose::Reports, b"{}\n{}", now);
        let opened = opened.expect("no seal is needed");
        assert_eq!(opened.executor, None);
        assert_eq!(opened.body, b"{}\n{}");
        let named = ExecutorId {
            group: "g".parse().expect("valid"),
            name: "e".parse().expect("valid"),
        };
        assert_eq!(opened.check_names(&named), Ok(()));
    }

    #[test]
    fn an_executor_speaks_for_itself_alone() {
        let executor = |name: &str| ExecutorId {
            group: "g".parse().expect("valid"),
            name: name.parse().expect("valid"),
        };
        let opened = Opened {
            executor: Some(executor("one")),
            key: None,
            body: b"",
        };
        assert_eq!(opened.check_names(&executor("one")), Ok(()));
        let expected = Forged::OtherExecutor {
            sealer: executor("one"),
            named: executor("two"),
        };
        assert_eq!(opened.check_names(&executor("two")), Err(expected));
    }

    #[test]
    fn an_executor_speaks_for_no_group_of_the_same_name_in_another_namespace() {
        let executor = |group: &str| ExecutorId {
            group: group.parse().expect("valid"),
            name: "one".parse().expect("valid"),
        };
        let opened = Opened {
            executor: Some(executor("a/x")),
            key: None,
            body: b"",
        };
        assert_eq!(opened.check_names(&executor("a/x")), Ok(()));
        for other in ["x", "b/x", "a", "default/x"] {
            let checked = opened.check_names(&executor(other));
            assert!(
                matches!(checked, Err(Forged::OtherExecutor { .. })),
                "{other}"
            );
        }
    }
}
