//! The replacement of a worker's key.

use std::fmt;
use std::sync::Arc;

use cueline_protocol::origin::WorkerKey;

type Callback = dyn Fn() + Send + Sync;

/// A key that replaces the worker's present one as soon as schedulers accept it.
#[derive(Debug, Clone)]
pub(super) struct KeyRotation {
    pub(super) key: WorkerKey,
    pub(super) on_accepted: OnAccepted,
}

/// What follows once schedulers have accepted the key.
#[derive(Clone)]
pub(super) struct OnAccepted(Arc<Callback>);

impl OnAccepted {
    pub(super) fn call(&self) {
        (self.0)();
    }
}

impl fmt::Debug for OnAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnAccepted(..)")
    }
}

impl KeyRotation {
    /// Replaces the present key by `key`. When schedulers have accepted it, `on_accepted` is called once, and must
    /// return soon. It should make the new key the one of the next start.
    pub(super) fn new(key: WorkerKey, on_accepted: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            key,
            on_accepted: OnAccepted(Arc::new(on_accepted)),
        }
    }
}
