//! Decides which dead letters end an attempt: a trigger that its executor refuses again and again (G17).
//!
//! A worker does not end the attempt of a trigger that it refuses. Otherwise the right to publish to its queue would be
//! enough to end attempts. A scheduler can tell whether the trigger is genuine and in time. If so, the executor would
//! refuse the next copy too: its trusted keys, its clock, its version or its state directory are the reason.
//!
//! The executor may have accepted another copy of the trigger, which was signed with another key or was not damaged. So
//! it is asked whether it holds the attempt. Until it answers, the letter stays in the broker's queue. It is not asked if
//! it knows the run id from another run, because it would take the question for one about that run.
//!
//! The other refusals leave the attempt to reconcile, which publishes a new copy. They are of a copy that came late, a
//! forged or misdirected one, one signed with a former key, and one that the executor's build cannot read: it may be
//! upgraded meanwhile. Copies that the broker or a drain moved to the dead letters belong to them too. Reconcile bounds
//! how often a trigger is published, and then ends the attempt.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cueline_model::{AttemptId, ExecutorId, OutcomeKind, RunState, StoreId, Timestamp};
use cueline_protocol::{KNOWN_FROM_ANOTHER_RUN, Trigger, UNREADABLE, decode};
use cueline_store::{AttemptReport, ErrorKind, OutstandingAttempt, RunDetail, Store, StoreError};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::received_letter::ReceivedLetter;
use crate::addresses::executor_queue;
use crate::error::EngineError;
use crate::liveness::executor_attempts::NOT_ROUTED_AGAIN;
use crate::liveness::holdings::Holdings;
use crate::pipeline::trigger_writer::TriggerSigner;
use crate::scheduler_report::attempt_ended;

pub(crate) struct RefusedTriggers {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) store_id: StoreId,
    pub(crate) signer: TriggerSigner,
    pub(crate) holdings: Holdings,
}

/// What becomes of a batch of dead letters.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    /// They end the attempts of refused triggers.
    pub(crate) reports: Vec<AttemptReport>,
    /// Positions of the letters that are to be looked at again later. A trigger that has lost half of its time ends
    /// the wait.
    pub(crate) undecided: HashSet<usize>,
}

/// A genuine trigger that was refused and whose attempt waits. The attempt ends if its executor does not hold it.
struct Refused {
    /// The position of its letter.
    letter: usize,
    reason: String,
    outstanding: OutstandingAttempt,
    /// Another copy may be in the queue, which the executor may accept.
    may_have_copy: bool,
}

/// What the store says about the attempt of a refused trigger.
enum Waiting {
    /// It does not wait for this trigger.
    No,
    /// The broker's confirmation is not in the store. A copy may be published at any time.
    Unconfirmed,
    /// It is `queued` since then.
    Since(Timestamp),
}

/// Nodes estimate the database's clock. Their estimates differ by less than this.
const CLOCK_ERROR_MS: u64 = 1_000;
/// A publish without an answer is repeated a second later, and by another node after a lease. So a trigger that was
/// confirmed more than this after its writing may have been published twice. At the first repetition, within this time,
/// the broker gets the same message again, and the executor refuses it as well.
const SECOND_COPY_AFTER_MS: u64 = 1_000 + CLOCK_ERROR_MS;
/// An executor that has not answered within this time is asked again later.
const ASK_WITHIN: Duration = Duration::from_secs(5);

impl RefusedTriggers {
    /// Decides about letters. Reads the run of each genuine trigger, and asks each executor once.
    pub(crate) async fn decide(&self, letters: &[ReceivedLetter]) -> Result<Decisions, StoreError> {
        let mut decisions = Decisions::default();
        let genuine: Vec<(usize, Trigger, &str)> = letters
            .iter()
            .enumerate()
            .filter_map(|(position, received)| {
                let letter = received.letter.as_ref().ok()?;
                Some((position, self.genuine(received)?, letter.reason.as_str()))
            })
            .collect();
        if genuine.is_empty() {
            return Ok(decisions);
        }
        // Not this node's estimate: after a step of its clock, its triggers may have expired before they were sent.
        let now = self.store.now().await?;
        let mut refused: Vec<Refused> = Vec::new();
        for (letter, trigger, reason) in genuine {
            let attempt = trigger.attempt_id();
            let is_known = refused.iter().any(|r| r.outstanding.attempt == attempt)
                || decisions.reports.iter().any(|r| r.attempt == attempt);
            if is_known || !self.signer.is_fresh(&trigger, now) {
                continue;
            }
            let written_at = self.signer.written_at(&trigger);
            let waiting = self.waiting(&trigger, written_at).await?;
            match waiting {
                Waiting::No => {}
                Waiting::Unconfirmed => {
                    decisions.undecided.insert(letter);
                }
                Waiting::Since(_) if reason.starts_with(KNOWN_FROM_ANOTHER_RUN) => {
                    decisions.reports.push(refused_report(attempt, now, reason));
                }
                Waiting::Since(queued_at) => refused.push(Refused {
                    letter,
                    reason: reason.to_owned(),
                    may_have_copy: queued_at > written_at.plus_ms(SECOND_COPY_AFTER_MS),
                    outstanding: outstanding(trigger, written_at, queued_at),
                }),
            }
        }
        self.ask_all(refused, now, &mut decisions).await;
        Ok(decisions)
    }

    async fn waiting(
        &self,
        trigger: &Trigger,
        written_at: Timestamp,
    ) -> Result<Waiting, StoreError> {
        match self.store.run(trigger.run).await {
            Ok(detail) => Ok(waiting(&detail, trigger, written_at)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Waiting::No),
            Err(e) => Err(e),
        }
    }

    /// Asks the executors at the same time, because one that does not answer must not hold up the others.
    async fn ask_all(&self, refused: Vec<Refused>, now: Timestamp, decisions: &mut Decisions) {
        let mut by_executor: BTreeMap<ExecutorId, Vec<Refused>> = BTreeMap::new();
        for one in refused {
            decisions.undecided.insert(one.letter);
            let executor = one.outstanding.executor.clone();
            by_executor.entry(executor).or_default().push(one);
        }
        let mut asked = JoinSet::new();
        for (executor, refused) in by_executor {
            let holdings = self.holdings.clone();
            asked.spawn(async move { ask(&holdings, &executor, refused).await });
        }
        while let Some(answered) = asked.join_next().await {
            for (refused, ends) in answered.unwrap_or_default() {
                decisions.undecided.remove(&refused.letter);
                if ends {
                    let attempt = refused.outstanding.attempt;
                    let report = refused_report(attempt, now, &refused.reason);
                    decisions.reports.push(report);
                }
            }
        }
    }

    /// The trigger in the dead letter, if a scheduler of this store wrote it for the executor that refused it, that
    /// executor has sealed the letter, and it would refuse another copy too.
    ///
    /// Without the key, the right to publish to the executor's queue is not enough to end an attempt that the worker
    /// holds. A changed trigger fails here or in [`waiting`], and the worker accepts a true copy.
    fn genuine(&self, received: &ReceivedLetter) -> Option<Trigger> {
        let letter = received.letter.as_ref().ok()?;
        let reason = letter.reason.as_str();
        let is_final = !reason.starts_with(NOT_ROUTED_AGAIN) && !reason.starts_with(UNREADABLE);
        if received.moved_by_broker || !is_final {
            return None;
        }
        let refused_by = received.origin.as_ref()?;
        let trigger: Trigger = decode(&letter.payload).ok()?;
        let queue = executor_queue(&trigger.group, &trigger.executor);
        let is_genuine = trigger.store == self.store_id
            && (&trigger.group, &trigger.executor) == (&refused_by.group, &refused_by.name)
            && letter.queue == queue.to_string()
            && self.signer.may_have_written(&letter.payload, &trigger);
        is_genuine.then_some(trigger)
    }
}

fn refused_report(attempt: AttemptId, now: Timestamp, reason: &str) -> AttemptReport {
    let message = format!("the executor refused the trigger: {reason}");
    attempt_ended(attempt, OutcomeKind::Failed, now, message)
}

/// The attempt of a trigger, as the store lists it.
fn outstanding(
    trigger: Trigger,
    written_at: Timestamp,
    queued_at: Timestamp,
) -> OutstandingAttempt {
    OutstandingAttempt {
        attempt: trigger.attempt_id(),
        state: RunState::Queued,
        // The trigger was written right after the mark. The executor's answer decides, not this time.
        dispatched_at: written_at,
        queued_at,
        executor: ExecutorId {
            group: trigger.group,
            name: trigger.executor,
        },
    }
}

/// Asks an executor whether it holds the attempts. Returns those that are decided, with whether they end.
async fn ask(
    holdings: &Holdings,
    executor: &ExecutorId,
    refused: Vec<Refused>,
) -> Vec<(Refused, bool)> {
    match timeout(ASK_WITHIN, try_ask(holdings, executor, refused)).await {
        Ok(Ok(decided)) => decided,
        Ok(Err(error)) => {
            tracing::warn!(
                group = %executor.group,
                executor = %executor.name,
                %error,
                "failed to ask an executor for attempts whose triggers it refused; trying again. Check the broker"
            );
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

async fn try_ask(
    holdings: &Holdings,
    executor: &ExecutorId,
    mut refused: Vec<Refused>,
) -> Result<Vec<(Refused, bool)>, EngineError> {
    // Looked at before the question: a copy that the executor takes in between is in its journal.
    if refused.iter().any(|one| one.may_have_copy) && !holdings.is_queue_empty(executor).await? {
        refused.retain(|one| !one.may_have_copy);
    }
    if refused.is_empty() {
        return Ok(Vec::new());
    }
    let attempts = refused.iter().map(|one| one.outstanding.clone()).collect();
    let Some(missing) = holdings.missing_in_journal(executor, attempts).await? else {
        return Ok(Vec::new());
    };
    // Reconcile ends those that may have started.
    let ending: HashSet<AttemptId> = missing.not_started.into_iter().collect();
    let decided = refused.into_iter().map(|one| {
        let ends = ending.contains(&one.outstanding.attempt);
        (one, ends)
    });
    Ok(decided.collect())
}

/// Whether the attempt waits at the executor of this trigger, and no later copy of the trigger was published.
///
/// The run may change before the report is ingested. A published attempt keeps its executor, and the store refuses to
/// end a running attempt as `failed` by a scheduler's report.
fn waiting(detail: &RunDetail, trigger: &Trigger, written_at: Timestamp) -> Waiting {
    let run = &detail.run;
    let is_this_fire = run.job_id == trigger.job.id
        && run.fire_at == trigger.fire_at
        && run.shard == trigger.shard;
    let is_there = run.attempt == trigger.attempt
        && run.group == trigger.group
        && run.executor.as_ref() == Some(&trigger.executor);
    // The executor may accept the later copy, if an operator has corrected it meanwhile.
    let has_later_copy = detail.timeline.iter().any(|entry| {
        entry.event == "republished"
            && entry.attempt == trigger.attempt
            && entry.at > written_at.plus_ms(CLOCK_ERROR_MS)
    });
    if !is_this_fire || !is_there || has_later_copy {
        return Waiting::No;
    }
    match run.state {
        RunState::Dispatching => Waiting::Unconfirmed,
        RunState::Queued => Waiting::Since(run.queued_at.unwrap_or(written_at)),
        _ => Waiting::No,
    }
}
