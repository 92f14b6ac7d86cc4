//! The worker's journal: which attempts it has accepted, started, ended and reported, on disk.
//!
//! One `SQLite` file with one connection. All changes of one turn of the event loop are one write, so a turn costs
//! one disk sync however many attempts it concerns. An entry only moves forward: to a newer attempt, or within an
//! attempt from accepted to started to ended to reported. A repeated or older write changes nothing. The triggers of
//! waiting attempts are beside their entries, in a table of their own. The journal knows nothing of lanes and brokers.

mod entry;
mod error;
mod file;
mod keys;
mod lock;
mod open;
mod prune;
mod read;
mod recent_keys;
mod schema;
mod statements;
#[cfg(test)]
mod tests;
mod waiting;
mod write;

pub(crate) use entry::{Entry, EntryState, LeaseRecord};
pub use error::{JournalError, UnusableJournal};
pub(crate) use file::Journal;
