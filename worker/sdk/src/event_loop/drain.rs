//! The end of a worker: the drain, and the steps after it.

use super::decisions::Decisions;
use super::halt::Halt;
use super::state::EventLoop;
use crate::context::StopReason;
use crate::lanes::NotStarted;

impl EventLoop {
    /// Returns waiting attempts, and accepts no more.
    pub(super) async fn begin_drain(&mut self) -> Result<(), Halt> {
        tracing::info!(
            running = self.running.len(),
            waiting = self.waiting.len() + self.starting.len(),
            "drain began"
        );
        self.draining = true;
        self.services.status.begin_drain();
        let mut decisions = Decisions::new(self.now());
        self.close_lanes(NotStarted::Draining, &mut decisions);
        self.commit(&decisions).await?;
        self.act(decisions);
        Ok(())
    }

    pub(super) fn stop_running(&self) {
        for running in self.running.values() {
            running.cx.stop(StopReason::Drained);
        }
    }

    /// Marks the reported outcomes, and closes the journal.
    pub(crate) async fn finish(mut self) {
        let mut decisions = Decisions::new(self.now());
        decisions.mark_reported(self.services.reports.take_confirmed());
        if let Err(error) = self.journal.write(&decisions.entries).await {
            tracing::warn!(%error, "failed to mark reported outcomes; the next start reports them again");
        }
        self.journal.close().await;
    }

    /// Drops running handlers. The next start continues from the journal.
    pub(crate) async fn abandon(self) {
        drop(self.running);
        self.journal.close().await;
    }
}
