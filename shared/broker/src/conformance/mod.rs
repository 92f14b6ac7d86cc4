//! Tests that every driver must pass.
//!
//! A driver's crate has a test target with `harness = false`. Its `main` calls [`main`] with its own [`Harness`]. The
//! output lists each [`Case`] with its result. Cases that the driver's [`Capabilities`] exclude are listed as ignored,
//! with the reason.
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     cueline_broker::conformance::main(MyHarness::default())
//! }
//! ```
//!
//! [`Faulty`] makes calls to any driver fail on demand. The suite tests [`Broker`](crate::Broker) with it; tests of
//! other layers may use it too.

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
mod start_logs;

pub use faulty::{Fault, Faults, Faulty, Operation};
use fixture::Fixture;
pub use runner::main;

/// Limits with which a case opens a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The driver delivers an unsettled message again after this time.
    pub ack_wait: Duration,
    /// The most messages in one queue; the driver's default if `None`.
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

/// Runs the broker product for the suite. Its methods panic when they fail.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// A new place for a broker: a path, or an address with a prefix of its own.
    async fn place(&self) -> String;

    /// Opens the broker at `place`. A child process also calls it, with the place of its parent.
    async fn open(&self, place: &str, limits: Limits) -> Arc<dyn Driver>;

    /// Ends the broker behind `driver` without warning, as far as that is possible without ending this process. The
    /// next `open` finds only what was on disk.
    async fn crash(&self, place: &str, driver: Arc<dyn Driver>);

    /// The number of servers for cases that crash the broker. Each server runs one such case at a time, because a crash
    /// affects all its places. 0 if each place crashes alone.
    fn crash_servers(&self) -> usize {
        0
    }

    /// A new place on one of the [`crash_servers`](Self::crash_servers).
    async fn place_on(&self, _server: usize) -> String {
        self.place().await
    }
}

/// The capability that a case requires.
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
    /// Why a driver with `capabilities` cannot run the case. `None` if it can.
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

    /// Whether cases with this need crash the broker.
    fn crashes(self) -> bool {
        matches!(self, Self::Durable | Self::CountsAcrossRestart)
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One test. It panics if the driver fails it.
#[derive(Clone, Copy)]
pub struct Case {
    /// What the driver does, as a sentence in `snake_case`.
    pub name: &'static str,
    /// The capability that the case requires.
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
    /// Runs the case at a place of its own. `server` names one of the [`crash_servers`](Harness::crash_servers).
    pub async fn run(&self, harness: Arc<dyn Harness>, server: Option<usize>) {
        let place = match server {
            Some(server) => harness.place_on(server).await,
            None => harness.place().await,
        };
        (self.run)(Fixture::new(harness, place)).await;
    }
}

/// Lists the cases of a module: `cases![Need: function, …]`.
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
        start_logs::CASES,
        restart::CASES,
        kill::CASES,
        broker::CASES,
    ]
    .concat()
}
