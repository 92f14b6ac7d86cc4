//! The core of a worker: one task that turns what happens into what is done.
//!
//! Each turn gathers what has come (triggers, ended attempts, orders, confirmed reports), decides, writes all of it into the
//! journal at once, and only then acts: acks, starts, stops and reports. So whatever is done was on disk before, and
//! a crash at any point leaves a journal from which the next worker goes on.

mod act;
mod answer;
mod batch;
mod cancelled;
mod decide;
mod fence;
mod recover;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::{JobName, Timestamp};
use cueline_protocol::Trigger;
use cueline_runtime::Stop;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::attempt::Ended;
use crate::attempt::watch::Watch;
use crate::contact::{Contact, Obeyed};
use crate::context::{Context, StopReason};
use crate::control::Order;
use crate::error::Result;
use crate::gauges::Gauges;
use crate::intake::Arrived;
use crate::journal::Journal;
use crate::lanes::{Lanes, Unstarted};
use crate::outbox::Outbox;
use crate::settings::Settings;
use crate::settle::Settled;
use crate::stores::{AttemptKey, Stores};
use answer::Again;
use batch::Batch;
use cancelled::Cancelled;

/// Ended attempts that wait for the core at the most; past it their tasks wait.
const ENDED_BUFFER: usize = 4_096;
/// Batches of triggers that wait for the core at the most; past it nothing is fetched.
const ARRIVED_BUFFER: usize = 4;
/// Orders that wait for the core at the most: more than a scheduler passes on at once. Past it they are dropped: a cancellation is repeated until it has
/// taken effect, a question until it is answered.
const ORDER_BUFFER: usize = 2_048;
/// Housekeeping: marks of confirmed reports, pruning, room after a full outbox.
const TICK: Duration = Duration::from_millis(250);
/// How long ended attempts may wait for company. It is also how much longer a crash makes them `lost`.
const GATHER_ENDED: Duration = Duration::from_millis(2);
/// The same while a crowd comes in: what comes next takes them along.
const GATHER_IN_A_CROWD: Duration = Duration::from_millis(25);
/// With so many confirmed reports they are marked at once.
const MANY_CONFIRMED: usize = 512;

/// An attempt that runs.
struct Running {
    job: JobName,
    cx: Context,
    /// It goes on without contact.
    keep: bool,
    task: AbortHandle,
}

/// Without a core nobody hears of its end: after a hard stop it must not go on behind the journal's back.
impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the core hears.
pub(crate) struct Ears {
    arrivals: mpsc::Receiver<Vec<Arrived>>,
    ended: mpsc::Receiver<Ended>,
    orders: mpsc::Receiver<Order>,
}

/// What others talk to the core with.
pub(crate) struct Voices {
    pub(crate) arrivals: mpsc::Sender<Vec<Arrived>>,
    pub(crate) orders: mpsc::Sender<Order>,
    ended: mpsc::Sender<Ended>,
}

/// The channels of the core.
pub(crate) fn channels() -> (Voices, Ears) {
    let (arrivals_in, arrivals) = mpsc::channel(ARRIVED_BUFFER);
    let (ended_in, ended) = mpsc::channel(ENDED_BUFFER);
    let (orders_in, orders) = mpsc::channel(ORDER_BUFFER);
    let voices = Voices {
        arrivals: arrivals_in,
        orders: orders_in,
        ended: ended_in,
    };
    let ears = Ears {
        arrivals,
        ended,
        orders,
    };
    (voices, ears)
}

/// What has come since the last turn.
#[derive(Default)]
struct Heard {
    arrivals: Vec<Vec<Arrived>>,
    ended: Vec<Ended>,
    orders: Vec<Order>,
    tick: bool,
}

/// The core.
pub(crate) struct Core {
    settings: Arc<Settings>,
    journal: Journal,
    lanes: Lanes,
    /// Accepted and not started.
    waiting: HashMap<AttemptKey, Trigger>,
    running: HashMap<AttemptKey, Running>,
    cancelled: Cancelled,
    again: Again,
    stores: Arc<Stores>,
    outbox: Arc<Outbox>,
    watch: Arc<Watch>,
    gauges: Arc<Gauges>,
    settle: mpsc::Sender<Vec<Settled>>,
    ended: mpsc::Sender<Ended>,
    next_seq: i64,
    draining: bool,
    contact: Arc<Contact>,
    /// What was done about the want of contact.
    obeyed: Obeyed,
    stop: Stop,
}

/// What the core is made of.
pub(crate) struct Parts {
    pub(crate) settings: Arc<Settings>,
    pub(crate) journal: Journal,
    pub(crate) stores: Arc<Stores>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) settle: mpsc::Sender<Vec<Settled>>,
    pub(crate) stop: Stop,
}

impl Core {
    pub(crate) fn new(parts: Parts, voices: &Voices) -> Self {
        Self {
            lanes: Lanes::new(parts.settings.concurrency),
            settings: parts.settings,
            journal: parts.journal,
            waiting: HashMap::new(),
            running: HashMap::new(),
            cancelled: Cancelled::default(),
            again: Again::default(),
            stores: parts.stores,
            outbox: parts.outbox,
            watch: parts.watch,
            gauges: parts.gauges,
            settle: parts.settle,
            ended: voices.ended.clone(),
            next_seq: 0,
            draining: false,
            contact: parts.contact,
            obeyed: Obeyed::Not,
            stop: parts.stop,
        }
    }

    /// Turns until a soft stop and the end of all that runs, or a hard stop. True when everything has ended.
    pub(crate) async fn run(&mut self, mut ears: Ears) -> Result<bool> {
        let (stop, contact) = (self.stop.clone(), Arc::clone(&self.contact));
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut intake_open = true;
        let mut patience: Option<Instant> = None;
        let mut gather: Option<Instant> = None;
        let mut heard = Heard::default();
        while intake_open || !self.draining || !self.running.is_empty() {
            tokio::select! {
                biased;
                () = stop.hard() => return Ok(false),
                () = stop.soft(), if !self.draining => {
                    patience = Some(Instant::now() + self.settings.drain_timeout);
                    self.begin_drain().await?;
                }
                () = until(patience), if patience.is_some() => {
                    patience = None;
                    self.stop_all();
                }
                count = ears.arrivals.recv_many(&mut heard.arrivals, ARRIVED_BUFFER), if intake_open => {
                    intake_open = count > 0;
                }
                _ = ears.ended.recv_many(&mut heard.ended, ENDED_BUFFER), if gather.is_none() => {
                    // Nothing waits for their room: what is to start goes first, and takes them along.
                    if self.waiting.is_empty() && !self.draining {
                        gather = Some(Instant::now() + self.gather_for());
                        continue;
                    }
                }
                () = until(gather), if gather.is_some() => {}
                _ = ears.orders.recv_many(&mut heard.orders, ORDER_BUFFER) => {}
                () = contact.turned(self.obeyed) => {}
                _ = ticks.tick() => heard.tick = true,
            }
            gather = None;
            ears.listen_on(&mut heard);
            if !self.turn(&mut heard).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One turn. False after a hard stop.
    async fn turn(&mut self, heard: &mut Heard) -> Result<bool> {
        let mut batch = Batch::new(self.now());
        self.heed_contact(&mut batch);
        self.hear_ended(heard.ended.drain(..), &mut batch);
        let asked = self.hear_orders(heard.orders.drain(..), &mut batch);
        let arrivals: Vec<Arrived> = heard.arrivals.drain(..).flatten().collect();
        let came = arrivals.len();
        if !self.hear_arrivals(arrivals, &mut batch).await? {
            return Ok(false);
        }
        let halted = self.outbox.is_full() || self.is_fenced();
        let room = if halted { 0 } else { self.settings.concurrency };
        self.lanes.set_room(room);
        self.pump(&mut batch);
        let tick = std::mem::take(&mut heard.tick);
        if tick || self.outbox.confirmed() >= MANY_CONFIRMED {
            batch.reported(self.outbox.take_confirmed());
        }
        self.record_contact(&batch, tick);
        if !self.commit(&batch).await? {
            return Ok(false);
        }
        self.act(batch);
        self.gauges.came(came);
        self.gauges.set(self.lanes.held(), self.running.len());
        self.answer(asked).await;
        if tick || self.journal.is_over_full() {
            self.prune().await;
        }
        Ok(true)
    }

    fn gather_for(&self) -> Duration {
        if self.gauges.burst_gate.is_closed() {
            GATHER_IN_A_CROWD
        } else {
            GATHER_ENDED
        }
    }

    /// Gives back what waits, and takes no more.
    async fn begin_drain(&mut self) -> Result<()> {
        tracing::info!(
            running = self.running.len(),
            waiting = self.waiting.len(),
            "draining"
        );
        self.draining = true;
        self.gauges.begin_drain();
        let mut batch = Batch::new(self.now());
        let mut steps = Vec::new();
        self.lanes.close(Unstarted::Returned, &mut steps);
        self.follow(steps, &mut batch);
        if self.commit(&batch).await? {
            self.act(batch);
        }
        Ok(())
    }

    fn stop_all(&self) {
        for running in self.running.values() {
            running.cx.stop(StopReason::Drained);
        }
    }

    /// Marks what has been reported, and closes the journal in order.
    pub(crate) async fn finish(mut self) {
        let mut batch = Batch::new(self.now());
        batch.reported(self.outbox.take_confirmed());
        if let Err(error) = self.journal.write(&batch.rows).await {
            tracing::warn!(%error, "reported outcomes were not marked; they will be reported again");
        }
        self.journal.close().await;
    }

    /// Stops what runs, and leaves the rest to the next start.
    pub(crate) async fn abandon(self) {
        drop(self.running);
        self.journal.close().await;
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.settings.clock.now_ms())
    }
}

impl Ears {
    /// Takes along what has come beside what woke the core.
    fn listen_on(&mut self, heard: &mut Heard) {
        while heard.ended.len() < ENDED_BUFFER
            && let Ok(ended) = self.ended.try_recv()
        {
            heard.ended.push(ended);
        }
        while heard.arrivals.len() < ARRIVED_BUFFER
            && let Ok(arrived) = self.arrivals.try_recv()
        {
            heard.arrivals.push(arrived);
        }
        while heard.orders.len() < ORDER_BUFFER
            && let Ok(order) = self.orders.try_recv()
        {
            heard.orders.push(order);
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
