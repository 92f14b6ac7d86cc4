//! Proof of who refused a message. Drivers call it without knowing how seals are made.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

type Seal = dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync;

/// Seals the dead letters of one process. A driver that has one seals each [`DeadLetter`](crate::DeadLetter) that it
/// puts into the dead-letter queue.
#[derive(Clone)]
pub struct DeadLetterSeal(Arc<Seal>);

impl DeadLetterSeal {
    /// Seals with this function. It gets an encoded dead letter, and returns it with a line feed and one line of seal
    /// behind it.
    pub fn new(seal: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self(Arc::new(seal))
    }

    /// The sealed form of an encoded dead letter.
    pub fn seal(&self, letter: &[u8]) -> Bytes {
        (self.0)(letter.to_vec()).into()
    }
}

impl fmt::Debug for DeadLetterSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeadLetterSeal(..)")
    }
}

/// Two are equal if one is a clone of the other.
impl PartialEq for DeadLetterSeal {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DeadLetterSeal {}
