//! `cueline trigger`: runs a job now and, with `--wait`, prints its progress until its end.

use std::fmt::Write as _;
use std::time::Duration;

use cueline_interface::{Failure, Out, Paint};
use cueline_model::{RunId, RunState};
use cueline_runtime::Backoff;
use cueline_store::{Run, RunDetail, TriggerOutcome};
use serde_json::{Value, json};

use crate::args::TriggerArgs;
use crate::client::{Api, read};
use crate::human;
use crate::progress::Progress;

const MIN_POLL_WAIT: Duration = Duration::from_millis(20);
const MAX_POLL_WAIT: Duration = Duration::from_millis(500);

/// Triggers a job.
pub(crate) async fn run(api: &Api, out: Out, args: TriggerArgs) -> Result<(), Failure> {
    let body = json!({ "params": args.param, "idempotency_key": args.key, "run_at": args.at });
    let path = ["jobs", args.name.as_str(), "trigger"];
    let answer = match args.key {
        Some(_) => api.post_twice(&path, &body, None).await?,
        None => api.create(&path, &body).await?,
    };
    if args.wait {
        let triggered: TriggerOutcome = read(answer)?;
        return wait(api, out, &triggered.runs).await;
    }
    if out.is_json() {
        return out.json(&answer);
    }
    let triggered: TriggerOutcome = read(answer)?;
    // A key of this command's own was sent twice only if the first answer was lost.
    let note = if triggered.duplicate && args.key.is_some() {
        "  (created earlier, with the same key)"
    } else {
        ""
    };
    for run in triggered.runs {
        out.line(&format!("run {run}{note}"))?;
    }
    Ok(())
}

/// Waits for the end of each run, one after the other. All of them run meanwhile. It needs no time limit: a run without
/// an executor ends at its job's dispatch deadline.
async fn wait(api: &Api, out: Out, runs: &[RunId]) -> Result<(), Failure> {
    let mut ended = Vec::new();
    for run in runs {
        let count = (ended.len(), runs.len());
        ended.push(watch(api, out, *run, count).await?);
    }
    if out.is_json() {
        out.json(&json!({ "runs": ended }))?;
    }
    let succeeded = |run: &Value| run["state"] == RunState::Succeeded.as_str();
    if ended.iter().all(succeeded) {
        Ok(())
    } else {
        Err(Failure::Silent)
    }
}

/// Prints the progress of a run until its end. `count` has the runs that have ended, and all of them.
async fn watch(api: &Api, out: Out, id: RunId, count: (usize, usize)) -> Result<Value, Failure> {
    let mut progress = RunProgress::default();
    let mut backoff = Backoff::new(MIN_POLL_WAIT, MAX_POLL_WAIT);
    let path = id.to_string();
    let mut waiting = None;
    loop {
        let answer = api.get(&["runs", &path], &[]).await?;
        let detail: RunDetail = read(answer.clone())?;
        let part = progress.next_part(out, &detail.run);
        if !part.is_empty() && !out.is_json() {
            drop(waiting.take());
            out.text(&part)?;
            backoff.reset();
        }
        if detail.run.state.is_terminal() {
            return Ok(answer);
        }
        if waiting.is_none() && progress.is_at_line_start() {
            let what = format!("run {id} is {}", detail.run.state);
            waiting = Some(waiting_for(out, &what, count));
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

fn waiting_for(out: Out, what: &str, (ended, all): (usize, usize)) -> Progress {
    if all == 1 {
        return Progress::spinner(out, what);
    }
    let progress = Progress::bar(out, what, all);
    progress.reached(ended);
    progress
}

/// The part of a run's line that was already printed:
/// `run 4711  queued → worker-1  started +2 ms  succeeded in 1.3 s`.
#[derive(Default)]
struct RunProgress {
    attempt: u32,
    queued: bool,
    started: bool,
}

impl RunProgress {
    fn is_at_line_start(&self) -> bool {
        self.attempt == 0
    }

    /// The next part of the line.
    fn next_part(&mut self, out: Out, run: &Run) -> String {
        let mut part = String::new();
        let ended = run.state.is_terminal();
        if run.attempt > self.attempt && (run.queued_at.is_some() || ended) {
            if self.attempt > 0 {
                part += &out.paint(&format!("  attempt {} follows\n", run.attempt), Paint::Warn);
            }
            *self = Self {
                attempt: run.attempt,
                ..Self::default()
            };
            let _ = write!(part, "run {}", run.id);
        }
        if let (false, Some(_), Some(executor)) = (self.queued, run.queued_at, &run.executor) {
            self.queued = true;
            let _ = write!(part, "  queued → {executor}");
        }
        if let (false, true, Some(started)) = (self.started, self.queued, run.started_at) {
            self.started = true;
            let waited = run
                .queued_at
                .map_or(0, |queued| human::between(queued, started));
            let _ = write!(part, "  started +{waited} ms");
        }
        if ended {
            let _ = writeln!(part, "  {}", end(out, run));
        }
        part
    }
}

fn end(out: Out, run: &Run) -> String {
    let state = run.state.as_str().replace('_', " ");
    let state = match Paint::of_state(run.state) {
        Some(paint) => out.paint(&state, paint),
        None => state,
    };
    let took = match (run.started_at, run.ended_at) {
        (Some(from), Some(to)) => format!(" in {}", human::took(human::between(from, to))),
        _ => String::new(),
    };
    match &run.message {
        Some(why) if run.state != RunState::Succeeded => {
            format!("{state}{took}: {}", human::one_line(why, 200))
        }
        _ => format!("{state}{took}"),
    }
}
