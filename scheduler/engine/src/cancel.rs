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

/// About so many are passed on in one turn; the rest follows when these have taken effect.
const BATCH: usize = 1_000;
/// At most so many are looked through for such as somebody alive can hear: as many cancellations at dead executors hold up no other.
const LOOKED_THROUGH: usize = 64_000;
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

/// Passes on what is pending at executors that are alive; how many are pending.
pub(crate) async fn pass_on(shared: &Shared) -> Result<usize, StageError> {
    let mut limit = BATCH;
    let (heard, count) = loop {
        let mut pending = shared.store.pending_cancellations(limit).await?;
        let count = pending.len();
        pending.retain(|c| {
            shared
                .registry
                .is_alive(&c.executor.group, &c.executor.name)
        });
        if count < limit || pending.len() >= BATCH || limit >= LOOKED_THROUGH {
            break (pending, count);
        }
        limit *= 8;
    };
    for cancel in &heard {
        let channel = Channel::Control {
            group: cancel.executor.group.to_string(),
            executor: cancel.executor.name.to_string(),
        };
        let order = Control::Cancel {
            v: VERSION,
            store: shared.store_id(),
            run: cancel.run,
        };
        shared
            .broker
            .announce(&channel, Bytes::from(encode(&order)))
            .await?;
    }
    Ok(count)
}
