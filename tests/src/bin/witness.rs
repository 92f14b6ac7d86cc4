//! A handler that bears witness: it appends what it sees to a file that nobody else writes, one line a `write`.
//!
//! `cueline-witness FILE HOLD_MS [fail-until ATTEMPT]`. For as long as it lives it holds a lock on a file of its lane's own (executor, job and
//! shard), and on one of its run's: the kernel releases them when the process dies, however it dies. Finding one taken is an overlap, and
//! says so.

use std::env;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let (Some(file), Some(hold)) = (args.next(), args.next()) else {
        eprintln!("usage: cueline-witness FILE HOLD_MS [FAIL_BELOW_ATTEMPT]");
        return ExitCode::from(2);
    };
    let fail_below: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let hold = Duration::from_millis(hold.parse().unwrap_or(0));
    let var = |name: &str| env::var(name).unwrap_or_else(|_| "?".to_owned());
    let (run, attempt) = (var("CUELINE_RUN_ID"), var("CUELINE_ATTEMPT"));
    let who = format!(
        "{} {run} {attempt} {}",
        var("CUELINE_JOB"),
        var("CUELINE_FIRE_TIME_MS")
    );
    let file = Path::new(&file);
    let note = |what: &str| {
        let line = format!("{what} {who}\n");
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .and_then(|mut f| f.write_all(line.as_bytes()))
    };

    let lane = format!(
        "{}.{}.{}.lane",
        var("CUELINE_EXECUTOR"),
        var("CUELINE_JOB"),
        var("CUELINE_SHARD_INDEX")
    );
    // Its run as well: a second attempt elsewhere must wait for the end of the first.
    let taken = |name: String| {
        File::create(file.with_extension(name))
            .map_err(TryLockError::Error)
            .and_then(|f| f.try_lock().map(|()| f))
    };
    let alone = taken(lane).and_then(|lane| Ok((lane, taken(format!("{run}.run"))?)));
    let started = match &alone {
        Ok(_) => note("start"),
        Err(TryLockError::WouldBlock) => note("overlap"),
        Err(TryLockError::Error(e)) => note(&format!("broken-{}", e.kind())),
    };
    if let Err(e) = started {
        eprintln!("failed to bear witness: {e}");
        return ExitCode::from(3);
    }
    std::thread::sleep(hold);
    let fails = attempt.parse::<u32>().is_ok_and(|n| n < fail_below);
    if note(if fails { "fail" } else { "end" }).is_err() {
        return ExitCode::from(3);
    }
    // Nobody else is to run it any more; thousands of files would be left.
    let _ = std::fs::remove_file(file.with_extension(format!("{run}.run")));
    if fails {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}
