//! Stopping an attempt ends all its processes, whatever they do about it.
#![cfg(target_os = "linux")]

mod support;

use cueline_handlers::ShellHandler;
use cueline_worker::model::{DurationMs, HandlerSpec};
use cueline_worker::testing::{self, Recorded};
use cueline_worker::{Context, Failure, Handler, Output, StopReason};
use support::{MARKER, alive, end, eventually, info, message, number, out, sh};
use tokio::task::JoinHandle;

type Attempt = JoinHandle<Result<Output, Failure>>;

fn start(script: &str, grace: DurationMs) -> (Attempt, Context, Recorded) {
    let mut info = info(HandlerSpec::from(sh(script)));
    info.kill_grace = grace;
    let (cx, recorded) = testing::context(info);
    let handler = ShellHandler::new(MARKER);
    let attempt = cx.clone();
    let task = tokio::spawn(async move { handler.run(attempt).await });
    (task, cx, recorded)
}

/// A process and a child of it that both ignore SIGTERM.
const STUBBORN: &str = r#"trap '' TERM
sh -c 'trap "" TERM; echo "child $$"; while :; do sleep 1; done' &
echo "main $$"
while :; do wait; done"#;

#[tokio::test]
async fn a_whole_group_that_ignores_sigterm_is_killed() {
    let (attempt, cx, recorded) = start(STUBBORN, DurationMs::millis(150));
    let pids = [
        number(&recorded, "main ").await,
        number(&recorded, "child ").await,
    ];
    assert!(pids.iter().all(|pid| alive(*pid)));
    testing::stop(&cx, StopReason::TimedOut);
    let text = message(attempt.await.expect("no panic"));
    assert_eq!(
        text,
        "stopped (time limit passed): killed with SIGKILL, 150 ms after SIGTERM"
    );
    // No waiting: when the attempt has returned, they must be gone.
    assert!(!pids.iter().any(|pid| alive(*pid)));
}

#[tokio::test]
async fn a_child_that_outlives_the_main_process_is_killed_too() {
    let script = r#"sh -c 'trap "" TERM; echo "child $$"; while :; do sleep 1; done' &
echo "main $$"
wait"#;
    let (attempt, cx, recorded) = start(script, DurationMs::millis(150));
    let child = number(&recorded, "child ").await;
    number(&recorded, "main ").await;
    testing::stop(&cx, StopReason::Covered);
    let text = message(attempt.await.expect("no panic"));
    assert!(
        text.starts_with("stopped (covered by a newer trigger): killed"),
        "{text}"
    );
    assert!(!alive(child));
}

#[tokio::test]
async fn a_process_that_handles_sigterm_may_write_its_last_lines() {
    // More than fits into a pipe: the process ends only if its output is read.
    let script = r#"trap 'seq 1 50000; echo bye; exit 0' TERM
echo "main $$"
while :; do sleep 0.01; done"#;
    let (attempt, cx, recorded) = start(script, DurationMs::secs(20));
    number(&recorded, "main ").await;
    testing::stop(&cx, StopReason::Cancelled);
    let text = message(attempt.await.expect("no panic"));
    assert_eq!(text, "stopped (cancelled): ended after SIGTERM");
    assert_eq!(out(&recorded).last().map(String::as_str), Some("bye"));
}

/// Its output is still read, because a background process holds the pipe.
#[tokio::test]
async fn a_process_that_has_ended_keeps_its_status_when_the_attempt_is_stopped() {
    let script = r#"sleep 60 & echo "child $!"
echo "main $$""#;
    let (attempt, cx, recorded) = start(script, DurationMs::millis(150));
    let child = number(&recorded, "child ").await;
    let main = number(&recorded, "main ").await;
    eventually("the main process has ended", || !alive(main)).await;
    testing::stop(&cx, StopReason::TimedOut);
    let result = attempt.await.expect("no panic");
    let is_left_alone = alive(child);
    end(child);
    let output = result.expect("success");
    assert_eq!(output.exit_status, Some(0));
    assert!(is_left_alone, "it was killed");
}

#[tokio::test]
async fn an_attempt_that_is_stopped_before_its_start_is_not_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("it-ran");
    // It ignores SIGTERM until its work is done.
    let script = format!("trap '' TERM; : > '{}'", file.display());
    let (cx, _) = testing::context(info(HandlerSpec::from(sh(&script))));
    testing::stop(&cx, StopReason::Fenced);
    let text = message(ShellHandler::new(MARKER).run(cx).await);
    assert_eq!(text, "not started (broker out of reach)");
    assert!(!file.exists());
}

#[tokio::test]
async fn a_dropped_attempt_leaves_no_process() {
    let (attempt, _cx, recorded) = start(STUBBORN, DurationMs::secs(60));
    let pids = [
        number(&recorded, "main ").await,
        number(&recorded, "child ").await,
    ];
    attempt.abort();
    eventually("both are gone", || !pids.iter().any(|pid| alive(*pid))).await;
}

#[tokio::test]
async fn an_attempt_that_is_dropped_while_it_stops_leaves_no_process() {
    let (attempt, cx, recorded) = start(STUBBORN, DurationMs::secs(60));
    let pids = [
        number(&recorded, "main ").await,
        number(&recorded, "child ").await,
    ];
    testing::stop(&cx, StopReason::Cancelled);
    tokio::task::yield_now().await;
    attempt.abort();
    eventually("both are gone", || !pids.iter().any(|pid| alive(*pid))).await;
}
