//! Recognises heartbeats that were recorded and sent again. Pure.
//!
//! A heartbeat of an ended process would otherwise refuse the one that runs, or say that it is gone. Of a process that
//! is known, the next number is proof enough: its clock and the database's may step while it runs. A process that is not
//! known has to prove by its clock that it runs now.

use std::collections::HashMap;
use std::time::Duration;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::HeartbeatSender;
use tokio::time::Instant;

use super::forged::Forged;

/// The first heartbeat of a process counts if its clock differs from the database's by less than this when it arrives.
const MAX_HEARTBEAT_AGE_MS: u64 = 120_000;
/// The most executors whose heartbeats are remembered. Those without a recent one are forgotten first; heartbeats of
/// further ones are not compared with earlier ones.
const MAX_EXECUTORS: usize = 10_000;
/// A process is known for this long after its last heartbeat. A heartbeat that a clock in the future sent counts for twice
/// the greatest difference. Later, the number of the last heartbeat only tells whether another one has arrived before.
const REMEMBERED: Duration = Duration::from_millis(2 * MAX_HEARTBEAT_AGE_MS);
/// The most processes remembered for one executor. The one with the oldest last heartbeat is forgotten.
const MAX_PROCESSES: usize = 16;
/// Longer names of incarnations are compared by their beginning, in bytes.
const MAX_TEXT: usize = 256;

/// When a heartbeat arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// By the database's clock.
    pub(crate) time: Timestamp,
    /// On a clock that does not step.
    pub(crate) instant: Instant,
}

/// The last heartbeat of each process, for as long as an old one could be taken for a new one.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatOrder {
    executors: HashMap<ExecutorId, Vec<Process>>,
}

#[derive(Debug)]
struct Process {
    incarnation: String,
    last_number: u64,
    /// On a clock that does not step.
    last_at: Instant,
}

impl HeartbeatOrder {
    /// Whether this heartbeat is newer than all earlier ones of its process. A repeated or overtaken one is not. Nor is one
    /// that arrives when its process counts as unknown again: it was on its way while all machines stood still, for
    /// example. It says nothing about now, but is no forgery.
    ///
    /// # Errors
    ///
    /// If it does not say when it was sent, or if its process is not known and it was sent at another time.
    pub(crate) fn is_new(
        &mut self,
        executor: &ExecutorId,
        incarnation: &str,
        sender: Option<&HeartbeatSender>,
        at: Arrival,
    ) -> Result<bool, Forged> {
        let incarnation = beginning(incarnation);
        if let (Some(known), Some(sender)) = (self.known(executor, incarnation, at.instant), sender)
        {
            let is_new = sender.number > known.last_number;
            if is_new {
                known.last_number = sender.number;
                known.last_at = at.instant;
            }
            return Ok(is_new);
        }
        let number = match check_time(executor, sender, at.time) {
            Ok(sender) => sender.number,
            Err(_) if self.is_delayed(executor, incarnation, sender) => return Ok(false),
            Err(forged) => return Err(forged),
        };
        self.remember(executor, incarnation, number, at.instant);
        Ok(true)
    }

    /// Remembers a process that sent its last heartbeat a moment ago, to another node or before this one's start. Does
    /// nothing if it is known.
    pub(crate) fn add_known(&mut self, executor: &ExecutorId, incarnation: &str, now: Instant) {
        let incarnation = beginning(incarnation);
        if self.known(executor, incarnation, now).is_none() {
            // Numbers begin with 1.
            self.remember(executor, incarnation, 0, now);
        }
    }

    fn known(
        &mut self,
        executor: &ExecutorId,
        incarnation: &str,
        now: Instant,
    ) -> Option<&mut Process> {
        let processes = self.executors.get_mut(executor)?.iter_mut();
        let mut known = processes.filter(|p| is_remembered(p, now));
        known.find(|p| p.incarnation == incarnation)
    }

    /// Whether the process was known, and its heartbeat has not arrived before.
    fn is_delayed(
        &self,
        executor: &ExecutorId,
        incarnation: &str,
        sender: Option<&HeartbeatSender>,
    ) -> bool {
        let (Some(processes), Some(sender)) = (self.executors.get(executor), sender) else {
            return false;
        };
        let mut processes = processes.iter();
        processes.any(|p| p.incarnation == incarnation && p.last_number < sender.number)
    }

    fn remember(&mut self, executor: &ExecutorId, incarnation: &str, number: u64, now: Instant) {
        if !self.executors.contains_key(executor) && !self.make_room(now) {
            return;
        }
        let processes = self.executors.entry(executor.clone()).or_default();
        processes.retain(|p| p.incarnation != incarnation);
        if processes.len() >= MAX_PROCESSES
            && let Some(oldest) = (0..processes.len()).min_by_key(|i| processes[*i].last_at)
        {
            processes.swap_remove(oldest);
        }
        processes.push(Process {
            incarnation: incarnation.to_owned(),
            last_number: number,
            last_at: now,
        });
    }

    /// Returns whether one more executor can be remembered.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.executors.len() >= MAX_EXECUTORS {
            self.executors
                .retain(|_, processes| processes.iter().any(|p| is_remembered(p, now)));
        }
        self.executors.len() < MAX_EXECUTORS
    }
}

/// Checks that a heartbeat was sent just now.
///
/// # Errors
///
/// If it was sent at another time, or does not say when.
pub(super) fn check_time<'a>(
    executor: &ExecutorId,
    sender: Option<&'a HeartbeatSender>,
    now: Timestamp,
) -> Result<&'a HeartbeatSender, Forged> {
    let Some(sender) = sender else {
        let executor = executor.clone();
        return Err(Forged::NoTime { executor });
    };
    let off_ms = now.since_ms(sender.sent_at).unsigned_abs();
    if off_ms > MAX_HEARTBEAT_AGE_MS {
        let executor = executor.clone();
        return Err(Forged::OtherTime { executor, off_ms });
    }
    Ok(sender)
}

fn beginning(incarnation: &str) -> &str {
    &incarnation[..incarnation.floor_char_boundary(MAX_TEXT)]
}

fn is_remembered(process: &Process, now: Instant) -> bool {
    now.saturating_duration_since(process.last_at) <= REMEMBERED
}

#[cfg(test)]
mod tests {
    use cueline_protocol::WorkerProcess;

    use super::*;

    const NOW_MS: i64 = 1_000_000;

    fn executor(name: &str) -> ExecutorId {
        ExecutorId {
            group: "g".parse().expect("valid"),
            name: name.parse().expect("valid"),
        }
    }

    fn sender(sent_at: i64, number: u64) -> HeartbeatSender {
        HeartbeatSender {
            process: WorkerProcess {
                host: None,
                pid: 1,
                started_at: Timestamp::from_millis(0),
            },
            sent_at: Timestamp::from_millis(sent_at),
            number,
        }
    }

    /// `ms` after [`NOW_MS`], by both clocks.
    fn arrival(began: Instant, ms: i64) -> Arrival {
        Arrival {
            time: Timestamp::from_millis(NOW_MS + ms),
            instant: began + Duration::from_millis(ms.unsigned_abs()),
        }
    }

    /// Judges a heartbeat that arrives when it is sent, `ms` after the beginning.
    fn judge(
        order: &mut HeartbeatOrder,
        incarnation: &str,
        number: u64,
        began: Instant,
        ms: i64,
    ) -> bool {
        let sender = sender(NOW_MS + ms, number);
        order
            .is_new(
                &executor("e"),
                incarnation,
                Some(&sender),
                arrival(began, ms),
            )
            .expect("it was sent now")
    }

    #[test]
    fn the_first_heartbeat_of_a_process_counts_only_at_its_time() {
        let age = i64::try_from(MAX_HEARTBEAT_AGE_MS).expect("fits");
        let began = Instant::now();
        for (sent_at, counts) in [
            (NOW_MS - age - 1, false),
            (NOW_MS - age, true),
            (NOW_MS + age, true),
            (NOW_MS + age + 1, false),
            (i64::MIN, false),
        ] {
            let mut order = HeartbeatOrder::default();
            let sender = sender(sent_at, 1);
            let judged = order.is_new(&executor("e"), "1", Some(&sender), arrival(began, 0));
            assert_eq!(judged.is_ok(), counts, "{judged:?}");
        }
        let mut order = HeartbeatOrder::default();
        let without = order.is_new(&executor("e"), "1", None, arrival(began, 0));
        assert!(matches!(without, Err(Forged::NoTime { .. })));
    }

    #[test]
    fn clocks_may_step_while_a_process_runs() {
        let began = Instant::now();
        let mut order = HeartbeatOrder::default();
        assert!(judge(&mut order, "1", 1, began, 0));
        let mut judge_at = |incarnation, number, sent_at, time| {
            let at = Arrival {
                time: Timestamp::from_millis(time),
                instant: began,
            };
            let sender = sender(sent_at, number);
            order.is_new(&executor("e"), incarnation, Some(&sender), at)
        };
        let hour = 3_600_000;
        assert_eq!(judge_at("1", 2, NOW_MS - hour, NOW_MS), Ok(true));
        assert_eq!(judge_at("1", 3, NOW_MS, NOW_MS + hour), Ok(true));
        assert_eq!(judge_at("1", 3, NOW_MS, NOW_MS), Ok(false), "repeated");
        assert!(judge_at("2", 1, NOW_MS - hour, NOW_MS).is_err(), "unknown");
        order.add_known(&executor("e"), "3", began);
        order.add_known(&executor("e"), "1", began);
        for (incarnation, number, is_new) in [("3", 7, true), ("3", 7, false), ("1", 3, false)] {
            let sender = sender(NOW_MS - hour, number);
            let judged = order.is_new(
                &executor("e"),
                incarnation,
                Some(&sender),
                arrival(began, 0),
            );
            assert_eq!(judged, Ok(is_new), "{incarnation} {number}");
        }
    }

    #[test]
    fn a_heartbeat_that_was_on_its_way_for_minutes_is_no_forgery() {
        let (began, stood_ms) = (Instant::now(), 300_000);
        let mut order = HeartbeatOrder::default();
        assert!(judge(&mut order, "1", 1, began, 0));
        let mut judge_late = |number, sent_at| {
            let sender = sender(NOW_MS + sent_at, number);
            order.is_new(&executor("e"), "1", Some(&sender), arrival(began, stood_ms))
        };
        assert_eq!(judge_late(2, 5_000), Ok(false), "it says nothing about now");
        assert!(judge_late(1, 0).is_err(), "it was recorded");
        assert_eq!(judge_late(3, stood_ms), Ok(true));
        assert_eq!(judge_late(2, 5_000), Ok(false), "overtaken");
        assert_eq!(order.executors[&executor("e")].len(), 1);
    }

    #[test]
    fn a_repeated_heartbeat_is_not_new_while_it_could_count() {
        let began = Instant::now();
        let mut order = HeartbeatOrder::default();
        assert!(judge(&mut order, "1", 5, began, 0));
        assert!(!judge(&mut order, "1", 5, began, 1));
        assert!(!judge(&mut order, "1", 4, began, 1));
        assert!(judge(&mut order, "1", 6, began, 1));
        assert!(judge(&mut order, "2", 0, began, 2), "after a restart");
        assert!(!judge(&mut order, "1", 6, began, 3), "of the ended one");
        assert!(judge(&mut order, "1", 7, began, 4));
    }

    #[test]
    fn memory_is_bounded() {
        let began = Instant::now();
        let mut order = HeartbeatOrder::default();
        for n in 0..40 {
            assert!(judge(&mut order, &format!("{n}"), 1, began, n));
        }
        assert_eq!(order.executors[&executor("e")].len(), MAX_PROCESSES);
        let long = "ä".repeat(MAX_TEXT);
        assert!(judge(&mut order, &long, 1, began, 50));
        assert!(!judge(&mut order, &long, 1, began, 50));
        for n in 0..MAX_EXECUTORS {
            let name = executor(&format!("e{n}"));
            let judged = order.is_new(&name, "1", Some(&sender(NOW_MS, 1)), arrival(began, 0));
            assert_eq!(judged, Ok(true));
        }
        assert!(order.executors.len() <= MAX_EXECUTORS);
        let later = 1_000_000;
        let new = executor("new");
        let sender = sender(NOW_MS + later, 1);
        let judged = order.is_new(&new, "1", Some(&sender), arrival(began, later));
        assert_eq!(judged, Ok(true));
        assert_eq!(order.executors.len(), 1, "the silent ones are forgotten");
    }
}
