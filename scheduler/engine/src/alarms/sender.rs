//! Turns events into messages, and sends what is due. A channel that does not answer holds back nothing but itself: it has
//! one place while a message is to be sent again, and all such channels have half of the places.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::alarm::ConditionKind;
use cueline_runtime::{Duty, Next};
use cueline_store::{
    AfterSend, ClaimedDelivery, MAX_WAITING_OF_CHANNEL, SendInProgress, SendOutcome, Store,
    StoreError,
};
use tokio::task::{Id, JoinSet};

use super::{AlarmTransport, SendFailure};

/// Sends the messages of alarms.
pub(crate) struct SendAlarms {
    pub(crate) store: Arc<dyn Store>,
    /// Without one, messages wait in the store for a scheduler that has one.
    pub(crate) transport: Option<Arc<dyn AlarmTransport>>,
    /// The sends in progress.
    pub(crate) sending: JoinSet<Result<(), StoreError>>,
    pub(crate) in_progress: HashMap<Id, SendInProgress>,
}

/// Events looked at in one transaction.
const COLLECTED: usize = 5_000;
/// The most messages that are sent at a time.
const MAX_SENDING: usize = 32;
/// After this time a send is given up for now.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than a send and the writes around it. After it, another scheduler sends the message again.
const LEASE_MS: u64 = 60_000;
/// After this many attempts a message is given up: with the waits below, after 80 to 100 minutes. One whose channel has many
/// is tried less often, and the store gives it up by its age.
const MAX_ATTEMPTS: u32 = 12;
const FIRST_WAIT_MS: u64 = 5_000;
const LONGEST_WAIT_MS: u64 = 20 * 60_000;
/// An alarm waits at most this long after its time has come.
const EVERY: Duration = Duration::from_secs(1);
/// While messages are being sent, their ends make room for others.
const WHILE_SENDING: Duration = Duration::from_millis(200);

impl Duty for SendAlarms {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "alarms"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        self.reap();
        let Some(transport) = self.transport.clone() else {
            return Ok(Next::After(Duration::from_mins(1)));
        };
        let next = self.store.next_alarm_at().await?;
        let is_due = match next {
            Some(at) => at <= self.store.now().await?,
            None => false,
        };
        if is_due {
            let collected = self.store.collect_alarms(COLLECTED).await?;
            if collected.refused > 0 {
                tracing::warn!(
                    refused = collected.refused,
                    most = MAX_WAITING_OF_CHANNEL,
                    "too many messages of an alarm channel wait; further ones are not sent. Check the channel with `cueline alarm test`, and the rules that use it"
                );
            }
            self.send_due(&transport).await?;
            if collected.events >= COLLECTED {
                return Ok(Next::Now);
            }
        }
        Ok(Next::After(if self.sending.is_empty() {
            EVERY
        } else {
            WHILE_SENDING
        }))
    }
}

impl SendAlarms {
    pub(crate) fn new(store: Arc<dyn Store>, transport: Option<Arc<dyn AlarmTransport>>) -> Self {
        Self {
            store,
            transport,
            sending: JoinSet::new(),
            in_progress: HashMap::new(),
        }
    }

    /// Begins to send what is due, as far as there is room. Channels with a send in progress wait for its end.
    async fn send_due(&mut self, transport: &Arc<dyn AlarmTransport>) -> Result<(), StoreError> {
        let room = MAX_SENDING.saturating_sub(self.sending.len());
        if room == 0 {
            return Ok(());
        }
        let sending: Vec<SendInProgress> = self.in_progress.values().cloned().collect();
        let claimed = self.store.claim_alarm_deliveries(LEASE_MS, &sending, room);
        for delivery in claimed.await? {
            let send_in_progress = SendInProgress {
                channel: delivery.channel_name.clone(),
                is_failing: delivery.is_failing,
            };
            let (store, transport) = (self.store.clone(), transport.clone());
            let task = self
                .sending
                .spawn(async move { send(&*store, &*transport, delivery).await });
            self.in_progress.insert(task.id(), send_in_progress);
        }
        Ok(())
    }

    fn reap(&mut self) {
        while let Some(ended) = self.sending.try_join_next_with_id() {
            let id = match &ended {
                Ok((id, _)) => *id,
                Err(error) => error.id(),
            };
            self.in_progress.remove(&id);
            match ended {
                Ok((_, Ok(()))) => {}
                Ok((_, Err(error))) => {
                    tracing::error!(%error, "failed to write the answer to an alarm; the message is sent again. Check the database");
                }
                Err(error) => {
                    tracing::error!(%error, "the send of an alarm ended unexpectedly; the message is sent again");
                }
            }
        }
    }

    /// Waits for the sends in progress, for tests.
    pub(crate) async fn finish_sending(&mut self) {
        while let Some(ended) = self.sending.join_next_with_id().await {
            if let Ok((id, result)) = ended {
                self.in_progress.remove(&id);
                if let Err(error) = result {
                    tracing::error!(%error, "failed to write the answer to an alarm");
                }
            }
        }
    }
}

async fn send(
    store: &dyn Store,
    transport: &dyn AlarmTransport,
    delivery: ClaimedDelivery,
) -> Result<(), StoreError> {
    let result = match &delivery.channel {
        // The last attempt has ended without an answer, because its scheduler has.
        _ if delivery.attempt > MAX_ATTEMPTS => Err(SendFailure {
            answer: format!("{MAX_ATTEMPTS} attempts, and no answer of the last one"),
            is_permanent: true,
        }),
        Some(channel) => {
            let sending = transport.send(channel, &delivery);
            let sent = tokio::time::timeout(SEND_TIMEOUT, sending).await;
            sent.unwrap_or_else(|_| {
                Err(SendFailure {
                    answer: format!("no answer within {SEND_TIMEOUT:?}"),
                    is_permanent: false,
                })
            })
        }
        None => Err(SendFailure {
            answer: "the channel was deleted, or this scheduler cannot read it".to_owned(),
            is_permanent: true,
        }),
    };
    let is_test = delivery
        .events
        .iter()
        .any(|event| event.kind == ConditionKind::Test);
    let outcome = outcome(result, delivery.attempt, is_test, delivery.id);
    if outcome.then != AfterSend::Delivered {
        tracing::warn!(
            delivery = delivery.id,
            rule = %delivery.rule,
            channel = %delivery.channel_name,
            attempt = delivery.attempt,
            gives_up = outcome.then == AfterSend::GiveUp,
            answer = outcome.answer,
            "failed to send an alarm; check the channel with `cueline alarm test`"
        );
    }
    // The lease bounds it: a call that fails leaves the message to the next claim.
    store
        .settle_alarm_delivery(delivery.id, delivery.attempt, &outcome)
        .await
        .map(drop)
}

/// Decides what follows an attempt. A test is not repeated: its sender waits for the answer.
fn outcome(
    result: Result<String, SendFailure>,
    attempt: u32,
    is_test: bool,
    seed: i64,
) -> SendOutcome {
    match result {
        Ok(answer) => SendOutcome {
            answer,
            then: AfterSend::Delivered,
        },
        Err(SendFailure {
            answer,
            is_permanent,
        }) => SendOutcome {
            answer,
            then: if is_permanent || is_test || attempt >= MAX_ATTEMPTS {
                AfterSend::GiveUp
            } else {
                AfterSend::Again(wait_ms(attempt, seed))
            },
        },
    }
}

/// Doubles from 5 s to 20 min, and up to a quarter more, so that messages that failed together do not come together.
fn wait_ms(attempt: u32, seed: i64) -> u64 {
    let doubled = FIRST_WAIT_MS.saturating_mul(1 << attempt.saturating_sub(1).min(20));
    let wait = doubled.min(LONGEST_WAIT_MS);
    let spread = seed.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    wait + wait / 4 * spread / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(is_permanent: bool) -> Result<String, SendFailure> {
        Err(SendFailure {
            answer: "503".to_owned(),
            is_permanent,
        })
    }

    #[test]
    fn waits_grow_to_their_limit_and_are_spread() {
        for (attempt, least) in [
            (1, 5_000),
            (2, 10_000),
            (8, 640_000),
            (9, 1_200_000),
            (40, 1_200_000),
        ] {
            for seed in [0, 1, 77, i64::MAX] {
                let wait = wait_ms(attempt, seed);
                assert!(
                    (least..=least + least / 4).contains(&wait),
                    "{attempt}: {wait}"
                );
            }
        }
        assert_ne!(wait_ms(3, 1), wait_ms(3, 2));
        let all: u64 = (1..MAX_ATTEMPTS).map(|attempt| wait_ms(attempt, 0)).sum();
        assert_eq!(all, 4_875_000, "81 minutes, and up to a quarter more");
    }

    #[test]
    fn messages_are_given_up_at_the_bound_and_after_a_permanent_refusal() {
        let then = |result, attempt, is_test| outcome(result, attempt, is_test, 0).then;
        assert_eq!(then(Ok("ok".to_owned()), 99, false), AfterSend::Delivered);
        assert_eq!(then(failed(false), 1, false), AfterSend::Again(5_000));
        assert_eq!(then(failed(false), MAX_ATTEMPTS, false), AfterSend::GiveUp);
        assert_eq!(then(failed(true), 1, false), AfterSend::GiveUp);
        assert_eq!(then(failed(false), 1, true), AfterSend::GiveUp);
    }
}
