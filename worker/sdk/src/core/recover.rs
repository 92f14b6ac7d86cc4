//! Going on where the last worker stopped.

use cueline_model::{JobName, Outcome, OutcomeKind, Timestamp};
use cueline_protocol::{Trigger, decode};

use super::Core;
use super::batch::Batch;
use crate::error::Result;
use crate::journal::{JournalError, Open, State};
use crate::lanes::Arrival;

impl Core {
    /// Reads what is open in the journal. When it returns, the attempts that ran when the last worker stopped have
    /// ended `lost` on disk; nothing has been started.
    pub(crate) async fn recover(&mut self) -> Result<()> {
        self.stores.load(self.journal.stores().await?);
        let open = self.journal.open_entries().await?;
        let last = self.journal.last_contact().await?;
        let now = self.now();
        let ours = self.contact.resume(last.as_ref(), now.as_millis());
        if open.is_empty() {
            return Ok(());
        }
        tracing::info!(
            entries = open.len(),
            ours,
            "going on from the journal; what waited is given back unless it is still this worker's"
        );
        let mut batch = Batch::new(now);
        for entry in open {
            self.next_seq = self.next_seq.max(entry.seq);
            self.recover_entry(entry, ours, &mut batch)?;
        }
        if self.commit(&batch).await? {
            self.act(batch);
        }
        self.gauges.set(self.lanes.held(), 0);
        Ok(())
    }

    fn recover_entry(&mut self, entry: Open, ours: bool, batch: &mut Batch) -> Result<()> {
        let job: JobName = entry
            .job
            .parse()
            .map_err(|e| JournalError::Corrupt(format!("job of run {}: {e}", entry.id.run)))?;
        match entry.state {
            State::Accepted if ours => self.recover_waiting(&entry, job, batch),
            State::Accepted => {
                let outcome =
                    Outcome::new(OutcomeKind::Returned, batch.now).because(self.contact.why());
                batch.end(entry.id, job, outcome);
            }
            State::Started => {
                let outcome = Outcome {
                    started_at: Some(Timestamp::from_millis(entry.at_ms)),
                    ..Outcome::new(OutcomeKind::Lost, batch.now)
                }
                .because("the worker stopped while it ran");
                batch.end(entry.id, job, outcome);
            }
            State::Ended | State::Reported => {
                let text = entry.outcome.unwrap_or_default();
                let outcome = serde_json::from_str(&text).map_err(|e| {
                    JournalError::Corrupt(format!("outcome of run {}: {e}", entry.id.run))
                })?;
                batch.report(entry.id, job, outcome, false);
            }
        }
        Ok(())
    }

    fn recover_waiting(&mut self, entry: &Open, job: JobName, batch: &mut Batch) {
        let read = decode::<Trigger>(entry.trigger.as_deref().unwrap_or_default());
        let problem = match &read {
            Ok(trigger) => self.settings.handlers.resolve(&trigger.job.handler).err(),
            Err(error) => Some(error.to_string()),
        };
        match (read, problem) {
            (Ok(trigger), None) => {
                self.lanes.restore(&Arrival::of(entry.id, &trigger));
                self.waiting.insert(entry.id, trigger);
            }
            (_, problem) => {
                let outcome = Outcome::new(OutcomeKind::Returned, batch.now)
                    .because(problem.unwrap_or_default());
                batch.end(entry.id, job, outcome);
            }
        }
    }
}
