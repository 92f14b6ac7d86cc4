//! The replacement of a worker's key.

use std::fmt;
use std::sync::Arc;

use cueline_protocol::origin::WorkerKey;

type Callback = dyn Fn() + Send + Sync;

/// A key that replaces the worker's present one as soon as schedulers accept it.
#[derive(Clone)]
pub struct KeyRotation {
    pub(super) key: WorkerKey,
    on_accepted: Arc<Callback>,
}

impl fmt::Debug for KeyRotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRotation")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl KeyRotation {
    /// Replaces the present key by `key`. When schedulers have accepted it, `on_accepted` is called once, and must
    /// return soon. It should make the new key the one of the next start.
    pub fn new(key: WorkerKey, on_accepted: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            key,
            on_accepted: Arc::new(on_accepted),
        }
    }

    pub(super) fn accepted(&self) {
        (self.on_accepted)();
    }
}
