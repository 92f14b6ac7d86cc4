//! Publish: what is due goes out, in order.
//!
//! A trigger of which the broker does not say whether it has it stays `dispatching`, so that whoever waits for its job to stop goes on
//! waiting, and is published again until it is taken. It is marked again before, and so left out when its run has gone on meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Outgoing, Refusal};
use cueline_model::{AttemptId, OutcomeKind};
use cueline_runtime::{Duty, Next};
use cueline_store::{AttemptReport, StoreError};
use tokio::sync::mpsc;

use super::trigger::{Stamp, freshen};
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
            let wait = next.map_or(Duration::from_secs(1), |due| shared.until(due));
            return Ok(Next::After(wait));
        }
        shared.rush.came(due.len());
        let mut due = self.still_marked(due).await?;
        let stamp = Stamp::of(shared);
        for item in due.iter_mut().filter(|item| item.fresh_until < now) {
            freshen(item, shared.key.as_ref(), stamp);
        }
        let messages: Vec<Outgoing> = due.iter().map(|r| r.message.clone()).collect();
        let answers = match shared.broker.publish(&messages).await {
            Ok(answers) => answers,
            Err(e) => {
                self.put_back(due.into_iter().map(unanswered));
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
        self.refused(refused).await?;
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

    /// They stay `dispatching` and go out again: an executor drops what it knows.
    fn put_back(&self, items: impl IntoIterator<Item = Ready>) {
        let mut outbox = lock(&self.shared.outbox);
        for item in items {
            outbox.insert(item.due_at, item.priority, item.id.run, item);
        }
    }

    /// Ends what will never be taken, keeps what may have been, and gives back what surely was not.
    async fn refused(&self, refused: Vec<(Ready, Refusal)>) -> Result<(), StoreError> {
        if refused.is_empty() {
            return Ok(());
        }
        let now = self.shared.now();
        let again = now.plus_ms(REFUSED_FOR_MS);
        let (mut never, mut later, mut doubted) = (Vec::new(), Vec::new(), Vec::new());
        for (item, refusal) in refused {
            tracing::warn!(run = %item.id.run, error = %refusal, "the broker did not take a trigger");
            match refusal {
                Refusal::TooLarge { .. } => never.push((item, refusal)),
                Refusal::Full { .. } | Refusal::NoQueue(_) if !item.maybe_published => {
                    later.push(item);
                }
                Refusal::Full { .. } | Refusal::NoQueue(_) | Refusal::Unknown { .. } => {
                    doubted.push(Ready {
                        due_at: again,
                        ..unanswered(item)
                    });
                }
            }
        }
        self.put_back(doubted);
        let Some(node) = self.shared.node() else {
            // They are found `dispatching` by whoever takes over.
            return Ok(());
        };
        let ids: Vec<AttemptId> = later.iter().map(|item| item.id).collect();
        let ends: Vec<AttemptReport> = never
            .iter()
            .map(|(item, refusal)| {
                let message = format!("failed to publish the trigger: {refusal}");
                ended(item.id, OutcomeKind::Failed, now, message)
            })
            .collect();
        let written = async {
            if !ids.is_empty() {
                let store = &self.shared.store;
                store.release_claims(node, &ids, Some(again)).await?;
            }
            if !ends.is_empty() {
                self.shared.store.ingest_reports(&ends).await?;
            }
            Ok(())
        };
        let written = written.await;
        if written.is_err() {
            // They may have been given back, or ended, all the same.
            let items = later.into_iter().chain(never.into_iter().map(|(i, _)| i));
            self.put_back(items.map(|item| Ready {
                in_doubt: true,
                ..item
            }));
        }
        written
    }
}

/// It may be in its queue, and its run may go on from there.
fn unanswered(item: Ready) -> Ready {
    Ready {
        in_doubt: true,
        maybe_published: true,
        ..item
    }
}

/// A trigger that was not taken goes out again after this.
const REFUSED_FOR_MS: u64 = 1_000;
