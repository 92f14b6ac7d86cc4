//! What Linux tells of its processes in `/proc`. Reads, never signals.

use std::fs;
use std::io;

/// A process as it was when looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// Ticks from the system's start to the process's; with `id` it names a process for good.
    pub(crate) started: u64,
    /// Nothing of it runs any more: it only waits for its parent to collect it.
    pub(crate) dead: bool,
}

/// All processes. One that ends meanwhile may be missing.
pub(crate) fn processes() -> io::Result<Vec<Process>> {
    let ids = fs::read_dir("/proc")?
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    Ok(ids.filter_map(process).collect())
}

/// One process; `None` when there is none.
pub(crate) fn process(id: i32) -> Option<Process> {
    parse(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Whether the environment that a process was started with has an entry, `NAME=value`, that is `wanted`.
pub(crate) fn started_with(id: i32, wanted: impl Fn(&[u8]) -> bool) -> bool {
    fs::read(format!("/proc/{id}/environ"))
        .is_ok_and(|environ| environ.split(|b| *b == 0).any(wanted))
}

/// Whether a process of the group still runs.
pub(crate) fn group_alive(group: i32) -> io::Result<bool> {
    Ok(processes()?.iter().any(|p| p.group == group && !p.dead))
}

/// Reads a `stat` line (`proc_pid_stat(5)`).
fn parse(id: i32, stat: &str) -> Option<Process> {
    // The second field is the program's name in brackets and may have anything in it, brackets too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let state = *fields.first()?;
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        // A first thread that has ended while others go on looks like a dead process, but for their number.
        dead: matches!(state, "X" | "x") || (state == "Z" && threads <= 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_no_trouble() {
        let stat = "42 (a) b (c)) S 7 40 40 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1 1";
        let found = parse(42, stat).expect("a well-formed line");
        assert_eq!(
            found,
            Process {
                id: 42,
                parent: 7,
                group: 40,
                started: 12_345,
                dead: false
            }
        );
        assert_eq!(parse(42, "42 (x) S 7"), None);
    }

    #[test]
    fn a_zombie_is_dead_only_when_no_thread_is_left() {
        let stat = |threads| {
            format!("1 (x) Z 7 40 40 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 12345 1 1 1")
        };
        assert!(parse(1, &stat(1)).expect("well formed").dead);
        assert!(!parse(1, &stat(2)).expect("well formed").dead);
    }
}
