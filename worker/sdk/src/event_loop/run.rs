//! The loop itself: waits for inputs and takes turns.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::Linger;
use tokio::time::{Instant, MissedTickBehavior};

use super::decisions::Decisions;
use super::halt::Halt;
use super::inputs::{Inbox, Inputs, MAX_ENDED, MAX_ORDERS, MAX_RECEIVED};
use super::state::EventLoop;
use crate::intake::Received;
use crate::linger;
use crate::starts::StartQueue;

/// How often a turn runs without inputs. Such a turn marks confirmed reports, prunes entries, and starts attempts when
/// the report queue has room again.
const TICK: Duration = linger::CONFIRMED.max_wait;

/// After a turn that started this many attempts, ends of short ones linger for the next triggers. So a lasting load of them
/// costs one disk sync for each batch of triggers, and not another one for its ends.
const MANY_STARTED: usize = 64;

/// The longest drain of a worker that was refused, because another one has its name. It is well below the 30 s after
/// which schedulers compare attempts with those that the executor holds.
const MAX_REFUSED_DRAIN: Duration = Duration::from_secs(10);

impl EventLoop {
    /// Takes turns until a soft stop and the end of all attempts.
    pub(crate) async fn run(&mut self, mut inbox: Inbox) -> Result<(), Halt> {
        let stop = self.services.stop.clone();
        let lease = Arc::clone(&self.services.lease);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut intake_open = true;
        let mut drain_deadline: Option<Instant> = None;
        let mut linger_until: Option<Instant> = None;
        let mut inputs = Inputs::default();
        while intake_open || !self.draining || !self.running.is_empty() {
            tokio::select! {
                biased;
                () = stop.hard() => return Err(Halt::HardStop),
                () = stop.soft(), if !self.draining => {
                    drain_deadline = Some(Instant::now() + self.drain_timeout());
                    self.drain_ends_at = drain_deadline;
                    self.begin_drain().await?;
                }
                () = until(drain_deadline) => {
                    drain_deadline = None;
                    self.stop_running();
                }
                // A turn leaves triggers in `inputs` while the lease is overdue.
                count = inbox.received.recv_many(&mut inputs.received, MAX_RECEIVED), if intake_open && inputs.received.is_empty() => {
                    intake_open = count > 0;
                }
                _ = inbox.ended.recv_many(&mut inputs.ended, MAX_ENDED), if linger_until.is_none() => {
                    // Linger for more ends to share one disk sync. If other attempts wait for the freed capacity, act
                    // at once.
                    if self.waiting.is_empty() && !self.draining {
                        linger_until = Some(Instant::now() + self.linger().max_wait);
                        continue;
                    }
                }
                Some(keys) = inbox.recorded.recv() => inputs.recorded.push(keys),
                () = until(linger_until) => {}
                _ = inbox.orders.recv_many(&mut inputs.orders, MAX_ORDERS) => {}
                () = lease.needs_action(self.fence_stage) => {}
                () = lease.renewed(), if self.lease_overdue => {}
                _ = ticks.tick() => inputs.tick = true,
            }
            linger_until = None;
            inbox.take_all(&mut inputs);
            self.turn(&mut inputs).await?;
        }
        Ok(())
    }

    /// A refused worker drains for less: reconcile could find its attempts missing at the worker that has its name.
    fn drain_timeout(&self) -> Duration {
        let usual = self.services.settings.drain_timeout;
        if !self.services.status.is_refused() {
            return usual;
        }
        let timings = self.services.settings.lease_timings;
        let third = timings.map_or(MAX_REFUSED_DRAIN, |t| t.failover_after / 3);
        usual.min(third).min(MAX_REFUSED_DRAIN)
    }

    async fn turn(&mut self, inputs: &mut Inputs) -> Result<(), Halt> {
        let mut decisions = Decisions::new(self.now());
        self.follow_lease(&mut decisions);
        self.follow_recorder(&mut decisions);
        self.take_ended(inputs.ended.drain(..), &mut decisions);
        self.take_recorded(inputs.recorded.drain(..).flatten(), &mut decisions);
        let queries = self.take_orders(inputs.orders.drain(..), &mut decisions);
        let received = self.take_received(&mut inputs.received);
        let fetched = received.len();
        self.accept_all(received, &mut decisions).await?;
        self.start_ready(&mut decisions);
        let tick = std::mem::take(&mut inputs.tick);
        self.journal_unstarted(tick, !queries.is_empty(), &mut decisions);
        if tick || linger::CONFIRMED.is_full(self.services.reports.confirmed()) {
            decisions.mark_reported(self.services.reports.take_confirmed());
        }
        self.record_lease(&decisions, tick);
        if cueline_runtime::planted!("ack_before_journal") {
            let early = std::mem::take(&mut decisions.settlements);
            let _ = self.services.settlements.try_send(early);
            // A disk that is slower than the broker.
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        self.record_starts(&mut decisions);
        self.commit(&decisions).await?;
        self.last_started = decisions.start.len();
        self.act(decisions);
        self.services.status.remove_fetched(fetched);
        let (held, running) = (self.lanes.held(), self.running.len());
        self.services.status.set(held, running);
        let (busy_lanes, waiting_lanes) = self.lanes.counts();
        let waiting = self.waiting.len();
        let status = &self.services.status;
        status.set_lanes(waiting, busy_lanes, waiting_lanes);
        self.answer(queries).await;
        if tick || self.journal.is_over_limit() {
            self.prune().await?;
        }
        Ok(())
    }

    /// The triggers that this turn decides about. Others stay in `waiting`, which has a limit, until the lease is renewed
    /// or ends. If it ends, they go back to the broker.
    fn take_received(&self, waiting: &mut Vec<Vec<Received>>) -> Vec<Received> {
        if self.holds_triggers() {
            return Vec::new();
        }
        waiting.drain(..).flatten().collect()
    }

    /// Starts the attempts that the lanes allow. Nothing starts while the worker is fenced or its lease overdue, while
    /// its report queue is full, or while too many starts are not recorded.
    fn start_ready(&mut self, decisions: &mut Decisions) {
        let is_unrecorded = |starts: &Arc<StartQueue>| starts.is_full();
        let halted = self.services.reports.is_full()
            || self.services.starts.as_ref().is_some_and(is_unrecorded)
            || self.is_fenced()
            || self.lease_overdue;
        let capacity = if halted {
            0
        } else {
            self.services.settings.concurrency
        };
        self.lanes.set_capacity(capacity);
        let mut steps = Vec::new();
        self.lanes.start_ready(&mut steps);
        self.follow(steps, decisions);
    }

    fn linger(&self) -> Linger {
        // A crash loses the outcomes that linger, so a worker with much to do keeps that time short.
        let has_room = self.lanes.held() < self.services.settings.concurrency / 2;
        let are_many =
            self.last_started >= MANY_STARTED || self.services.status.burst_gate.is_closed();
        if has_room && are_many {
            linger::ENDED_IN_BURST
        } else {
            linger::ENDED
        }
    }

    async fn prune(&mut self) -> Result<(), Halt> {
        match self.journal.prune(self.now().as_millis()).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_final() => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "failed to delete old journal entries; trying again");
                Ok(())
            }
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
