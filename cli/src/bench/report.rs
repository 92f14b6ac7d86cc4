//! What a benchmark found, for people and for programs.

use serde::Serialize;

/// One scenario's numbers, in the order to show them.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) scenario: &'static str,
    pub(super) about: String,
    pub(super) numbers: Vec<Number>,
}

/// A number with its unit.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Number {
    pub(super) name: &'static str,
    pub(super) value: f64,
    pub(super) unit: &'static str,
}

impl Report {
    pub(super) fn new(scenario: &'static str, about: String) -> Self {
        Self {
            scenario,
            about,
            numbers: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, name: &'static str, value: f64, unit: &'static str) {
        self.numbers.push(Number { name, value, unit });
    }

    pub(super) fn print(&self) {
        println!("{}: {}", self.scenario, self.about);
        for n in &self.numbers {
            println!("  {:<28} {:>14.2} {}", n.name, n.value, n.unit);
        }
    }
}

/// CPU time of a process so far, all threads, in seconds. `who` is a pid or `self`.
pub(super) fn cpu_seconds(who: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{who}/stat")).ok()?;
    // The fields after the command, which is in parentheses and may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // Linux reports in ticks of 1/100 s on every machine that it runs on (USER_HZ).
    Some(ticks / 100.0)
}

/// Resident memory of a process, in megabytes.
pub(super) fn resident_mb(who: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{who}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<f64>()
        .ok()
        .map(|kb| kb / 1_024.0)
}
