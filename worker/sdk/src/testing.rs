//! Trying a handler without a server.

use cueline_model::LogStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::context::{Context, Facts, Sink, StopReason};
use crate::handler::Handler;
use crate::returned::{Failure, Output};

/// What a handler wrote while it was tried.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    lines: Arc<Mutex<Vec<(LogStream, String)>>>,
    progress: Arc<Mutex<Vec<f64>>>,
}

impl Recorded {
    /// The lines, in order.
    pub fn lines(&self) -> Vec<(LogStream, String)> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The progress, in order.
    pub fn progress(&self) -> Vec<f64> {
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Sink for Recorded {
    fn line(&self, stream: LogStream, text: String) {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((stream, text));
    }

    fn progress(&self, fraction: f64) {
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(fraction);
    }
}

/// A context for these facts, and what is written through it.
pub fn context(facts: Facts) -> (Context, Recorded) {
    let recorded = Recorded::default();
    (
        Context::new(facts, Box::new(recorded.clone()), None),
        recorded,
    )
}

/// Tells a handler under test to stop, as the worker would.
pub fn stop(cx: &Context, reason: StopReason) {
    cx.stop(reason);
}

/// Makes one attempt with these facts.
pub async fn run(handler: &dyn Handler, facts: Facts) -> (Result<Output, Failure>, Recorded) {
    let (cx, recorded) = context(facts);
    (handler.run(cx).await, recorded)
}
