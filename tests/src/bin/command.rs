//! A command that records its execution: `cueline-test-command FILE HOLD_MS [FAIL_BELOW_ATTEMPT]`.

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cueline_runtime::{BootClock as _, Clock as _, SystemBootClock, SystemClock};
use cueline_tests::execution_log::{AttemptLabel, RecordedAttempt};

/// On every machine, Linux counts the start times of processes in these units.
const TICK_MS: i64 = 10;

/// When this process was created, or up to one tick later. The process may have been stopped before its first
/// instruction.
fn process_began() -> Option<i64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit(')').next()?;
    let ticks: i64 = after_name.split_whitespace().nth(19)?.parse().ok()?;
    let age_ms = SystemBootClock.up_ms() - (ticks + 1) * TICK_MS;
    Some(SystemClock.now_ms() - age_ms)
}

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let (Some(file), Some(hold)) = (args.next(), args.next()) else {
        eprintln!("usage: cueline-test-command FILE HOLD_MS [FAIL_BELOW_ATTEMPT]");
        return ExitCode::from(2);
    };
    let fail_below: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let hold = Duration::from_millis(hold.parse().unwrap_or(0));
    let var = |name: &str| env::var(name).unwrap_or_else(|_| "?".to_owned());
    let label = AttemptLabel {
        executor: var("CUELINE_EXECUTOR"),
        job: var("CUELINE_JOB"),
        lane: format!("{}.{}", var("CUELINE_EXECUTOR"), var("CUELINE_JOB")),
        shard: var("CUELINE_SHARD_INDEX"),
        run: var("CUELINE_RUN_ID"),
        attempt: var("CUELINE_ATTEMPT"),
        fire_at: var("CUELINE_FIRE_TIME_MS"),
        revision: 0,
        began: process_began().unwrap_or_else(|| SystemClock.now_ms()),
    };
    let fails = label.attempt.parse::<u32>().is_ok_and(|n| n < fail_below);
    let attempt = match RecordedAttempt::start(Path::new(&file), label, true) {
        Ok(attempt) => attempt,
        Err(e) => {
            eprintln!("failed to write the execution log: {e}");
            return ExitCode::from(3);
        }
    };
    std::thread::sleep(hold);
    if attempt.end(if fails { "fail" } else { "end" }).is_err() {
        return ExitCode::from(3);
    }
    if fails {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}
