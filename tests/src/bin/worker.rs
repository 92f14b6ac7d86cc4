//! `cueline` with one more handler, `record`. With it a test can have hundreds of runs per second without starting as
//! many processes. Everything else is as in `cueline worker`.
//!
//! The handler appends to the execution log that `CUELINE_TEST_EXECUTION_LOG` names. The job's parameter controls its
//! behaviour.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Clock as _, SystemClock};
use cueline_tests::execution_log::{AttemptLabel, FILE_VARIABLE, RecordedAttempt};
use cueline_worker::{Context, Failure, Handler, from_fn};
use serde::Deserialize;
use tokio::task::spawn_blocking;

/// The job's parameter, which controls the handler.
#[derive(Debug, Deserialize)]
struct Behaviour {
    /// How long an attempt takes.
    hold_ms: u64,
    /// How long the attempt continues after a request to stop.
    #[serde(default)]
    linger_ms: u64,
    /// Attempts below this number fail.
    #[serde(default)]
    fail_below: u32,
    /// Whether another attempt in its lane counts as an overlap.
    #[serde(default = "yes")]
    exclusive: bool,
    /// Whether all executors of the group share the lane.
    #[serde(default)]
    group: bool,
    /// The number of the definition.
    #[serde(default)]
    revision: u32,
}

fn yes() -> bool {
    true
}

async fn record(file: PathBuf, cx: Context) -> Result<(), Failure> {
    let began = SystemClock.now_ms();
    let behaviour: Behaviour = cx.params()?;
    let info = cx.info();
    let label = AttemptLabel {
        executor: info.executor.to_string(),
        job: info.job.to_string(),
        lane: if behaviour.group {
            format!("group.{}", info.job_id)
        } else {
            format!("{}.{}", info.executor, info.job_id)
        },
        shard: info.shard.index.to_string(),
        run: info.id.run.to_string(),
        attempt: info.id.attempt.to_string(),
        fire_at: info.fire_at.as_millis().to_string(),
        revision: behaviour.revision,
        began,
    };
    // File operations may be slow, and a handler must not block its worker.
    let attempt =
        spawn_blocking(move || RecordedAttempt::start(&file, label, behaviour.exclusive)).await??;
    let pause = |ms| tokio::time::sleep(Duration::from_millis(ms));
    let held = async {
        // The worker may have been stopped while the start was written, or while the attempt ran.
        cx.cancelled()?;
        pause(behaviour.hold_ms).await;
        cx.cancelled()
    };
    let stop_reason = tokio::select! {
        biased;
        reason = cx.stopped() => Some(reason),
        held = held => held.err().map(|stopped| stopped.0),
    };
    if let Some(reason) = stop_reason {
        pause(behaviour.linger_ms).await;
        end(attempt, "stop").await?;
        return Err(Failure::new(format!("asked to stop: {reason:?}")));
    }
    if info.id.attempt < behaviour.fail_below {
        end(attempt, "fail").await?;
        return Err(Failure::new("fails, as the job's parameter says"));
    }
    end(attempt, "end").await
}

async fn end(attempt: RecordedAttempt, event: &'static str) -> Result<(), Failure> {
    Ok(spawn_blocking(move || attempt.end(event)).await??)
}

fn main() -> ExitCode {
    let file = std::env::var_os(FILE_VARIABLE).map(PathBuf::from);
    let handler: Arc<dyn Handler> = Arc::new(from_fn(move |cx| {
        let file = file.clone();
        async move {
            let file = file.ok_or_else(|| Failure::new(format!("{FILE_VARIABLE} is not set")))?;
            record(file, cx).await
        }
    }));
    let native = HashMap::from([("record".to_owned(), handler)]);
    cueline::main_with_native(std::env::args_os(), native)
}
