//! Intake: fetches triggers, parses and verifies them, and passes them to the event loop.
//!
//! It decides what one message alone decides. It knows nothing of lanes and of the journal.

mod fetch;
mod parse;

pub(crate) use fetch::{Intake, Received};
pub(crate) use parse::{ParsedTrigger, parse_stored};
