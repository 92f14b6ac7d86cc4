//! What was delivered over one channel and is not settled.
//!
//! Frames are put in line while the state is locked: a cumulative ack must not overtake the giving back of a message before it, and
//! whether a consumer has credit must be known when it is cancelled.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Delivery, Receipt};
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::ShortString;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::Grow;
use crate::delivery::Message;
use crate::link::Up;
use crate::options::RabbitOptions;
use crate::started::Started;

/// So many fetches in a row that took as many as they wanted ask for a larger prefetch.
const FULL_FETCHES: u32 = 3;

/// How many times what a fetch takes is sent ahead at most: enough that the next is here when one is settled.
const AHEAD: usize = 4;

/// A message handed out.
pub(crate) struct Held {
    pub(crate) message: Message,
    tag: u64,
    due: Instant,
}

/// The consumer of the moment.
pub(super) struct Consuming {
    pub(super) tag: ShortString,
    pub(super) number: u64,
    pub(super) prefetch: u16,
    /// Delivered to it and not settled.
    pub(super) owed: usize,
    pub(super) pump: JoinHandle<()>,
}

/// How much was settled over a channel at some moment.
pub(crate) struct Settled {
    session: u64,
    count: u64,
    pub(crate) over: (Arc<Up>, Channel),
}

/// See the module.
pub(crate) struct Session {
    pub(super) number: u64,
    pub(super) up: Arc<Up>,
    pub(super) channel: Channel,
    pub(super) consuming: Option<Consuming>,
    /// Consumers so far; a number names one.
    pub(super) consumers: u64,
    /// Which consumer each delivery tag that is not settled came to.
    outstanding: BTreeMap<u64, u64>,
    waiting: VecDeque<(u64, Message)>,
    held: HashMap<Receipt, Held>,
    due: BTreeSet<(Instant, Receipt)>,
    /// Acks and the like that were put in line.
    settled: u64,
    /// How many of them the server is known to have taken.
    taken: u64,
    full_fetches: u32,
    /// Of what came lately, in bytes.
    usual_size: usize,
}

impl Session {
    pub(super) fn new(number: u64, up: Arc<Up>, channel: Channel) -> Self {
        Self {
            number,
            up,
            channel,
            consuming: None,
            consumers: 0,
            outstanding: BTreeMap::new(),
            waiting: VecDeque::new(),
            held: HashMap::new(),
            due: BTreeSet::new(),
            settled: 0,
            taken: 0,
            full_fetches: 0,
            usual_size: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.up.is_open() && self.channel.status().connected()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn handed_out(&self) -> usize {
        self.held.len()
    }

    /// The server may send something.
    pub(super) fn has_credit(&self) -> bool {
        self.consuming
            .as_ref()
            .is_some_and(|consuming| consuming.owed < usize::from(consuming.prefetch))
    }

    /// Takes in what came to a consumer.
    pub(super) fn arrived(&mut self, consumer: u64, tag: u64, message: Message) {
        let size = message.payload.len();
        self.usual_size = (self.usual_size * 7 + size) / 8;
        self.outstanding.insert(tag, consumer);
        self.waiting.push_back((tag, message));
        if let Some(consuming) = self.consuming.as_mut().filter(|c| c.number == consumer) {
            consuming.owed += 1;
        }
    }

    /// Hands out what has waited longest; and whether one of it is due before all others.
    pub(super) fn hand_out(
        &mut self,
        max: usize,
        due: Instant,
        mut receipt: impl FnMut() -> Receipt,
    ) -> (Vec<Delivery>, bool) {
        let sooner = self.due.first().is_none_or(|(first, _)| due < *first);
        let count = max.min(self.waiting.len());
        let mut messages = Vec::with_capacity(count);
        for (tag, message) in self.waiting.drain(..count) {
            let receipt = receipt();
            messages.push(Delivery {
                receipt,
                topic: message.topic.clone(),
                payload: message.payload.clone(),
                redelivered: message.redelivered,
                deliveries: message.deliveries,
            });
            self.due.insert((due, receipt));
            self.held.insert(receipt, Held { message, tag, due });
        }
        (messages, sooner)
    }

    /// Whether a larger prefetch would be of use after a fetch that wanted `max` and got `got`.
    pub(super) fn wants_more(&mut self, max: usize, got: usize, options: &RabbitOptions) -> Grow {
        if got < max {
            self.full_fetches = 0;
            return Grow::No;
        }
        self.full_fetches = self.full_fetches.saturating_add(1);
        let prefetch = self
            .consuming
            .as_ref()
            .map_or(0, |c| usize::from(c.prefetch));
        let useful = prefetch
            < self
                .largest_prefetch(options)
                .min(max.saturating_mul(AHEAD));
        if useful && self.full_fetches >= FULL_FETCHES && !self.has_credit() {
            Grow::Yes
        } else {
            Grow::No
        }
    }

    /// The prefetch of the next consumer, for fetches that want `max`.
    pub(super) fn next_prefetch(&self, before: u16, max: usize, options: &RabbitOptions) -> u16 {
        let wanted = max.max(usize::from(before) * 2);
        let prefetch = wanted.clamp(1, self.largest_prefetch(options));
        u16::try_from(prefetch).unwrap_or(options.prefetch)
    }

    fn largest_prefetch(&self, options: &RabbitOptions) -> usize {
        let by_size = options.prefetch_bytes / self.usual_size.max(1);
        usize::from(options.prefetch).min(by_size).max(1)
    }

    pub(crate) fn held(&self, receipt: Receipt) -> Option<&Held> {
        self.held.get(&receipt)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Gives back later what is held; unknown receipts are ignored.
    pub(crate) fn postpone(&mut self, receipt: Receipt, by: Duration) {
        if let Some(held) = self.held.get_mut(&receipt) {
            self.due.remove(&(held.due, receipt));
            held.due = Instant::now() + by;
            self.due.insert((held.due, receipt));
        }
    }

    /// Acks; unknown receipts are ignored.
    pub(crate) fn ack(&mut self, receipts: &[Receipt]) -> lapin::Result<()> {
        let mut tags: Vec<u64> = receipts.iter().filter_map(|r| self.let_go(*r)).collect();
        tags.sort_unstable();
        self.settled += tags.len() as u64;
        // One ack for all that was delivered up to a tag, where nothing else is outstanding there.
        let in_a_row = self
            .outstanding
            .keys()
            .zip(&tags)
            .take_while(|(outstanding, tag)| outstanding == tag)
            .count();
        for tag in &tags {
            self.forget(*tag);
        }
        if let Some(last) = in_a_row.checked_sub(1) {
            let options = BasicAckOptions { multiple: true };
            sent(self.channel.basic_ack(tags[last], options))?;
        }
        for tag in &tags[in_a_row..] {
            let options = BasicAckOptions::default();
            sent(self.channel.basic_ack(*tag, options))?;
        }
        Ok(())
    }

    /// Gives back what is held, to be delivered again; unknown receipts are ignored.
    pub(crate) fn give_back(&mut self, receipts: &[Receipt]) -> lapin::Result<()> {
        let tags: Vec<u64> = receipts.iter().filter_map(|r| self.let_go(*r)).collect();
        self.settled += tags.len() as u64;
        self.nack(&tags)
    }

    /// Gives back what is due.
    pub(super) fn give_back_due(&mut self, now: Instant) -> lapin::Result<()> {
        let due: Vec<Receipt> = self
            .due
            .iter()
            .take_while(|(due, _)| *due <= now)
            .map(|(_, receipt)| *receipt)
            .collect();
        self.give_back(&due)
    }

    fn nack(&mut self, tags: &[u64]) -> lapin::Result<()> {
        for tag in tags {
            self.forget(*tag);
            let options = BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            };
            sent(self.channel.basic_nack(*tag, options))?;
        }
        Ok(())
    }

    fn let_go(&mut self, receipt: Receipt) -> Option<u64> {
        let held = self.held.remove(&receipt)?;
        self.due.remove(&(held.due, receipt));
        Some(held.tag)
    }

    fn forget(&mut self, tag: u64) {
        let consumer = self.outstanding.remove(&tag);
        if let Some(consuming) = &mut self.consuming
            && Some(consuming.number) == consumer
        {
            consuming.owed = consuming.owed.saturating_sub(1);
        }
    }

    /// What was settled, if the server is not known to have taken all of it: also by a call before this one, whose receipts are no
    /// longer known and whose caller was told that it failed.
    pub(crate) fn unanswered(&self) -> Option<Settled> {
        (self.settled > self.taken).then(|| Settled {
            session: self.number,
            count: self.settled,
            over: self.channel(),
        })
    }

    /// The server has taken this, and all before it.
    pub(crate) fn answered(&mut self, settled: &Settled) {
        if settled.session == self.number {
            self.taken = self.taken.max(settled.count);
        }
    }

    pub(crate) fn channel(&self) -> (Arc<Up>, Channel) {
        (Arc::clone(&self.up), self.channel.clone())
    }

    /// Closes the channel: the server gives back everything that came over it.
    pub(super) async fn close(self) -> lapin::Result<()> {
        if let Some(consuming) = &self.consuming {
            consuming.pump.abort();
        }
        if !self.is_open() {
            return Ok(());
        }
        let close = self.channel.close(200, "done".into());
        timeout(self.up.request_timeout(), close)
            .await
            .unwrap_or(Ok(()))
    }
}

/// Puts a frame in line; that it reached the server is known by the answer to a later one.
fn sent(call: impl Future<Output = lapin::Result<()>> + Send) -> lapin::Result<()> {
    match Started::new(call) {
        Started::Done(result) => result,
        Started::Running(_) => Ok(()),
    }
}
