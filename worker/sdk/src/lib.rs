//! Worker SDK: what a program needs to run Cueline's jobs.
//!
//! A worker fetches triggers from its queue, journals and acks them, runs their handlers lane by lane, and reports.
//! It knows nothing of schedules and of the store.
//!
//! ```no_run
//! use cueline_broker::Broker;
//! use cueline_worker::{Context, Failure, Result, VerifyingKeys, Worker, WorkerIdentity};
//!
//! async fn run(broker: Broker, identity: WorkerIdentity, keys: VerifyingKeys) -> Result<()> {
//!     Worker::builder("billing")
//!         .identity(identity) // name, key and state directory
//!         .broker(broker)
//!         .trust(keys) // of the schedulers: triggers without their signature do not run
//!         .handler("invoice", invoice)
//!         .build()?
//!         .run_until_signal() // drains at SIGTERM
//!         .await
//! }
//!
//! async fn invoice(cx: Context) -> Result<String, Failure> {
//!     let month: u8 = cx.params()?; // the JSON parameter, or a clear error
//!     let customers = ["ann", "bob"];
//!     for (i, customer) in (1_u8..).zip(customers) {
//!         cx.cancelled()?; // ends the attempt once it has to stop
//!         cx.log(format!("billed {customer} for month {month}"));
//!         cx.progress(f64::from(i) / 2.0); // shown live
//!     }
//!     Ok("done".into()) // the output, passed to child jobs
//! }
//! ```
//!
//! [`WorkerIdentity::open`] reads or makes the key by which schedulers know the worker. [`testing::run`] tries a handler
//! without a server.
//!
//! # Examples
//!
//! - `worker/sdk/examples/native_worker.rs`: a worker on NATS.
//! - `worker/sdk/examples/block_policies.rs`: block policies, and handlers that stop when their run is cancelled.
//! - `cli/examples/embedded_scheduler.rs`: a scheduler, a broker and a worker inside a program of one's own. It needs
//!   crates that this one must not depend on, so it is an example of the crate that depends on all of them.
//!
//! # Guarantees
//!
//! - A trigger is acked once it is in the journal on disk. Its handler starts once the start is in the journal. After
//!   kill -9 the next worker on the same state directory continues: waiting attempts keep their place, running ones
//!   end `lost`, ended ones are reported.
//! - A known attempt never runs again. If it has ended, the worker reports the outcome from the journal again.
//! - While the journal cannot be written, nothing is acked or started.
//! - When the broker cannot be reached, the worker stops its attempts before the schedulers may give them to another
//!   executor, and starts nothing. This holds after a pause of the process, a sleep of the machine, and a restart:
//!   times are measured on `CLOCK_BOOTTIME` (Linux). It cannot stop a handler that never awaits, or a process that has
//!   left its group. It cannot stop the processes that it left behind when it was killed itself.
//!
//! # Limits
//!
//! | what | limit | at the limit |
//! | --- | --- | --- |
//! | handlers at once | [`Builder::concurrency`], 256 | lanes wait; the highest priority goes first, equals take turns |
//! | held triggers | 100,000 | others stay in the broker's queue |
//! | triggers waiting in a lane | the job's `backlog` | others end `discarded` |
//! | unconfirmed reports | 64 MiB, and those of running attempts | nothing is fetched or started |
//! | log of an attempt | [`Builder::log_bytes`], 1 MiB | the middle is dropped, and a line says so |
//! | log line | 64 KiB | cut, and the line says so |
//! | message, output | 64 KiB each | cut, and the log says so |
//! | reported entries in the journal | 70 minutes, at most 1,000,000 | the oldest are deleted |
//! | time without a proof of the broker lease | [`Builder::fence_after`], 20 s | nothing is accepted or started; running attempts are stopped unless their job says `fence = "keep"` |
//! | end of attempts that are stopped then | 2 s before [`Builder::failover_after`] | handlers are dropped |
//! | waiting attempts without the lease | halfway between both, 24 s | returned |
//! | outstanding echoes | 64 | the oldest is forgotten |
//! | attempts that wait for the record of their start | 10,000 | nothing more starts |
//! | waiting orders | 2,048 | others are dropped; the schedulers repeat them |
//! | outcomes reported again because schedulers still ask for them | 10,000; each 30 s after its report, then after twice the time | the reply says that the attempt is held |
//! | reports that wait until the worker is enrolled | they count as unconfirmed | nothing is fetched or started |
//! | verified signatures of triggers that are remembered | 256, each for up to 128 triggers | the one used least recently is forgotten and checked again |
//! | cancellations ahead of their trigger | 10,000 | the oldest is forgotten |

#![warn(clippy::missing_errors_doc)]

mod attempt;
mod builder;
mod connect;
pub mod context;
mod control;
pub mod error;
mod event_loop;
pub mod handler;
mod heartbeats;
mod identity;
mod intake;
mod journal;
mod lanes;
mod lease;
mod linger;
mod origin;
mod readiness;
mod registry;
mod report;
mod returned;
mod settings;
mod settle;
mod signals;
mod starts;
mod status;
mod tasks;
pub mod testing;
mod times;
mod worker;

pub use builder::Builder;
pub use context::{AttemptInfo, Context, StopReason, Stopped};
/// The types that [`AttemptInfo`] consists of, so that handlers need no other internal crate.
pub use cueline_model as model;
pub use cueline_model::LogStream;
pub use cueline_protocol::origin::{EnrolmentToken, InvalidEnrolmentToken, WorkerKey};
pub use cueline_protocol::{SignError, VerifyingKeys};
/// The TLS implementation of this build, for handlers with TLS clients of their own.
pub use cueline_runtime::tls::install_provider as install_tls_provider;
pub use cueline_runtime::{BootClock, ManualBootClock, Stop, SystemBootClock, TimeCounts};
pub use error::{BoxError, Error, Result};
pub use handler::{Handler, from_fn};
pub use journal::{JournalError, UnusableJournal};
pub use lease::LeaseDeadline;
pub use origin::{IdentityError, KeyFile, KeyFileError, WorkerIdentity};
pub use readiness::{Readiness, WorkerCounts};
pub use returned::{Failure, Output};
pub use times::WorkerTimes;
pub use worker::Worker;
