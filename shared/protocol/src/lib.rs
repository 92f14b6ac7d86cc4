//! Versioned wire messages between schedulers and workers, and their signatures.
//!
//! JSON, `v: 1`. Unknown fields are ignored, an unknown version is refused. Golden files fix the format.

pub mod message;
pub mod sign;

pub use message::{
    Control, DecodeError, HeartbeatMessage, HoldingsReply, JobSnapshot, ReportMessage, Trigger,
    TriggerRequest, VERSION, Versioned, decode, decode_reports, encode,
};
pub use sign::{SignError, SigningKey, VerifyingKeys};
