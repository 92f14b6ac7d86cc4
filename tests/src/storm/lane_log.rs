//! What the lanes of a worker did, from the worker's own log. A handler's record alone does not tell whether a trigger was
//! in its lane when another one was started, or how long an attempt was still there after its end.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

/// The filter of logs that writes these lines.
pub const LOG_LEVEL: &str = "cueline_worker::event_loop::lane_events=debug";

/// What the lanes of one worker did, over all its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneLog {
    attempts: HashMap<(i64, u32), LaneTimes>,
    /// Lines at which a new process had empty lanes.
    emptied: Vec<usize>,
}

/// When one attempt came into its lane, started and left it. Several times, if a process was killed meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct LaneTimes {
    accepted: Vec<usize>,
    started: Vec<usize>,
    /// The lines, with their times in milliseconds.
    left: Vec<(usize, i64)>,
}

impl LaneLog {
    /// Reads the log of a worker.
    pub fn parse(log: &str) -> Result<Self> {
        let mut read = Self::default();
        for (at, line) in log.lines().enumerate() {
            let contains = |event: &str| line.contains(event);
            if contains(" the lanes are empty") {
                read.emptied.push(at);
            } else if contains(" the lane has the attempt ") {
                read.attempt(line)?.accepted.push(at);
            } else if contains(" the lane starts the attempt ") {
                read.attempt(line)?.started.push(at);
            } else if contains(" the attempt has left its lane ") {
                let time = line.split_whitespace().next().unwrap_or_default();
                let time: jiff::Timestamp = time.parse().with_context(|| line.to_owned())?;
                let times = read.attempt(line)?;
                times.left.push((at, time.as_millisecond()));
            }
        }
        Ok(read)
    }

    fn attempt(&mut self, line: &str) -> Result<&mut LaneTimes> {
        let number = |field: &str| {
            let value = line.split(field).nth(1)?.split_whitespace().next()?;
            value.parse::<i64>().ok()
        };
        let run = number("run_id=").with_context(|| format!("no run: {line}"))?;
        let attempt = number("attempt=").with_context(|| format!("no attempt: {line}"))?;
        let id = (run, u32::try_from(attempt)?);
        Ok(self.attempts.entry(id).or_default())
    }

    /// Whether the first attempt of `waiting` was in a lane when the one of `started` was started. `None` if the log does
    /// not say.
    pub fn had_when_started(&self, waiting: i64, started: i64) -> Option<bool> {
        let started = *self.attempts.get(&(started, 1))?.started.last()?;
        let times = self.attempts.get(&(waiting, 1))?;
        let before = |lines: &[usize]| lines.iter().copied().rfind(|line| *line < started);
        let gone = times.left.iter().map(|(line, _)| *line);
        let gone = gone.filter(|line| *line < started).max();
        let gone = gone.max(before(&self.emptied));
        Some(before(&times.accepted).is_some_and(|came| Some(came) > gone))
    }

    /// When the attempt left its lane, in milliseconds. `None` if the log does not say: the worker was killed.
    pub fn left_at(&self, run: i64, attempt: u32) -> Option<i64> {
        let left = self.attempts.get(&(run, attempt))?.left.last();
        left.map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> LaneLog {
        let log = lines
            .iter()
            .enumerate()
            .map(|(at, line)| format!("2026-11-28T10:00:00.{at:03}000Z DEBUG {line}\n"));
        LaneLog::parse(&log.collect::<String>()).unwrap()
    }

    const OLD: &str = "the lane has the attempt run_id=1 attempt=1";
    const NEW: &str = "the lane has the attempt run_id=2 attempt=1";
    const START: &str = "the lane starts the attempt run_id=2 attempt=1";

    #[test]
    fn an_attempt_is_in_its_lane_until_it_leaves_it_or_the_process_ends() {
        let had = |lines: &[&str]| log(lines).had_when_started(1, 2);
        assert_eq!(had(&[OLD, NEW, START]), Some(true));
        assert_eq!(had(&[NEW, START, OLD]), Some(false));
        assert_eq!(had(&[NEW, START]), None);
        assert_eq!(had(&[OLD, NEW]), None);
        let left = "the attempt has left its lane run_id=1 attempt=1";
        assert_eq!(had(&[OLD, left, NEW, START, OLD]), Some(false));
        let emptied = "the lanes are empty";
        assert_eq!(had(&[OLD, emptied, NEW, START, OLD]), Some(false));
        assert_eq!(had(&[OLD, emptied, OLD, NEW, START]), Some(true));
        let other = "the lane has the attempt run_id=1 attempt=2";
        assert_eq!(had(&[other, NEW, START, OLD]), Some(false));
    }

    #[test]
    fn the_time_of_leaving_is_that_of_the_last_line() {
        let left = "the attempt has left its lane run_id=1 attempt=1";
        let log = log(&[OLD, left, OLD, left]);
        let start: jiff::Timestamp = "2026-11-28T10:00:00Z".parse().unwrap();
        assert_eq!(log.left_at(1, 1), Some(start.as_millisecond() + 3));
        assert_eq!(log.left_at(1, 2), None);
    }
}
