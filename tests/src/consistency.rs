//! Compares the database's records of runs with the handlers' records in the [execution log](crate::execution_log).

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::execution_log::{Entry, Event};

/// A run as the database records it.
#[derive(Debug, Clone)]
pub struct Run {
    pub id: i64,
    pub job: String,
    /// The cause of the run: `schedule`, `child` and so on.
    pub kind: String,
    pub state: String,
    /// The number of its last attempt.
    pub attempt: u32,
    /// In milliseconds.
    pub fire_at: i64,
    pub shard: u64,
    /// The number of shards of its fire time.
    pub shards: u64,
    pub parent: Option<i64>,
    /// The executor of its last attempt.
    pub executor: String,
    /// In milliseconds.
    pub created_at: i64,
    /// When the broker's confirmation of its last trigger was stored, in milliseconds. Written in batches.
    pub queued_at: Option<i64>,
    /// When its last attempt started, by the worker, in milliseconds.
    pub started_at: Option<i64>,
    /// In milliseconds.
    pub ended_at: Option<i64>,
    /// The reason for the run's state.
    pub message: String,
}

impl Run {
    /// Reads a run from an answer of the API.
    ///
    /// # Panics
    ///
    /// If `run` is not a run.
    pub fn from_json(run: &Value) -> Self {
        let text = |key: &str| run[key].as_str().unwrap_or_default().to_owned();
        Self {
            id: run["id"].as_i64().expect("a run has an id"),
            job: text("job"),
            kind: text("kind"),
            state: text("state"),
            attempt: u32::try_from(run["attempt"].as_u64().expect("a run has an attempt"))
                .expect("a small number"),
            fire_at: run["fire_at"].as_i64().expect("a run has a fire time"),
            shard: run["shard"]["index"].as_u64().unwrap_or(0),
            shards: run["shard"]["total"].as_u64().unwrap_or(1),
            parent: run["parent"].as_i64(),
            executor: text("executor"),
            created_at: run["created_at"].as_i64().unwrap_or(0),
            queued_at: run["queued_at"].as_i64(),
            started_at: run["started_at"].as_i64(),
            ended_at: run["ended_at"].as_i64(),
            message: text("message"),
        }
    }

    /// Whether it is in a terminal state.
    pub fn has_ended(&self) -> bool {
        !matches!(
            self.state.as_str(),
            "scheduled" | "dispatching" | "queued" | "running"
        )
    }
}

/// G1, G2: each fire time of the job has exactly one run of this shard, and there are at least `least` fire times.
pub fn check_fire_times(
    runs: &[Run],
    job: &str,
    shard: u64,
    every_ms: i64,
    least: usize,
) -> Vec<String> {
    let mut violations = Vec::new();
    let mut times: Vec<i64> = runs
        .iter()
        .filter(|r| r.job == job && r.kind == "schedule" && r.shard == shard)
        .map(|r| r.fire_at)
        .collect();
    times.sort_unstable();
    if times.len() < least {
        violations.push(format!("G1: {job} has {} runs", times.len()));
    }
    for pair in times.windows(2) {
        if pair[1] - pair[0] != every_ms {
            let violation = if pair[1] == pair[0] {
                "G2: two runs for"
            } else {
                "G1: no run after"
            };
            violations.push(format!(
                "{violation} fire time {} of {job}; the next is {}",
                pair[0], pair[1]
            ));
        }
    }
    violations
}

/// G5, G6, G8: no attempt starts twice, attempts of a run start in order, and none overlaps with another.
pub fn check_attempts(runs: &[Run], entries: &[Entry]) -> Vec<String> {
    let mut violations = check_known(runs, entries);
    for (late, earlier) in out_of_order(entries) {
        violations.push(format!("G5: {late:?} after {earlier:?}"));
    }
    for entry in entries.iter().filter(|e| e.event == Event::Overlap) {
        violations.push(format!("G6: overlap in its lane: {entry:?}"));
    }
    violations
}

/// G4, G5: the database knows each attempt that has started.
pub fn check_known(runs: &[Run], entries: &[Entry]) -> Vec<String> {
    let by_id: HashMap<i64, &Run> = runs.iter().map(|r| (r.id, r)).collect();
    let mut violations = Vec::new();
    for entry in entries.iter().filter(|e| e.event == Event::Start) {
        match by_id.get(&entry.run) {
            None => violations.push(format!(
                "G4: a run that the database does not know: {entry:?}"
            )),
            Some(run) if run.attempt < entry.attempt => violations.push(format!(
                "G5: an attempt that the database does not know: {entry:?}"
            )),
            Some(_) => {}
        }
    }
    violations
}

/// Pairs of a start and an earlier start that it must not follow. The earlier one is of the same attempt, or of a later
/// attempt of the same run.
pub fn out_of_order(entries: &[Entry]) -> Vec<(&Entry, &Entry)> {
    let mut known = HashMap::<(i64, u32), &Entry>::new();
    let mut latest = HashMap::<i64, &Entry>::new();
    let mut pairs = Vec::new();
    for entry in entries.iter().filter(|e| e.event == Event::Start) {
        let latest = latest.entry(entry.run).or_insert(entry);
        if let Some(same) = known.insert((entry.run, entry.attempt), entry) {
            pairs.push((entry, same));
        } else if latest.attempt > entry.attempt {
            pairs.push((entry, *latest));
        } else {
            *latest = entry;
        }
    }
    pairs
}

/// The events that each attempt recorded: `start`, `end`, `fail`, `stop`.
pub fn events_by_attempt(entries: &[Entry]) -> HashMap<(i64, u32), BTreeSet<&'static str>> {
    let mut events = HashMap::<(i64, u32), BTreeSet<&str>>::new();
    for entry in entries {
        let event = match entry.event {
            Event::Start | Event::Overlap => "start",
            Event::End => "end",
            Event::Fail => "fail",
            Event::Stop => "stop",
        };
        events
            .entry((entry.run, entry.attempt))
            .or_default()
            .insert(event);
    }
    events
}

/// G9: each success of the parent job has exactly one run of the child job, and the child job has no other runs.
pub fn check_children(runs: &[Run], parents: &str, children: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let mut by_parent = HashMap::<i64, usize>::new();
    for child in runs.iter().filter(|r| r.job.starts_with(children)) {
        *by_parent.entry(child.parent.unwrap_or(-1)).or_default() += 1;
    }
    for parent in runs.iter().filter(|r| r.job.starts_with(parents)) {
        let expected = usize::from(parent.state == "succeeded");
        let found = by_parent.remove(&parent.id).unwrap_or(0);
        if found != expected {
            violations.push(format!(
                "G9: {parent:?} has {found} child runs, not {expected}"
            ));
        }
    }
    if !by_parent.is_empty() {
        violations.push(format!("G9: child runs of no parent: {by_parent:?}"));
    }
    violations
}
