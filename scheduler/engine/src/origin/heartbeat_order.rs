//! Recognises heartbeats that were recorded and sent again: old ones, and those with a number that is known. Pure.
//!
//! A heartbeat of an ended process would otherwise refuse the one that runs, or say that it is gone.

use std::collections::HashMap;

use cueline_model::{ExecutorId, Timestamp};
use cueline_protocol::HeartbeatSender;

use super::forged::Forged;

/// A heartbeat counts if its worker's clock differs from the database's by less than this when it arrives.
const MAX_HEARTBEAT_AGE_MS: u64 = 120_000;
/// The most executors whose heartbeats are remembered. Those without a recent one are forgotten first; heartbeats of
/// further ones are not compared with earlier ones.
const MAX_EXECUTORS: usize = 10_000;
/// The most processes remembered for one executor. The one with the oldest last heartbeat is forgotten.
const MAX_PROCESSES: usize = 16;
/// Longer names of incarnations are compared by their beginning, in bytes.
const MAX_TEXT: usize = 256;

/// The last heartbeat of each process, for as long as an old one could be taken for a new one.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatOrder {
    executors: HashMap<ExecutorId, Vec<Process>>,
}

#[derive(Debug)]
struct Process {
    incarnation: String,
    last_number: u64,
    last_at: Timestamp,
}

impl HeartbeatOrder {
    /// Whether this heartbeat is newer than all earlier ones of its process. A repeated or overtaken one is not.
    ///
    /// # Errors
    ///
    /// If it was sent at another time, or does not say when.
    pub(crate) fn is_new(
        &mut self,
        executor: &ExecutorId,
        incarnation: &str,
        sender: Option<&HeartbeatSender>,
        now: Timestamp,
    ) -> Result<bool, Forged> {
        let number = check_time(executor, sender, now)?.number;
        Ok(self.advance(executor, incarnation, number, now))
    }

    fn advance(
        &mut self,
        executor: &ExecutorId,
        incarnation: &str,
        number: u64,
        now: Timestamp,
    ) -> bool {
        let incarnation = &incarnation[..incarnation.floor_char_boundary(MAX_TEXT)];
        let Some(processes) = self.executors.get_mut(executor) else {
            if self.make_room(now) {
                let first = process(incarnation, number, now);
                self.executors.insert(executor.clone(), vec![first]);
            }
            return true;
        };
        processes.retain(|p| is_remembered(p, now));
        let known = processes.iter_mut().find(|p| p.incarnation == incarnation);
        if let Some(known) = known {
            let is_new = number > known.last_number;
            if is_new {
                known.last_number = number;
                known.last_at = now;
            }
            return is_new;
        }
        if processes.len() >= MAX_PROCESSES
            && let Some(oldest) = (0..processes.len()).min_by_key(|i| processes[*i].last_at)
        {
            processes.swap_remove(oldest);
        }
        processes.push(process(incarnation, number, now));
        true
    }

    /// Returns whether one more executor can be remembered.
    fn make_room(&mut self, now: Timestamp) -> bool {
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

fn process(incarnation: &str, number: u64, now: Timestamp) -> Process {
    Process {
        incarnation: incarnation.to_owned(),
        last_number: number,
        last_at: now,
    }
}

/// A heartbeat that a clock in the future sent counts for twice the greatest difference.
fn is_remembered(process: &Process, now: Timestamp) -> bool {
    now.since_ms(process.last_at).unsigned_abs() <= 2 * MAX_HEARTBEAT_AGE_MS
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

    /// Judges a heartbeat that arrives when it is sent.
    fn judge(order: &mut HeartbeatOrder, incarnation: &str, number: u64, at: i64) -> bool {
        let now = Timestamp::from_millis(at);
        order
            .is_new(&executor("e"), incarnation, Some(&sender(at, number)), now)
            .expect("it was sent now")
    }

    #[test]
    fn a_heartbeat_of_another_time_does_not_count() {
        let mut order = HeartbeatOrder::default();
        let age = i64::try_from(MAX_HEARTBEAT_AGE_MS).expect("fits");
        let now = Timestamp::from_millis(NOW_MS);
        for (number, (sent_at, counts)) in (1..).zip([
            (NOW_MS - age - 1, false),
            (NOW_MS - age, true),
            (NOW_MS + age, true),
            (NOW_MS + age + 1, false),
            (i64::MIN, false),
        ]) {
            let sender = sender(sent_at, number);
            let judged = order.is_new(&executor("e"), "1", Some(&sender), now);
            assert_eq!(judged.is_ok(), counts, "{judged:?}");
        }
        let without = order.is_new(&executor("e"), "1", None, now);
        assert!(matches!(without, Err(Forged::NoTime { .. })));
    }

    #[test]
    fn a_repeated_heartbeat_is_not_new_while_it_could_count() {
        let mut order = HeartbeatOrder::default();
        assert!(judge(&mut order, "1", 5, NOW_MS));
        assert!(!judge(&mut order, "1", 5, NOW_MS + 1));
        assert!(!judge(&mut order, "1", 4, NOW_MS + 1));
        assert!(judge(&mut order, "1", 6, NOW_MS + 1));
        assert!(judge(&mut order, "2", 0, NOW_MS + 2), "after a restart");
        assert!(!judge(&mut order, "1", 6, NOW_MS + 3), "of the ended one");
        assert!(judge(&mut order, "1", 7, NOW_MS + 4));
    }

    #[test]
    fn memory_is_bounded() {
        let mut order = HeartbeatOrder::default();
        for n in 0..40 {
            assert!(judge(&mut order, &format!("{n}"), 1, NOW_MS + n));
        }
        assert_eq!(order.executors[&executor("e")].len(), MAX_PROCESSES);
        let long = "ä".repeat(MAX_TEXT);
        assert!(judge(&mut order, &long, 1, NOW_MS + 50));
        assert!(!judge(&mut order, &long, 1, NOW_MS + 50));
        for n in 0..MAX_EXECUTORS {
            let now = Timestamp::from_millis(NOW_MS);
            let name = executor(&format!("e{n}"));
            let judged = order.is_new(&name, "1", Some(&sender(NOW_MS, 1)), now);
            assert_eq!(judged, Ok(true));
        }
        assert!(order.executors.len() <= MAX_EXECUTORS);
        let later = NOW_MS + 1_000_000;
        let new = executor("new");
        let at = Timestamp::from_millis(later);
        let judged = order.is_new(&new, "1", Some(&sender(later, 1)), at);
        assert_eq!(judged, Ok(true));
        assert_eq!(order.executors.len(), 1, "the silent ones are forgotten");
    }
}
