//! The open connections, and which of them wait for a request.
//!
//! [`Table`] decides which connection gives way to a new one. [`Connections`] shares it between the tasks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

type ConnectionId = u64;

#[derive(Debug)]
struct Entry {
    state: State,
    evicted: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits for a request since this turn and this instant.
    Idle { turn: u64, since: Instant },
    /// Has a request in progress.
    Busy,
    /// Gives way to another connection.
    Evicted,
}

#[derive(Debug, Default)]
struct Table {
    /// Counts up. Gives each connection its id, and each wait its place in the order.
    turn: u64,
    entries: HashMap<ConnectionId, Entry>,
    idle: BTreeMap<u64, ConnectionId>,
    /// Evicted connections that are still open.
    leaving: usize,
}

impl Table {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Adds a connection that waits for its first request.
    fn enter(&mut self, now: Instant) -> (ConnectionId, CancellationToken) {
        let turn = self.next_turn();
        let evicted = CancellationToken::new();
        let entry = Entry {
            state: State::Idle { turn, since: now },
            evicted: evicted.clone(),
        };
        self.entries.insert(turn, entry);
        self.idle.insert(turn, turn);
        (turn, evicted)
    }

    /// A request begins. `false` if the connection was evicted meanwhile; the request must not be carried out then.
    fn begin_request(&mut self, id: ConnectionId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        if let State::Idle { turn, .. } = entry.state {
            self.idle.remove(&turn);
            entry.state = State::Busy;
        }
        entry.state == State::Busy
    }

    /// The response was handed over. The connection waits for the next request.
    fn end_request(&mut self, id: ConnectionId, now: Instant) {
        let turn = self.next_turn();
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.state == State::Busy
        {
            entry.state = State::Idle { turn, since: now };
            self.idle.insert(turn, id);
        }
    }

    fn leave(&mut self, id: ConnectionId) {
        match self.entries.remove(&id).map(|entry| entry.state) {
            Some(State::Idle { turn, .. }) => {
                self.idle.remove(&turn);
            }
            Some(State::Evicted) => self.leaving -= 1,
            Some(State::Busy) | None => {}
        }
    }

    /// Evicts the connection that has waited longest for a request, if it has waited for `min_idle`. The request of a newer
    /// one may have arrived already, unread.
    fn evict_longest_idle(&mut self, now: Instant, min_idle: Duration) -> Eviction {
        let Some((turn, id)) = self.idle.first_key_value().map(|(turn, id)| (*turn, *id)) else {
            return Eviction::AllBusy;
        };
        let Some(entry) = self.entries.get_mut(&id) else {
            return Eviction::AllBusy;
        };
        if let State::Idle { since, .. } = entry.state
            && now < since + min_idle
        {
            return Eviction::NotBefore(since + min_idle);
        }
        entry.state = State::Evicted;
        entry.evicted.cancel();
        self.idle.remove(&turn);
        self.leaving += 1;
        Eviction::Evicted
    }
}

/// Whether a connection gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eviction {
    Evicted,
    NotBefore(Instant),
    AllBusy,
}

/// Whether a new connection has room.
#[derive(Debug)]
pub(super) enum Admission {
    /// It has.
    Admitted(Slot),
    /// An idle connection is being closed for it.
    MakingRoom,
    /// An idle connection can be closed for it at this instant.
    NotBefore(Instant),
    /// All connections have a request in progress.
    AllBusy,
}

/// The open connections of a server.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    min_idle: Duration,
    table: Mutex<Table>,
    /// Notified when a connection ends, or has no request any more.
    changed: Notify,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics with the lock held, and the table is consistent after each of its methods.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    /// Places for `most` connections. One that has waited for a request for `min_idle` may be closed for a new one.
    pub(super) fn new(most: usize, min_idle: Duration) -> Self {
        Self(Arc::new(Shared {
            most: most.max(1),
            min_idle,
            table: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Admits a connection, or makes room for it. One connection gives way at a time.
    pub(super) fn try_admit(&self) -> Admission {
        let now = Instant::now();
        let mut table = self.0.table();
        if table.entries.len() < self.0.most {
            let (id, evicted) = table.enter(now);
            return Admission::Admitted(Slot {
                connections: self.clone(),
                id,
                evicted,
            });
        }
        if table.leaving > 0 {
            return Admission::MakingRoom;
        }
        match table.evict_longest_idle(now, self.0.min_idle) {
            Eviction::Evicted => Admission::MakingRoom,
            Eviction::NotBefore(at) => Admission::NotBefore(at),
            Eviction::AllBusy => Admission::AllBusy,
        }
    }

    /// Waits until [`try_admit`](Self::try_admit) may answer differently. For one caller.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Closes the connection that has waited longest for a request, because the process has no descriptor left.
    pub(super) fn evict_longest_idle(&self) {
        let now = Instant::now();
        self.0.table().evict_longest_idle(now, self.0.min_idle);
    }
}

/// The place of one open connection. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    connections: Connections,
    id: ConnectionId,
    evicted: CancellationToken,
}

impl Slot {
    /// Cancelled when the connection has to give way.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let shared = &self.connections.0;
        shared.table().leave(self.id);
        shared.changed.notify_one();
    }
}

/// A request in progress. Its connection does not give way to others until this is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Slot>);

impl Busy {
    /// `None` if the connection is being closed. The request must not be carried out then.
    pub(super) fn begin(slot: Arc<Slot>) -> Option<Self> {
        let begun = slot.connections.0.table().begin_request(slot.id);
        if begun { Some(Self(slot)) } else { None }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let shared = &self.0.connections.0;
        shared.table().end_request(self.0.id, Instant::now());
        shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(connections: &Connections) -> Arc<Slot> {
        match connections.try_admit() {
            Admission::Admitted(slot) => Arc::new(slot),
            other => panic!("not admitted: {other:?}"),
        }
    }

    #[test]
    fn the_connection_that_has_waited_longest_gives_way() {
        let connections = Connections::new(2, Duration::ZERO);
        let (first, second) = (admitted(&connections), admitted(&connections));
        let request = Busy::begin(first.clone()).expect("open");
        drop(request);
        assert!(matches!(connections.try_admit(), Admission::MakingRoom));
        assert!(second.evicted().is_cancelled(), "it has waited longer");
        assert!(!first.evicted().is_cancelled());
        assert!(matches!(connections.try_admit(), Admission::MakingRoom));
        assert!(!first.evicted().is_cancelled(), "one gives way at a time");
        drop(second);
        let _third = admitted(&connections);
    }

    #[test]
    fn a_connection_with_a_request_never_gives_way() {
        let connections = Connections::new(1, Duration::ZERO);
        let only = admitted(&connections);
        let request = Busy::begin(only.clone()).expect("open");
        assert!(matches!(connections.try_admit(), Admission::AllBusy));
        connections.evict_longest_idle();
        assert!(!only.evicted().is_cancelled());
        drop(request);
        assert!(matches!(connections.try_admit(), Admission::MakingRoom));
        assert!(only.evicted().is_cancelled());
    }

    #[test]
    fn a_connection_whose_request_may_be_on_its_way_does_not_give_way() {
        let connections = Connections::new(1, Duration::from_hours(1));
        let only = admitted(&connections);
        assert!(matches!(connections.try_admit(), Admission::NotBefore(_)));
        assert!(!only.evicted().is_cancelled());
        drop(only);
        let _next = admitted(&connections);
    }

    #[test]
    fn an_evicted_connection_begins_no_request() {
        let connections = Connections::new(1, Duration::ZERO);
        let only = admitted(&connections);
        connections.evict_longest_idle();
        assert!(Busy::begin(only).is_none());
        let _next = admitted(&connections);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_noticed_by_a_later_wait() {
        let connections = Connections::new(1, Duration::ZERO);
        drop(admitted(&connections));
        connections.changed().await;
    }
}
