//! Seals refused triggers, which the broker's driver moves to the dead-letter queue.

use std::sync::{Arc, Mutex, PoisonError};

use cueline_broker::DeadLetterSeal;
use cueline_protocol::origin::{Purpose, Sealer};

/// Seals the dead letters of a worker. The driver of its broker is opened before the worker, so it has a sealer of its
/// own. Clones share the key.
#[derive(Debug, Clone)]
pub(super) struct DeadLetterSealer(Arc<Mutex<Sealer>>);

impl DeadLetterSealer {
    /// Seals with this sealer, which should be the worker's.
    pub(super) fn new(sealer: Sealer) -> Self {
        Self(Arc::new(Mutex::new(sealer)))
    }

    /// Seals with another key from now on.
    pub(super) fn replace(&self, sealer: Sealer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sealer;
    }

    /// What the options of the driver need.
    pub(super) fn seal(&self) -> DeadLetterSeal {
        let current = Arc::clone(&self.0);
        DeadLetterSeal::new(move |letter| {
            let sealer = current
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            sealer.seal(Purpose::DeadLetter, letter)
        })
    }
}

#[cfg(test)]
mod tests {
    use cueline_protocol::origin::{Sealed, WorkerKey};

    use super::*;

    #[test]
    fn a_driver_seals_with_the_key_that_replaced_the_first() {
        let of_seed = |seed| {
            let executor = cueline_model::ExecutorId {
                group: "billing".parse().expect("a name"),
                name: "one".parse().expect("a name"),
            };
            Sealer::new(executor, WorkerKey::from_seed([seed; 32]))
        };
        let letters = DeadLetterSealer::new(of_seed(1));
        let seal = letters.seal();
        for seed in [1, 2] {
            letters.replace(of_seed(seed));
            let sealed = seal.seal(b"{}");
            let sealed = Sealed::parse(&sealed).expect("sealed");
            let verified = sealed.verify(Purpose::DeadLetter, &of_seed(seed).public_key());
            assert_eq!((sealed.body, verified), (&b"{}"[..], Ok(())));
        }
    }
}
