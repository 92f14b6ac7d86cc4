//! What the server says of the messages of a batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::time::{Instant, sleep_until};

use crate::link::Up;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// On disk.
    Confirmed,
    /// No queue is bound for it.
    Unroutable,
    /// Its queue did not take it.
    Rejected,
    /// Not known: its queue does not answer, or the connection was lost before it did.
    Unanswered,
}

/// A channel for one batch at a time.
pub(crate) struct Confirming {
    pub(crate) up: Arc<Up>,
    pub(crate) channel: Channel,
}

/// How far it has come.
pub(crate) struct Confirms<C = PublisherConfirm> {
    /// By place; what is open is [`Sent::Unanswered`].
    pub(crate) sent: Vec<Sent>,
    /// Not answered, with their places.
    pub(crate) open: VecDeque<(usize, C)>,
    /// The channel has ended with this.
    pub(crate) failed: Option<lapin::Error>,
    returned: Vec<BasicReturnMessage>,
}

impl<C: Future<Output = lapin::Result<Confirmation>> + Unpin> Confirms<C> {
    pub(crate) fn new(confirms: Vec<C>) -> Self {
        Self {
            sent: vec![Sent::Unanswered; confirms.len()],
            open: confirms.into_iter().enumerate().collect(),
            failed: None,
            returned: Vec::new(),
        }
    }

    /// Waits until all are answered, none has been for `quiet`, or it is `give_up`.
    pub(crate) async fn wait(&mut self, quiet: Duration, give_up: Instant) {
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
                    // Those behind it may have been answered.
                    if !self.look() || Instant::now() >= give_up {
                        break;
                    }
                    quiet_end.as_mut().reset(next_end());
                }
            }
        }
        self.read_returned();
    }

    /// Takes in what has come; whether anything has.
    pub(crate) fn look(&mut self) -> bool {
        let before = self.open.len();
        for (place, mut confirm) in std::mem::take(&mut self.open) {
            match (&mut confirm).now_or_never() {
                Some(answer) => self.note(place, answer),
                None => self.open.push_back((place, confirm)),
            }
        }
        self.read_returned();
        self.open.len() < before
    }

    fn note(&mut self, place: usize, answer: lapin::Result<Confirmation>) {
        let (sent, back) = match answer {
            Ok(Confirmation::Ack(back)) => (Sent::Confirmed, back),
            Ok(Confirmation::Nack(back)) => (Sent::Rejected, back),
            Ok(Confirmation::NotRequested) => (Sent::Confirmed, None),
            Err(e) => {
                self.failed.get_or_insert(e);
                return;
            }
        };
        self.sent[place] = sent;
        self.returned.extend(back);
    }

    /// lapin hands a returned message over with any confirm of its channel, not with its own.
    fn read_returned(&mut self) {
        for back in self.returned.drain(..) {
            let properties = &back.delivery.properties;
            let place = properties
                .correlation_id()
                .as_ref()
                .map(ShortString::as_str);
            if let Some(place) = place.and_then(|place| place.parse::<usize>().ok())
                && let Some(sent) = self.sent.get_mut(place)
            {
                *sent = Sent::Unroutable;
            }
        }
    }

    /// Some message was answered.
    pub(crate) fn any(&self) -> bool {
        self.sent.iter().any(|sent| *sent != Sent::Unanswered)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;

    type Answer = Pin<Box<dyn Future<Output = lapin::Result<Confirmation>>>>;

    /// Answered after so many of these.
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
    async fn a_batch_is_waited_for_as_long_as_answers_come() {
        let mut confirms = Confirms::new((0..20).map(after).collect());
        let give_up = Instant::now() + Duration::from_mins(1);
        confirms.wait(QUIET, give_up).await;
        assert_eq!(confirms.sent, [Sent::Confirmed; 20]);
    }

    #[tokio::test]
    async fn what_is_not_answered_is_waited_for_until_it_is_quiet_or_time_to_give_up() {
        let start = Instant::now();
        let mut confirms = Confirms::new(vec![Box::pin(std::future::pending()), after(1)]);
        confirms.wait(QUIET, start + Duration::from_mins(1)).await;
        assert_eq!(confirms.sent, [Sent::Unanswered, Sent::Confirmed]);
        assert!(start.elapsed() >= QUIET * 2, "after the last answer");
        confirms.wait(Duration::from_mins(1), start + QUIET).await;
        assert_eq!(confirms.open.len(), 1, "it is past that time");
    }
}
