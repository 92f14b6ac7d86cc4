//! The two sets of books of a chaos test: what the database says of runs, and what handlers wrote down themselves.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::witness::{Note, What};

/// What the database says of a run, as far as a test asks.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its id.
    pub id: i64,
    /// Its job's name.
    pub job: String,
    /// What made it: `schedule`, `child` …
    pub kind: String,
    /// Its state.
    pub state: String,
    /// Its last attempt.
    pub attempt: u32,
    /// Its fire time, in milliseconds.
    pub fire_at: i64,
    /// Its shard.
    pub shard: u64,
    /// The run that it follows.
    pub parent: Option<i64>,
    /// The executor of its last attempt.
    pub executor: String,
    /// When it was written down, in milliseconds.
    pub created_at: i64,
    /// What is said about its end.
    pub message: String,
}

impl Run {
    /// Reads one as the API gives it.
    ///
    /// # Panics
    ///
    /// If it is no run.
    pub fn read(run: &Value) -> Self {
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
            parent: run["parent"].as_i64(),
            executor: text("executor"),
            created_at: run["created_at"].as_i64().unwrap_or(0),
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

/// G1, G2: each point of the job's grid has exactly one run for the shard.
pub fn grid(runs: &[Run], job: &str, every_ms: i64, least: usize) -> Vec<String> {
    grid_of(runs, job, 0, every_ms, least)
}

/// The same for one of its shards.
pub fn grid_of(runs: &[Run], job: &str, shard: u64, every_ms: i64, least: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut times: Vec<i64> = runs
        .iter()
        .filter(|r| r.job == job && r.kind == "schedule" && r.shard == shard)
        .map(|r| r.fire_at)
        .collect();
    times.sort_unstable();
    if times.len() < least {
        wrong.push(format!("G1: {job} has {} runs", times.len()));
    }
    for pair in times.windows(2) {
        if pair[1] - pair[0] != every_ms {
            let what = if pair[1] == pair[0] {
                "G2: two runs for"
            } else {
                "G1: no run after"
            };
            wrong.push(format!(
                "{what} fire time {} of {job}; the next is {}",
                pair[0], pair[1]
            ));
        }
    }
    wrong
}

/// G5, G6, G8: no attempt starts twice, attempts of a run start in order, nothing overlaps.
pub fn attempts(runs: &[Run], notes: &[Note]) -> Vec<String> {
    let mut wrong = known(runs, notes);
    for (late, before) in out_of_order(notes) {
        wrong.push(format!("G5: {late:?} after {before:?}"));
    }
    for note in notes.iter().filter(|n| n.what == What::Overlap) {
        wrong.push(format!("G6: overlap in its lane: {note:?}"));
    }
    wrong
}

/// Each start belongs to an attempt that the database knows.
pub fn known(runs: &[Run], notes: &[Note]) -> Vec<String> {
    let by_id: HashMap<i64, &Run> = runs.iter().map(|r| (r.id, r)).collect();
    let mut wrong = Vec::new();
    for note in notes.iter().filter(|n| n.what == What::Start) {
        match by_id.get(&note.run) {
            None => wrong.push(format!(
                "G4: a run that the database does not know: {note:?}"
            )),
            Some(run) if run.attempt < note.attempt => wrong.push(format!(
                "G5: an attempt that the database does not know: {note:?}"
            )),
            Some(_) => {}
        }
    }
    wrong
}

/// The starts that were noted after one of a later attempt of their run, and that one; and those of an attempt that had been noted before, and
/// that note.
pub fn out_of_order(notes: &[Note]) -> Vec<(&Note, &Note)> {
    let mut known = HashMap::<(i64, u32), &Note>::new();
    let mut latest = HashMap::<i64, &Note>::new();
    let mut wrong = Vec::new();
    for note in notes.iter().filter(|n| n.what == What::Start) {
        let latest = latest.entry(note.run).or_insert(note);
        if let Some(same) = known.insert((note.run, note.attempt), note) {
            wrong.push((note, same));
        } else if latest.attempt > note.attempt {
            wrong.push((note, *latest));
        } else {
            *latest = note;
        }
    }
    wrong
}

/// What was noted of each attempt: `start`, `end`, `fail`.
pub fn seen(notes: &[Note]) -> HashMap<(i64, u32), BTreeSet<&'static str>> {
    let mut seen = HashMap::<(i64, u32), BTreeSet<&str>>::new();
    for note in notes {
        let what = match note.what {
            What::Start | What::Overlap => "start",
            What::End => "end",
            What::Fail => "fail",
            What::Stop => "stop",
        };
        seen.entry((note.run, note.attempt))
            .or_default()
            .insert(what);
    }
    seen
}
