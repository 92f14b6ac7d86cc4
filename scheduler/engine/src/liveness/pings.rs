//! Asks executors whether they answer, for jobs with the route `failover`.
//!
//! Runs are routed by what is known, so no stage waits here. The executors are asked at the same time, so a dead one
//! does not delay the answers of others.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::ExecutorId;
use cueline_runtime::{Duty, Next};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::holdings::Holdings;
use super::registry::Registry;
use crate::claims::NodeClaims;
use crate::database_clock::DatabaseClock;

/// An executor that has not answered within this time does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The most executors asked at the same time.
const MAX_PINGS: usize = 64;
/// The wait for others' answers at that limit.
const FULL_WAIT: Duration = Duration::from_millis(50);
const IDLE_WAIT: Duration = Duration::from_secs(5);

pub(crate) struct Pings {
    pub(crate) holdings: Holdings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) running: JoinSet<()>,
}

impl Duty for Pings {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        "pings"
    }

    async fn activate(&mut self) -> Result<Next, Infallible> {
        while self.running.try_join_next().is_some() {}
        let room = MAX_PINGS.saturating_sub(self.running.len());
        for executor in self.registry.begin_pings(room) {
            self.ask(executor);
        }
        let is_full = self.running.len() >= MAX_PINGS;
        Ok(Next::After(if is_full { FULL_WAIT } else { IDLE_WAIT }))
    }
}

impl Pings {
    fn ask(&mut self, executor: ExecutorId) {
        let holdings = self.holdings.clone();
        let (registry, clock) = (self.registry.clone(), self.clock.clone());
        let claims = self.claims.clone();
        self.running.spawn(async move {
            let asking = timeout(ANSWER_WITHIN, holdings.is_answering(&executor));
            let has_answered = asking.await.unwrap_or(false);
            if !has_answered {
                tracing::debug!(group = %executor.group, executor = %executor.name, "executor did not answer a ping");
            }
            if registry.note_answer(&executor, has_answered, clock.now()) {
                claims.retry_unroutable();
            }
        });
    }

    /// Waits until all executors that were asked have answered or are silent.
    pub(crate) async fn finish(&mut self) {
        while self.running.join_next().await.is_some() {}
    }
}
