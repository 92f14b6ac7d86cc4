//! Versioned wire messages between schedulers and workers, and their signatures and seals.
//!
//! The format is JSON with `v: 1`. Readers ignore unknown fields and refuse unknown versions. Golden files fix the
//! format.

mod key_text;
pub mod message;
pub mod origin;
pub mod sign;
mod sign_error;

pub use message::{
    Control, DecodeError, HeartbeatMessage, HeartbeatSender, HoldingsReply, Incarnation,
    JobSnapshot, KNOWN_FROM_ANOTHER_RUN, LeaseTimes, ReportMessage, StartRecord, Trigger,
    TriggerRequest, VERSION, Versioned, WorkerProcess, decode, decode_reports, encode,
};
pub use sign::{SignError, SigningKey, VerifyingKeys};
