//! Attempts to run handlers with, and checks of real processes.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod server;

use cueline_handlers::{CommandHandler, ShellHandler};
use cueline_test_support::SOON;
use cueline_worker::model::handler::{CommandSpec, Interpreter, ProcessSpec, ShellSpec};
use cueline_worker::model::{
    AttemptId, DurationMs, HandlerSpec, JobId, RunId, Shard, StoreId, Timestamp,
};
use cueline_worker::testing::{self, Recorded};
use cueline_worker::{AttemptInfo, Failure, LogStream, Output};

pub(crate) const MARKER: &str = "/state/of/the/tests";

pub(crate) fn info(handler: HandlerSpec) -> AttemptInfo {
    AttemptInfo {
        store: StoreId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        id: AttemptId {
            run: RunId(41),
            attempt: 2,
        },
        job_id: JobId(7),
        job: "nightly".parse().expect("a name"),
        executor: "worker-1".parse().expect("a name"),
        fire_at: Timestamp::from_millis(1_800_000_000_123),
        shard: Shard {
            index: 1,
            total: 3,
            item: Some("Beijing".into()),
        },
        params: Some("p 1".into()),
        handler,
        timeout: None,
        kill_grace: DurationMs::secs(5),
        fence: cueline_worker::model::Fence::Stop,
    }
}

pub(crate) fn sh(script: &str) -> ShellSpec {
    with(Interpreter::Sh, script)
}

pub(crate) fn with(interpreter: Interpreter, script: &str) -> ShellSpec {
    ShellSpec {
        script: script.into(),
        interpreter,
        ..ShellSpec::default()
    }
}

pub(crate) fn command(argv: &[&str], process: ProcessSpec) -> CommandSpec {
    CommandSpec {
        argv: argv.iter().map(ToString::to_string).collect(),
        process,
    }
}

pub(crate) async fn shell(spec: ShellSpec) -> (Result<Output, Failure>, Recorded) {
    testing::run(&ShellHandler::new(MARKER), info(HandlerSpec::from(spec))).await
}

pub(crate) async fn run_command(spec: CommandSpec) -> (Result<Output, Failure>, Recorded) {
    testing::run(&CommandHandler::new(MARKER), info(HandlerSpec::from(spec))).await
}

pub(crate) fn message(result: Result<Output, Failure>) -> String {
    result.expect_err("a failure").message
}

pub(crate) fn out(recorded: &Recorded) -> Vec<String> {
    stream(recorded, LogStream::Out)
}

pub(crate) fn stream(recorded: &Recorded, wanted: LogStream) -> Vec<String> {
    let lines = recorded.lines().into_iter();
    lines
        .filter(|(stream, _)| *stream == wanted)
        .map(|(_, text)| text)
        .collect()
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(expected: &str, mut condition: impl FnMut() -> bool) {
    let look = async || condition().then_some(()).ok_or("it does not hold");
    let held = cueline_test_support::eventually(expected, SOON, look).await;
    held.expect("in time");
}

/// Waits for a line `<label> <number>` on standard output and returns the number.
pub(crate) async fn number(recorded: &Recorded, label: &str) -> i32 {
    let find = || {
        out(recorded)
            .iter()
            .find_map(|line| line.strip_prefix(label)?.trim().parse().ok())
    };
    eventually(label, || find().is_some()).await;
    find().expect("it was there")
}

/// Whether the process runs. Zombies do not.
pub(crate) fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
        !matches!(state, Some(Some('Z' | 'X')))
    })
}

/// Kills a process that a test has left running.
pub(crate) fn end(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
}
