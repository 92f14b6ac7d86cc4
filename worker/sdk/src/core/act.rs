//! Writing a batch down, and doing what it says.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::{Fence, Outcome, OutcomeKind};
use cueline_protocol::Trigger;
use cueline_runtime::Backoff;
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::batch::Batch;
use super::{Core, Running};
use crate::attempt::log::LogSink;
use crate::attempt::{Attempt, AttemptLog, Ended};
use crate::context::{Context, Facts};
use crate::error::Result;
use crate::journal::{JournalError, Known};
use crate::stores::{AttemptKey, RunKey};

/// How long a draining worker tries to write its journal beyond its drain timeout.
const LAST_TRIES: Duration = Duration::from_secs(10);

/// When to give up on a journal that fails: never, unless the worker is to stop.
struct Patience {
    backoff: Backoff,
    until: Option<Instant>,
}

impl Patience {
    fn new() -> Self {
        Self {
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)),
            until: None,
        }
    }
}

impl Core {
    /// Writes the batch, however often it takes: until then nothing of it is done. False after a hard stop.
    pub(super) async fn commit(&mut self, batch: &Batch) -> Result<bool> {
        let stores = self.stores.unwritten();
        let new = stores.len();
        self.journal.note_stores(stores);
        let mut patience = Patience::new();
        while let Err(error) = self.journal.write(&batch.rows).await {
            if !self.bear(error, &mut patience).await? {
                return Ok(false);
            }
        }
        self.stores.written(new);
        Ok(true)
    }

    /// What the journal knows of these runs. `None` after a hard stop.
    pub(super) async fn known(
        &mut self,
        runs: &[RunKey],
    ) -> Result<Option<HashMap<RunKey, Known>>> {
        let mut patience = Patience::new();
        loop {
            match self.journal.known(runs.iter().copied()).await {
                Ok(known) => return Ok(Some(known)),
                Err(error) => {
                    if !self.bear(error, &mut patience).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits before the journal is tried again. False after a hard stop; the error when a drain takes too long.
    async fn bear(&self, error: JournalError, patience: &mut Patience) -> Result<bool> {
        if self.stop.is_soft() {
            let most = self.settings.drain_timeout.saturating_add(LAST_TRIES);
            let until = *patience.until.get_or_insert(Instant::now() + most);
            if Instant::now() >= until {
                return Err(error.into());
            }
        }
        let wait = patience.backoff.next_wait();
        tracing::error!(%error, wait_ms = wait.as_millis(), "nothing is accepted or started until the journal can be written; trying again");
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(true),
            () = self.stop.hard() => Ok(false),
        }
    }

    /// Does what is on disk now.
    pub(super) fn act(&mut self, batch: Batch) {
        if !batch.settled.is_empty() && self.settle.try_send(batch.settled).is_err() {
            tracing::warn!("too many triggers wait to be settled; some will come again");
        }
        if !batch.reports.is_empty() {
            self.outbox.push(batch.reports);
        }
        for (id, reason) in batch.stop {
            if let Some(running) = self.running.get(&id) {
                running.cx.stop(reason);
            }
        }
        for (id, trigger) in batch.start {
            self.start(id, trigger);
        }
    }

    fn start(&mut self, id: AttemptKey, trigger: Trigger) {
        let job = trigger.job.name.clone();
        let log = Arc::new(AttemptLog::new(
            id,
            job.clone(),
            self.settings.log_bytes,
            Arc::clone(&self.settings.clock),
            Arc::clone(&self.outbox),
        ));
        let handler = self.settings.handlers.resolve(&trigger.job.handler);
        let keep = trigger.job.fence == Fence::Keep;
        let cx = Context::new(
            facts_of(trigger, &self.settings.name),
            Box::new(LogSink(Arc::clone(&log))),
            (!keep).then(|| Arc::clone(&self.contact)),
        );
        let attempt = handler.map(|handler| Attempt {
            handler,
            cx: cx.clone(),
            log: Arc::clone(&log),
            watch: Arc::clone(&self.watch),
            contact: Arc::clone(&self.contact),
            keep,
        });
        let ended = self.ended.clone();
        let task = tokio::spawn(async move {
            let end = match attempt {
                Ok(attempt) => {
                    let made = AssertUnwindSafe(attempt.make()).catch_unwind().await;
                    made.unwrap_or_else(|_| {
                        failed(&log, "the handler panicked when it was dropped")
                    })
                }
                Err(why) => failed(&log, &why),
            };
            // Nobody hears it after a hard stop: the journal says that it was started.
            let _ = ended.send(end).await;
        });
        let task = task.abort_handle();
        let running = Running {
            job,
            cx,
            keep,
            task,
        };
        self.running.insert(id, running);
    }

    /// Deletes what the journal need not keep any longer.
    pub(super) async fn prune(&mut self) {
        if let Err(error) = self.journal.prune(self.now().as_millis()).await {
            tracing::warn!(%error, "the journal keeps more than it should");
        }
    }
}

fn failed(log: &AttemptLog, why: &str) -> Ended {
    Ended {
        id: log.id(),
        outcome: Outcome::new(OutcomeKind::Failed, log.now()).because(why),
        rest: log.close(),
    }
}

fn facts_of(trigger: Trigger, executor: &cueline_model::ExecutorName) -> Facts {
    let job = Arc::unwrap_or_clone(trigger.job);
    Facts {
        run: trigger.run,
        attempt: trigger.attempt,
        job_id: job.id,
        job: job.name,
        executor: executor.clone(),
        fire_at: trigger.fire_at,
        shard: trigger.shard,
        params: trigger.params,
        handler: job.handler,
        timeout: job.timeout,
        kill_grace: job.kill_grace,
        fence: job.fence,
    }
}
