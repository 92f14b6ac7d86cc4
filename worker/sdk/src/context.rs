//! What a handler gets.

use std::sync::{Arc, OnceLock};

use cueline_model::{
    DurationMs, ExecutorName, Fence, HandlerSpec, JobId, JobName, LogStream, RunId, Shard,
    Timestamp,
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::contact::Contact;
use crate::returned::Failure;

/// Why an attempt has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A person or the API cancelled the run.
    Cancelled,
    /// The time limit passed.
    TimedOut,
    /// A newer trigger replaced it.
    Covered,
    /// The worker has to stop and has waited long enough.
    Drained,
    /// The worker has no contact with the broker, and the schedulers may soon give the run to another executor.
    Fenced,
}

/// The error of [`Context::cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the attempt was told to stop: {0:?}")]
pub struct Stopped(pub StopReason);

/// What is fixed about an attempt.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The run.
    pub run: RunId,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The job's id.
    pub job_id: JobId,
    /// The job's name.
    pub job: JobName,
    /// This executor.
    pub executor: ExecutorName,
    /// The fire time.
    pub fire_at: Timestamp,
    /// Which part of the work.
    pub shard: Shard,
    /// Parameter text.
    pub params: Option<String>,
    /// What to run.
    pub handler: HandlerSpec,
    /// The longest the attempt may run; the worker sees to it.
    pub timeout: Option<DurationMs>,
    /// Time between the polite and the final stop.
    pub kill_grace: DurationMs,
    /// What becomes of it when the worker is without contact; the worker sees to it.
    pub fence: Fence,
}

/// Where a handler's log lines and progress go.
pub(crate) trait Sink: Send + Sync + 'static {
    fn line(&self, stream: LogStream, text: String);
    fn progress(&self, fraction: f64);
}

pub(crate) struct Inner {
    pub(crate) facts: Facts,
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) token: CancellationToken,
    pub(crate) reason: OnceLock<StopReason>,
    /// What is left of the kill grace, where there is less time than the job gives.
    pub(crate) left: OnceLock<DurationMs>,
    /// What it may not outlive, unless it goes on without contact.
    contact: Option<Arc<Contact>>,
}

/// What a handler gets: its parameters, who it is, and the way out. Cheap to clone.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<Inner>);

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Context").field(&self.0.facts).finish()
    }
}

impl Context {
    pub(crate) fn new(facts: Facts, sink: Box<dyn Sink>, contact: Option<Arc<Contact>>) -> Self {
        Self(Arc::new(Inner {
            facts,
            sink,
            token: CancellationToken::new(),
            reason: OnceLock::new(),
            left: OnceLock::new(),
            contact,
        }))
    }

    /// Tells the handler to stop. The first reason stays.
    pub(crate) fn stop(&self, reason: StopReason) {
        let _ = self.0.reason.set(reason);
        self.0.token.cancel();
    }

    /// Tells it to stop for want of contact, in what time there is left.
    pub(crate) fn stop_fenced(&self, contact: &Contact) {
        let left = contact.left().saturating_sub(contact.last_stop());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let _ = self.0.left.set(DurationMs::millis(left_ms));
        self.stop(StopReason::Fenced);
    }

    /// Time between the polite and the final stop: the job's, or what is left if the attempt has to have ended sooner. To be asked once
    /// [`stopped`](Self::stopped) has returned.
    pub fn kill_grace(&self) -> DurationMs {
        let grace = self.0.facts.kill_grace;
        self.0.left.get().map_or(grace, |left| grace.min(*left))
    }

    /// All that is fixed about the attempt.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.0.facts.run
    }

    /// The attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.facts.attempt
    }

    /// The job's name.
    pub fn job(&self) -> &JobName {
        &self.0.facts.job
    }

    /// The fire time.
    pub fn fire_at(&self) -> Timestamp {
        self.0.facts.fire_at
    }

    /// Which part of the work.
    pub fn shard(&self) -> &Shard {
        &self.0.facts.shard
    }

    /// The parameter text; empty when there is none.
    pub fn params_text(&self) -> &str {
        self.0.facts.params.as_deref().unwrap_or_default()
    }

    /// The parameter, read as JSON. The error says what was given and what did not fit.
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

    /// Writes one line, without its end, to the run's log.
    pub fn line(&self, stream: LogStream, text: String) {
        self.0.sink.line(stream, text);
    }

    /// Says how far the attempt is, from 0 to 1.
    pub fn progress(&self, fraction: f64) {
        self.0.sink.progress(fraction.clamp(0.0, 1.0));
    }

    /// An error when the attempt has to stop: for `cx.cancelled()?` in a loop, and right before what must not be done twice.
    pub fn cancelled(&self) -> Result<(), Stopped> {
        self.stop_reason()
            .map_or(Ok(()), |reason| Err(Stopped(reason)))
    }

    /// Why the attempt has to stop; `None` while it need not.
    ///
    /// Asks how long the worker has been without contact, and does not wait to be told: where the whole process stood still (SIGSTOP, a machine
    /// that slept), the run may be somebody else's by now, and this says so at the first question.
    pub fn stop_reason(&self) -> Option<StopReason> {
        if let Some(contact) = &self.0.contact
            && contact.is_fenced()
        {
            self.stop_fenced(contact);
        }
        if self.0.token.is_cancelled() {
            self.0.reason.get().copied()
        } else {
            None
        }
    }

    /// When the worker's contact with the broker was proven for the last time, in milliseconds on the boot clock: by the right of that it starts what it
    /// starts now. `None` where nothing depends on it, and for an attempt that goes on without. See [`Reach`](crate::Reach).
    pub fn contact_proven_ms(&self) -> Option<i64> {
        self.0.contact.as_ref()?.proven_ms()
    }

    /// Returns when the attempt has to stop.
    pub async fn stopped(&self) -> StopReason {
        self.0.token.cancelled().await;
        self.0
            .reason
            .get()
            .copied()
            .unwrap_or(StopReason::Cancelled)
    }
}
