//! `cueline executor …`

use cueline_api::view::{ExecutorView, Executors};

use crate::args::ExecutorCommand;
use crate::client::{Api, read};
use crate::failure::Failure;
use crate::human;
use crate::output::{Out, Paint, cell};

/// An executor gets no new triggers after this time without a heartbeat.
pub(crate) const DEAD_AFTER_MS: u64 = 15_000;

pub(crate) async fn run(api: &Api, out: Out, command: &ExecutorCommand) -> Result<(), Failure> {
    match command {
        ExecutorCommand::List => list(api, out).await,
    }
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["executors"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: Executors = read(answer)?;
    let mut table = out.table(&["EXECUTOR", "ALIVE", "HELD", "RUNNING", "CAPACITY", "RUNS"]);
    for view in &found.executors {
        let heartbeat = &view.executor.heartbeat;
        let (alive, paint) = alive(view);
        table.add_row(vec![
            cell(heartbeat.executor.to_string(), None),
            cell(alive, Some(paint)),
            cell(heartbeat.held.to_string(), None),
            cell(heartbeat.running.to_string(), None),
            cell(heartbeat.capacity.to_string(), None),
            cell(
                human::one_line(&heartbeat.capabilities.join(", "), 80),
                None,
            ),
        ]);
    }
    out.print_table(&table, "there are no executors")
}

/// Whether an executor is alive, in words.
pub(crate) fn alive(view: &ExecutorView) -> (String, Paint) {
    let ago = human::took(view.silent_ms / 1_000 * 1_000);
    if view.executor.heartbeat.gone {
        (format!("stopped {ago} ago"), Paint::Dim)
    } else if view.silent_ms > DEAD_AFTER_MS {
        (format!("silent for {ago}"), Paint::Bad)
    } else if view.executor.heartbeat.draining {
        ("draining".to_owned(), Paint::Warn)
    } else {
        ("yes".to_owned(), Paint::Good)
    }
}
