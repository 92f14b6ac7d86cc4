//! Whether this node hears: it speaks to itself over the broker.
//!
//! An executor's silence means something only while its voice would have been heard. A gap in what the node says to itself begins the
//! count of every silence anew, so that a restart of the broker, or a node that was cut off or stopped, fails over nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, Channel, Listener};
use cueline_model::Timestamp;
use cueline_runtime::Stop;
use tokio::time::{Instant, sleep};

use crate::shared::Shared;

/// How it speaks and listens, by how long executors may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    /// How often it speaks.
    every: Duration,
    /// A longer gap is deafness. With the time between two beats of an executor before it, and a new connection after it, it is still much shorter than the
    /// silence for which an executor is missed.
    longest_gap_ms: i64,
    /// A listener that hears nothing for so long is made anew: a broker may have lost it without a word.
    give_up_after: Duration,
}

impl Pace {
    /// 1 s, 4 s and 15 s where executors may be silent for 30 s or longer.
    fn of(failover_after_ms: u64) -> Self {
        let share = |per: u64, least_ms: u64, most_ms: u64| {
            (failover_after_ms / per).clamp(least_ms, most_ms)
        };
        let gap_ms = share(1, 7_500, 30_000) * 4 / 30;
        Self {
            every: Duration::from_millis(share(30, 200, 1_000)),
            longest_gap_ms: i64::try_from(gap_ms).unwrap_or(i64::MAX),
            give_up_after: Duration::from_millis(share(2, 2_000, 15_000)),
        }
    }
}

/// The channel that only this process listens on.
fn own_channel(shared: &Shared) -> Channel {
    Channel::Replies(format!("self-{:016x}", shared.voice))
}

/// Speaks and listens until the stop.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let pace = Pace::of(shared.options.failover_after_ms);
    while !stop.is_soft() {
        let turn = tokio::select! {
            turn = listen(&shared, pace) => turn,
            () = stop.soft() => return,
        };
        match turn {
            Ok(()) => {
                tracing::warn!(
                    "the scheduler does not hear itself over the broker; listening anew"
                );
            }
            Err(e) => {
                tracing::warn!(error = %e, "the scheduler cannot listen on the broker; trying again");
            }
        }
        tokio::select! {
            () = sleep(pace.every) => {}
            () = stop.soft() => return,
        }
    }
}

/// Returns when nothing was heard for long.
async fn listen(shared: &Shared, pace: Pace) -> Result<(), BrokerError> {
    let channel = own_channel(shared);
    let mut ears = shared.broker.listen(&channel).await?;
    let mut heard = Instant::now();
    while heard.elapsed() < pace.give_up_after {
        // A failure shows in that nothing is heard.
        let _ = shared.broker.announce(&channel, word(shared.now())).await;
        let fresh = |payload: &[u8]| is_fresh(payload, shared.now(), pace);
        if next(&mut ears, pace.every, fresh, || hear(shared)).await {
            heard = Instant::now();
        }
    }
    Ok(())
}

/// A word says when it was spoken.
fn word(now: Timestamp) -> Bytes {
    Bytes::copy_from_slice(&now.as_millis().to_be_bytes())
}

/// One that was long on its way, or waited here while this process was held up, says nothing about now.
fn is_fresh(payload: &[u8], now: Timestamp, pace: Pace) -> bool {
    <[u8; 8]>::try_from(payload).is_ok_and(|spoken| {
        let spoken = Timestamp::from_millis(i64::from_be_bytes(spoken));
        now.since_ms(spoken) <= pace.longest_gap_ms
    })
}

/// Takes all words that come until it is time to speak again, so that none waits for its turn; whether one of them was fresh.
async fn next(
    ears: &mut Listener,
    every: Duration,
    is_fresh: impl Fn(&[u8]) -> bool,
    hear: impl Fn(),
) -> bool {
    let pause = sleep(every);
    tokio::pin!(pause);
    let mut heard = false;
    loop {
        tokio::select! {
            Some(word) = ears.recv() => {
                if is_fresh(&word.payload) {
                    hear();
                    heard = true;
                }
            }
            () = &mut pause => return heard,
        }
    }
}

/// Whether it hears at this moment, as far as it can tell: it has heard itself lately. One that does not may not count anybody's silence: that the
/// count begins anew shows only when it hears again.
pub(crate) fn hears(shared: &Shared, now: Timestamp) -> bool {
    let longest_ms = Pace::of(shared.options.failover_after_ms).longest_gap_ms;
    let since = shared.last_heard_itself().min(shared.last_wrote_beats());
    now.since_ms(since) <= longest_ms
}

/// All signs of life that have come are written down. A gap in that is deafness as well: silence is counted from what the store knows, and a store that
/// was slow, or a stage that was held up, knows too little.
pub(crate) fn caught_up(shared: &Shared) {
    let now = shared.now();
    let before = shared.wrote_beats(now);
    if now.since_ms(before) > Pace::of(shared.options.failover_after_ms).longest_gap_ms {
        tracing::info!(
            "signs of life are written down in time; executors that are silent from now on are missed"
        );
        shared.begin_to_count();
    }
}

/// How often it is looked whether all signs of life are written down.
pub(crate) fn look_every(shared: &Shared) -> Duration {
    Pace::of(shared.options.failover_after_ms).every
}

/// It has heard itself just now.
pub(crate) fn hear(shared: &Shared) {
    let now = shared.now();
    let before = shared.heard_itself(now);
    if now.since_ms(before) > Pace::of(shared.options.failover_after_ms).longest_gap_ms {
        tracing::info!(
            "the scheduler hears the broker; executors that are silent from now on are missed"
        );
        shared.begin_to_hear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use cueline_broker::Announcement;

    use super::*;

    #[test]
    fn a_gap_that_is_no_deafness_is_much_shorter_than_the_silence_that_counts() {
        for failover_after_ms in [3_000, 5_000, 10_000, 30_000, 300_000] {
            let pace = Pace::of(failover_after_ms);
            let beat_ms = i64::try_from(failover_after_ms / 6).expect("small");
            let silence_ms = pace.longest_gap_ms + beat_ms;
            assert!(silence_ms * 2 <= i64::try_from(failover_after_ms).expect("small"));
            assert!(pace.every.as_millis() * 4 <= u128::from(pace.longest_gap_ms.unsigned_abs()));
        }
        let usual = Pace::of(30_000);
        let secs = Duration::from_secs;
        assert_eq!(
            (usual.every, usual.longest_gap_ms, usual.give_up_after),
            (secs(1), 4_000, secs(15))
        );
    }

    /// Words piled up while it was held up: none of them waits for a turn of its own, and only what was spoken lately counts.
    #[tokio::test]
    async fn old_words_are_read_at_once_and_count_for_nothing() {
        let pace = Pace::of(30_000);
        let now = Timestamp::from_millis(1_800_000_000_000);
        let (speak, mut ears) = tokio::sync::mpsc::channel(100);
        let say = async |payload| {
            let reply_to = None;
            let said = speak.send(Announcement { payload, reply_to }).await;
            said.expect("it is listened to");
        };
        let fresh = |payload: &[u8]| is_fresh(payload, now, pace);
        let every = Duration::from_millis(20);
        for _ in 0..50 {
            say(word(now.minus_ms(4_001))).await;
        }
        say(Bytes::from_static(b"no word")).await;
        let heard = Cell::new(0);
        let hear = || heard.set(heard.get() + 1);
        assert!(!next(&mut ears, every, fresh, hear).await);
        assert!(ears.is_empty());
        say(word(now.minus_ms(4_000))).await;
        say(word(now)).await;
        assert!(next(&mut ears, every, fresh, hear).await);
        assert_eq!(heard.get(), 2);
    }
}
