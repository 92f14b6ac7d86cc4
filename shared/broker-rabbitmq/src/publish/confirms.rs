//! Collects the server's answers to the messages of one batch.
//!
//! lapin's `wait_for_confirms` waits for the last message only and says nothing about each one. It also attaches a
//! returned message to any confirm of its channel, so the driver matches returned messages by their correlation id.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt as _;
use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use lapin::{Confirmation, PublisherConfirm};
use tokio::time::{Instant, sleep_until};

/// The server's answer to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message is on disk on a majority of the queue's servers.
    Confirmed,
    /// No queue is bound for the message.
    Unroutable,
    /// The queue is full.
    Rejected,
    /// No answer came: the queue is unresponsive, or the connection ended first.
    Unconfirmed,
}

/// The answers to one batch so far. A place is the index of a message in its batch.
pub(super) struct Confirms<C = PublisherConfirm> {
    /// Indexed by place.
    pub(super) outcomes: Vec<Outcome>,
    /// Messages without an answer, with their places.
    pub(super) open: VecDeque<(usize, C)>,
    /// The error that ended the channel.
    pub(super) failed: Option<lapin::Error>,
    returned: Vec<BasicReturnMessage>,
}

impl<C: Future<Output = lapin::Result<Confirmation>> + Unpin> Confirms<C> {
    /// Starts with a batch of `len` messages, of which `open` were published.
    pub(super) fn new(len: usize, open: impl IntoIterator<Item = (usize, C)>) -> Self {
        Self {
            outcomes: vec![Outcome::Unconfirmed; len],
            open: open.into_iter().collect(),
            failed: None,
            returned: Vec::new(),
        }
    }

    /// Waits until all messages are answered, no answer has come for `quiet`, or `give_up` is reached.
    pub(super) async fn wait(&mut self, quiet: Duration, give_up: Instant) {
        let next_end = || (Instant::now() + quiet).min(give_up);
        let mut quiet_end = std::pin::pin!(sleep_until(next_end()));
        while let Some((place, confirm)) = self.open.front_mut() {
            let place = *place;
            tokio::select! {
                biased;
                answer = confirm => {
                    self.open.pop_front();
                    self.note(place, answer);
                    quiet_end.as_mut().reset(next_end());
                }
                () = &mut quiet_end => {
                    // Later messages may already have answers.
                    if !self.collect_present() || Instant::now() >= give_up {
                        break;
                    }
                    quiet_end.as_mut().reset(next_end());
                }
            }
        }
        self.note_returned();
    }

    /// Collects the answers that are already here. Returns whether there were any.
    pub(super) fn collect_present(&mut self) -> bool {
        let before = self.open.len();
        for (place, mut confirm) in std::mem::take(&mut self.open) {
            match (&mut confirm).now_or_never() {
                Some(answer) => self.note(place, answer),
                None => self.open.push_back((place, confirm)),
            }
        }
        self.note_returned();
        self.open.len() < before
    }

    fn note(&mut self, place: usize, answer: lapin::Result<Confirmation>) {
        let (outcome, returned) = match answer {
            Ok(Confirmation::Ack(returned)) => (Outcome::Confirmed, returned),
            Ok(Confirmation::Nack(returned)) => (Outcome::Rejected, returned),
            Ok(Confirmation::NotRequested) => (Outcome::Confirmed, None),
            Err(e) => {
                self.failed.get_or_insert(e);
                return;
            }
        };
        self.outcomes[place] = outcome;
        self.returned.extend(returned);
    }

    fn note_returned(&mut self) {
        for message in self.returned.drain(..) {
            let id = message.delivery.properties.correlation_id().as_ref();
            let place = id.map(ShortString::as_str).and_then(|id| id.parse().ok());
            if let Some(outcome) = place.and_then(|at: usize| self.outcomes.get_mut(at)) {
                *outcome = Outcome::Unroutable;
            }
        }
    }

    pub(super) fn any_answered(&self) -> bool {
        self.outcomes.iter().any(|o| *o != Outcome::Unconfirmed)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;

    type Answer = Pin<Box<dyn Future<Output = lapin::Result<Confirmation>>>>;

    /// An ack after `beats` times [`BEAT`].
    fn after(beats: u32) -> Answer {
        let end = Instant::now() + BEAT * beats;
        Box::pin(async move {
            sleep_until(end).await;
            Ok(Confirmation::Ack(None))
        })
    }

    const BEAT: Duration = Duration::from_millis(20);
    const QUIET: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_batch_is_waited_for_while_answers_come() {
        let mut confirms = Confirms::new(20, (0..20).map(after).enumerate());
        let give_up = Instant::now() + Duration::from_mins(1);
        confirms.wait(QUIET, give_up).await;
        assert_eq!(confirms.outcomes, [Outcome::Confirmed; 20]);
    }

    #[tokio::test]
    async fn the_wait_ends_after_a_quiet_time_or_at_the_deadline() {
        let start = Instant::now();
        let never: Answer = Box::pin(std::future::pending());
        let mut confirms = Confirms::new(2, [never, after(1)].into_iter().enumerate());
        confirms.wait(QUIET, start + Duration::from_mins(1)).await;
        assert_eq!(
            confirms.outcomes,
            [Outcome::Unconfirmed, Outcome::Confirmed]
        );
        assert!(start.elapsed() >= QUIET * 2, "after the last answer");
        confirms.wait(Duration::from_mins(1), start + QUIET).await;
        assert_eq!(confirms.open.len(), 1, "the deadline has passed");
    }
}
