//! The lease that the tasks of a worker share.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_model::Session;
use cueline_protocol::{Control, VERSION};
use cueline_runtime::BootClock;
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;

use super::echoes::Echoes;
use super::proof::{LeaseDeadline, LeaseProof, OnLeaseRenewed};
use super::state::{FenceStage, LeaseChange, LeaseState, is_valid};
use super::timings::{LeaseTimings, MAX_MARGIN, millis};
use crate::journal::LeaseRecord;

/// How often the clock is read to see whether the lease has ended.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// The shortest time between two records of the lease in the journal.
const RECORD_EVERY_MS: i64 = 1_000;

/// The worker's broker lease.
#[derive(Debug)]
pub(crate) struct BrokerLease {
    /// `None` if the schedulers run in this process: then there is no lease, and the worker is never fenced.
    timings: Option<LeaseTimings>,
    on_renewed: Option<OnLeaseRenewed>,
    clock: Arc<dyn BootClock>,
    boot_id: String,
    incarnation: String,
    session: AtomicI64,
    /// The session with which the process started. Heartbeats have named it, also if an earlier one was resumed since.
    first_session: Session,
    /// When the first session began, which is the start of the process, on the boot clock.
    began_ms: i64,
    state: watch::Sender<LeaseState>,
    echoes: Mutex<Echoes>,
    last_recorded_ms: Mutex<Option<i64>>,
    heartbeat_requested: Notify,
}

impl BrokerLease {
    /// A lease without a proof: nothing may be started before the first echo returns.
    pub(crate) fn new(
        timings: Option<LeaseTimings>,
        on_renewed: Option<OnLeaseRenewed>,
        clock: Arc<dyn BootClock>,
        incarnation: String,
        session: Session,
    ) -> Self {
        let state = match timings {
            Some(_) => LeaseState::FENCED,
            None => LeaseState::UNFENCED,
        };
        Self {
            timings,
            on_renewed,
            boot_id: clock.boot_id(),
            began_ms: clock.up_ms(),
            clock,
            incarnation,
            session: AtomicI64::new(session.0),
            first_session: session,
            state: watch::Sender::new(state),
            echoes: Mutex::default(),
            last_recorded_ms: Mutex::default(),
            heartbeat_requested: Notify::new(),
        }
    }

    /// The echo of the heartbeat that is about to be sent. `None` without a lease.
    pub(crate) fn next_echo(&self, wall_ms: i64) -> Option<Control> {
        self.timings?;
        let boot_ms = self.clock.up_ms();
        let number = self.echoes().register(LeaseProof { wall_ms, boot_ms });
        Some(Control::Echo {
            v: VERSION,
            incarnation: self.incarnation.clone(),
            number,
        })
    }

    /// Renews the lease with a returned echo. Echoes of other incarnations are ignored.
    pub(crate) fn echo_returned(&self, incarnation: &str, number: u64) {
        let Some(timings) = self.timings.filter(|_| incarnation == self.incarnation) else {
            return;
        };
        // If the process was paused, the worker is fenced first. The renewal would hide the pause otherwise.
        self.check_expiry();
        let Some(proof) = self.echoes().returned(number) else {
            return;
        };
        let now_ms = self.clock.up_ms();
        // A broker that was stuck may deliver an old echo. The callback is not called for a lease that has ended.
        if is_valid(proof, &timings, now_ms) {
            self.notify_renewed(&timings, proof);
        }
        self.state
            .send_modify(|state| state.renew(proof, &timings, now_ms));
    }

    /// Whether the echo of the newest heartbeat has returned. True without a lease.
    pub(crate) fn is_newest_echo_returned(&self) -> bool {
        self.timings.is_none() || self.echoes().is_newest_returned()
    }

    /// Returns when a heartbeat should be sent at once.
    pub(crate) async fn heartbeat_requested(&self) {
        self.heartbeat_requested.notified().await;
    }

    /// Whether nothing may be started now. Each attempt asks for it several times.
    pub(crate) fn is_fenced(&self) -> bool {
        if self.timings.is_none() {
            return false;
        }
        self.check_expiry();
        self.state.borrow().fenced
    }

    /// Whether nothing may be accepted or started before the next proof, because the lease may end soon. False without a
    /// lease.
    pub(crate) fn is_overdue(&self) -> bool {
        !self.is_recent(&self.state.borrow())
    }

    /// Returns when the lease is not overdue any more.
    pub(crate) async fn renewed(&self) {
        let mut changes = self.state.subscribe();
        // Each proof changes the state. Waiting fails only without a sender, and `self` has it.
        let _ = changes.wait_for(|state| self.is_recent(state)).await;
    }

    /// Whether waiting attempts must be returned before the fence can be lifted.
    pub(crate) fn must_return_waiting(&self) -> bool {
        self.check_expiry();
        self.state.borrow().must_return_waiting
    }

    /// When the lease was last proven, on the boot clock. `None` without a lease.
    pub(crate) fn proven_ms(&self) -> Option<i64> {
        self.timings?;
        // The 0 is never seen: nothing is started before the first proof.
        Some(self.state.borrow().proof.map_or(0, |proof| proof.boot_ms))
    }

    /// Returns when the event loop, which has reached `stage`, must act on the fence.
    pub(crate) async fn needs_action(&self, stage: FenceStage) {
        if self.timings.is_none() {
            return std::future::pending().await;
        }
        let mut changes = self.state.subscribe();
        // Waiting fails only without a sender, and `self` has it.
        let _ = changes.wait_for(|state| state.needs_action(stage)).await;
    }

    /// Returns when the worker is fenced.
    pub(crate) async fn fenced(&self) {
        self.needs_action(FenceStage::NotHandled).await;
    }

    /// The worker's session.
    pub(crate) fn session(&self) -> Session {
        Session(self.session.load(Ordering::Acquire))
    }

    /// Begins a session at `wall_ms`. Its number is greater than that of `last` and of the process start, even if the
    /// clock stands or went back.
    fn begin_session(&self, wall_ms: i64, last: Session) {
        let Session(used) = last.max(self.first_session);
        let number = wall_ms.max(used.saturating_add(1));
        self.session.store(number, Ordering::Release);
    }

    /// Lifts the fence if the lease is valid and the event loop has reached the `stage` that the fence requires. Begins
    /// a session if waiting attempts were returned, because schedulers may have replaced attempts of the earlier one.
    ///
    /// The process begins with a session. Triggers that are written after its first heartbeat name that session, so its
    /// first lease begins no other. A late first lease does: schedulers may have received the first heartbeat, and
    /// failed the executor over since.
    pub(crate) fn lift_fence(&self, stage: FenceStage, wall_ms: i64) -> bool {
        let Some(timings) = self.timings else {
            return false;
        };
        let now_ms = self.clock.up_ms();
        let (mut lifted, mut first) = (false, false);
        self.state.send_modify(|state| {
            first = state.must_end_by_ms.is_none();
            lifted = state.lift_fence(stage, &timings, now_ms);
        });
        if lifted {
            let age_ms = now_ms.saturating_sub(self.began_ms);
            let is_early = age_ms < millis(timings.return_waiting_after());
            if stage == FenceStage::WaitingReturned && !(first && is_early) {
                self.begin_session(wall_ms, self.session());
            }
            // Schedulers send triggers again after the next heartbeat.
            self.heartbeat_requested.notify_one();
            if !first {
                tracing::info!("broker lease renewed; triggers are accepted again");
            }
        }
        lifted
    }

    /// Returns when fenced attempts must have ended, even if the fence is lifted earlier or the clock jumps.
    pub(crate) async fn must_end(&self) {
        self.fenced().await;
        let by_ms = self.state.borrow().must_end_by_ms;
        loop {
            let left = until(by_ms, self.clock.up_ms());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(CHECK_EVERY)).await;
        }
    }

    /// The time left until fenced attempts must have ended.
    pub(crate) fn time_left(&self) -> Duration {
        until(self.state.borrow().must_end_by_ms, self.clock.up_ms())
    }

    /// The longest time that the forced stop of a fenced attempt may take.
    pub(crate) fn kill_margin(&self) -> Duration {
        self.timings.map_or(MAX_MARGIN, |timings| timings.margin())
    }

    /// Why a fenced attempt was stopped or returned, for its outcome.
    pub(crate) fn fence_reason(&self) -> String {
        let after = self.timings.map_or(Duration::ZERO, |t| t.fence_after);
        let after = match after.subsec_millis() {
            0 => format!("{} s", after.as_secs()),
            _ => format!("{} ms", after.as_millis()),
        };
        format!(
            "the broker was out of reach for {after}; the schedulers may have given the run to another executor"
        )
    }

    /// Resumes the lease of the previous process, with its age. False if that lease has ended or is unknown: then the
    /// attempts that waited no longer belong to this worker.
    pub(crate) fn resume(&self, last: Option<&LeaseRecord>, wall_ms: i64) -> bool {
        let Some(timings) = self.timings else {
            return true;
        };
        let Some(last) = last else {
            return false;
        };
        let boot_ms = self.clock.up_ms();
        let wall_age_ms = wall_ms.saturating_sub(last.wall_ms);
        let same_boot = last.boot_id == self.boot_id && !last.boot_id.is_empty();
        let boot_age_ms = if same_boot {
            boot_ms.saturating_sub(last.boot_ms)
        } else {
            wall_age_ms
        };
        // The greater age counts, because either clock may have stopped. A clock that went back proves nothing.
        let age_ms = wall_age_ms.max(boot_age_ms);
        if wall_age_ms < 0 || boot_age_ms < 0 || age_ms > millis(timings.fence_after) {
            self.begin_session(wall_ms, last.session);
            return false;
        }
        self.session.store(last.session.0, Ordering::Release);
        let proof = LeaseProof {
            wall_ms: last.wall_ms,
            boot_ms: boot_ms.saturating_sub(age_ms),
        };
        self.state.send_replace(LeaseState::resumed(proof));
        self.notify_renewed(&timings, proof);
        true
    }

    /// Takes the newest proof if the journal should record it. `None` while fenced: after a restart the worker would
    /// keep waiting attempts that it may have to return.
    pub(crate) fn take_unrecorded(&self) -> Option<LeaseRecord> {
        let state = *self.state.borrow();
        let proof = state.proof.filter(|_| !state.fenced)?;
        let mut last = lock(&self.last_recorded_ms);
        let due = last.is_none_or(|ms| proof.boot_ms.saturating_sub(ms) >= RECORD_EVERY_MS);
        due.then(|| {
            *last = Some(proof.boot_ms);
            LeaseRecord {
                wall_ms: proof.wall_ms,
                boot_ms: proof.boot_ms,
                boot_id: self.boot_id.clone(),
                session: self.session(),
            }
        })
    }

    /// Checks regularly whether the lease has ended. Never returns.
    pub(crate) async fn run_checks(&self) {
        if self.timings.is_none() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check_expiry();
        }
    }

    fn check_expiry(&self) {
        let Some(timings) = self.limits() else {
            return;
        };
        let now_ms = self.clock.up_ms();
        if self.state.borrow().due_change(&timings, now_ms) == LeaseChange::None {
            return;
        }
        let mut change = LeaseChange::None;
        self.state.send_if_modified(|state| {
            change = state.apply_due_change(&timings, now_ms);
            change != LeaseChange::None
        });
        if change == LeaseChange::Fence {
            tracing::warn!(
                fence_after_ms = timings.fence_after.as_millis(),
                "broker lease ended; running attempts are stopped and nothing is started until the broker can be reached"
            );
        }
    }

    /// Whether the lease of this state is not overdue.
    fn is_recent(&self, state: &LeaseState) -> bool {
        let timings = self.limits();
        timings.is_none_or(|timings| !state.is_overdue(&timings, self.clock.up_ms()))
    }

    /// When the lease is overdue and when it ends. `None` without a lease.
    fn limits(&self) -> Option<LeaseTimings> {
        if cueline_runtime::planted!("no_fence") {
            return None;
        }
        self.timings
    }

    fn notify_renewed(&self, timings: &LeaseTimings, proof: LeaseProof) {
        if let Some(on_renewed) = &self.on_renewed {
            on_renewed.notify(LeaseDeadline {
                proven_ms: proof.boot_ms,
                end_by_ms: timings.must_end_by_ms(proof.boot_ms),
            });
        }
    }

    fn echoes(&self) -> MutexGuard<'_, Echoes> {
        lock(&self.echoes)
    }

    #[cfg(test)]
    pub(super) fn outstanding_echoes(&self) -> usize {
        self.echoes().outstanding()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without a deadline no time is left.
fn until(by_ms: Option<i64>, now_ms: i64) -> Duration {
    let left_ms = by_ms.map_or(0, |by_ms| by_ms.saturating_sub(now_ms));
    Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
}
