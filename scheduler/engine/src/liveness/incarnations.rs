//! Recognises two processes that run under one executor name (G5). Pure.
//!
//! Such processes share a queue and answer for each other, so an attempt of one could be started by the other. A
//! restart looks similar: the heartbeats of one process end and those of another begin. Only a process that sends
//! heartbeats again after another one has started shares its name with it. Heartbeats carry the time of sending,
//! because a late one of a dead process proves nothing.

use std::collections::HashMap;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::Incarnation;

/// The most executors that are watched. Conflicts of further ones stay unnoticed until others are silent.
const MAX_EXECUTORS: usize = 10_000;
/// The most processes remembered for one executor. The one with the oldest last heartbeat is forgotten.
const MAX_PROCESSES: usize = 4;
/// A heartbeat that was sent before another process started may arrive this long after the first heartbeat of that
/// process. It then counts as late. After this time, another clock does not explain it.
const MAX_LATE_MS: i64 = 10_000;
/// Longer names of machines and incarnations are cut, in characters.
const MAX_TEXT: usize = 256;

/// Two processes under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameConflict {
    pub(crate) executor: ExecutorId,
    /// The process that started first, by the clocks of the processes.
    pub(crate) kept: Incarnation,
    /// The other one. Its heartbeats do not count.
    pub(crate) refused: Incarnation,
    /// Whether it was noticed just now.
    pub(crate) is_new: bool,
}

/// The judgement of one heartbeat.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// The heartbeat does not count, because its process was refused or has ended.
    pub(crate) is_ignored: bool,
    /// The conflicts that the processes have to be told about.
    pub(crate) conflicts: Vec<NameConflict>,
}

/// The processes that send heartbeats under each name.
#[derive(Debug)]
pub(crate) struct Incarnations {
    /// A process that was silent for this long is forgotten.
    window_ms: i64,
    executors: HashMap<ExecutorId, Vec<Process>>,
    /// Heartbeats judged so far. It orders them, because many arrive in the same millisecond.
    judged: u64,
}

/// A process that has sent heartbeats.
#[derive(Debug)]
struct Process {
    incarnation: Incarnation,
    first_at: Timestamp,
    last_at: Timestamp,
    /// Its last heartbeat in the order of all heartbeats.
    last_number: u64,
    is_refused: bool,
}

impl Incarnations {
    pub(crate) fn new(window_ms: u64) -> Self {
        Self {
            window_ms: i64::try_from(window_ms).unwrap_or(i64::MAX),
            executors: HashMap::new(),
            judged: 0,
        }
    }

    /// Judges a heartbeat that `incarnation` sent at `sent_at`, by its own clock. Call this in the order of arrival.
    pub(crate) fn judge(
        &mut self,
        executor: &ExecutorId,
        mut incarnation: Incarnation,
        sent_at: Timestamp,
        now: Timestamp,
    ) -> Judgement {
        cut(&mut incarnation.incarnation);
        if let Some(host) = &mut incarnation.process.host {
            cut(host);
        }
        if !self.executors.contains_key(executor) && !self.make_room(now) {
            return Judgement::default();
        }
        self.judged += 1;
        let number = self.judged;
        let processes = self.executors.entry(executor.clone()).or_default();
        processes.retain(|p| is_recent(p, self.window_ms, now));
        let Some(index) = position(processes, &incarnation) else {
            remember(processes, incarnation, number, now);
            return Judgement::default();
        };
        let last_number = processes[index].last_number;
        let rivals: Vec<usize> = (0..processes.len())
            .filter(|i| processes[*i].last_number > last_number && !processes[*i].is_refused)
            .collect();
        if rivals.iter().any(|i| is_late(&processes[*i], sent_at, now)) {
            return Judgement {
                is_ignored: true,
                conflicts: Vec::new(),
            };
        }
        processes[index].last_at = now;
        processes[index].last_number = number;
        if processes[index].is_refused {
            return judge_refused(executor, processes, index);
        }
        judge_rivals(executor, processes, index, &rivals)
    }

    /// Returns whether one more executor can be watched.
    fn make_room(&mut self, now: Timestamp) -> bool {
        if self.executors.len() >= MAX_EXECUTORS {
            let window_ms = self.window_ms;
            self.executors
                .retain(|_, processes| processes.iter().any(|p| is_recent(p, window_ms, now)));
        }
        self.executors.len() < MAX_EXECUTORS
    }
}

/// The process at `index` sends heartbeats again after `rivals` have sent some. The one that started first is kept.
fn judge_rivals(
    executor: &ExecutorId,
    processes: &mut [Process],
    index: usize,
    rivals: &[usize],
) -> Judgement {
    let start = |i: usize| {
        let incarnation = &processes[i].incarnation;
        (incarnation.process.started_at, &incarnation.incarnation)
    };
    let first = |a: usize, b: usize| if start(b) < start(a) { b } else { a };
    let kept = rivals.iter().copied().fold(index, first);
    let mut judgement = Judgement::default();
    for refused in rivals.iter().copied().chain([index]) {
        if refused == kept {
            continue;
        }
        processes[refused].is_refused = true;
        judgement.is_ignored |= refused == index;
        let conflict = conflict(executor, &processes[kept], &processes[refused], true);
        judgement.conflicts.push(conflict);
    }
    judgement
}

/// The process at `index` was refused. It stays refused while the other one sends heartbeats.
fn judge_refused(executor: &ExecutorId, processes: &mut [Process], index: usize) -> Judgement {
    let kept = processes
        .iter()
        .filter(|p| !p.is_refused)
        .max_by_key(|p| p.last_number);
    let Some(kept) = kept else {
        processes[index].is_refused = false;
        return Judgement::default();
    };
    Judgement {
        is_ignored: true,
        conflicts: vec![conflict(executor, kept, &processes[index], false)],
    }
}

fn remember(processes: &mut Vec<Process>, incarnation: Incarnation, number: u64, now: Timestamp) {
    if processes.len() >= MAX_PROCESSES
        && let Some(oldest) = (0..processes.len()).min_by_key(|i| processes[*i].last_number)
    {
        processes.swap_remove(oldest);
    }
    processes.push(Process {
        incarnation,
        first_at: now,
        last_at: now,
        last_number: number,
        is_refused: false,
    });
}

fn position(processes: &[Process], incarnation: &Incarnation) -> Option<usize> {
    let id = &incarnation.incarnation;
    processes
        .iter()
        .position(|p| p.incarnation.incarnation == *id)
}

fn conflict(
    executor: &ExecutorId,
    kept: &Process,
    refused: &Process,
    is_new: bool,
) -> NameConflict {
    NameConflict {
        executor: executor.clone(),
        kept: kept.incarnation.clone(),
        refused: refused.incarnation.clone(),
        is_new,
    }
}

fn is_recent(process: &Process, window_ms: i64, now: Timestamp) -> bool {
    now.since_ms(process.last_at) <= window_ms
}

/// Whether a heartbeat of another process was on its way when this one had already started.
fn is_late(rival: &Process, sent_at: Timestamp, now: Timestamp) -> bool {
    sent_at <= rival.incarnation.process.started_at && now.since_ms(rival.first_at) <= MAX_LATE_MS
}

fn cut(text: &mut String) {
    if text.len() > MAX_TEXT {
        *text = text.chars().take(MAX_TEXT).collect();
    }
}

#[cfg(test)]
mod tests {
    use cueline_protocol::WorkerProcess;

    use super::*;

    const WINDOW_MS: u64 = 30_000;

    fn executor(name: &str) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: name.parse().expect("valid"),
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn incarnation(id: &str, started_at: i64) -> Incarnation {
        Incarnation {
            incarnation: id.to_owned(),
            process: WorkerProcess {
                host: Some(format!("host-of-{id}")),
                pid: 7,
                started_at: at(started_at),
            },
        }
    }

    /// Judges a heartbeat that arrives when it is sent.
    fn judge(all: &mut Incarnations, (id, started_at): (&str, i64), now: i64) -> Judgement {
        all.judge(
            &executor("e"),
            incarnation(id, started_at),
            at(now),
            at(now),
        )
    }

    /// The refused incarnations that a judgement names.
    fn refused(judgement: &Judgement) -> Vec<&str> {
        let conflicts = judgement.conflicts.iter();
        conflicts.map(|c| c.refused.incarnation.as_str()).collect()
    }

    const A: (&str, i64) = ("a", 0);
    const B: (&str, i64) = ("b", 1_000);
    const C: (&str, i64) = ("c", 2_000);

    #[test]
    fn processes_that_alternate_conflict_and_the_later_one_is_refused() {
        let mut all = Incarnations::new(WINDOW_MS);
        assert_eq!(judge(&mut all, A, 900), Judgement::default());
        assert_eq!(judge(&mut all, B, 1_100), Judgement::default());
        let returned = judge(&mut all, A, 5_900);
        assert!(!returned.is_ignored);
        assert_eq!(
            returned.conflicts,
            [NameConflict {
                executor: executor("e"),
                kept: incarnation("a", 0),
                refused: incarnation("b", 1_000),
                is_new: true,
            }]
        );
        let again = judge(&mut all, B, 6_100);
        assert!(again.is_ignored);
        assert_eq!(refused(&again), ["b"], "it may not have been told");
        assert!(!again.conflicts[0].is_new);
        assert_eq!(judge(&mut all, A, 10_900), Judgement::default());
    }

    /// This node has started meanwhile and receives a heartbeat of the later process first.
    #[test]
    fn the_later_one_is_refused_whichever_sends_a_heartbeat_first() {
        let mut all = Incarnations::new(WINDOW_MS);
        judge(&mut all, B, 5_000);
        judge(&mut all, A, 6_000);
        let returned = judge(&mut all, B, 10_000);
        assert!(returned.is_ignored);
        assert_eq!(refused(&returned), ["b"]);
    }

    #[test]
    fn restarts_conflict_with_nothing() {
        let mut all = Incarnations::new(WINDOW_MS);
        for (process, now) in [(A, 900), (B, 1_100), (B, 6_100), (C, 6_200), (C, 11_200)] {
            assert_eq!(judge(&mut all, process, now), Judgement::default());
        }
    }

    /// It was sent before the kill and took longer than the restart.
    #[test]
    fn a_late_heartbeat_of_a_killed_process_refuses_nothing() {
        let mut all = Incarnations::new(WINDOW_MS);
        judge(&mut all, A, 900);
        judge(&mut all, B, 1_100);
        let late = all.judge(&executor("e"), incarnation("a", 0), at(950), at(1_200));
        assert!(late.is_ignored, "its state is that of a dead process");
        assert!(late.conflicts.is_empty());
        assert_eq!(judge(&mut all, B, 6_100), Judgement::default());
    }

    /// The clock of the earlier process is an hour behind, so all its heartbeats seem to be late.
    #[test]
    fn clocks_that_differ_hide_no_conflict() {
        let mut all = Incarnations::new(WINDOW_MS);
        let a = |all: &mut Incarnations, now: i64| {
            let sent_at = at(now - 3_600_000);
            all.judge(
                &executor("e"),
                incarnation("a", -3_600_000),
                sent_at,
                at(now),
            )
        };
        a(&mut all, 900);
        judge(&mut all, B, 1_100);
        assert!(a(&mut all, 5_900).conflicts.is_empty());
        judge(&mut all, B, 6_100);
        assert_eq!(refused(&a(&mut all, 11_200)), ["b"]);
    }

    #[test]
    fn all_but_the_first_of_several_are_refused() {
        let mut all = Incarnations::new(WINDOW_MS);
        judge(&mut all, C, 2_100);
        judge(&mut all, B, 2_200);
        judge(&mut all, A, 2_300);
        let returned = judge(&mut all, C, 7_100);
        assert!(returned.is_ignored);
        let mut names = refused(&returned);
        names.sort_unstable();
        assert_eq!(names, ["b", "c"]);
        assert_eq!(judge(&mut all, A, 7_300), Judgement::default());
    }

    #[test]
    fn a_refused_process_counts_again_when_the_other_has_ended() {
        let mut all = Incarnations::new(WINDOW_MS);
        judge(&mut all, A, 900);
        judge(&mut all, B, 1_100);
        judge(&mut all, A, 5_900);
        for now in (6_100..=35_000).step_by(5_000) {
            assert!(judge(&mut all, B, now).is_ignored);
        }
        assert_eq!(judge(&mut all, B, 36_100), Judgement::default());
    }

    #[test]
    fn executors_are_judged_apart_and_memory_is_bounded() {
        let mut all = Incarnations::new(WINDOW_MS);
        for n in 0..MAX_EXECUTORS {
            let judged = all.judge(
                &executor(&format!("e{n}")),
                incarnation("a", 0),
                at(1),
                at(1),
            );
            assert_eq!(judged, Judgement::default());
        }
        judge(&mut all, A, 1);
        assert_eq!(all.executors.len(), MAX_EXECUTORS);
        judge(&mut all, A, 40_000);
        assert_eq!(all.executors.len(), 1, "the silent ones are forgotten");
        for n in 0..20 {
            judge(&mut all, (&format!("p{n}"), 40_000 + n), 40_000 + n);
        }
        let processes = all.executors.values().next().expect("one executor");
        assert_eq!(processes.len(), MAX_PROCESSES);
    }
}
