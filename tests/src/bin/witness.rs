//! A handler that bears witness, as a program: `cueline-witness FILE HOLD_MS [FAIL_BELOW_ATTEMPT]`.

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cueline_tests::testimony::{Testimony, Who};

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let (Some(file), Some(hold)) = (args.next(), args.next()) else {
        eprintln!("usage: cueline-witness FILE HOLD_MS [FAIL_BELOW_ATTEMPT]");
        return ExitCode::from(2);
    };
    let fail_below: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let hold = Duration::from_millis(hold.parse().unwrap_or(0));
    let var = |name: &str| env::var(name).unwrap_or_else(|_| "?".to_owned());
    let who = Who {
        executor: var("CUELINE_EXECUTOR"),
        job: var("CUELINE_JOB"),
        lane: var("CUELINE_JOB"),
        shard: var("CUELINE_SHARD_INDEX"),
        run: var("CUELINE_RUN_ID"),
        attempt: var("CUELINE_ATTEMPT"),
        fire_at: var("CUELINE_FIRE_TIME_MS"),
        round: 0,
    };
    let fails = who.attempt.parse::<u32>().is_ok_and(|n| n < fail_below);
    let begun = match Testimony::begin(Path::new(&file), who, true) {
        Ok(begun) => begun,
        Err(e) => {
            eprintln!("failed to bear witness: {e}");
            return ExitCode::from(3);
        }
    };
    std::thread::sleep(hold);
    if begun.end(if fails { "fail" } else { "end" }).is_err() {
        return ExitCode::from(3);
    }
    if fails {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}
