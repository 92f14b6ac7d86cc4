//! Versioned wire messages between schedulers and workers, and their signatures.
//!
//! JSON, `v: 1`. Unknown fields are ignored, an unknown version is refused. Golden files fix the format.

pub mod message;
pub mod sign;

pub use message::{
    Beat, Control, ControlReply, DecodeError, Event, EventBody, Holding, JobPart, LogLine, Stream,
    Trigger, TriggerRequest, VERSION, Versioned, decode, decode_events, encode,
};
pub use sign::{SignError, SigningKey, VerifyingKeys};
