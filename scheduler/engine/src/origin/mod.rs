//! The origin of workers' messages: which executor has sealed a message, and whether its key is enrolled.
//!
//! [`keys`] holds the enrolled keys in memory. [`origins`] opens sealed messages with them, and [`forged`] says why one
//! was refused. [`forged_messages`] counts refused messages and warns of them. [`heartbeat_order`] recognises heartbeats
//! that were sent again. [`claims`] keeps the claims of executors whose keys are not enrolled, and [`enrolment`] carries
//! them out.
//!
//! A message is verified once, however many reports it has. No lock is held meanwhile.

pub(crate) mod claims;
pub(crate) mod enrolment;
pub(crate) mod forged;
pub(crate) mod forged_messages;
pub(crate) mod heartbeat_order;
mod key_table;
pub(crate) mod keys;
pub(crate) mod origins;

pub use keys::EnrolledKeys;
pub use origins::Origins;
