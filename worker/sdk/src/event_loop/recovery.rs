//! Continues where the previous process stopped.

use cueline_model::{JobName, Outcome, OutcomeKind, Timestamp};
use tokio::time::Instant;

use super::decisions::{Decisions, StartableAttempt};
use super::halt::Halt;
use super::lane_events;
use super::state::EventLoop;
use crate::intake::parse_stored;
use crate::journal::{Entry, EntryState, JournalError};
use crate::lanes::LaneRequest;

impl EventLoop {
    /// Takes over the journal's unreported entries. Attempts that ran when the previous process stopped end `lost`, and
    /// that is on disk when this returns. Nothing is started yet.
    pub(crate) async fn recover(&mut self) -> Result<(), Halt> {
        lane_events::emptied();
        let entries = self.journal.unreported().await?;
        let lease = self.journal.last_lease().await?;
        let now = self.now();
        let resumed = self.services.lease.resume(lease.as_ref(), now.as_millis());
        if entries.is_empty() {
            return Ok(());
        }
        tracing::info!(
            entries = entries.len(),
            lease_resumed = resumed,
            "continuing from the journal; without a resumed lease, waiting attempts are returned"
        );
        let mut decisions = Decisions::new(now);
        for entry in entries {
            self.last_seq = self.last_seq.max(entry.seq);
            self.recover_entry(entry, resumed, &mut decisions)?;
        }
        self.commit(&decisions).await?;
        self.act(decisions);
        self.services.status.set(self.lanes.held(), 0);
        Ok(())
    }

    fn recover_entry(
        &mut self,
        entry: Entry,
        lease_resumed: bool,
        decisions: &mut Decisions,
    ) -> Result<(), JournalError> {
        let key = entry.key;
        let corrupt = |what: &str| JournalError::Corrupt(format!("{what} of run {}", key.run));
        let job = entry.job.clone().ok_or_else(|| corrupt("job"))?;
        let now = decisions.now;
        match entry.state {
            EntryState::Accepted if lease_resumed => self.recover_waiting(entry, job, decisions),
            EntryState::Accepted => {
                let why = self.services.lease.fence_reason();
                decisions.end(
                    key,
                    job,
                    Outcome::new(OutcomeKind::Returned, now).because(why),
                );
            }
            EntryState::Started => {
                let outcome = Outcome {
                    started_at: Some(Timestamp::from_millis(entry.at_ms)),
                    ..Outcome::new(OutcomeKind::Lost, now)
                };
                decisions.end(key, job, outcome.because("the worker stopped while it ran"));
            }
            EntryState::Ended | EntryState::Reported => {
                let outcome = serde_json::from_str(&entry.outcome.unwrap_or_default());
                let outcome = outcome.map_err(|e| corrupt(&format!("outcome ({e})")))?;
                decisions.report(key, job, outcome, false);
            }
        }
        Ok(())
    }

    fn recover_waiting(&mut self, entry: Entry, job: JobName, decisions: &mut Decisions) {
        let payload = entry.trigger.unwrap_or_default();
        let parsed = parse_stored(payload, &self.services.settings);
        let startable = parsed.and_then(|parsed| Ok((parsed.trigger, parsed.handler?)));
        match startable {
            Ok((trigger, handler)) => {
                self.lanes.restore(LaneRequest::of(&trigger));
                lane_events::accepted(entry.key);
                let attempt = StartableAttempt {
                    trigger,
                    handler,
                    fetched_at: Instant::now(),
                    unjournalled: None,
                };
                self.waiting.insert(entry.key, attempt);
            }
            Err(why) => {
                let outcome = Outcome::new(OutcomeKind::Returned, decisions.now).because(why);
                decisions.end(entry.key, job, outcome);
            }
        }
    }
}
