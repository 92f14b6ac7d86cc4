//! `cueline` with a handler of its own, `witness`: so that a test can have hundreds of runs a second without as many processes. Everything else is as
//! in `cueline worker`.
//!
//! The handler appends to the file that `CUELINE_TEST_WITNESS` names; the job's parameter says how it behaves.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Clock as _, SystemClock};
use cueline_tests::testimony::{Testimony, Who};
use cueline_worker::{Context, Failure, Handler, from_fn};
use serde::Deserialize;
use tokio::task::spawn_blocking;

/// What a job's parameter says.
#[derive(Debug, Deserialize)]
struct Behaviour {
    /// How long an attempt takes.
    hold_ms: u64,
    /// How long it goes on after it was told to stop.
    #[serde(default)]
    linger_ms: u64,
    /// Attempts below this number fail.
    #[serde(default)]
    fail_below: u32,
    /// Whether it has to be alone in its lane.
    #[serde(default = "yes")]
    alone: bool,
    /// The number of the definition.
    #[serde(default)]
    round: u32,
}

fn yes() -> bool {
    true
}

async fn witness(file: PathBuf, cx: Context) -> Result<(), Failure> {
    let begun = SystemClock.now_ms();
    let behaviour: Behaviour = cx.params()?;
    let info = cx.info();
    let who = Who {
        executor: info.executor.to_string(),
        job: info.job.to_string(),
        lane: info.job_id.to_string(),
        shard: info.shard.index.to_string(),
        run: info.id.run.to_string(),
        attempt: info.id.attempt.to_string(),
        fire_at: info.fire_at.as_millis().to_string(),
        round: behaviour.round,
        begun,
    };
    // Files can take their time, and a handler must not hold up its worker.
    let begun = spawn_blocking(move || Testimony::begin(&file, who, behaviour.alone)).await??;
    let pause = |ms| tokio::time::sleep(Duration::from_millis(ms));
    let held = async {
        // The worker may have stood still while the start was noted, and while the attempt went on.
        cx.cancelled()?;
        pause(behaviour.hold_ms).await;
        cx.cancelled()
    };
    let told = tokio::select! {
        biased;
        reason = cx.stopped() => Some(reason),
        held = held => held.err().map(|stopped| stopped.0),
    };
    if let Some(reason) = told {
        pause(behaviour.linger_ms).await;
        end(begun, "stop").await?;
        return Err(Failure::new(format!("told to stop: {reason:?}")));
    }
    if info.id.attempt < behaviour.fail_below {
        end(begun, "fail").await?;
        return Err(Failure::new("as it was told to"));
    }
    end(begun, "end").await
}

async fn end(begun: Testimony, what: &'static str) -> Result<(), Failure> {
    Ok(spawn_blocking(move || begun.end(what)).await??)
}

fn main() -> ExitCode {
    let file = std::env::var_os("CUELINE_TEST_WITNESS").map(PathBuf::from);
    let handler: Arc<dyn Handler> = Arc::new(from_fn(move |cx| {
        let file = file.clone();
        async move {
            let file = file.ok_or_else(|| Failure::new("CUELINE_TEST_WITNESS names no file"))?;
            witness(file, cx).await
        }
    }));
    let native = HashMap::from([("witness".to_owned(), handler)]);
    cueline::main_with_native(std::env::args_os(), native)
}
