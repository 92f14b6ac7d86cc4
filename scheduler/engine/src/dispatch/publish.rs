//! Publish: what is due goes out, in order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Outgoing, Refusal};
use cueline_model::OutcomeKind;
use cueline_runtime::{Duty, Next};
use cueline_store::{AttemptId, StoreError};
use tokio::sync::mpsc;

use crate::counts::add;
use crate::error::StageError;
use crate::finding::ended;
use crate::lock::lock;
use crate::shared::{Ready, Shared};

/// Publishes triggers that are due.
pub(crate) struct Publish {
    shared: Arc<Shared>,
    confirmed: mpsc::Sender<AttemptId>,
}

impl Duty for Publish {
    type Error = StageError;

    fn name(&self) -> &'static str {
        "publish"
    }

    async fn activate(&mut self) -> Result<Next, StageError> {
        self.publish().await
    }
}

impl Publish {
    pub(crate) fn new(shared: Arc<Shared>, confirmed: mpsc::Sender<AttemptId>) -> Self {
        Self { shared, confirmed }
    }

    pub(crate) async fn publish(&self) -> Result<Next, StageError> {
        let shared = &self.shared;
        let now = shared.now();
        let (due, next) = {
            let mut outbox = lock(&shared.outbox);
            // With much waiting, larger batches: then what counts is how many go out, not how soon the first does.
            let batch = shared.options.publish_batch;
            let most = (outbox.len() / 4).clamp(batch, batch.saturating_mul(8));
            (outbox.pop_due(now, most), outbox.next_due())
        };
        if due.is_empty() {
            let wait = next.map_or(1_000, |due| u64::try_from(due.since_ms(now)).unwrap_or(0));
            return Ok(Next::After(Duration::from_millis(wait)));
        }
        let due = self.still_marked(due).await?;
        let messages: Vec<Outgoing> = due.iter().map(|r| r.message.clone()).collect();
        let answers = match shared.broker.publish(&messages).await {
            Ok(answers) => answers,
            Err(e) => {
                self.put_back(due);
                return Err(e.into());
            }
        };
        let good = answers.iter().filter(|answer| answer.is_ok()).count();
        add(&shared.counters.published, good);
        let mut refused = Vec::new();
        for (item, answer) in due.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    if self.confirmed.send(item.id).await.is_err() {
                        tracing::warn!(
                            "the confirm stage has ended; what it missed is found again by the next node"
                        );
                    }
                }
                Err(refusal) => refused.push((item, refusal)),
            }
        }
        if let Err(e) = self.refused(&refused).await {
            // They may have been given back, or ended, all the same.
            self.put_back(refused.into_iter().map(|(item, _)| Ready {
                in_doubt: true,
                ..item
            }));
            return Err(e.into());
        }
        Ok(Next::Now)
    }

    /// Marks again what is in doubt, and leaves out what is not this node's to publish any more.
    async fn still_marked(&self, due: Vec<Ready>) -> Result<Vec<Ready>, StoreError> {
        if !due.iter().any(|item| item.in_doubt) {
            return Ok(due);
        }
        let Some(node) = self.shared.node() else {
            // Whatever it was that this node had marked, it is given up.
            return Ok(due.into_iter().filter(|item| !item.in_doubt).collect());
        };
        let doubted = due.iter().filter(|item| item.in_doubt);
        let marks: Vec<_> = doubted.map(|item| item.mark.clone()).collect();
        match self.shared.store.begin_dispatch(node, &marks).await {
            Ok(taken) => {
                let taken: HashSet<AttemptId> = taken.into_iter().collect();
                Ok(due
                    .into_iter()
                    .filter(|item| !item.in_doubt || taken.contains(&item.id))
                    .collect())
            }
            Err(e) => {
                self.put_back(due);
                Err(e)
            }
        }
    }

    /// They stay `dispatching` and go out on the next turn: an executor drops what it knows.
    fn put_back(&self, items: impl IntoIterator<Item = Ready>) {
        let mut outbox = lock(&self.shared.outbox);
        for item in items {
            outbox.insert(item.due_at, item.priority, item.id.run, item);
        }
    }

    async fn refused(&self, refused: &[(Ready, Refusal)]) -> Result<(), StoreError> {
        let Some(node) = self.shared.node().filter(|_| !refused.is_empty()) else {
            return Ok(());
        };
        let now = self.shared.now();
        let (mut never, mut later) = (Vec::new(), Vec::new());
        for (item, refusal) in refused {
            tracing::warn!(run = %item.id.run, error = %refusal, "the broker refused a trigger");
            match refusal {
                Refusal::TooLarge { .. } => {
                    let message = format!("failed to publish the trigger: {refusal}");
                    never.push(ended(item.id, OutcomeKind::Failed, now, message));
                }
                Refusal::Full { .. } | Refusal::NoQueue(_) => later.push(item.id),
            }
        }
        if !later.is_empty() {
            let again = now.plus_ms(REFUSED_FOR_MS);
            self.shared
                .store
                .release_runs(node, &later, Some(again))
                .await?;
        }
        if !never.is_empty() {
            self.shared.store.ingest(&never).await?;
        }
        Ok(())
    }
}

/// A trigger that its full queue did not take goes out again after this.
const REFUSED_FOR_MS: u64 = 1_000;
