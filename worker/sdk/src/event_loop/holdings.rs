//! Answers to schedulers that ask which attempts the worker has.

use std::sync::Arc;

use cueline_model::Timestamp;
use cueline_protocol::{HoldingsReply, VERSION};

use super::decisions::Decisions;
use super::state::EventLoop;
use crate::control::{self, HoldingsQuery};
use crate::journal::{Entry, EntryState};

impl EventLoop {
    /// Answers with the attempts that are in the journal, ended or not. Call this after a turn: the journal then has
    /// all triggers up to the reported position in the queue. Repeats reports that the schedulers should have received
    /// long ago.
    pub(super) async fn answer(&mut self, queries: Vec<HoldingsQuery>) {
        for query in queries {
            let runs = query.attempts.iter().map(|key| key.run);
            let known = match self.journal.known(runs).await {
                Ok(known) => known,
                Err(error) => {
                    tracing::warn!(%error, "failed to answer a holdings query; schedulers will repeat it");
                    continue;
                }
            };
            let held: Vec<&Entry> = query
                .attempts
                .iter()
                .filter_map(|key| known.get(&key.run).filter(|entry| entry.key == *key))
                .collect();
            self.resend_lost(&held);
            let reply = HoldingsReply {
                v: VERSION,
                nonce: query.nonce,
                held: held.iter().map(|entry| entry.key.id()).collect(),
                fetched_until: self.queue_position.of(query.store),
                forgotten_until: self
                    .journal
                    .forgotten_until(query.store)
                    .map(Timestamp::from_millis),
                behind: self.services.status.is_behind(),
            };
            let (settings, to) = (Arc::clone(&self.services.settings), query.reply_to);
            tokio::spawn(async move { control::reply(&settings, &to, reply).await });
        }
    }

    /// Repeats the reports of outcomes that were lost. Otherwise their runs would stay open until the journal has
    /// forgotten the attempts, and would then run again.
    fn resend_lost(&mut self, held: &[&Entry]) {
        if self.services.reports.is_full() {
            return;
        }
        let now = self.now();
        let mut decisions = Decisions::new(now);
        self.resend_backoff.forget_due(now.as_millis());
        for entry in held {
            if entry.state == EntryState::Reported
                && let (Some(job), Some(outcome)) = (&entry.job, &entry.outcome)
                && self
                    .resend_backoff
                    .is_due(entry.key, entry.at_ms, now.as_millis())
            {
                decisions.resend(entry.key, job.clone(), outcome);
            }
        }
        if !decisions.reports.is_empty() {
            tracing::warn!(
                count = decisions.reports.len(),
                "schedulers still ask for outcomes that were reported long ago; reporting them again"
            );
            self.services.reports.push(decisions.reports);
        }
    }
}
