//! The worker's key: where it is kept, what is sealed with it, and whether schedulers accept it.

mod dead_letters;
mod key_file;
mod rotation;
mod sealing;
mod text_file;
mod worker_identity;

pub use key_file::{KeyFile, KeyFileError};
pub(crate) use sealing::Origin;
pub use worker_identity::{IdentityError, WorkerIdentity};
