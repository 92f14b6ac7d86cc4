//! The pure parts that every adapter needs: what is decided in the middle of a transaction. Knows no database.
//!
//! An adapter reads rows, hands them in as the types here, and writes what comes back. Ids are the plain numbers that statements take.
//! Users of a store have no business here.

pub mod attempt;
pub mod definitions;
pub mod facts;
pub mod identity;
pub mod jobs;
pub mod ledger;
pub mod log;
pub mod parents;
pub mod report;
pub mod skipped;
pub mod values;
