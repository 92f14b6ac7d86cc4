//! Answers to schedulers that ask which attempts are held.

use std::collections::HashMap;
use std::sync::Arc;

use super::Core;
use super::batch::Batch;
use super::decide::Asked;
use crate::control;
use crate::journal::{Known, State};
use crate::stores::{AttemptKey, RunKey};

/// A result that was reported so long ago and is still asked for may be one that the broker has lost.
const WAITED_FOR_MS: i64 = 30_000;
/// Outcomes that are reported again at the most before some of them may be once more.
const MOST: usize = 10_000;

/// The outcomes that were reported again, and when each may be once more.
#[derive(Debug, Default)]
pub(super) struct Again(HashMap<AttemptKey, i64>);

impl Again {
    fn forget(&mut self, now_ms: i64) {
        self.0.retain(|_, next_ms| *next_ms > now_ms);
    }

    /// Whether an outcome that was reported then is to be reported again now. Each time after twice as long: schedulers that are behind with their
    /// results ask as well, and more of the same puts them further behind.
    fn is_due(&mut self, id: AttemptKey, reported_ms: i64, now_ms: i64) -> bool {
        let age_ms = now_ms.saturating_sub(reported_ms);
        let told = self.0.get(&id).is_some_and(|next_ms| *next_ms > now_ms);
        let due = age_ms >= WAITED_FOR_MS && !told && self.0.len() < MOST;
        if due {
            self.0.insert(id, now_ms.saturating_add(age_ms));
        }
        due
    }
}

impl Core {
    /// Answers which of the attempts asked for are in the journal. What has ended long ago, and is still asked for, is reported again as well.
    pub(super) async fn answer(&mut self, asked: Asked) {
        for (store, ids, reply_to) in asked {
            let key = |run| self.stores.known_key(store, run);
            let runs: Vec<RunKey> = ids.iter().filter_map(|id| key(id.run)).collect();
            let known = match self.journal.known(runs.into_iter()).await {
                Ok(known) => known,
                Err(error) => {
                    tracing::warn!(%error, "a question is not answered");
                    continue;
                }
            };
            let mut held = Vec::new();
            let mut ended = Vec::new();
            for id in ids {
                let run = self.stores.known_key(store, id.run);
                if let Some((run, known)) = run.and_then(|run| known.get_key_value(&run))
                    && known.attempt == id.attempt
                {
                    let (run, attempt) = (*run, id.attempt);
                    ended.push((AttemptKey { run, attempt }, known));
                    held.push(id);
                }
            }
            self.report_again(&ended);
            let settings = Arc::clone(&self.settings);
            tokio::spawn(async move { control::reply(&settings, &reply_to, held).await });
        }
    }

    /// Otherwise such a run would stay as it is until the journal has forgotten it, and would then be run again.
    fn report_again(&mut self, held: &[(AttemptKey, &Known)]) {
        if self.outbox.is_full() {
            return;
        }
        let now = self.now();
        let mut batch = Batch::new(now);
        self.again.forget(now.as_millis());
        for (id, known) in held {
            if known.state == State::Reported
                && let (Some(job), Some(outcome)) = (&known.job, &known.outcome)
                && let Ok(job) = job.parse()
                && self.again.is_due(*id, known.at_ms, now.as_millis())
            {
                batch.report_again(*id, job, outcome);
            }
        }
        if !batch.reports.is_empty() {
            let count = batch.reports.len();
            tracing::warn!(
                count,
                "outcomes that were reported long ago are still waited for; reporting them again"
            );
            self.outbox.push(batch.reports);
        }
    }
}
