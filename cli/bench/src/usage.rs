//! Processor time and memory of processes, including the processes that they have started.

use std::collections::HashMap;
use std::time::Instant;

use crate::report::{Report, cpu_seconds, resident_mb};

/// A process whose cost is measured.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) pid: u32,
}

/// Parses `NAME=PID`.
pub(crate) fn parse_watched(text: &str) -> Result<Watched, String> {
    let expected = || format!("{text:?} given; NAME=PID is expected, such as postgres=1234");
    let (name, pid) = text.split_once('=').ok_or_else(expected)?;
    let pid: u32 = pid.parse().map_err(|_| expected())?;
    if cpu_seconds(&pid.to_string()).is_none() {
        return Err(format!("there is no process {pid}"));
    }
    let name = name.to_owned();
    Ok(Watched { name, pid })
}

/// What a process, and those that it has started, cost.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cost {
    pub(crate) name: String,
    /// Processor time, in percent of a core.
    pub(crate) cpu_percent: f64,
    pub(crate) memory_mb: f64,
}

impl Cost {
    pub(crate) fn add_to(&self, report: &mut Report) {
        let Self { name, .. } = self;
        report.add(format!("CPU {name}"), self.cpu_percent, "% of a core");
        report.add(format!("memory {name}"), self.memory_mb, "MB");
    }
}

/// Processor time of processes so far.
#[derive(Debug)]
pub(crate) struct Usage {
    at: Instant,
    spent: Vec<(Watched, HashMap<u32, f64>)>,
    loopback: Option<u64>,
}

impl Usage {
    /// Reads the times of `watched`, and of all processes that they have started.
    #[expect(
        clippy::disallowed_methods,
        reason = "an interval of real time is measured"
    )]
    pub(crate) fn now(watched: Vec<Watched>) -> Self {
        let children = children();
        let spent = watched.into_iter().map(|who| {
            let all = with_descendants(who.pid, &children);
            let spent = all
                .into_iter()
                .filter_map(|pid| Some((pid, cpu_seconds(&pid.to_string())?)));
            let spent = spent.collect();
            (who, spent)
        });
        Self {
            spent: spent.collect(),
            loopback: loopback_bytes(),
            at: Instant::now(),
        }
    }

    /// Adds the processor time of each since `before`, and its memory now.
    pub(crate) fn add_since(&self, before: &Self, report: &mut Report) {
        for cost in self.costs_since(before) {
            cost.add_to(report);
        }
    }

    /// The processor time of each since `before`, and its memory now. In the order in which they were given.
    pub(crate) fn costs_since(&self, before: &Self) -> Vec<Cost> {
        let elapsed = self.at.duration_since(before.at).as_secs_f64();
        // A process without an earlier value was started later, so all of its time counts.
        let then: HashMap<u32, f64> = before
            .spent
            .iter()
            .flat_map(|(_, spent)| spent.clone())
            .collect();
        let cost = |(who, now): &(Watched, HashMap<u32, f64>)| {
            let spent: f64 = now
                .iter()
                .map(|(pid, cpu)| cpu - then.get(pid).copied().unwrap_or(0.0))
                .sum();
            Cost {
                name: who.name.clone(),
                cpu_percent: spent / elapsed * 100.0,
                memory_mb: now.keys().filter_map(|pid| proportional_mb(*pid)).sum(),
            }
        };
        self.spent.iter().map(cost).collect()
    }

    /// Bytes over the loopback interface since `before`.
    pub(crate) fn loopback_since(&self, before: &Self) -> Option<u64> {
        self.loopback?.checked_sub(before.loopback?)
    }
}

/// The memory of a process. Memory that several processes share is divided among them.
fn proportional_mb(pid: u32) -> Option<f64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let Ok(rollup) = rollup else {
        return resident_mb(&pid.to_string());
    };
    let line = rollup.lines().find(|l| l.starts_with("Pss:"))?;
    let kb: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kb / 1_024.0)
}

/// The processes that each process has started.
fn children() -> HashMap<u32, Vec<u32>> {
    let mut children = HashMap::<u32, Vec<u32>>::new();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return children;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat"));
        let parent = stat.ok().and_then(|stat| {
            let rest = stat.rsplit_once(')')?.1.to_owned();
            rest.split_whitespace().nth(1)?.parse().ok()
        });
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

fn with_descendants(pid: u32, children: &HashMap<u32, Vec<u32>>) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children.get(pid).into_iter().flatten());
        next += 1;
    }
    all
}

/// Bytes that the loopback interface has received.
fn loopback_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/net/dev").ok()?;
    let line = text.lines().find_map(|l| l.trim().strip_prefix("lo:"))?;
    line.split_whitespace().next()?.parse().ok()
}
