//! Finds the attempts that their executors do not hold: neither in the queue nor in the journal.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, QueueId, QueueStats};
use cueline_model::{AttemptId, ExecutorId, RunState, StoreId, Timestamp};
use cueline_protocol::origin::Purpose;
use cueline_protocol::{Control, DecodeError, HoldingsReply, VERSION, decode, encode};
use cueline_store::OutstandingAttempt;

use super::registry::Registry;
use super::start_evidence::StartEvidence;
use super::unanswered::Unanswered;
use crate::addresses::{control_channel, executor_queue, start_log};
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::lock::lock;
use crate::origin::forged::Forged;
use crate::origin::forged_messages::{ForgedKind, ForgedMessages};
use crate::origin::origins::Origins;

/// The most attempts in one question and in one turn. An executor answers for more than this.
pub(crate) const BATCH: usize = 1_000;
const REPLY_WITHIN: Duration = Duration::from_secs(2);
/// The least [`passed_after_ms`](Holdings::passed_after_ms). After a lost delivery, NATS delivers a trigger again only
/// 30 s later.
pub(crate) const LEAST_PASSED_AFTER_MS: u64 = 60_000;

/// Asks live executors which attempts they hold.
#[derive(Clone)]
pub(crate) struct Holdings {
    pub(crate) broker: Broker,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) store_id: StoreId,
    pub(crate) unanswered: Arc<Mutex<Unanswered>>,
    pub(crate) origins: Origins,
    pub(crate) forged: Arc<ForgedMessages>,
    /// The validity of triggers. Their deadlines tell by it when they were written.
    pub(crate) trigger_valid_ms: u64,
    /// A trigger in a queue that holds others is lost if its executor has read triggers that were written this much
    /// later. Triggers that the broker delivers again lag behind, and clocks differ.
    pub(crate) passed_after_ms: u64,
}

/// Attempts that their executors do not hold.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// They have not started.
    pub(crate) not_started: Vec<AttemptId>,
    /// They are `running` in the store, or the start log has their start.
    pub(crate) may_have_started: Vec<AttemptId>,
}

/// What an executor answered to one or several questions.
#[derive(Debug, Default)]
struct Answers {
    missing: Vec<OutstandingAttempt>,
    fetched_until: Option<Timestamp>,
    forgotten_until: Option<Timestamp>,
    behind: bool,
}

impl Holdings {
    /// Compares attempts with the queues and journals of their executors. Attempts of executors that are not alive or
    /// do not answer are left out.
    pub(crate) async fn missing(
        &self,
        outstanding: Vec<OutstandingAttempt>,
    ) -> Result<Missing, EngineError> {
        let mut by_executor: BTreeMap<ExecutorId, Vec<OutstandingAttempt>> = BTreeMap::new();
        for o in outstanding {
            by_executor.entry(o.executor.clone()).or_default().push(o);
        }
        let with_triggers = self.queues_with_triggers(by_executor.keys()).await?;
        let mut missing = Missing::default();
        for (executor, attempts) in by_executor {
            if !self.registry.is_alive(&executor) {
                continue;
            }
            let queue = executor_queue(&executor.group, &executor.name);
            let answers = if with_triggers.contains(&queue) {
                self.ask_about_passed(&executor, attempts).await?
            } else {
                self.ask_about_all(&executor, &attempts).await?
            };
            let Answers {
                missing: attempts,
                forgotten_until,
                ..
            } = answers;
            self.classify(&executor, attempts, forgotten_until, &mut missing)
                .await;
        }
        Ok(missing)
    }

    /// Asks a live executor about `queued` attempts, whatever its queue holds. Those that it holds are left out of the
    /// result. `None` if it is not alive or does not answer, if it has not handled all that it has received, or if its
    /// start log cannot be read.
    pub(crate) async fn missing_in_journal(
        &self,
        executor: &ExecutorId,
        queued: Vec<OutstandingAttempt>,
    ) -> Result<Option<Missing>, EngineError> {
        if !self.registry.is_alive(executor) {
            return Ok(None);
        }
        let Some(reply) = self.reply(executor, &queued).await? else {
            return Ok(None);
        };
        if reply.behind {
            return Ok(None);
        }
        let held: HashSet<AttemptId> = reply.held.into_iter().collect();
        let not_held = queued.into_iter().filter(|o| !held.contains(&o.attempt));
        let mut missing = Missing::default();
        let is_sorted = self
            .classify(
                executor,
                not_held.collect(),
                reply.forgotten_until,
                &mut missing,
            )
            .await;
        Ok(is_sorted.then_some(missing))
    }

    /// Compares `queued` attempts of an executor that is not alive with its start log alone. `None` if the log cannot be
    /// read.
    pub(crate) async fn missing_in_start_log(
        &self,
        executor: &ExecutorId,
        queued: Vec<OutstandingAttempt>,
    ) -> Option<Missing> {
        let mut missing = Missing::default();
        let is_sorted = self.classify(executor, queued, None, &mut missing).await;
        is_sorted.then_some(missing)
    }

    /// Whether the queue of an executor holds no trigger. A queue that does not answer may hold any.
    pub(crate) async fn is_queue_empty(&self, executor: &ExecutorId) -> Result<bool, EngineError> {
        let with_messages = self.queues_with_triggers(std::iter::once(executor)).await?;
        let queue = executor_queue(&executor.group, &executor.name);
        Ok(!with_messages.contains(&queue))
    }

    /// Whether the executor answers a question, now.
    pub(crate) async fn is_answering(&self, executor: &ExecutorId) -> bool {
        matches!(self.reply(executor, &[]).await, Ok(Some(_)))
    }

    /// Asks an executor whose queue holds no triggers. It may have received them and not handled them yet.
    async fn ask_about_all(
        &self,
        executor: &ExecutorId,
        attempts: &[OutstandingAttempt],
    ) -> Result<Answers, EngineError> {
        let mut answers = Answers::default();
        self.ask(executor, attempts, &mut answers).await?;
        if answers.behind {
            let fetched_until = answers.fetched_until;
            answers.missing.retain(|o| {
                o.state == RunState::Running || self.has_passed(fetched_until, o.queued_at)
            });
        }
        Ok(answers)
    }

    /// Asks an executor whose queue holds triggers. The queue may hold the triggers of `queued` attempts, unless the
    /// executor has read beyond them.
    async fn ask_about_passed(
        &self,
        executor: &ExecutorId,
        attempts: Vec<OutstandingAttempt>,
    ) -> Result<Answers, EngineError> {
        let (running, queued): (Vec<_>, Vec<_>) = attempts
            .into_iter()
            .partition(|o| o.state == RunState::Running);
        let mut answers = Answers::default();
        self.ask(executor, &running, &mut answers).await?;
        let fetched_until = answers.fetched_until;
        let passed = |o: &OutstandingAttempt| self.has_passed(fetched_until, o.queued_at);
        let passed: Vec<_> = queued.into_iter().filter(passed).collect();
        if !passed.is_empty() {
            self.ask(executor, &passed, &mut answers).await?;
        }
        Ok(answers)
    }

    /// Whether an executor that has read up to the trigger with the deadline `fetched_until` has read beyond a trigger
    /// that was published before `queued_at`.
    fn has_passed(&self, fetched_until: Option<Timestamp>, queued_at: Timestamp) -> bool {
        let written_at = fetched_until.map(|deadline| deadline.minus_ms(self.trigger_valid_ms));
        written_at.is_some_and(|at| queued_at.plus_ms(self.passed_after_ms) < at)
    }

    async fn queues_with_triggers(
        &self,
        executors: impl Iterator<Item = &ExecutorId>,
    ) -> Result<BTreeSet<QueueId>, EngineError> {
        let queues: Vec<QueueId> = executors
            .map(|executor| executor_queue(&executor.group, &executor.name))
            .collect();
        let stats = self.broker.stats(&queues).await?;
        let counted = stats.queues.into_iter();
        let with_triggers = counted
            .filter(QueueStats::may_have_messages)
            .map(|s| s.queue);
        // A queue that does not answer may have any trigger.
        Ok(with_triggers.chain(stats.unanswered).collect())
    }

    /// Asks about attempts in parts, until one is not answered. Without attempts, it asks how far the executor has read
    /// its queue.
    async fn ask(
        &self,
        executor: &ExecutorId,
        attempts: &[OutstandingAttempt],
        answers: &mut Answers,
    ) -> Result<(), EngineError> {
        let mut rest = attempts;
        loop {
            let (part, later) = rest.split_at(rest.len().min(BATCH));
            let Some(reply) = self.reply(executor, part).await? else {
                return Ok(());
            };
            let held: HashSet<AttemptId> = reply.held.into_iter().collect();
            let not_held = part.iter().filter(|o| !held.contains(&o.attempt));
            answers.missing.extend(not_held.cloned());
            answers.fetched_until = reply.fetched_until;
            answers.forgotten_until = reply.forgotten_until;
            answers.behind |= reply.behind;
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    /// The executor's reply about these attempts; `None` when it does not answer.
    async fn reply(
        &self,
        executor: &ExecutorId,
        attempts: &[OutstandingAttempt],
    ) -> Result<Option<HoldingsReply>, EngineError> {
        let nonce = nonce();
        let question = Control::Holdings {
            v: VERSION,
            store: self.store_id,
            nonce: nonce.clone(),
            attempts: attempts.iter().map(|o| o.attempt).collect(),
        };
        let reply = self
            .broker
            .ask_for(
                &control_channel(executor),
                Bytes::from(encode(&question)),
                REPLY_WITHIN,
                |answer| self.read_answer(executor, &nonce, &answer),
            )
            .await?;
        let Some(reply) = reply else {
            self.note_silence(executor, attempts.len());
            return Ok(None);
        };
        lock(&self.unanswered).note_answer(executor);
        match reply {
            Ok(reply) => Ok(Some(reply)),
            Err(e) => {
                tracing::warn!(
                    group = %executor.group,
                    executor = %executor.name,
                    error = %e,
                    "ignored a holdings reply that cannot be read; check the version of the worker"
                );
                Ok(None)
            }
        }
    }

    /// The answer, if the executor has sealed it for this question. `None` if another sender may have made it; the true
    /// answer may still come.
    fn read_answer(
        &self,
        executor: &ExecutorId,
        nonce: &str,
        answer: &[u8],
    ) -> Option<Result<HoldingsReply, DecodeError>> {
        match self.open_answer(executor, nonce, answer) {
            Ok(reply) => Some(reply),
            Err(forged) => {
                self.forged.note(ForgedKind::Answer, &forged);
                None
            }
        }
    }

    fn open_answer(
        &self,
        executor: &ExecutorId,
        nonce: &str,
        answer: &[u8],
    ) -> Result<Result<HoldingsReply, DecodeError>, Forged> {
        let now = self.clock.now();
        let opened = self.origins.open(Purpose::Holdings, answer, now)?;
        opened.check_names(executor)?;
        let reply = decode::<HoldingsReply>(opened.body);
        if reply.as_ref().is_ok_and(|reply| reply.nonce != nonce) {
            let executor = executor.clone();
            return Err(Forged::OtherQuestion { executor });
        }
        Ok(reply)
    }

    /// Warns of an executor that sends heartbeats and answers nothing.
    fn note_silence(&self, executor: &ExecutorId, attempts: usize) {
        let silent_ms = lock(&self.unanswered).note_silence(executor, self.clock.now());
        if let Some(silent_ms) = silent_ms {
            tracing::warn!(
                group = %executor.group,
                executor = %executor.name,
                attempts,
                silent_ms,
                "an executor is alive and answered no question about its attempts; triggers that are lost on the way to it stay queued. Check the worker's log, its rights to receive control messages and to send replies, and the scheduler's rights to send control messages and to receive replies"
            );
        }
    }

    /// Sorts missing attempts by whether they may have started. The log is read after the executor's answer: an attempt
    /// that the executor has accepted since then may have started too. If the log cannot be read, the `queued` attempts
    /// are left out, and it returns false.
    async fn classify(
        &self,
        executor: &ExecutorId,
        attempts: Vec<OutstandingAttempt>,
        forgotten_until: Option<Timestamp>,
        missing: &mut Missing,
    ) -> bool {
        let (running, queued): (Vec<_>, Vec<_>) = attempts
            .into_iter()
            .partition(|o| o.state == RunState::Running);
        let running = running.iter().map(|o| o.attempt);
        missing.may_have_started.extend(running);
        if queued.is_empty() {
            return true;
        }
        let evidence = match self.broker.read_log(&start_log(executor)).await {
            Ok(records) => StartEvidence::of(&records, self.store_id),
            Err(e) => {
                tracing::warn!(
                    group = %executor.group,
                    executor = %executor.name,
                    count = queued.len(),
                    error = %e,
                    "failed to read a start log; its executor's lost triggers wait for the next try. Check the broker and the scheduler's rights on it"
                );
                return false;
            }
        };
        // The executor would hold an attempt that it has started, unless it has forgotten it since. Then only a complete
        // log shows that it has not started.
        let may_have_started = |o: &OutstandingAttempt| {
            if self.may_be_forgotten(forgotten_until, o.queued_at) {
                evidence.may_have_started(o.attempt, o.dispatched_at)
            } else {
                evidence.has_start(o.attempt)
            }
        };
        let (started, not_started): (Vec<_>, Vec<_>) =
            queued.into_iter().partition(may_have_started);
        let ids = |list: Vec<OutstandingAttempt>| list.into_iter().map(|o| o.attempt);
        missing.may_have_started.extend(ids(started));
        missing.not_started.extend(ids(not_started));
        true
    }

    /// Whether an executor that has forgotten ends which it reported until `forgotten_until` may have forgotten an attempt
    /// that was published before `queued_at`. Their clocks differ.
    fn may_be_forgotten(&self, forgotten_until: Option<Timestamp>, queued_at: Timestamp) -> bool {
        forgotten_until.is_some_and(|until| queued_at <= until.plus_ms(self.passed_after_ms))
    }
}

/// Identifies a question. An answer to an earlier one says nothing about now.
fn nonce() -> String {
    let number = RandomState::new().hash_one(std::process::id());
    format!("{number:016x}")
}
