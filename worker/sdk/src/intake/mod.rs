//! Intake: fetches triggers, parses and verifies them, and passes them to the event loop.
//!
//! It looks at each message separately. It knows nothing of lanes and the journal.

mod fetch;
mod parse;

pub(crate) use fetch::{Intake, Received};
pub(crate) use parse::{ParsedTrigger, parse_stored};
