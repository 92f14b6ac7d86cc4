//! Backfills: their rows, and which runs they get next. Pure.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::backfill::next_fires;
use cueline_model::{Exclusions, FireRules, Job, JobId, JobSpec, RunKind, Timestamp};
use serde::Deserialize;

use super::convert::{corrupt, flag, parse_name, to_i64, to_u32, to_u64};
use super::live_executors::LiveExecutors;
use super::new_run::{Fire, NewRun};
use crate::{Backfill, BackfillChange, BackfillState, ErrorKind, MAX_ADVANCED_RUNS, StoreError};

/// Fire keys of one backfill: its id is in the upper bits, and the number of the fire in these lower ones.
const FIRE_BITS: u32 = 20;

/// The least fire key of a backfill, and the least of the next one.
pub const fn fire_keys(id: i64) -> (i64, i64) {
    (id << FIRE_BITS, (id + 1) << FIRE_BITS)
}

/// A backfill as statements return it: a JSON object.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "named like the columns of the tables")]
pub struct BackfillRow {
    pub id: i64,
    pub job_id: i64,
    pub name: String,
    pub group_name: String,
    pub from_at: i64,
    pub to_at: i64,
    pub parallel: i64,
    #[serde(deserialize_with = "flag")]
    pub include_excluded: bool,
    pub state: i64,
    pub total: i64,
    pub fires: i64,
    pub outstanding: i64,
    pub excluded: i64,
    pub cursor_at: Option<i64>,
    pub started_at: i64,
    pub started_by: String,
    pub changed_at: Option<i64>,
    pub changed_by: Option<String>,
    pub ended_at: Option<i64>,
    pub message: Option<String>,
    /// The definition of the job at the start. Read only to create runs.
    pub definition: Option<String>,
    /// Whether the job is deleted.
    #[serde(deserialize_with = "flag")]
    pub is_deleted: bool,
}

impl BackfillRow {
    /// The row in its text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`] for a text of another form.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        serde_json::from_str(text).map_err(|e| corrupt("failed to read a backfill", e))
    }

    /// The state.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`] for an unknown one.
    pub fn state(&self) -> Result<BackfillState, StoreError> {
        let state = u8::try_from(self.state).ok();
        state.and_then(BackfillState::from_code).ok_or_else(|| {
            let unknown = format!("unknown state {}", self.state);
            corrupt(format!("failed to read backfill {}", self.id), unknown)
        })
    }

    /// The backfill.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Broken`] for values that no version of this program writes.
    pub fn backfill(self) -> Result<Backfill, StoreError> {
        let at = Timestamp::from_millis;
        Ok(Backfill {
            id: self.id,
            state: self.state()?,
            job: parse_name(&self.name)?,
            group: parse_name(&self.group_name)?,
            from: at(self.from_at),
            to: at(self.to_at),
            parallel: to_u32(self.parallel),
            include_excluded: self.include_excluded,
            total: to_u64(self.total),
            fires: to_u64(self.fires),
            outstanding: to_u64(self.outstanding),
            excluded: to_u64(self.excluded),
            cursor: self.cursor_at.map(at),
            started_at: at(self.started_at),
            started_by: self.started_by,
            changed_at: self.changed_at.map(at),
            changed_by: self.changed_by,
            ended_at: self.ended_at.map(at),
            message: self.message,
        })
    }
}

/// The job of a backfill, which is locked.
#[derive(Debug, Clone)]
pub struct BackfilledJob {
    /// Its present definition; `None` if this program cannot read it.
    pub job: Option<Arc<Job>>,
    /// Number of its runs so far.
    pub run_count: i64,
    /// Whether it is paused, alone or with others.
    pub is_paused: bool,
    /// Its backfilled fires whose runs have not ended.
    pub outstanding: i64,
}

/// The next runs of a backfill, and its columns afterwards.
#[derive(Debug, Default)]
pub struct Advanced {
    /// The runs to write.
    pub runs: Vec<NewRun>,
    /// See [`Backfill::fires`].
    pub fires: i64,
    /// See [`Backfill::excluded`].
    pub excluded: i64,
    /// See [`Backfill::cursor`].
    pub cursor_at: Option<i64>,
    /// Whether it ends, and why if not because it is finished.
    pub ends: Option<(BackfillState, Option<&'static str>)>,
}

/// The next steps of backfills that are running: the runs to write, and the columns of those that get further. One that
/// cannot be read does not stop the others.
pub fn advance_all(
    rows: &[BackfillRow],
    jobs: &HashMap<i64, BackfilledJob>,
    rules: &FireRules,
    live: &mut LiveExecutors,
    now: Timestamp,
) -> (Vec<NewRun>, Vec<(i64, Advanced)>) {
    let (mut runs, mut changes) = (Vec::new(), Vec::new());
    for row in rows {
        let most_runs = MAX_ADVANCED_RUNS.saturating_sub(runs.len());
        match advance(row, jobs.get(&row.job_id), rules, live, most_runs, now) {
            Ok(Some(mut advanced)) => {
                runs.append(&mut advanced.runs);
                changes.push((row.id, advanced));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(backfill = row.id, %error, "a backfill does not go on; upgrade this node, or cancel the backfill");
            }
        }
    }
    (runs, changes)
}

/// The next step of a backfill that is running; `None` if there is nothing to do now. At most `most_runs` runs, and those of
/// one fire.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if its definition cannot be read.
fn advance(
    row: &BackfillRow,
    job: Option<&BackfilledJob>,
    rules: &FireRules,
    live: &mut LiveExecutors,
    most_runs: usize,
    now: Timestamp,
) -> Result<Option<Advanced>, StoreError> {
    let same = Advanced {
        runs: Vec::new(),
        fires: row.fires,
        excluded: row.excluded,
        cursor_at: row.cursor_at,
        ends: None,
    };
    if row.is_deleted {
        let ends = Some((BackfillState::Cancelled, Some("its job was deleted")));
        return Ok(Some(Advanced { ends, ..same }));
    }
    let Some(backfilled) = job else {
        return Ok(None);
    };
    let Some(job) = &backfilled.job else {
        return Ok(None);
    };
    let spec = definition(row)?;
    let exclusions = if row.include_excluded {
        Exclusions::default()
    } else {
        rules.of(&spec).without_pauses()
    };
    let after = row.cursor_at.unwrap_or(row.from_at - 1);
    let room = usize::try_from(row.parallel - backfilled.outstanding).unwrap_or(0);
    let room = if backfilled.is_paused { 0 } else { room };
    let (after, to) = (
        Timestamp::from_millis(after),
        Timestamp::from_millis(row.to_at),
    );
    let next = next_fires(&spec, &exclusions, after, to, room.min(most_runs));
    let mut advanced = same;
    let plan = FirePlan {
        row,
        job,
        run_count: backfilled.run_count,
        most_runs,
        now,
    };
    let stopped = plan.fill(&mut advanced, &next.times, live);
    if !stopped {
        advanced.excluded += i64::try_from(next.excluded).unwrap_or(i64::MAX);
        advanced.cursor_at = next.cursor.map(Timestamp::as_millis).or(advanced.cursor_at);
    }
    if next.is_end && !stopped && advanced.runs.is_empty() && backfilled.outstanding == 0 {
        advanced.ends = Some((BackfillState::Finished, None));
    }
    let changed = advanced.cursor_at != row.cursor_at || advanced.ends.is_some();
    Ok(changed.then_some(advanced))
}

/// What the runs of the next fires have in common.
struct FirePlan<'a> {
    row: &'a BackfillRow,
    job: &'a Arc<Job>,
    run_count: i64,
    most_runs: usize,
    now: Timestamp,
}

impl FirePlan<'_> {
    /// Adds the runs of these fire times. Returns whether it stopped before the last one.
    fn fill(&self, advanced: &mut Advanced, times: &[Timestamp], live: &mut LiveExecutors) -> bool {
        for at in times {
            if advanced.runs.len() >= self.most_runs {
                return true;
            }
            let fire = Fire {
                kind: RunKind::Backfill,
                key: Some(fire_keys(self.row.id).0 + advanced.fires),
                fire_at: *at,
                due_at: self.now,
                claimed_by: None,
                parent: None,
                params: None,
            };
            let sequence = self.run_count + to_i64(advanced.runs.len());
            let runs = NewRun::of_fire(self.job, sequence, live, &fire);
            if runs.is_empty() {
                // A broadcast without an executor waits for one.
                return true;
            }
            advanced.fires += 1;
            advanced.cursor_at = Some(at.as_millis());
            advanced.runs.extend(runs);
        }
        false
    }
}

fn definition(row: &BackfillRow) -> Result<JobSpec, StoreError> {
    let text = row.definition.as_deref().unwrap_or_default();
    serde_json::from_str(text)
        .map_err(|e| corrupt(format!("failed to read the job of backfill {}", row.id), e))
}

/// Checks that a change is possible. Returns whether it changes something.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if the backfill has ended in another way.
pub fn check_change(
    id: i64,
    state: BackfillState,
    change: BackfillChange,
) -> Result<bool, StoreError> {
    if state == change.state() {
        return Ok(false);
    }
    if state.is_ended() {
        let (change, state) = (change.as_str(), state.as_str());
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!("failed to {change} backfill {id}: it is {state}; start another one"),
        ));
    }
    Ok(true)
}

/// An error because the job has a backfill that has not ended.
pub fn already_active(job: &str, id: i64, state: impl Into<i64>) -> StoreError {
    let is_paused = state.into() == i64::from(BackfillState::Paused.code());
    let state = if is_paused { "paused" } else { "running" };
    StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to start a backfill: {job:?} has backfill {id}, which is {state}; wait for its end, or cancel it"
        ),
    )
}

/// An error because there are too many backfills.
pub fn too_many_active(most: usize) -> StoreError {
    StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to start a backfill: {most} are running or paused, which is the most; wait for the end of one, or cancel it"
        ),
    )
}

/// An error because there is no such backfill.
pub fn no_backfill(id: i64) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("there is no backfill {id}"))
}

/// What runs say that are cancelled with their backfill.
pub fn cancel_message(id: i64, by: &str) -> String {
    format!("cancelled with backfill {id} by {by}")
}

/// The jobs of some rows, each once, ascending.
pub fn jobs_of(rows: &[BackfillRow]) -> Vec<JobId> {
    let jobs: BTreeSet<JobId> = rows.iter().map(|row| JobId(row.job_id)).collect();
    jobs.into_iter().collect()
}
