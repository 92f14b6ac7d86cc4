//! The channels into the event loop.

use tokio::sync::mpsc;

use crate::attempt::EndedAttempt;
use crate::control::Order;
use crate::identity::AttemptKey;
use crate::intake::Received;

/// The most ended attempts that wait for the event loop. At the limit their tasks wait.
pub(super) const MAX_ENDED: usize = 4_096;
/// The most batches of triggers that wait for the event loop, and that wait in it while the lease is overdue. At the limit
/// nothing is fetched.
pub(super) const MAX_RECEIVED: usize = 4;
/// The most batches of recorded starts that wait for the event loop. At the limit nothing more is recorded.
pub(super) const MAX_RECORDED: usize = 16;
/// The most orders that wait, more than a scheduler sends at once. At the limit new orders are dropped. Schedulers
/// repeat a cancellation until it has taken effect, and a query until it is answered.
pub(super) const MAX_ORDERS: usize = 2_048;

/// The receiving ends.
pub(crate) struct Inbox {
    pub(super) received: mpsc::Receiver<Vec<Received>>,
    pub(super) ended: mpsc::Receiver<EndedAttempt>,
    pub(super) recorded: mpsc::Receiver<Vec<AttemptKey>>,
    pub(super) orders: mpsc::Receiver<Order>,
}

/// The sending ends.
pub(crate) struct Senders {
    pub(crate) received: mpsc::Sender<Vec<Received>>,
    pub(crate) ended: mpsc::Sender<EndedAttempt>,
    pub(crate) recorded: mpsc::Sender<Vec<AttemptKey>>,
    pub(crate) orders: mpsc::Sender<Order>,
}

pub(crate) fn channels() -> (Senders, Inbox) {
    let (received_sender, received) = mpsc::channel(MAX_RECEIVED);
    let (ended_sender, ended) = mpsc::channel(MAX_ENDED);
    let (recorded_sender, recorded) = mpsc::channel(MAX_RECORDED);
    let (orders_sender, orders) = mpsc::channel(MAX_ORDERS);
    let senders = Senders {
        received: received_sender,
        ended: ended_sender,
        recorded: recorded_sender,
        orders: orders_sender,
    };
    let inbox = Inbox {
        received,
        ended,
        recorded,
        orders,
    };
    (senders, inbox)
}

/// The inputs of one turn.
#[derive(Default)]
pub(super) struct Inputs {
    pub(super) received: Vec<Vec<Received>>,
    pub(super) ended: Vec<EndedAttempt>,
    pub(super) recorded: Vec<Vec<AttemptKey>>,
    pub(super) orders: Vec<Order>,
    pub(super) tick: bool,
}

impl Inbox {
    /// Takes everything else that has come. One turn then costs one disk sync, however many inputs it has.
    pub(super) fn take_all(&mut self, inputs: &mut Inputs) {
        fill(&mut inputs.ended, MAX_ENDED, &mut self.ended);
        fill(&mut inputs.recorded, MAX_RECORDED, &mut self.recorded);
        fill(&mut inputs.received, MAX_RECEIVED, &mut self.received);
        fill(&mut inputs.orders, MAX_ORDERS, &mut self.orders);
    }
}

fn fill<T>(inputs: &mut Vec<T>, limit: usize, channel: &mut mpsc::Receiver<T>) {
    while inputs.len() < limit
        && let Ok(input) = channel.try_recv()
    {
        inputs.push(input);
    }
}
