//! The numbers of a benchmark, for a terminal or as JSON.

use serde::Serialize;

use crate::noop::Lateness;

/// One scenario's numbers, in the order of the output.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) numbers: Vec<Number>,
}

/// A number with its unit.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Number {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

impl Report {
    pub(crate) fn new(scenario: impl Into<String>, about: impl Into<String>) -> Self {
        Self {
            scenario: scenario.into(),
            about: about.into(),
            numbers: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        self.numbers.push(Number { name, value, unit });
    }

    /// Adds the median, the 99th percentile and the maximum.
    pub(crate) fn add_lateness(&mut self, measured: &Lateness) {
        self.add_times("lateness", measured);
    }

    /// The same of other times.
    pub(crate) fn add_times(&mut self, what: &str, measured: &Lateness) {
        let ms = |us: u64| number(us) / 1_000.0;
        self.add(
            format!("{what} p50"),
            ms(measured.value_at_quantile(0.5)),
            "ms",
        );
        self.add(
            format!("{what} p99"),
            ms(measured.value_at_quantile(0.99)),
            "ms",
        );
        self.add(format!("{what} max"), ms(measured.max()), "ms");
    }

    /// Adds the counts of the same runs by the store and by the handler.
    pub(crate) fn add_consistency(&mut self, runs: u64, succeeded: u64, attempts: u64) {
        self.add("runs in the store", number(runs), "");
        self.add("succeeded at the first attempt", number(succeeded), "");
        self.add("attempts of the handler", number(attempts), "");
    }

    /// The value of the first number: fires a second, in most scenarios.
    pub(crate) fn first_value(&self) -> Option<f64> {
        self.numbers.first().map(|number| number.value)
    }

    pub(crate) fn print(&self) {
        println!("{}: {}", self.scenario, self.about);
        for n in &self.numbers {
            println!("  {:<30} {:>14.2} {}", n.name, n.value, n.unit);
        }
    }
}

/// A count as a number to be divided.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a benchmark are far below 2^52"
)]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}

/// CPU time of a process so far, all threads, in seconds. `who` is a pid or `self`.
pub(crate) fn cpu_seconds(who: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{who}/stat")).ok()?;
    // The fields after the command, which is in parentheses and may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // Linux reports in ticks of 1/100 s on every machine that it runs on (USER_HZ).
    Some(ticks / 100.0)
}

/// Resident memory of a process, in megabytes.
pub(crate) fn resident_mb(who: &str) -> Option<f64> {
    status_mb(who, "VmRSS:")
}

/// The part of [`resident_mb`] that is mapped from files. Nearly all of it is the program, and the system can read it again.
pub(crate) fn mapped_mb(who: &str) -> Option<f64> {
    status_mb(who, "RssFile:")
}

fn status_mb(who: &str, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{who}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<f64>()
        .ok()
        .map(|kb| kb / 1_024.0)
}
