//! The feed of a process: its last events, who wants them, and the task that reads the store for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::TryRng as _;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::event::{Event, Kind, Kinds};
use super::places::{Holder, Place, Places};
use super::ring::{KEPT_EVENTS, Part, Ring};
use crate::problem::Problem;

/// A kind is read for this long after its last subscriber has left, so that a client that comes back misses nothing.
const KEPT_WATCHING: Duration = Duration::from_mins(1);

/// The events of this process.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    places: Places,
    state: Mutex<State>,
    /// Notified when a kind of events is wanted that was not read before.
    wanted: Notify,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    /// Tells the ids of this feed from those of other processes, and of earlier feeds. Without one, no client can
    /// continue.
    epoch: Option<u64>,
    interest: [Interest; 3],
    /// The event of each kind from which on none is missing; `None` while the kind is not read.
    complete_from: [Option<u64>; 3],
    /// Counts the tasks that were started.
    generation: u64,
    /// Signals of the running task; `None` if there is none.
    news: Option<watch::Receiver<()>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Interest {
    subscribers: usize,
    left_at: Option<Instant>,
}

impl Interest {
    fn lasts(self, now: Instant) -> bool {
        let stays = |at: Instant| now < at + KEPT_WATCHING;
        self.subscribers > 0 || self.left_at.is_some_and(stays)
    }
}

/// The id of an event, as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventId {
    epoch: u64,
    pub(super) number: u64,
}

impl EventId {
    /// `None` for a text that no feed has sent.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (epoch, number) = text.split_once('-')?;
        Some(Self {
            epoch: u64::from_str_radix(epoch, 16).ok()?,
            number: number.parse().ok()?,
        })
    }
}

impl Events {
    /// A feed for at most `streams` streams at a time, those of logs included.
    pub(crate) fn new(streams: usize) -> Self {
        Self(Arc::new(Shared {
            places: Places::new(streams),
            state: Mutex::new(State {
                ring: Ring::new(KEPT_EVENTS),
                epoch: None,
                interest: [Interest::default(); 3],
                complete_from: [None; 3],
                generation: 0,
                news: None,
            }),
            wanted: Notify::new(),
        }))
    }

    /// A place for a stream of this caller.
    ///
    /// # Errors
    ///
    /// When all places are taken, or when this caller has a quarter of them.
    pub(super) fn place(&self, holder: Holder) -> Result<Place, Problem> {
        self.0.places.take(holder)
    }

    /// Adds a subscriber. Returns what signals its news, and the other side of the feed if the caller has to start the
    /// task that reads the store.
    pub(super) fn join(&self, kinds: Kinds) -> (watch::Receiver<()>, Option<Running>) {
        let mut state = self.lock();
        for kind in kinds.iter() {
            state.interest[kind as usize].subscribers += 1;
        }
        let is_read = |kind: Kind| state.complete_from[kind as usize].is_some();
        if !kinds.iter().all(is_read) {
            self.0.wanted.notify_one();
        }
        if let Some(news) = &state.news {
            return (news.clone(), None);
        }
        let (sender, news) = watch::channel(());
        state.ring = Ring::new(KEPT_EVENTS);
        state.epoch = rand::rngs::SysRng.try_next_u64().ok();
        state.complete_from = [None; 3];
        state.generation += 1;
        state.news = Some(news.clone());
        let running = Running {
            events: self.clone(),
            generation: state.generation,
            news: sender,
        };
        (news, Some(running))
    }

    /// A subscriber has left.
    pub(super) fn leave(&self, kinds: Kinds) {
        let mut state = self.lock();
        for kind in kinds.iter() {
            let interest = &mut state.interest[kind as usize];
            interest.subscribers = interest.subscribers.saturating_sub(1);
            interest.left_at = Some(Instant::now());
        }
    }

    /// At most `limit` events from this number on.
    pub(super) fn read(&self, from: u64, limit: usize) -> Part {
        self.lock().ring.read(from, limit)
    }

    /// The number of the next event, once all of these kinds are read.
    pub(super) fn begin(&self, kinds: Kinds) -> Option<u64> {
        let state = self.lock();
        let is_read = |kind: Kind| state.complete_from[kind as usize].is_some();
        kinds.iter().all(is_read).then(|| state.ring.next())
    }

    /// The number of the event after this one, if none of these kinds is missing since.
    pub(super) fn resume(&self, after: EventId, kinds: Kinds) -> Option<u64> {
        let state = self.lock();
        let next = after.number.checked_add(1)?;
        let is_complete =
            |kind: Kind| state.complete_from[kind as usize].is_some_and(|from| from <= next);
        let here = state.epoch == Some(after.epoch)
            && state.ring.has_all_from(next)
            && kinds.iter().all(is_complete);
        here.then_some(next)
    }

    /// The id of the event with this number, for clients. `None` if no client can continue after it.
    pub(super) fn id(&self, number: u64) -> Option<String> {
        let epoch = self.lock().epoch?;
        Some(format!("{epoch:016x}-{number}"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics with the lock held, and the state is consistent after each change.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The side of the feed that reads the store. When it is dropped, the streams end, and the next subscriber starts another
/// one.
#[derive(Debug)]
pub(super) struct Running {
    events: Events,
    generation: u64,
    news: watch::Sender<()>,
}

impl Running {
    /// The kinds that have subscribers, or had some just before. `None` if there are none. The task has to end then, and the
    /// next subscriber starts another one.
    pub(super) fn wanted(&self) -> Option<Kinds> {
        let now = Instant::now();
        let mut state = self.events.lock();
        let lasts = |kind: &Kind| state.interest[*kind as usize].lasts(now);
        let wanted: Kinds = Kind::ALL.into_iter().filter(lasts).collect();
        for kind in Kind::ALL.into_iter().filter(|kind| !wanted.contains(*kind)) {
            state.complete_from[kind as usize] = None;
        }
        if wanted.is_empty() {
            state.news = None;
            return None;
        }
        Some(wanted)
    }

    /// Waits until another kind may be wanted.
    pub(super) async fn until_wanted(&self) {
        self.events.0.wanted.notified().await;
    }

    /// From now on no event of this kind is missing.
    pub(super) fn begin(&self, kind: Kind) {
        let mut state = self.events.lock();
        state.complete_from[kind as usize] = Some(state.ring.next());
        drop(state);
        self.news.send_replace(());
    }

    /// Events of this kind may be missing until [`begin`](Self::begin).
    pub(super) fn interrupt(&self, kind: Kind) {
        self.events.lock().complete_from[kind as usize] = None;
        self.publish([Event::resync(kind)]);
    }

    pub(super) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let mut state = self.events.lock();
        let before = state.ring.next();
        for event in events {
            state.ring.push(event);
        }
        let has_news = state.ring.next() != before;
        drop(state);
        if has_news {
            self.news.send_replace(());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.events.lock();
        if state.generation == self.generation {
            state.news = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(kinds: &[Kind]) -> Kinds {
        kinds.iter().copied().collect()
    }

    /// A feed whose store is read by the test.
    fn running(streams: usize) -> (Events, Running) {
        let events = Events::new(streams);
        let (sender, news) = watch::channel(());
        {
            let mut state = events.lock();
            state.epoch = Some(7);
            state.generation = 1;
            state.news = Some(news);
            for interest in &mut state.interest {
                interest.subscribers = 1;
            }
        }
        let running = Running {
            events: events.clone(),
            generation: 1,
            news: sender,
        };
        (events, running)
    }

    #[test]
    fn a_client_continues_in_the_same_feed_only_and_if_its_kinds_were_read_all_the_time() {
        let (events, running) = running(1);
        let runs = kinds(&[Kind::Run]);
        let both = kinds(&[Kind::Run, Kind::Job]);
        assert_eq!(events.begin(runs), None, "nothing is read yet");
        running.begin(Kind::Run);
        assert_eq!(events.begin(runs), Some(1));
        assert_eq!(events.begin(both), None);
        running.publish([Event::overflow(Kind::Run, 1)]);
        running.begin(Kind::Job);
        running.publish([Event::overflow(Kind::Job, 1)]);
        let id = |number| EventId { epoch: 7, number };
        let text = events.id(1).expect("an id");
        assert_eq!(EventId::parse(&text), Some(id(1)));
        assert_eq!(events.resume(id(0), runs), Some(1));
        assert_eq!(events.resume(id(2), runs), Some(3));
        assert_eq!(events.resume(id(3), runs), None, "there is no event 3");
        assert_eq!(events.resume(id(u64::MAX), runs), None);
        assert_eq!(events.resume(id(0), both), None, "jobs were read later");
        assert_eq!(events.resume(id(1), both), Some(2));
        let other = EventId {
            epoch: 8,
            number: 1,
        };
        assert_eq!(events.resume(other, runs), None);
        running.interrupt(Kind::Run);
        assert_eq!(events.resume(id(2), runs), None);
        running.begin(Kind::Run);
        assert_eq!(events.resume(id(2), runs), None);
        assert_eq!(events.resume(id(3), runs), Some(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_read_for_a_minute_after_its_last_subscriber_has_left() {
        let (events, running) = running(1);
        assert_eq!(running.wanted(), Some(kinds(&Kind::ALL)));
        events.leave(kinds(&[Kind::Job, Kind::Executor]));
        running.begin(Kind::Job);
        tokio::time::advance(KEPT_WATCHING / 2).await;
        events.leave(kinds(&[Kind::Run]));
        assert_eq!(running.wanted(), Some(kinds(&Kind::ALL)));
        tokio::time::advance(KEPT_WATCHING / 2).await;
        assert_eq!(running.wanted(), Some(kinds(&[Kind::Run])));
        assert_eq!(events.begin(kinds(&[Kind::Job])), None);
        tokio::time::advance(KEPT_WATCHING / 2).await;
        assert_eq!(running.wanted(), None);
        assert!(
            events.lock().news.is_none(),
            "the next subscriber starts a task"
        );
    }

    #[test]
    fn an_id_of_another_form_is_no_id() {
        for text in ["", "7", "-", "7-", "-7", "x-1", "7-x", "7--1"] {
            assert_eq!(EventId::parse(text), None, "{text:?}");
        }
    }
}
