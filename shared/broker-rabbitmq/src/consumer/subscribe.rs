//! Starts a subscription, or replaces it by one with a larger prefetch.

use std::sync::Arc;

use cueline_broker::BrokerError;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;

use super::session::{Session, Subscription};
use super::{Consumer, State};
use crate::connection::enqueue;
use crate::error::{NOT_FOUND, answered, no_queue, transient};
use crate::received::Received;

/// Deliveries that are buffered under one lock.
const MAX_CHUNK: usize = 256;

enum Step {
    HasCredit,
    NewSession,
    /// Start a new subscription in place of this one, once the server has answered the cancel.
    Replace(Subscription, BoxFuture<'static, lapin::Result<()>>),
}

impl Consumer {
    /// Ensures a subscription with credit for fetches of `max` messages: starts one, or replaces the present one. After
    /// an error there is no subscription.
    pub(super) async fn ensure_credit(self: Arc<Self>, max: usize) -> Result<(), BrokerError> {
        let _alone = self.subscribing.lock().await;
        let subscribed = self.subscribe(max).await;
        if subscribed.is_err() {
            let broken = self.lock().session.take();
            self.close_in_background(broken);
        }
        self.changed.notify_waiters();
        subscribed
    }

    async fn subscribe(self: &Arc<Self>, max: usize) -> Result<(), BrokerError> {
        let prefetch = match self.next_step() {
            Step::HasCredit => return Ok(()),
            Step::NewSession => {
                self.new_session().await?;
                0
            }
            Step::Replace(old, cancel) => {
                let ended = async {
                    cancel.await?;
                    // Read the old messages to the end, because they come before those of the next subscription.
                    let _ = old.reader.await;
                    Ok(())
                };
                let within = self.context.options.request_timeout;
                answered("consume", within, ended).await?;
                old.prefetch
            }
        };
        self.consume(prefetch, max).await
    }

    fn next_step(&self) -> Step {
        let mut state = self.lock();
        let Some(session) = state.session.as_mut().filter(|s| s.channel.is_open()) else {
            return Step::NewSession;
        };
        if session.has_credit() {
            return Step::HasCredit;
        }
        let Some(old) = session.subscription.take() else {
            return Step::NewSession;
        };
        let (amqp, tag) = (session.channel.amqp.clone(), old.tag.clone());
        // Cancel under the lock: an ack before the cancel would give credit.
        let cancel =
            enqueue(async move { amqp.basic_cancel(tag, BasicCancelOptions::default()).await });
        Step::Replace(old, cancel)
    }

    async fn new_session(&self) -> Result<(), BrokerError> {
        let connection = self.context.connection.current().await?;
        let channel = connection.open_channel().await?;
        let mut state = self.lock();
        if self.deleted.is_cancelled() {
            return Err(no_queue(&self.queue));
        }
        state.sessions += 1;
        let session = Session::new(state.sessions, channel);
        let old = state.session.replace(session);
        drop(state);
        self.close_in_background(old);
        Ok(())
    }

    async fn consume(self: &Arc<Self>, old_prefetch: u16, max: usize) -> Result<(), BrokerError> {
        let planned = self.with_session(|session| {
            session.subscriptions += 1;
            let prefetch = session.sizer.next(old_prefetch, max);
            let numbers = (session.number, session.subscriptions);
            (numbers, prefetch, session.channel.clone())
        });
        let Some(((session, number), prefetch, channel)) = planned else {
            return Err(transient("failed to consume: the channel has ended"));
        };
        let qos = channel.amqp.basic_qos(prefetch, BasicQosOptions::default());
        channel.answer("consume", qos).await?;
        let consume = channel.amqp.basic_consume(
            self.name.clone(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let deliveries = match channel.answer("consume", consume).await {
            Err(e) if e.code == Some(NOT_FOUND) => return Err(no_queue(&self.queue)),
            deliveries => deliveries?,
        };
        let tag = deliveries.tag();
        let mut state = self.lock();
        let Some(present) = state.session.as_mut().filter(|s| s.number == session) else {
            return Err(no_queue(&self.queue));
        };
        // Hold the lock, so that the reader buffers nothing before the subscription is stored.
        let reader = read(Arc::clone(self), deliveries, session, number);
        present.subscription = Some(Subscription {
            number,
            tag,
            prefetch,
            outstanding: 0,
            reader: self.context.tasks.spawn(reader),
        });
        Ok(())
    }
}

/// Buffers the deliveries of one subscription until it ends.
async fn read(consumer: Arc<Consumer>, deliveries: lapin::Consumer, session: u64, number: u64) {
    let mut chunks = deliveries.ready_chunks(MAX_CHUNK);
    while let Some(chunk) = chunks.next().await {
        let (names, queue) = (&consumer.context.names, &consumer.queue);
        let (mut messages, mut error) = (Vec::with_capacity(chunk.len()), None);
        for delivery in chunk {
            match delivery {
                Ok(delivery) => {
                    messages.push((
                        delivery.delivery_tag,
                        Received::read(delivery, names, queue),
                    ));
                }
                Err(e) => error = Some(e),
            }
        }
        {
            let mut state = consumer.lock();
            let Some(session) = state.session.as_mut().filter(|s| s.number == session) else {
                return;
            };
            for (tag, message) in messages {
                session.buffer(number, tag, message);
            }
        }
        consumer.changed.notify_waiters();
        if let Some(error) = error {
            tracing::debug!(%queue, %error, "subscription failed");
            break;
        }
    }
    let ended = take_ended(&mut consumer.lock(), session, number);
    consumer.close_in_background(ended);
    consumer.changed.notify_waiters();
}

/// Takes the session if its present subscription has ended. The driver did not end it, so the queue was deleted or the
/// channel ended.
fn take_ended(state: &mut State, session: u64, number: u64) -> Option<Session> {
    let present = state.session.as_ref().filter(|s| s.number == session)?;
    if present.subscription.as_ref()?.number != number {
        return None;
    }
    // The channel is still open, so the server ended the subscription because the queue was deleted.
    if present.channel.is_open() {
        state.queue_deletions += 1;
    }
    state.session.take()
}
