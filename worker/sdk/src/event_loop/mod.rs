//! The event loop of a worker: one task that decides, journals and then acts.
//!
//! Each turn takes all inputs that have come: triggers, ended attempts, orders and confirmed reports. It decides what
//! follows and writes all decisions to the journal at once. After that it acts: it settles triggers, starts and stops
//! handlers, and reports. Every action is on disk before it happens, so after a crash at any point the next process
//! continues from the journal.

mod accept;
mod act;
mod commit;
mod decisions;
mod drain;
mod early_cancels;
mod ended;
mod fencing;
mod halt;
mod holdings;
mod inputs;
mod lane_events;
mod orders;
mod other_fire;
mod queue_position;
mod recovery;
mod resend_backoff;
mod run;
mod starting;
mod state;
mod unjournalled;

pub(crate) use halt::Halt;
pub(crate) use inputs::channels;
pub(crate) use state::{EventLoop, Services};
