//! Cancel: tells executors what is to be cancelled, again and again until it has taken effect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::Channel;
use cueline_protocol::{Control, VERSION, encode};
use cueline_runtime::{Duty, Next};

use crate::error::StageError;
use crate::shared::Shared;

/// Passes on cancellations.
pub(crate) struct Cancel(pub(crate) Arc<Shared>);

/// At most so many are passed on in one turn; the rest follows in the next.
const BATCH: usize = 1_000;
/// An order that was not heard is repeated after this long.
const REPEAT: Duration = Duration::from_secs(1);
/// With nothing to pass on, the store is asked this often in case another node took the wish.
const IDLE: Duration = Duration::from_secs(5);

impl Duty for Cancel {
    type Error = StageError;

    fn name(&self) -> &'static str {
        "cancel"
    }

    async fn activate(&mut self) -> Result<Next, StageError> {
        Ok(Next::After(if pass_on(&self.0).await? > 0 {
            REPEAT
        } else {
            IDLE
        }))
    }
}

/// Passes on what is pending; how many.
pub(crate) async fn pass_on(shared: &Shared) -> Result<usize, StageError> {
    let pending = shared.store.pending_cancels(BATCH).await?;
    for cancel in &pending {
        let channel = Channel::Control {
            group: cancel.group.to_string(),
            executor: cancel.executor.to_string(),
        };
        let order = Control::Cancel {
            v: VERSION,
            run: cancel.run,
        };
        shared
            .broker
            .announce(&channel, Bytes::from(encode(&order)))
            .await?;
    }
    Ok(pending.len())
}
