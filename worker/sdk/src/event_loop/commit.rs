//! Reads and writes the journal, and tries again until it works.

use std::collections::HashMap;
use std::time::Duration;

use cueline_runtime::Backoff;
use tokio::time::Instant;

use super::decisions::Decisions;
use super::halt::Halt;
use super::state::EventLoop;
use crate::identity::RunKey;
use crate::journal::{Entry, JournalError};

/// A draining worker tries to use its journal for this long beyond its drain timeout.
const BEYOND_DRAIN: Duration = Duration::from_secs(10);

/// When the journal has failed for this long, heartbeats say that the worker accepts no triggers.
const UNUSABLE_AFTER: Duration = Duration::from_secs(5);

/// The tries of one journal operation.
struct Tries {
    began: Instant,
    backoff: Backoff,
    /// When a draining worker gives up.
    deadline: Option<Instant>,
}

impl Tries {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)),
            deadline: None,
        }
    }
}

impl EventLoop {
    /// Writes the decisions to the journal. No decision is carried out before that.
    pub(super) async fn commit(&mut self, decisions: &Decisions) -> Result<(), Halt> {
        if cueline_runtime::planted!("no_journal_write") {
            return Ok(());
        }
        let mut tries = Tries::new();
        while let Err(error) = self.journal.write(&decisions.entries).await {
            self.backoff_or_stop(error, &mut tries).await?;
        }
        self.services.status.set_journal_unusable(false);
        Ok(())
    }

    /// The entries of these runs in the journal.
    pub(super) async fn known(&mut self, runs: &[RunKey]) -> Result<HashMap<RunKey, Entry>, Halt> {
        let mut tries = Tries::new();
        loop {
            match self.journal.known(runs.iter().copied()).await {
                Ok(known) => {
                    self.services.status.set_journal_unusable(false);
                    return Ok(known);
                }
                Err(error) => self.backoff_or_stop(error, &mut tries).await?,
            }
        }
    }

    /// Waits before the next try. Fails after a hard stop. Fails with `error` when a drain takes too long, and if no
    /// further try can succeed: the next process opens the journal again.
    async fn backoff_or_stop(&self, error: JournalError, tries: &mut Tries) -> Result<(), Halt> {
        if error.is_final() {
            return Err(error.into());
        }
        let services = &self.services;
        if services.stop.is_soft() {
            let limit = services.settings.drain_timeout.saturating_add(BEYOND_DRAIN);
            let deadline = *tries.deadline.get_or_insert(Instant::now() + limit);
            if Instant::now() >= deadline {
                return Err(error.into());
            }
        }
        // Schedulers would go on sending triggers to a worker whose disk is full.
        let is_unusable = tries.began.elapsed() >= UNUSABLE_AFTER;
        services.status.set_journal_unusable(is_unusable);
        let wait = tries.backoff.next_wait();
        tracing::error!(%error, wait_ms = wait.as_millis(), "failed to use the journal; nothing is accepted or started until it works again");
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = services.stop.hard() => Err(Halt::HardStop),
        }
    }
}
