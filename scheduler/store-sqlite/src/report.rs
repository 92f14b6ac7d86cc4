//! What a batch of reports makes of the runs that it is about: decided in memory, report by report, without SQL.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{
    Conclusion, Job, OnLost, Outcome, OutcomeKind, Retry, RunFacts, RunId, RunKind, RunState,
    Timestamp, conclude,
};
use cueline_store::{AttemptId, Ingested};
use serde::{Deserialize, Serialize};

use crate::rows::{clean, kind, small, state};

/// What has to be known of a run to apply reports to it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Facts {
    pub(crate) id: i64,
    pub(crate) job_id: i64,
    pub(crate) kind: i64,
    pub(crate) state: i64,
    pub(crate) attempt: i64,
    retries: i64,
    reruns: i64,
    cancel_requested: i64,
    pub(crate) fire_key: i64,
    /// The rest is absent when the job is deleted.
    pub(crate) version: Option<i64>,
    enabled: Option<i64>,
    fixed_delay: Option<i64>,
    has_children: Option<i64>,
}

impl Facts {
    fn goes_on(&self) -> bool {
        self.version.is_some()
            && (self.enabled == Some(1) || kind(self.kind).is_ok_and(|k| k == RunKind::Manual))
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.fixed_delay == Some(1) && self.enabled == Some(1)
    }

    pub(crate) fn has_children(&self) -> bool {
        self.has_children == Some(1)
    }
}

/// How an attempt's end leaves its run, as it is written: the end of the run, or another attempt.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Close {
    id: i64,
    state: u8,
    attempt: u32,
    retries: u32,
    reruns: u32,
    due_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    exit_status: Option<i32>,
    message: Option<String>,
    pub(crate) output: Option<String>,
}

/// Run, start, end and exit status of a success that left nothing else to keep.
pub(crate) type PlainSuccess = (i64, Option<Timestamp>, Option<Timestamp>, Option<i32>);

impl Close {
    /// The fields to write, if the run succeeded at its attempt and there is nothing else to keep of it.
    pub(crate) fn plain(&self) -> Option<PlainSuccess> {
        (self.succeeded() && self.message.is_none() && self.output.is_none()).then_some((
            self.id,
            self.started_at,
            self.ended_at,
            self.exit_status,
        ))
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.state == RunState::Succeeded.code()
    }
}

/// A line for a run's timeline.
#[derive(Debug, Clone, Serialize)]
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
    close: Option<Close>,
}

/// A batch of reports on its way to the store.
pub(crate) struct Batch {
    now: Timestamp,
    runs: HashMap<i64, Standing>,
    /// In the order of their first effect, so that what is written does not depend on a hash.
    touched: Vec<i64>,
    pub(crate) events: Vec<Event>,
    pub(crate) refusals: Vec<Event>,
    pub(crate) done: Ingested,
}

/// What a batch wants written.
#[derive(Default)]
pub(crate) struct Writes {
    pub(crate) started: Vec<(i64, Timestamp)>,
    pub(crate) progress: Vec<(i64, f64)>,
    pub(crate) closed: Vec<(Facts, Close)>,
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
                close: None,
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
        run.close = Some(close);
        self.events.extend(event);
        self.note(Some(id.run.0));
    }

    /// What is to be written, each run once in each list.
    pub(crate) fn into_writes(mut self) -> (Writes, Vec<Event>, Vec<Event>, Ingested) {
        let mut writes = Writes::default();
        for id in std::mem::take(&mut self.touched) {
            let Some(run) = self.runs.remove(&id) else {
                continue;
            };
            writes.started.extend(run.started_at.map(|at| (id, at)));
            writes.progress.extend(run.progress.map(|part| (id, part)));
            writes
                .closed
                .extend(run.close.map(|close| (run.facts, close)));
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
            cancel_requested: self.facts.cancel_requested == 1,
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
            state: RunState::Scheduled.code(),
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
                close.state = end.code();
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
                self.facts.retries = i64::from(retries);
                self.facts.reruns = i64::from(reruns);
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
