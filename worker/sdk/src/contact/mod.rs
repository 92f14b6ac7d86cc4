//! Whether the worker is in contact with the broker, and what it owes to the schedulers when it is not.
//!
//! Contact is proven by nothing but an echo: a message that the worker sends to itself right after a beat, on the same way. When it comes
//! back, the schedulers could hear the beat when it was sent. A worker without such proof for `fence_after` is *fenced*: the schedulers may soon
//! give its work to others, so it starts nothing, and what runs has to have ended before they do. Measured on a clock that goes on while the
//! machine sleeps and while the process is paused; whoever is about to start something asks, and does not wait to be told.
//!
//! The fence comes down here, at any time. What waits stays where it is meanwhile, for the schedulers give nothing of it to others yet; only once contact
//! has been missing half-way from the fence to the end of their patience, it is given back. The fence is lifted by the core alone, after it has done what there was to do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cueline_protocol::{Control, VERSION};
use cueline_runtime::BootClock;
use tokio::sync::{Notify, watch};

use crate::journal::LastContact;
use crate::settings::{LONGEST_MARGIN, Lease, Limits, Reach, Settings};

/// How often it is looked whether the time is over.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// An echo that took longer may have gone over a connection that was made after its beat was lost: a beat follows at once.
const LATE_MS: i64 = 500;
/// Echoes that are waited for at the most; past it the oldest is forgotten.
const MAX_AWAITED: usize = 64;
/// The journal is told of newer contact at most so often.
const RECORD_EVERY_MS: i64 = 1_000;

/// When a beat was sent, by both clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    wall_ms: i64,
    up_ms: i64,
}

/// How far the core has obeyed the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obeyed {
    /// It is up, or has only just come down.
    Not,
    /// Nothing is started, what runs was told to stop.
    Stopped,
    /// What waited is given back as well.
    GivenBack,
}

#[derive(Debug, Clone, Copy)]
struct State {
    fenced: bool,
    /// Since the fence came down, contact was missing for so long that the schedulers may have given to others what waits.
    forfeited: bool,
    /// Contact was proven anew since the fence came down.
    back: bool,
    proven: Option<Moment>,
    /// When all that this fence stops has to have ended.
    dead_by_ms: i64,
}

#[derive(Debug, Default)]
struct Echoes {
    sent: u64,
    heard: u64,
    awaited: VecDeque<(u64, Moment)>,
    recorded_ms: Option<i64>,
}

/// The worker's contact with the broker.
#[derive(Debug)]
pub(crate) struct Contact {
    limits: Option<Limits>,
    lease: Option<Lease>,
    boot: Arc<dyn BootClock>,
    boot_id: String,
    incarnation: String,
    state: watch::Sender<State>,
    echoes: Mutex<Echoes>,
    beat: Notify,
}

impl Contact {
    /// No contact yet: nothing may be started before the first echo, unless the schedulers' fate is the worker's own.
    pub(crate) fn new(settings: &Settings) -> Self {
        let state = State {
            fenced: settings.limits.is_some(),
            forfeited: settings.limits.is_some(),
            back: false,
            proven: None,
            dead_by_ms: i64::MIN,
        };
        Self {
            limits: settings.limits,
            lease: settings.lease.clone(),
            boot_id: settings.boot.boot_id(),
            boot: Arc::clone(&settings.boot),
            incarnation: settings.incarnation.clone(),
            state: watch::Sender::new(state),
            echoes: Mutex::default(),
            beat: Notify::new(),
        }
    }

    /// What is to be sent after the beat that is about to be sent; nothing if nothing depends on it.
    pub(crate) fn next_echo(&self, wall_ms: i64) -> Option<Control> {
        self.limits?;
        let up_ms = self.boot.up_ms();
        let mut echoes = self.lock();
        echoes.sent += 1;
        let number = echoes.sent;
        echoes
            .awaited
            .push_back((number, Moment { wall_ms, up_ms }));
        if echoes.awaited.len() > MAX_AWAITED {
            echoes.awaited.pop_front();
        }
        Some(Control::Echo {
            v: VERSION,
            incarnation: self.incarnation.clone(),
            number,
        })
    }

    /// An echo has come back.
    pub(crate) fn hear(&self, incarnation: &str, number: u64) {
        if incarnation != self.incarnation {
            return;
        }
        // A pause must show before what was heard after it.
        self.look();
        let mut echoes = self.lock();
        let place = echoes.awaited.iter().position(|(n, _)| *n == number);
        let Some(moment) = place.and_then(|place| echoes.awaited.drain(..=place).next_back())
        else {
            return;
        };
        echoes.heard = number;
        drop(echoes);
        let moment = moment.1;
        let late = self.boot.up_ms().saturating_sub(moment.up_ms) > LATE_MS;
        let fresh = !self.is_over(Some(moment));
        // An old one may come when the broker goes on after a standstill. What it would allow is over: whoever was told so would begin to end things.
        if fresh {
            self.tell(moment);
        }
        self.state.send_modify(|state| {
            state.proven = Some(moment);
            state.back = state.fenced && fresh;
        });
        if late {
            self.beat.notify_one();
        }
    }

    /// Whether the echo of the newest beat has come back, or none is sent.
    pub(crate) fn is_answered(&self) -> bool {
        let echoes = self.lock();
        self.limits.is_none() || echoes.heard == echoes.sent
    }

    /// Returns when a beat should be sent at once.
    pub(crate) async fn beat_wanted(&self) {
        self.beat.notified().await;
    }

    /// Whether nothing may be started now.
    pub(crate) fn is_fenced(&self) -> bool {
        self.look();
        self.state.borrow().fenced
    }

    /// When contact was proven for the last time, on the boot clock; `None` if nothing depends on it.
    pub(crate) fn proven_ms(&self) -> Option<i64> {
        self.limits?;
        // Nothing is started before the first.
        Some(self.state.borrow().proven.map_or(0, |moment| moment.up_ms))
    }

    /// Whether what waits has to be given back before the fence can be lifted.
    pub(crate) fn is_forfeited(&self) -> bool {
        self.look();
        self.state.borrow().forfeited
    }

    /// Returns when the fence is down, and there is more to be done about it than was: also when contact is back.
    pub(crate) async fn turned(&self, obeyed: Obeyed) {
        let mut state = self.state.subscribe();
        let wanted = |s: &State| match obeyed {
            Obeyed::Not => s.fenced,
            Obeyed::Stopped => s.back || s.forfeited,
            Obeyed::GivenBack => s.back,
        };
        // The sender lives as long as `self`.
        let _ = state.wait_for(wanted).await;
    }

    /// Lifts the fence if there is contact, and the core has obeyed it as far as was needed.
    pub(crate) fn lift(&self, obeyed: Obeyed) -> bool {
        let (mut lifted, mut first) = (false, false);
        self.state.send_modify(|state| {
            let enough = if state.forfeited {
                Obeyed::GivenBack
            } else {
                Obeyed::Stopped
            };
            lifted = state.fenced && obeyed >= enough && !self.is_over(state.proven);
            first = state.dead_by_ms == i64::MIN;
            state.fenced &= !lifted;
            state.forfeited &= !lifted;
            state.back = false;
        });
        if lifted {
            // So that the schedulers hear that it takes work again.
            self.beat.notify_one();
            if !first {
                tracing::info!("contact with the broker is back; work is taken again");
            }
        }
        lifted
    }

    /// When what the fence stops has to have ended; returns then, however far the clock has jumped.
    pub(crate) async fn dead_by(&self) {
        self.turned(Obeyed::Not).await;
        let by_ms = self.state.borrow().dead_by_ms;
        loop {
            let left_ms = by_ms.saturating_sub(self.boot.up_ms());
            let Ok(left) = u64::try_from(left_ms) else {
                return;
            };
            if left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(left).min(LOOK_EVERY)).await;
        }
    }

    /// The time that is left until [`dead_by`](Self::dead_by).
    pub(crate) fn left(&self) -> Duration {
        let left_ms = self
            .state
            .borrow()
            .dead_by_ms
            .saturating_sub(self.boot.up_ms());
        Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
    }

    /// How long the final stop of what the fence stops may take.
    pub(crate) fn last_stop(&self) -> Duration {
        self.limits.map_or(LONGEST_MARGIN, |limits| limits.margin())
    }

    /// Why an attempt was stopped or given back, for people.
    pub(crate) fn why(&self) -> String {
        let after = self.limits.map_or(Duration::ZERO, |l| l.fence_after);
        let after = match after.subsec_millis() {
            0 => format!("{} s", after.as_secs()),
            _ => format!("{} ms", after.as_millis()),
        };
        format!(
            "no contact with the broker for {after}; the schedulers may have given it to another executor"
        )
    }

    /// Takes up the contact of the worker that was here before, which is as old as it is. False if that is too long ago, or not known: then what
    /// waited for that worker is no longer this one's.
    pub(crate) fn resume(&self, last: Option<&LastContact>, wall_ms: i64) -> bool {
        let Some(limits) = self.limits else {
            return true;
        };
        let Some(last) = last else {
            return false;
        };
        let up_ms = self.boot.up_ms();
        let by_wall = wall_ms.saturating_sub(last.at_ms);
        let same_boot = last.boot_id == self.boot_id && !last.boot_id.is_empty();
        let by_boot = if same_boot {
            up_ms.saturating_sub(last.up_ms)
        } else {
            by_wall
        };
        // The older of both: either clock can have stood still, and one that went back tells nothing.
        let age_ms = by_wall.max(by_boot);
        if by_wall < 0 || by_boot < 0 || age_ms > millis(limits.fence_after) {
            return false;
        }
        let moment = Moment {
            wall_ms: last.at_ms,
            up_ms: up_ms.saturating_sub(age_ms),
        };
        self.state.send_modify(|state| {
            state.fenced = false;
            state.forfeited = false;
            state.proven = Some(moment);
        });
        self.tell(moment);
        true
    }

    /// Says how far contact at this moment reaches.
    fn tell(&self, proven: Moment) {
        if let (Some(lease), Some(limits)) = (&self.lease, &self.limits) {
            lease.tell(Reach {
                proven_ms: proven.up_ms,
                ends_by_ms: dead_by(limits, proven.up_ms),
            });
        }
    }

    /// The newest contact, if the journal should be told of it; it then counts as told. Not while the fence is down: a restart would take what waits for
    /// its own although it may have to be given back.
    pub(crate) fn unrecorded(&self) -> Option<LastContact> {
        let state = *self.state.borrow();
        let proven = state.proven.filter(|_| !state.fenced)?;
        let mut echoes = self.lock();
        let due = echoes
            .recorded_ms
            .is_none_or(|told| proven.up_ms.saturating_sub(told) >= RECORD_EVERY_MS);
        due.then(|| {
            echoes.recorded_ms = Some(proven.up_ms);
            LastContact {
                at_ms: proven.wall_ms,
                up_ms: proven.up_ms,
                boot_id: self.boot_id.clone(),
            }
        })
    }

    /// Looks whether the time is over, until it is dropped.
    pub(crate) async fn watch(&self) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    fn look(&self) {
        let Some(limits) = self.limits else {
            return;
        };
        let by_ms = |state: &State| dead_by(&limits, state.proven.map_or(0, |m| m.up_ms));
        let falls = |state: &State| !state.fenced && self.is_over(state.proven);
        let keeps_ms = millis(limits.keeps_for());
        let forfeits = |state: &State| {
            let proven_ms = state.proven.map_or(0, |m| m.up_ms);
            let is_over = proven_ms.saturating_add(keeps_ms) <= self.boot.up_ms();
            state.fenced && !state.forfeited && is_over
        };
        let state = *self.state.borrow();
        if !falls(&state) && !forfeits(&state) {
            return;
        }
        let mut fell = false;
        self.state.send_if_modified(|state| {
            fell = falls(state);
            if fell {
                state.fenced = true;
                state.back = false;
                state.dead_by_ms = by_ms(state);
            }
            let forfeited = forfeits(state);
            state.forfeited |= forfeited;
            fell || forfeited
        });
        if fell {
            tracing::warn!(
                after_ms = limits.fence_after.as_millis(),
                "no contact with the broker: what runs is stopped, nothing is started until contact is back"
            );
        }
    }

    /// Whether contact that was proven then is too long ago.
    fn is_over(&self, proven: Option<Moment>) -> bool {
        let Some(limits) = self.limits else {
            return false;
        };
        let age_ms = proven.map(|m| self.boot.up_ms().saturating_sub(m.up_ms));
        age_ms.is_none_or(|age| age > millis(limits.fence_after))
    }

    fn lock(&self) -> MutexGuard<'_, Echoes> {
        self.echoes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When everything has to have ended that ran when contact was proven for the last time.
fn dead_by(limits: &Limits, proven_ms: i64) -> i64 {
    proven_ms.saturating_add(millis(
        limits.failover_after.saturating_sub(limits.margin()),
    ))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
