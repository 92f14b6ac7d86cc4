//! What a batch of reports makes of the runs that it is about: decided in memory, report by report, without SQL.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{
    Conclusion, Job, OnLost, Outcome, OutcomeKind, Retry, RunFacts, RunId, RunKind, RunState,
    Timestamp, conclude,
};
use cueline_store::{AttemptId, Ingested};
use sqlx::FromRow;

use crate::rows::{clean, int4, kind, small, state};

/// What has to be known of a run to apply reports to it.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct Facts {
    pub(crate) id: i64,
    pub(crate) job_id: i64,
    kind: i16,
    pub(crate) state: i16,
    pub(crate) attempt: i32,
    retries: i32,
    reruns: i32,
    cancel_requested: bool,
    /// The rest is absent when the job is deleted.
    pub(crate) version: Option<i64>,
    enabled: Option<bool>,
    fixed_delay: Option<bool>,
    has_children: Option<bool>,
}

impl Facts {
    fn goes_on(&self) -> bool {
        self.version.is_some()
            && (self.enabled == Some(true) || kind(self.kind).is_ok_and(|k| k == RunKind::Manual))
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.fixed_delay == Some(true) && self.enabled == Some(true)
    }

    pub(crate) fn has_children(&self) -> bool {
        self.has_children == Some(true)
    }

    /// Whether what follows from such an end depends on the job, which must not change meanwhile.
    pub(crate) fn binds_job(&self, outcome: &Outcome) -> bool {
        let ended = state(self.state).is_ok_and(RunState::is_terminal);
        let plain = outcome.kind == OutcomeKind::Succeeded
            && self.fixed_delay != Some(true)
            && !self.has_children();
        !ended && !plain
    }
}

/// How an attempt's end leaves its run, as it is written: the end of the run, or another attempt.
#[derive(Debug, Clone)]
pub(crate) struct Close {
    pub(crate) id: i64,
    /// The attempt that the store has before this.
    pub(crate) from_attempt: u32,
    pub(crate) state: RunState,
    pub(crate) attempt: u32,
    pub(crate) retries: u32,
    pub(crate) reruns: u32,
    pub(crate) due_at: Option<Timestamp>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) exit_status: Option<i32>,
    pub(crate) message: Option<String>,
    pub(crate) output: Option<String>,
}

impl Close {
    pub(crate) fn succeeded(&self) -> bool {
        self.state == RunState::Succeeded
    }
}

/// A line for a run's timeline.
#[derive(Debug, Clone)]
pub(crate) struct Event(
    pub(crate) i64,
    pub(crate) u32,
    pub(crate) &'static str,
    pub(crate) String,
);

/// A run with what the batch has made of it so far.
#[derive(Debug)]
struct Standing {
    facts: Facts,
    state: RunState,
    attempt: u32,
    started_at: Option<Timestamp>,
    progress: Option<f64>,
    /// Goes on with another attempt.
    again: Option<Close>,
    end: Option<Close>,
}

/// A batch of reports on its way to the store.
pub(crate) struct Batch {
    now: Timestamp,
    runs: HashMap<i64, Standing>,
    touched: Vec<i64>,
    pub(crate) events: Vec<Event>,
    pub(crate) refusals: Vec<Event>,
    pub(crate) done: Ingested,
}

/// What a batch wants written.
#[derive(Default)]
pub(crate) struct Writes {
    /// Run, attempt and start.
    pub(crate) started: Vec<(i64, i32, i64)>,
    pub(crate) progress: Vec<(i64, f64)>,
    pub(crate) again: Vec<Close>,
    pub(crate) ended: Vec<(Facts, Close)>,
}

impl Batch {
    pub(crate) fn new(
        facts: Vec<Facts>,
        now: Timestamp,
    ) -> Result<Self, cueline_store::StoreError> {
        let mut runs = HashMap::with_capacity(facts.len());
        for facts in facts {
            let standing = Standing {
                state: state(facts.state)?,
                attempt: small(facts.attempt),
                facts,
                started_at: None,
                progress: None,
                again: None,
                end: None,
            };
            runs.insert(standing.facts.id, standing);
        }
        Ok(Self {
            now,
            runs,
            touched: Vec::new(),
            events: Vec::new(),
            refusals: Vec::new(),
            done: Ingested::default(),
        })
    }

    /// The run in the attempt that is reported, if that is the present one.
    fn current(&mut self, id: AttemptId) -> Option<&mut Standing> {
        self.runs
            .get_mut(&id.run.0)
            .filter(|run| run.attempt == id.attempt)
    }

    fn note(&mut self, changed: Option<i64>) {
        match changed {
            Some(run) => self.touched.push(run),
            None => self.done.refused += 1,
        }
    }

    pub(crate) fn started(&mut self, id: AttemptId, at: Timestamp) {
        let changed = self
            .current(id)
            .filter(|run| matches!(run.state, RunState::Dispatching | RunState::Queued))
            .map(|run| {
                run.state = RunState::Running;
                run.started_at = Some(at);
                run.facts.id
            });
        self.note(changed);
    }

    pub(crate) fn progress(&mut self, id: AttemptId, part: f64) {
        let changed = self
            .current(id)
            .filter(|run| part.is_finite() && is_out(run.state))
            .map(|run| {
                run.progress = Some(part.clamp(0.0, 1.0));
                run.facts.id
            });
        self.note(changed);
    }

    /// Whether lines of this attempt's log can be kept: it exists or existed.
    pub(crate) fn keeps_log_of(&self, id: AttemptId) -> bool {
        self.runs
            .get(&id.run.0)
            .is_some_and(|run| (1..=run.attempt).contains(&id.attempt))
    }

    /// `jobs` holds the definitions of the runs whose end counts as failure.
    pub(crate) fn ended(
        &mut self,
        id: AttemptId,
        outcome: &Outcome,
        jobs: &HashMap<i64, Arc<Job>>,
    ) {
        let now = self.now;
        let Some(run) = self.runs.get_mut(&id.run.0) else {
            return self.note(None);
        };
        let reached = outcome.kind.state();
        let allowed = match reached {
            Some(end) => run.state.may_become(end),
            None => run.state.may_become(RunState::Scheduled),
        };
        if run.attempt != id.attempt || !allowed {
            if run.attempt != id.attempt || reached != Some(run.state) {
                let what = reached.map_or("returned", RunState::as_str);
                let why = if run.attempt == id.attempt {
                    format!("reported {what}; the run is {}", run.state)
                } else {
                    format!("reported {what}; the run is at attempt {}", run.attempt)
                };
                self.refusals
                    .push(Event(id.run.0, id.attempt, "refused", why));
            }
            return self.note(None);
        }
        let (close, event) = run.close(outcome, jobs.get(&run.facts.job_id), now);
        if let Some(due_at) = close.due_at {
            self.done.again += 1;
            soonest(&mut self.done.next_due, due_at);
        } else {
            self.done.ended += 1;
        }
        if close.ended_at.is_some() {
            run.end = Some(close);
        } else {
            run.again = Some(close);
        }
        self.events.extend(event);
        self.note(Some(id.run.0));
    }

    /// What is to be written, each run once in each list, by id.
    pub(crate) fn into_writes(mut self) -> (Writes, Vec<Event>, Vec<Event>, Ingested) {
        let mut writes = Writes::default();
        self.touched.sort_unstable();
        for id in std::mem::take(&mut self.touched) {
            let Some(run) = self.runs.remove(&id) else {
                continue;
            };
            let started = run
                .started_at
                .map(|at| (id, run.facts.attempt, at.as_millis()));
            writes.started.extend(started);
            writes.progress.extend(run.progress.map(|part| (id, part)));
            writes.again.extend(run.again);
            writes.ended.extend(run.end.map(|end| (run.facts, end)));
        }
        (writes, self.events, self.refusals, self.done)
    }
}

impl Standing {
    fn close(
        &mut self,
        outcome: &Outcome,
        job: Option<&Arc<Job>>,
        now: Timestamp,
    ) -> (Close, Option<Event>) {
        let facts = RunFacts {
            run: RunId(self.facts.id),
            attempt: self.attempt,
            retries: small(self.facts.retries),
            reruns: small(self.facts.reruns),
            cancel_requested: self.facts.cancel_requested,
        };
        let no_retry = Retry::default();
        let (retry, on_lost) = match job {
            Some(job) => (&job.spec.retry, job.spec.on_lost),
            None => (&no_retry, OnLost::Fail),
        };
        let mut conclusion = conclude(facts, retry, on_lost, outcome, now);
        let mut stopped = None;
        if matches!(conclusion, Conclusion::Again { .. }) && !self.facts.goes_on() {
            conclusion = Conclusion::End(outcome.kind.state().unwrap_or(RunState::Cancelled));
            stopped = Some("its job was stopped meanwhile");
        }
        let mut close = Close {
            id: self.facts.id,
            from_attempt: match &self.again {
                Some(earlier) => earlier.from_attempt,
                None => self.attempt,
            },
            state: RunState::Scheduled,
            attempt: self.attempt,
            retries: facts.retries,
            reruns: facts.reruns,
            due_at: None,
            started_at: outcome.started_at,
            ended_at: None,
            exit_status: outcome.exit_status,
            message: outcome
                .message
                .as_deref()
                .map(bounded)
                .or_else(|| stopped.map(str::to_owned)),
            output: None,
        };
        match conclusion {
            Conclusion::End(end) => {
                self.state = end;
                close.state = end;
                close.from_attempt = self.attempt;
                close.ended_at = Some(outcome.ended_at);
                close.output = outcome.output.as_deref().map(bounded);
                (close, None)
            }
            Conclusion::Again {
                due_at,
                retries,
                reruns,
                reason,
            } => {
                let event = match outcome.kind {
                    OutcomeKind::Returned => "returned",
                    _ if reruns > facts.reruns => "rerun",
                    _ => "retry",
                };
                let event = Event(
                    self.facts.id,
                    self.attempt,
                    event,
                    clean(&reason).into_owned(),
                );
                self.state = RunState::Scheduled;
                self.attempt = self.attempt.saturating_add(1);
                self.facts.retries = int4(retries);
                self.facts.reruns = int4(reruns);
                self.started_at = None;
                close.attempt = self.attempt;
                close.retries = retries;
                close.reruns = reruns;
                close.due_at = Some(due_at);
                (close, Some(event))
            }
        }
    }
}

fn is_out(state: RunState) -> bool {
    matches!(
        state,
        RunState::Dispatching | RunState::Queued | RunState::Running
    )
}

/// Text from outside, within the limit that workers keep to and without what databases cannot keep.
fn bounded(text: &str) -> String {
    let mut end = text.len().min(Outcome::MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    clean(text.get(..end).unwrap_or_default()).into_owned()
}

/// Keeps the earlier of the two.
pub(crate) fn soonest(kept: &mut Option<Timestamp>, other: Timestamp) {
    *kept = Some(kept.map_or(other, |kept| kept.min(other)));
}
