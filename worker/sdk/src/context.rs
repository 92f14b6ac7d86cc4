//! The handler's view of its attempt.

use std::fmt;
use std::sync::{Arc, OnceLock};

use cueline_model::{
    AttemptId, DurationMs, ExecutorName, Fence, HandlerSpec, JobId, JobName, LogStream, RunId,
    Shard, StoreId, Timestamp,
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::lease::BrokerLease;
use crate::returned::Failure;

/// Why an attempt must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The run was cancelled.
    Cancelled,
    /// The attempt reached its time limit.
    TimedOut,
    /// A newer trigger replaced it under the block policy `cover`.
    Covered,
    /// The worker stops, and the drain timeout has passed.
    Drained,
    /// The worker cannot reach the broker, and the schedulers may soon give the run to another executor.
    Fenced,
}

/// The error of [`Context::cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the attempt was asked to stop: {0:?}")]
pub struct Stopped(pub StopReason);

/// The facts of an attempt that do not change while it runs.
#[derive(Debug, Clone)]
pub struct AttemptInfo {
    /// The store that has the run. A run's id is unique only within its store.
    pub store: StoreId,
    /// The run, and the number of the attempt from 1.
    pub id: AttemptId,
    /// The job.
    pub job_id: JobId,
    /// The job's name.
    pub job: JobName,
    /// The executor that runs the attempt.
    pub executor: ExecutorName,
    /// The fire time.
    pub fire_at: Timestamp,
    /// Which part of the work this run does.
    pub shard: Shard,
    /// Parameter text.
    pub params: Option<String>,
    /// The handler of the job.
    pub handler: HandlerSpec,
    /// The time limit. The worker enforces it.
    pub timeout: Option<DurationMs>,
    /// The time between the request to stop and the forced stop.
    pub kill_grace: DurationMs,
    /// Whether the attempt is stopped when the broker lease ends. The worker enforces it.
    pub fence: Fence,
}

/// Receives a handler's log lines and progress.
pub(crate) trait AttemptSink: Send + Sync + 'static {
    fn line(&self, stream: LogStream, text: String);
    fn progress(&self, fraction: f64);
}

struct Inner {
    info: AttemptInfo,
    sink: Box<dyn AttemptSink>,
    stop: CancellationToken,
    reason: OnceLock<StopReason>,
    /// The kill grace of a fenced attempt if it is shorter than the job's.
    kill_grace_limit: OnceLock<DurationMs>,
    /// `None` for an attempt that goes on without a lease.
    lease: Option<Arc<BrokerLease>>,
}

/// The handler's view of its attempt: parameters, identity, log, progress, and the request to stop. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use cueline_worker::{Context, Failure};
///
/// async fn import(cx: Context) -> Result<String, Failure> {
///     let files: Vec<String> = cx.params()?; // fails if the parameter is no JSON list of strings
///     for (done, file) in files.iter().enumerate() {
///         cx.cancelled()?; // ends the attempt once it has to stop
///         cx.log(format!("importing {file}"));
///         cx.progress(done as f64 / files.len() as f64);
///         tokio::select! {
///             () = tokio::time::sleep(Duration::from_millis(10)) => {} // the work
///             reason = cx.stopped() => return Err(Failure::new(format!("undone: {reason:?}"))),
///         }
///     }
///     Ok(format!("{} files", files.len()))
/// }
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.info).finish()
    }
}

impl Context {
    /// Pass the lease only if the attempt must stop when the lease ends.
    pub(crate) fn new(
        info: AttemptInfo,
        sink: Box<dyn AttemptSink>,
        lease: Option<Arc<BrokerLease>>,
    ) -> Self {
        Self(Arc::new(Inner {
            info,
            sink,
            stop: CancellationToken::new(),
            reason: OnceLock::new(),
            kill_grace_limit: OnceLock::new(),
            lease,
        }))
    }

    /// Asks the handler to stop. The first reason stays.
    pub(crate) fn stop(&self, reason: StopReason) {
        let _ = self.0.reason.set(reason);
        self.0.stop.cancel();
    }

    /// Asks the handler to stop in time for the failover. An attempt that goes on without a lease is left alone.
    pub(crate) fn stop_fenced(&self) {
        let Some(lease) = &self.0.lease else {
            return;
        };
        let left = lease.time_left().saturating_sub(lease.kill_margin());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let _ = self.0.kill_grace_limit.set(DurationMs::millis(left_ms));
        self.stop(StopReason::Fenced);
    }

    /// The facts of the attempt that do not change while it runs.
    pub fn info(&self) -> &AttemptInfo {
        &self.0.info
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.0.info.id.run
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.info.id.attempt
    }

    /// The job's name.
    pub fn job(&self) -> &JobName {
        &self.0.info.job
    }

    /// The fire time.
    pub fn fire_at(&self) -> Timestamp {
        self.0.info.fire_at
    }

    /// Which part of the work this run does.
    pub fn shard(&self) -> &Shard {
        &self.0.info.shard
    }

    /// The parameter text; empty if there is none.
    pub fn params_text(&self) -> &str {
        self.0.info.params.as_deref().unwrap_or_default()
    }

    /// The parameter, parsed as JSON.
    ///
    /// # Errors
    ///
    /// A [`Failure`] that shows the parameter and the error in it.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let text = self.params_text();
        serde_json::from_str(text)
            .map_err(|e| Failure::new(format!("params: {text:?} does not fit: {e}")))
    }

    /// Writes lines to the run's log.
    pub fn log(&self, text: impl AsRef<str>) {
        for line in text.as_ref().lines() {
            self.line(LogStream::Log, line.to_owned());
        }
    }

    /// Writes one line, without its line end, to the run's log.
    pub fn line(&self, stream: LogStream, text: String) {
        self.0.sink.line(stream, text);
    }

    /// Reports which part of the work is done, from 0 to 1. Values outside are clamped.
    pub fn progress(&self, fraction: f64) {
        self.0.sink.progress(fraction.clamp(0.0, 1.0));
    }

    /// Checks whether the attempt must stop. Call it in loops, and right before anything that must not happen twice.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the attempt must stop.
    pub fn cancelled(&self) -> Result<(), Stopped> {
        self.stop_reason()
            .map_or(Ok(()), |reason| Err(Stopped(reason)))
    }

    /// Why the attempt must stop; `None` while it may go on.
    ///
    /// Reads the clock to see whether the broker lease has ended. The first call after a pause of the process
    /// (SIGSTOP, a sleeping machine) therefore returns [`StopReason::Fenced`] if another executor may have the run by
    /// now.
    pub fn stop_reason(&self) -> Option<StopReason> {
        if self.0.lease.as_ref().is_some_and(|l| l.is_fenced()) {
            self.stop_fenced();
        }
        if self.0.stop.is_cancelled() {
            self.0.reason.get().copied()
        } else {
            None
        }
    }

    /// Returns when the attempt must stop.
    pub async fn stopped(&self) -> StopReason {
        self.0.stop.cancelled().await;
        // The reason is set before the token is cancelled.
        self.0
            .reason
            .get()
            .copied()
            .unwrap_or(StopReason::Cancelled)
    }

    /// The time between the request to stop and the forced stop: the job's kill grace, or less if a fenced attempt
    /// must end sooner. Call it after [`stopped`](Self::stopped) has returned.
    pub fn kill_grace(&self) -> DurationMs {
        let grace = self.0.info.kill_grace;
        let limit = self.0.kill_grace_limit.get();
        limit.map_or(grace, |limit| grace.min(*limit))
    }

    /// When the worker's broker lease was last proven, in milliseconds on the boot clock. `None` for an attempt that
    /// does not depend on the lease. See [`LeaseDeadline`](crate::LeaseDeadline).
    pub fn lease_proven_ms(&self) -> Option<i64> {
        self.0.lease.as_ref()?.proven_ms()
    }
}
