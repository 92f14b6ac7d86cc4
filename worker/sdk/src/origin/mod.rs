//! The worker's key: where it is kept, what is sealed with it, and whether schedulers accept it.

mod dead_letters;
mod key_file;
mod rotation;
mod sealing;

pub use dead_letters::DeadLetterSealer;
pub use key_file::{KeyFile, KeyFileError};
pub use rotation::KeyRotation;
pub(crate) use sealing::Origin;
