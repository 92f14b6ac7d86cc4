//! Whether this node hears: it speaks to itself over the broker.
//!
//! An executor's silence means something only while its voice would have been heard. A gap in what the node says to itself begins the
//! count of every silence anew, so that a restart of the broker, or a node that was cut off or stopped, fails over nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{BrokerError, Channel, Listener};
use cueline_runtime::Stop;
use tokio::time::{Instant, sleep};

use crate::shared::Shared;

/// How often it speaks.
const EVERY: Duration = Duration::from_secs(1);
/// A longer gap is deafness.
const LONGEST_GAP_MS: i64 = 4_000;
/// A listener that hears nothing for so long is made anew: a broker may have lost it without a word.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15);

/// The channel that only this process listens on.
fn own_channel(shared: &Shared) -> Channel {
    Channel::Replies(format!("self-{:016x}", shared.voice))
}

/// Speaks and listens until the stop.
pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    while !stop.is_soft() {
        let turn = tokio::select! {
            turn = listen(&shared) => turn,
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
            () = sleep(EVERY) => {}
            () = stop.soft() => return,
        }
    }
}

/// Returns when nothing was heard for long.
async fn listen(shared: &Shared) -> Result<(), BrokerError> {
    let channel = own_channel(shared);
    let mut ears = shared.broker.listen(&channel).await?;
    let mut heard = Instant::now();
    while heard.elapsed() < GIVE_UP_AFTER {
        // A failure shows in that nothing is heard.
        let _ = shared.broker.announce(&channel, Bytes::new()).await;
        if next(&mut ears).await {
            heard = Instant::now();
            hear(shared);
        }
    }
    Ok(())
}

/// Waits for a word, and in any case until it is time to speak again.
async fn next(ears: &mut Listener) -> bool {
    let pause = sleep(EVERY);
    tokio::pin!(pause);
    let heard = tokio::select! {
        word = ears.recv() => word.is_some(),
        () = &mut pause => return false,
    };
    pause.await;
    heard
}

/// It has heard itself just now.
pub(crate) fn hear(shared: &Shared) {
    let now = shared.now();
    let before = shared.heard_itself(now);
    if now.since_ms(before) > LONGEST_GAP_MS {
        tracing::info!(
            "the scheduler hears the broker; executors that are silent from now on are missed"
        );
        shared.begin_to_hear();
    }
}
