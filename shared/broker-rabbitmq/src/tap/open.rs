//! A consumer is opened, or replaced by one with a larger prefetch.

use std::sync::Arc;

use cueline_broker::{BrokerError, ErrorKind};
use futures_util::StreamExt as _;
use lapin::Consumer;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::time::timeout;

use super::session::{Consuming, Session};
use super::{State, Tap};
use crate::delivery::Message;
use crate::error::{NOT_FOUND, code, failed, late, no_queue};
use crate::started::Started;

/// Deliveries that are taken in under one lock.
const AT_ONCE: usize = 256;

/// What is to be done for a consumer with credit.
enum Step<'a> {
    Nothing,
    NewSession,
    Consume { before: u16 },
    Replace(Consuming, Started<'a, ()>),
}

impl Tap {
    /// Sees to it that there is a consumer with credit, or a larger one where that is of use. After an error there is none.
    pub(super) async fn open(self: Arc<Self>, max: usize) -> Result<(), BrokerError> {
        let _one = self.opening.lock().await;
        let opened = self.open_alone(max).await;
        if opened.is_err() {
            let broken = self.lock().session.take();
            self.close_later(broken);
        }
        self.changed.notify_waiters();
        opened
    }

    async fn open_alone(self: &Arc<Self>, max: usize) -> Result<(), BrokerError> {
        // Outlives the step that borrows it.
        let channel = self.lock().session.as_ref().map(|s| s.channel.clone());
        let before = match self.step(channel.as_ref()) {
            Step::Nothing => return Ok(()),
            Step::NewSession => {
                self.new_session().await?;
                0
            }
            Step::Consume { before } => before,
            Step::Replace(old, cancel) => {
                let within = self.around.options.request_timeout;
                let ended = async {
                    cancel.end().await?;
                    // What it has taken in comes before what the next one will.
                    let _ = old.pump.await;
                    Ok(())
                };
                match timeout(within, ended).await {
                    Ok(Ok(())) => old.prefetch,
                    Ok(Err(e)) => return Err(failed("consume", e)),
                    Err(_) => return Err(late("consume", within)),
                }
            }
        };
        self.consume(before, max).await
    }

    fn step<'a>(&self, channel: Option<&'a lapin::Channel>) -> Step<'a> {
        let mut state = self.lock();
        let usable = state.session.as_mut().filter(|s| s.is_open());
        let (Some(session), Some(channel)) = (usable, channel) else {
            return Step::NewSession;
        };
        if session.has_credit() {
            return Step::Nothing;
        }
        match session.consuming.take() {
            None => Step::Consume { before: 0 },
            Some(old) => {
                let cancel = channel.basic_cancel(old.tag.clone(), BasicCancelOptions::default());
                Step::Replace(old, Started::new(cancel))
            }
        }
    }

    async fn new_session(&self) -> Result<(), BrokerError> {
        let up = self.around.link.up().await?;
        let channel = up.channel().await?;
        let mut state = self.lock();
        if self.gone.is_cancelled() {
            return Err(no_queue(&self.queue));
        }
        state.sessions += 1;
        let session = Session::new(state.sessions, up, channel);
        let old = state.session.replace(session);
        drop(state);
        self.close_later(old);
        Ok(())
    }

    async fn consume(self: &Arc<Self>, before: u16, max: usize) -> Result<(), BrokerError> {
        let options = &self.around.options;
        let planned = self.with_session(|session| {
            session.consumers += 1;
            let prefetch = session.next_prefetch(before, max, options);
            (
                session.number,
                session.consumers,
                prefetch,
                session.channel(),
            )
        });
        let Some((session, number, prefetch, (up, channel))) = planned else {
            return Err(BrokerError::new(
                ErrorKind::Transient,
                "failed to consume: the channel has ended",
            ));
        };
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        up.within("consume", qos).await?;
        let consume = channel.basic_consume(
            self.name.clone(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = match timeout(up.request_timeout(), consume).await {
            Ok(Ok(consumer)) => consumer,
            Ok(Err(e)) if code(&e) == Some(NOT_FOUND) => return Err(no_queue(&self.queue)),
            Ok(Err(e)) => return Err(failed("consume", e)),
            Err(_) => return Err(late("consume", up.request_timeout())),
        };
        let tag = consumer.tag();
        let mut state = self.lock();
        let Some(found) = state.session.as_mut().filter(|s| s.number == session) else {
            return Err(no_queue(&self.queue));
        };
        // The pump takes nothing in before the lock is free, and the consumer known.
        let pump = self
            .around
            .tasks
            .spawn(pump(Arc::clone(self), consumer, session, number));
        found.consuming = Some(Consuming {
            tag,
            number,
            prefetch,
            owed: 0,
            pump,
        });
        Ok(())
    }
}

/// Takes in what comes to one consumer, until that ends.
async fn pump(tap: Arc<Tap>, consumer: Consumer, session: u64, number: u64) {
    let mut arriving = consumer.ready_chunks(AT_ONCE);
    while let Some(chunk) = arriving.next().await {
        let (names, queue) = (&tap.around.names, &tap.queue);
        let mut messages = Vec::with_capacity(chunk.len());
        let mut error = None;
        for delivery in chunk {
            match delivery {
                Ok(delivery) => {
                    messages.push((delivery.delivery_tag, Message::read(delivery, names, queue)));
                }
                Err(e) => error = Some(e),
            }
        }
        {
            let mut state = tap.lock();
            let Some(session) = state.session.as_mut().filter(|s| s.number == session) else {
                return;
            };
            for (tag, message) in messages {
                session.arrived(number, tag, message);
            }
        }
        tap.changed.notify_waiters();
        if let Some(error) = error {
            tracing::debug!(queue = %tap.queue, %error, "a consumer has ended");
            break;
        }
    }
    let ended = {
        let mut state = tap.lock();
        ended(&mut state, session, number)
    };
    tap.close_later(ended);
    tap.changed.notify_waiters();
}

/// A consumer that is still the one of the moment was not ended by us: by the server when the queue went, or with its channel.
fn ended(state: &mut State, session: u64, number: u64) -> Option<Session> {
    let found = state.session.as_ref().filter(|s| s.number == session)?;
    let current = found.consuming.as_ref().map(|consuming| consuming.number);
    if current != Some(number) {
        return None;
    }
    if found.is_open() {
        state.cancelled += 1;
    }
    state.session.take()
}
