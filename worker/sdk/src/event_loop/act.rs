//! Carries out decisions after they are on disk.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use cueline_model::{ExecutorName, Fence, Outcome, OutcomeKind};
use cueline_protocol::Trigger;
use futures_util::FutureExt as _;

use super::decisions::{Decisions, StartableAttempt};
use super::state::{EventLoop, RunningAttempt};
use crate::attempt::{Attempt, AttemptLog, EndedAttempt, LogSink};
use crate::context::{AttemptInfo, Context};
use crate::identity::AttemptKey;

impl EventLoop {
    pub(super) fn act(&mut self, decisions: Decisions) {
        let services = &self.services;
        if !decisions.settlements.is_empty()
            && services
                .settlements
                .try_send(decisions.settlements)
                .is_err()
        {
            tracing::warn!(
                "too many triggers wait to be settled; the broker will deliver some again"
            );
        }
        if !decisions.reports.is_empty() {
            services.reports.push(decisions.reports);
        }
        // A start may be stopped in the same turn, so starts come first.
        let now = self.now();
        for (key, attempt) in decisions.start {
            let times = &self.services.status.times;
            times.note_start(&attempt.trigger, attempt.fetched_at, now);
            let running = self.start(key, attempt);
            self.running.insert(key, running);
        }
        for (key, reason) in decisions.stop {
            if let Some(running) = self.running.get(&key) {
                running.cx.stop(reason);
            }
        }
    }

    fn start(&self, key: AttemptKey, attempt: StartableAttempt) -> RunningAttempt {
        let services = &self.services;
        let log = Arc::new(AttemptLog::new(
            key,
            attempt.trigger.job.name.clone(),
            services.settings.log_bytes,
            Arc::clone(&services.settings.clock),
            Arc::clone(&services.reports),
        ));
        let needs_lease = attempt.trigger.job.fence == Fence::Stop;
        let cx = Context::new(
            info_of(attempt.trigger, &services.settings.executor.name),
            Box::new(LogSink(Arc::clone(&log))),
            needs_lease.then(|| Arc::clone(&services.lease)),
        );
        let attempt = Attempt {
            handler: attempt.handler,
            cx: cx.clone(),
            log: Arc::clone(&log),
            ticker: Arc::clone(&services.ticker),
            lease: Arc::clone(&services.lease),
        };
        let ended = services.ended.clone();
        let task = tokio::spawn(async move {
            let run = AssertUnwindSafe(attempt.run()).catch_unwind().await;
            // Sending fails after a hard stop. The journal still says started, so the next start reports it as lost.
            let _ = ended.send(run.unwrap_or_else(|_| panicked(&log))).await;
        });
        RunningAttempt {
            cx,
            task: task.abort_handle(),
        }
    }
}

fn panicked(log: &AttemptLog) -> EndedAttempt {
    let why = "the handler panicked when it was dropped";
    EndedAttempt {
        key: log.key(),
        outcome: Outcome::new(OutcomeKind::Failed, log.now()).because(why),
        reports: log.close(),
    }
}

fn info_of(trigger: Trigger, executor: &ExecutorName) -> AttemptInfo {
    let id = trigger.attempt_id();
    let job = Arc::unwrap_or_clone(trigger.job);
    AttemptInfo {
        store: trigger.store,
        id,
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
