//! Processes as Linux shows them in `/proc`.

use std::fs;
use std::io;

/// A process at the time it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// When it started, in ticks since the system's start. Together with `id` it identifies a process.
    pub(crate) started: u64,
    /// Whether it has ended and its parent has not waited for it yet.
    pub(crate) zombie: bool,
}

/// The ids of all processes.
pub(crate) fn ids() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?.filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(ids.collect())
}

/// Reads one process. `None` if there is no such process.
pub(crate) fn process(id: i32) -> Option<Process> {
    parse(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Whether the initial environment of a process has an entry (`NAME=value`) that `wanted` accepts.
pub(crate) fn started_with(id: i32, wanted: impl Fn(&[u8]) -> bool) -> bool {
    fs::read(format!("/proc/{id}/environ"))
        .is_ok_and(|environ| environ.split(|b| *b == 0).any(wanted))
}

/// Whether a process of the group still runs.
pub(crate) fn is_group_running(group: i32) -> io::Result<bool> {
    let mut processes = ids()?.into_iter().filter_map(process);
    Ok(processes.any(|p| p.group == group && !p.zombie))
}

/// Reads a `stat` line (`proc_pid_stat(5)`).
fn parse(id: i32, stat: &str) -> Option<Process> {
    // The second field is the program's name in brackets. The name may contain brackets too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let state = *fields.first()?;
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        // If only the first thread has ended, the state says zombie as well. The number of threads tells them apart.
        zombie: matches!(state, "X" | "x") || (state == "Z" && threads <= 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_parsed() {
        let stat = "42 (a) b (c)) S 7 40 40 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1 1";
        let found = parse(42, stat).expect("a well-formed line");
        assert_eq!(
            found,
            Process {
                id: 42,
                parent: 7,
                group: 40,
                started: 12_345,
                zombie: false
            }
        );
        assert_eq!(parse(42, "42 (x) S 7"), None);
    }

    #[test]
    fn a_process_is_a_zombie_only_when_no_thread_is_left() {
        let stat = |threads| {
            format!("1 (x) Z 7 40 40 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 12345 1 1 1")
        };
        assert!(parse(1, &stat(1)).expect("well formed").zombie);
        assert!(!parse(1, &stat(2)).expect("well formed").zombie);
    }
}
