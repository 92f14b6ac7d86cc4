//! Worker SDK: what a process needs to run Cueline's jobs.
//!
//! A worker takes triggers from its queue, writes them into its journal, acks them, treats them lane by lane, runs the
//! handlers and reports. It knows nothing of schedules or of the store.
//!
//! ```no_run
//! use cueline_worker::{Context, Failure, Result, Worker};
//!
//! async fn run(broker: cueline_broker::Broker) -> Result<()> {
//!     Worker::builder("billing")
//!         .name("billing-1")
//!         .broker(broker)
//!         .state_dir("/var/lib/billing")
//!         .handler("invoice", invoice)
//!         .build()?
//!         .run_until_signal() // until SIGTERM: drains, reports, leaves
//!         .await
//! }
//!
//! async fn invoice(cx: Context) -> Result<String, Failure> {
//!     let month: u8 = cx.params()?; // JSON parameter, a clear error if it does not fit
//!     let customers = ["ann", "bob"];
//!     for (i, customer) in (1_u8..).zip(customers) {
//!         cx.cancelled()?; // whatever it has to stop for arrives here
//!         cx.log(format!("billed {customer} for month {month}"));
//!         cx.progress(f64::from(i) / 2.0); // seen live in the console
//!     }
//!     Ok("done".into()) // output, handed to jobs that come after
//! }
//! ```
//!
//! A handler is tried without a server by [`testing::run`].
//!
//! # What a worker promises
//!
//! - A trigger is acked when it is in the journal on disk, and started after its start is in the journal. After
//!   kill -9 the next worker on the same state directory goes on: what waited keeps its place, what ran ends `lost`,
//!   what had ended is reported.
//! - An attempt that it knows is never run a second time; one that has ended is answered from the journal, also when the broker has lost the answer.
//! - When the journal cannot be written, nothing is acked or started until it can.
//! - Without contact to the broker it stops its own attempts before the schedulers may give them to another executor, and starts nothing, also
//!   after a pause of the process, after the machine's sleep and after a restart. It measures on `CLOCK_BOOTTIME` (Linux); what it cannot stop is a
//!   handler that never awaits, a process that has left its group, and what it left behind when it was itself killed.
//!
//! # Limits
//!
//! | what | how much | at the limit |
//! | --- | --- | --- |
//! | handlers at once | [`Builder::concurrency`], 256 | lanes wait; the higher priority goes first, equals take turns |
//! | triggers held | 100,000 | the rest stays in the broker's queue |
//! | triggers waiting in a lane | the job's `backlog` | further ones end `discarded` |
//! | reports not confirmed | 64 MiB, then what still runs | nothing is fetched or started |
//! | log of an attempt | [`Builder::log_bytes`], 1 MiB | the middle is dropped, a line says so |
//! | a log line | 64 KiB | cut, and says so |
//! | message, output | 64 KiB each | cut, and the log says so |
//! | reported entries in the journal | 70 minutes, at most 1,000,000 | deleted, oldest first |
//! | stores whose runs a state directory can tell apart | 512 | triggers of further ones go to the dead letters |
//! | time without contact | [`Builder::fence_after`], two thirds of [`Builder::failover_after`]: 20 s | nothing is taken or started, what runs is stopped unless the job says `fence = "keep"`; what waits stays |
//! | grace of what is stopped then | until 2 s (or a fifteenth) before [`Builder::failover_after`], 30 s | killed, dropped |
//! | time for which what waits is kept without contact | half-way between these, 24 s | given back |
//! | echoes waited for | 64 | the oldest is forgotten |
//! | orders that wait | 2,048 | further ones are dropped; the schedulers repeat them |
//! | outcomes reported again because schedulers still ask | 30 s after the report, then each time after twice as long, at most 10,000 | it is held, and not reported again yet |
//! | cancellations ahead of their trigger | 10,000 | the oldest is forgotten |

mod attempt;
mod beat;
mod builder;
mod contact;
pub mod context;
mod control;
mod core;
pub mod error;
mod gauges;
pub mod handler;
mod intake;
mod journal;
mod lanes;
mod outbox;
mod registry;
mod reporter;
mod returned;
mod settings;
mod settle;
mod stores;
pub mod testing;
mod worker;

pub use builder::Builder;
pub use context::{Context, Facts, StopReason, Stopped};
/// The words that [`Facts`] are made of; handlers need no other internal crate.
pub use cueline_model as model;
pub use cueline_model::LogStream;
pub use cueline_protocol::VerifyingKeys;
pub use cueline_runtime::tls::install_provider as install_tls_provider;
pub use cueline_runtime::{BootClock, ManualBootClock, Stop, SystemBootClock};
pub use error::{BoxError, Error, Result};
pub use handler::{Handler, from_fn};
pub use journal::{JournalError, UnusableJournal};
pub use returned::{Failure, Output};
pub use settings::Reach;
pub use worker::Worker;
