//! Tries a handler without a server.
//!
//! ```
//! use cueline_worker::model::HandlerSpec;
//! use cueline_worker::testing::{attempt_info, run};
//! use cueline_worker::{AttemptInfo, Context, Failure, from_fn};
//!
//! async fn greet(cx: Context) -> Result<String, Failure> {
//!     cx.log("greeting");
//!     Ok(format!("hello {}", cx.params_text()))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let info = AttemptInfo {
//!     params: Some("Ann".into()),
//!     ..attempt_info(HandlerSpec::Native("greet".into()))
//! };
//! let (result, recorded) = run(&from_fn(greet), info).await;
//! assert_eq!(result.unwrap().text.as_deref(), Some("hello Ann"));
//! assert_eq!(recorded.lines()[0].1, "greeting");
//! # }
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_model::{
    AttemptId, DurationMs, Fence, HandlerSpec, JobId, LogStream, RunId, Shard, StoreId, Timestamp,
};

use crate::context::{AttemptInfo, AttemptSink, Context, StopReason};
use crate::handler::Handler;
use crate::returned::{Failure, Output};

/// What a handler wrote to its context.
#[derive(Debug, Clone, Default)]
pub struct Recorded(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
struct Written {
    lines: Vec<(LogStream, String)>,
    progress: Vec<f64>,
}

impl Recorded {
    /// The log lines, in order.
    pub fn lines(&self) -> Vec<(LogStream, String)> {
        self.lock().lines.clone()
    }

    /// The reported progress, in order.
    pub fn progress(&self) -> Vec<f64> {
        self.lock().progress.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptSink for Recorded {
    fn line(&self, stream: LogStream, text: String) {
        self.lock().lines.push((stream, text));
    }

    fn progress(&self, fraction: f64) {
        self.lock().progress.push(fraction);
    }
}

/// The first attempt of run 1 of store 1, of a job `test`, on an executor `test`. It has no parameter and no time limit, and a kill
/// grace of 5 s.
#[expect(
    clippy::missing_panics_doc,
    reason = "the names are constants, and valid"
)]
pub fn attempt_info(handler: HandlerSpec) -> AttemptInfo {
    AttemptInfo {
        store: StoreId(1),
        id: AttemptId {
            run: RunId(1),
            attempt: 1,
        },
        job_id: JobId(1),
        job: "test".parse().expect("a valid name"),
        executor: "test".parse().expect("a valid name"),
        fire_at: Timestamp::from_millis(0),
        shard: Shard::whole(),
        params: None,
        handler,
        timeout: None,
        kill_grace: DurationMs::secs(5),
        fence: Fence::Stop,
    }
}

/// A context for this attempt, and the record of everything that a handler writes to it.
pub fn context(info: AttemptInfo) -> (Context, Recorded) {
    let recorded = Recorded::default();
    let cx = Context::new(info, Box::new(recorded.clone()), None);
    (cx, recorded)
}

/// Asks a handler under test to stop, as the worker would.
pub fn stop(cx: &Context, reason: StopReason) {
    cx.stop(reason);
}

/// Makes one attempt. Returns the handler's result, and what it wrote to its context.
pub async fn run(handler: &dyn Handler, info: AttemptInfo) -> (Result<Output, Failure>, Recorded) {
    let (cx, recorded) = context(info);
    (handler.run(cx).await, recorded)
}
