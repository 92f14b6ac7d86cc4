//! The `main` of a driver's conformance tests. It works like the standard test harness, and also prints why a case is
//! ignored.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::{Case, Harness, Limits, all_cases, kill};
use crate::driver::Capabilities;

/// A case that takes longer counts as hung.
const LONGEST_CASE: Duration = Duration::from_mins(5);

/// Cases that run concurrently. Most of them mainly wait.
const AT_ONCE: usize = 6;

/// Options from the command line. Options of the standard harness without a meaning here are ignored.
#[derive(Debug, Default)]
struct Selection {
    filters: Vec<String>,
    exact: bool,
    list: bool,
    only_ignored: bool,
}

impl Selection {
    fn from_arguments(arguments: impl Iterator<Item = String>) -> Self {
        let mut selection = Self::default();
        let mut arguments = arguments.skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => selection.exact = true,
                "--list" => selection.list = true,
                "--ignored" => selection.only_ignored = true,
                // These options take a value; skip it.
                "--format" | "--test-threads" | "--color" | "--skip" | "-Z" => {
                    arguments.next();
                }
                option if option.starts_with('-') => {}
                _ => selection.filters.push(argument),
            }
        }
        selection
    }

    fn takes(&self, name: &str) -> bool {
        self.filters.is_empty()
            || self
                .filters
                .iter()
                .any(|filter| name == filter || (!self.exact && name.contains(filter.as_str())))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Ignored(&'static str),
}

/// Runs the suite on a driver, as the `main` of a test target.
///
/// Some cases start this program again as a child and kill it. `main` then runs that child.
pub fn main(harness: impl Harness) -> ExitCode {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let Ok(runtime) = runtime() else {
        eprintln!("failed to start a runtime");
        return ExitCode::FAILURE;
    };
    if let Some(child) = kill::child() {
        return runtime.block_on(child.run(harness));
    }
    let selection = Selection::from_arguments(std::env::args());
    let mut chosen: Vec<Case> = all_cases();
    chosen.retain(|case| selection.takes(case.name));
    if selection.list {
        if !selection.only_ignored {
            for case in &chosen {
                println!("{}: test", case.name);
            }
        }
        return ExitCode::SUCCESS;
    }
    let capabilities = runtime.block_on(capabilities(&harness));
    println!("\nrunning {} tests on {}", chosen.len(), capabilities.name);
    let verdicts = run(chosen, &harness, &capabilities);
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|v| wanted(v)).count();
    let failed = count(|v| *v == Verdict::Failed);
    println!(
        "\ntest result: {}. {} passed; {failed} failed; {} ignored\n",
        if failed == 0 { "ok" } else { "FAILED" },
        count(|v| *v == Verdict::Passed),
        count(|v| matches!(v, Verdict::Ignored(_))),
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

async fn capabilities(harness: &Arc<dyn Harness>) -> Capabilities {
    let place = harness.place().await;
    let driver = harness.open(&place, Limits::default()).await;
    driver.capabilities()
}

fn run(chosen: Vec<Case>, harness: &Arc<dyn Harness>, capabilities: &Capabilities) -> Vec<Verdict> {
    let servers = harness.crash_servers();
    let (crashing, others): (VecDeque<_>, VecDeque<_>) = chosen
        .into_iter()
        .partition(|case| servers > 0 && case.need.crashes());
    let (crashing, others) = (Mutex::new(crashing), Mutex::new(others));
    let verdicts = Mutex::new(Vec::new());
    let next = |waiting: &Mutex<VecDeque<Case>>| {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    };
    let lanes = (0..servers).map(|server| (Some(server), &crashing));
    let lanes = lanes.chain((0..AT_ONCE).map(|_| (None, &others)));
    thread::scope(|scope| {
        for (server, waiting) in lanes {
            let (next, verdicts) = (&next, &verdicts);
            scope.spawn(move || {
                while let Some(case) = next(waiting) {
                    let verdict = match case.need.missing_in(capabilities) {
                        Some(reason) => Verdict::Ignored(reason),
                        None => run_one(case, Arc::clone(harness), server),
                    };
                    report(case, verdict);
                    let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                    verdicts.push(verdict);
                }
            });
        }
    });
    verdicts
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

fn report(case: Case, verdict: Verdict) {
    match verdict {
        Verdict::Passed => println!("test {} ... ok", case.name),
        Verdict::Failed => println!("test {} ... FAILED", case.name),
        Verdict::Ignored(reason) => println!("test {} ... ignored, {reason}", case.name),
    }
}

/// Runs a case on a thread with the case's name, so that a panic message names the case.
fn run_one(case: Case, harness: Arc<dyn Harness>, server: Option<usize>) -> Verdict {
    let ran = thread::Builder::new()
        .name(case.name.to_owned())
        .spawn(move || {
            let runtime = runtime().expect("a runtime");
            let run = async {
                timeout(LONGEST_CASE, case.run(harness, server))
                    .await
                    .is_ok()
            };
            let ended = runtime.block_on(run);
            assert!(ended, "still running after {LONGEST_CASE:?}");
        });
    match ran.map(thread::JoinHandle::join) {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(_)) | Err(_) => Verdict::Failed,
    }
}
