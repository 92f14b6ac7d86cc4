//! The origin of workers' messages.
//!
//! Each worker has a key of its own. It seals what it sends, and schedulers check the seals. A worker proves with an
//! [`EnrolmentToken`] that a scheduler's operator admitted its key, and replaces the key by a [`RotationClaim`].

mod enrolment;
mod key;
mod rotation;
mod seal;

pub use enrolment::{EnrolmentClaim, EnrolmentToken, InvalidEnrolmentToken};
pub use key::{InvalidWorkerKeyId, WorkerKey, WorkerKeyId, WorkerPublicKey};
pub use rotation::RotationClaim;
pub use seal::{Purpose, SealError, Sealed, Sealer};
