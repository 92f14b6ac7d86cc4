//! The tests that every driver passes, unchanged.
//!
//! A driver's crate has a test target with `harness = false` whose `main` is [`main`] with its own [`Harness`]. Each
//! [`Case`] is then a test of that target, with its name and result in the output; one that the driver's
//! [`Capabilities`] rule out is printed as ignored with the reason.
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     cueline_broker::conformance::main(MyHarness::default())
//! }
//! ```
//!
//! [`Faulty`] makes calls to any driver fail on demand; the suite uses it for what [`Broker`](crate::Broker) adds, and
//! others may for what they add.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::{Capabilities, Driver};

mod bounds;
mod broker;
mod channels;
mod faulty;
mod fixture;
mod kill;
mod order;
mod queues;
mod redelivery;
mod restart;
mod runner;
mod settle;

pub use faulty::{Fault, Faults, Faulty, Operation};
use fixture::Fixture;
pub use runner::main;

/// What a case wants a driver to be opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// When an unsettled message is handed out again.
    pub ack_wait: Duration,
    /// The most messages in one queue, or whatever the driver does by itself.
    pub queue_limit: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ack_wait: Duration::from_secs(30),
            queue_limit: None,
        }
    }
}

/// Runs the broker product for the suite. Its methods panic when they cannot do what they should.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// A place where no broker has been: a path, or an address with a prefix of its own.
    async fn place(&self) -> String;

    /// Opens the broker at `place`; also called in a child process, with a place of its parent.
    async fn open(&self, place: &str, limits: Limits) -> Arc<dyn Driver>;

    /// Ends what is behind `driver` without a warning, as far as that is possible without ending this process; the next
    /// `open` finds what was on disk.
    async fn crash(&self, place: &str, driver: Arc<dyn Driver>);

    /// The servers for cases that crash, if a crash affects all places on a server. Each runs one such case at a time. 0 if each
    /// place crashes alone.
    fn crash_servers(&self) -> usize {
        0
    }

    /// A new place on one of the [`crash_servers`](Self::crash_servers).
    async fn place_on(&self, _server: usize) -> String {
        self.place().await
    }
}

/// What a driver has to be able to do for a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing beyond the port.
    Nothing,
    /// [`Capabilities::durable`].
    Durable,
    /// [`Capabilities::deduplicates`].
    Deduplicates,
    /// [`Capabilities::delayed_retry`].
    DelayedRetry,
    /// [`Capabilities::counts_across_restart`].
    CountsAcrossRestart,
    /// [`Capabilities::shared_by_processes`].
    SharedByProcesses,
    /// [`Capabilities::exact_limit`].
    ExactLimit,
}

impl Need {
    /// Why a driver with `capabilities` does not run the case, if it does not.
    pub fn missing_in(self, capabilities: &Capabilities) -> Option<&'static str> {
        let (has, reason) = match self {
            Self::Nothing => return None,
            Self::Durable => (
                capabilities.durable,
                "confirmed messages do not survive a kill of this broker",
            ),
            Self::Deduplicates => (
                capabilities.deduplicates,
                "this broker does not deduplicate by id",
            ),
            Self::DelayedRetry => (
                capabilities.delayed_retry,
                "this broker cannot deliver again after a delay",
            ),
            Self::CountsAcrossRestart => (
                capabilities.counts_across_restart,
                "this broker does not count deliveries across a restart",
            ),
            Self::SharedByProcesses => (
                capabilities.shared_by_processes,
                "this broker serves one process",
            ),
            Self::ExactLimit => (
                capabilities.exact_limit,
                "this broker takes more than a queue's limit before it refuses",
            ),
        };
        (!has).then_some(reason)
    }

    /// Cases with this need crash the broker.
    fn crashes(self) -> bool {
        matches!(self, Self::Durable | Self::CountsAcrossRestart)
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One test. It panics when the driver does not pass.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: what the driver does, as a sentence.
    pub name: &'static str,
    /// What it needs of the driver.
    pub need: Need,
    run: fn(Fixture) -> CaseFuture,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("need", &self.need)
            .finish_non_exhaustive()
    }
}

impl Case {
    /// Runs it at a place of its own, on one of the [`crash_servers`](Harness::crash_servers) if `server` names one.
    pub async fn run(&self, harness: Arc<dyn Harness>, server: Option<usize>) {
        let place = match server {
            Some(server) => harness.place_on(server).await,
            None => harness.place().await,
        };
        (self.run)(Fixture::new(harness, place)).await;
    }
}

/// Names the cases of a module: `cases![Need: function, …]`.
macro_rules! cases {
    ($($need:ident: $name:ident),* $(,)?) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[$($crate::conformance::Case {
            name: concat!(stringify!($name)),
            need: $crate::conformance::Need::$need,
            run: |fixture| Box::pin($name(fixture)),
        }),*];
    };
}
use cases;

/// All cases.
pub fn all_cases() -> Vec<Case> {
    [
        order::CASES,
        settle::CASES,
        redelivery::CASES,
        queues::CASES,
        bounds::CASES,
        channels::CASES,
        restart::CASES,
        kill::CASES,
        broker::CASES,
    ]
    .concat()
}
