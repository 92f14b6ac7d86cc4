//! Versioned wire messages between schedulers and workers, and their signatures and seals.
//!
//! The format is JSON with `v: 1`. Readers ignore unknown fields and refuse unknown versions. Golden files fix the
//! format.

mod key_text;
mod merkle;
pub mod message;
pub mod origin;
mod report_lines;
pub mod sign;
mod sign_error;
mod signing_keys;
mod trigger_signature;
mod trigger_verifier;

pub use message::{
    Control, DecodeError, HeartbeatMessage, HeartbeatSender, HoldingsReply, Incarnation,
    JobSnapshot, KNOWN_FROM_ANOTHER_RUN, LeaseTimes, ReportMessage, StartRecord, Trigger,
    TriggerRequest, UNREADABLE, VERSION, Versioned, WorkerProcess, decode, encode,
};
pub use report_lines::{decode_reports, encode_report};
pub use sign::{PUBLIC_KEY_PREFIX, SignError, SigningKey, VerifyingKeys, without_signature};
pub use signing_keys::SigningKeys;
pub use trigger_signature::TriggerSignature;
pub use trigger_verifier::TriggerVerifier;
