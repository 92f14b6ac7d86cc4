//! SIGSTOP takes effect later: the threads of a process stop one after another, and one may answer a request until then.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::eventually::{NotWithin, eventually_blocking};

/// A process that waits for the disk stops when the disk answers.
const STOPPED_WITHIN: Duration = Duration::from_mins(1);

/// Waits until all threads of these processes have stopped after SIGSTOP. A process that has ended counts as stopped.
///
/// # Errors
///
/// [`NotWithin`] if a thread still runs after a minute.
pub fn wait_until_stopped(pids: impl IntoIterator<Item = i32>) -> Result<(), NotWithin> {
    for pid in pids {
        let tasks = format!("/proc/{pid}/task");
        eventually_blocking(format!("process {pid} has stopped"), STOPPED_WITHIN, || {
            if has_stopped(Path::new(&tasks)) {
                Ok(())
            } else {
                Err("a thread runs")
            }
        })?;
    }
    Ok(())
}

fn has_stopped(tasks: &Path) -> bool {
    let threads = fs::read_dir(tasks).into_iter().flatten().flatten();
    threads.into_iter().all(|thread| {
        // Without the file, the thread has ended.
        fs::read_to_string(thread.path().join("stat")).map_or(true, |stat| {
            // The state follows the name, which is in parentheses.
            let state = stat.rsplit(')').next().map(str::trim_start);
            state.is_some_and(|state| state.starts_with(['T', 'Z', 'X']))
        })
    })
}
