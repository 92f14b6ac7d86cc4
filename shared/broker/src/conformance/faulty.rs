//! A driver around a real one that fails on demand.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::address::{Channel, QueueId};
use crate::driver::{
    BrokerStats, Capabilities, Coverage, Delivery, Driver, Outgoing, QueueStats, Receipt, Refusal,
    Settlement,
};
use crate::error::{BrokerError, ErrorKind};
use crate::listener::{Announcement, Listener};
use crate::start_log::StartLog;

/// A method of [`Driver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Driver::declare`].
    Declare,
    /// [`Driver::delete`].
    Delete,
    /// [`Driver::publish`].
    Publish,
    /// [`Driver::fetch`].
    Fetch,
    /// [`Driver::settle`].
    Settle,
    /// [`Driver::stats`].
    Stats,
    /// [`Driver::announce`].
    Announce,
    /// [`Driver::announce_stored`].
    AnnounceStored,
    /// [`Driver::declare_proofs`].
    DeclareProofs,
    /// [`Driver::listen`].
    Listen,
    /// [`Driver::declare_log`].
    DeclareLog,
    /// [`Driver::is_log_empty`].
    IsLogEmpty,
    /// [`Driver::append`].
    Append,
    /// [`Driver::read_log`].
    ReadLog,
    /// [`Driver::delete_log`].
    DeleteLog,
}

/// How one call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and has no effect.
    Before(ErrorKind),
    /// The call takes effect but fails: its answer is lost.
    After(ErrorKind),
    /// The call takes effect after a delay.
    Late(Duration),
    /// The call takes effect at once, and answers after a delay.
    LateAnswer(Duration),
    /// The call takes effect after [`Faults::release`].
    Held,
    /// [`Driver::publish`] takes effect, and each message is reported as unknown. [`Driver::stats`] reports each of its
    /// queues as unanswered. Any other call fails like [`Fault::After`] with a transient error.
    Unanswered,
    /// [`Driver::stats`] counts only this much: without [`Coverage::All`] no unsettled messages, and nothing if it is
    /// [`Coverage::Unsure`]. Any other call succeeds.
    Coverage(Coverage),
    /// [`Driver::fetch`] says of each message that the broker has moved it. Any other call succeeds.
    MovedByBroker,
}

#[derive(Debug, Default)]
struct Plan {
    next: HashMap<Operation, VecDeque<Fault>>,
    always: HashMap<Operation, Fault>,
    calls: HashMap<Operation, u64>,
}

/// Plans the faults of one [`Faulty`]. Clones share the plan.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>, Arc<Notify>);

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans `fault` for the next `times` calls of `operation` that have no fault planned yet.
    pub fn next(&self, operation: Operation, fault: Fault, times: usize) {
        let mut plan = self.lock();
        let next = plan.next.entry(operation).or_default();
        next.extend(std::iter::repeat_n(fault, times));
    }

    /// Plans `fault` for all further calls of `operation`, after the calls that have a fault of their own.
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.lock().always.insert(operation, fault);
    }

    /// Removes all planned faults.
    pub fn clear(&self) {
        let mut plan = self.lock();
        plan.next.clear();
        plan.always.clear();
    }

    /// Lets one call with [`Fault::Held`] go on, now or when it comes.
    pub fn release(&self) {
        self.1.notify_one();
    }

    /// The number of calls of `operation`, failed ones included.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.lock().calls.get(&operation).copied().unwrap_or(0)
    }

    fn of_call(&self, operation: Operation) -> Option<Fault> {
        let mut plan = self.lock();
        *plan.calls.entry(operation).or_default() += 1;
        let planned = plan.next.get_mut(&operation).and_then(VecDeque::pop_front);
        planned.or_else(|| plan.always.get(&operation).copied())
    }
}

/// Passes calls on to a real driver, except for the faults that its [`Faults`] plan.
pub struct Faulty {
    driver: Arc<dyn Driver>,
    faults: Faults,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty")
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// Wraps `driver`, without any fault planned.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            faults: Faults::default(),
        }
    }

    /// The plan of this driver's faults.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    async fn call<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, BrokerError>> + Send,
    ) -> Result<T, BrokerError> {
        let fault = self.faults.of_call(operation);
        self.hold(fault).await;
        meet(fault, operation, call).await
    }

    /// Waits for the release of a held call.
    async fn hold(&self, fault: Option<Fault>) {
        if fault == Some(Fault::Held) {
            self.faults.1.notified().await;
        }
    }
}

async fn meet<T>(
    fault: Option<Fault>,
    operation: Operation,
    call: impl Future<Output = Result<T, BrokerError>> + Send,
) -> Result<T, BrokerError> {
    let failed = |kind| {
        Err(BrokerError::new(
            kind,
            format!("failed to {operation:?}: the test wants it so"),
        ))
    };
    match fault {
        None | Some(Fault::Coverage(_) | Fault::Held | Fault::MovedByBroker) => call.await,
        Some(Fault::Before(kind)) => failed(kind),
        Some(Fault::After(kind)) => {
            call.await?;
            failed(kind)
        }
        Some(Fault::Late(by)) => {
            sleep(by).await;
            call.await
        }
        Some(Fault::LateAnswer(by)) => {
            let answer = call.await?;
            sleep(by).await;
            Ok(answer)
        }
        Some(Fault::Unanswered) => {
            call.await?;
            failed(ErrorKind::Transient)
        }
    }
}

/// Leaves out what `coverage` does not cover.
fn limit(stats: &mut QueueStats, coverage: Coverage) {
    stats.coverage = coverage;
    if coverage != Coverage::All {
        stats.unsettled = 0;
    }
    if coverage == Coverage::Unsure {
        stats.ready = 0;
    }
}

#[async_trait]
impl Driver for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    async fn declare(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.call(Operation::Declare, self.driver.declare(queue))
            .await
    }

    async fn delete(&self, queue: &QueueId, only_if_empty: bool) -> Result<bool, BrokerError> {
        let call = self.driver.delete(queue, only_if_empty);
        self.call(Operation::Delete, call).await
    }

    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Result<(), Refusal>>, BrokerError> {
        let fault = self.faults.of_call(Operation::Publish);
        self.hold(fault).await;
        let publish = self.driver.publish(batch);
        if fault != Some(Fault::Unanswered) {
            return meet(fault, Operation::Publish, publish).await;
        }
        publish.await?;
        let unknown = |message: &Outgoing| Refusal::Unknown {
            queue: message.queue.to_string(),
            why: "the test wants it so".into(),
        };
        Ok(batch.iter().map(|m| Err(unknown(m))).collect())
    }

    async fn fetch(
        &self,
        queue: &QueueId,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, BrokerError> {
        let fault = self.faults.of_call(Operation::Fetch);
        self.hold(fault).await;
        let fetch = self.driver.fetch(queue, max, wait);
        let mut deliveries = meet(fault, Operation::Fetch, fetch).await?;
        if fault == Some(Fault::MovedByBroker) {
            for delivery in &mut deliveries {
                delivery.moved_by_broker = true;
            }
        }
        Ok(deliveries)
    }

    async fn stop_fetching(&self, queue: &QueueId) -> Result<(), BrokerError> {
        self.driver.stop_fetching(queue).await
    }

    async fn settle(
        &self,
        queue: &QueueId,
        settlements: &[(Receipt, Settlement)],
    ) -> Result<(), BrokerError> {
        let call = self.driver.settle(queue, settlements);
        self.call(Operation::Settle, call).await
    }

    async fn stats(&self, queues: &[QueueId]) -> Result<BrokerStats, BrokerError> {
        let fault = self.faults.of_call(Operation::Stats);
        self.hold(fault).await;
        let other = fault.filter(|fault| *fault != Fault::Unanswered);
        let mut stats = meet(other, Operation::Stats, self.driver.stats(queues)).await?;
        match fault {
            Some(Fault::Unanswered) => {
                stats.queues.retain(|found| !queues.contains(&found.queue));
                stats.unanswered = queues.to_vec();
            }
            Some(Fault::Coverage(coverage)) => {
                for found in &mut stats.queues {
                    limit(found, coverage);
                }
            }
            _ => {}
        }
        Ok(stats)
    }

    async fn announce(&self, channel: &Channel, message: Announcement) -> Result<(), BrokerError> {
        let call = self.driver.announce(channel, message);
        self.call(Operation::Announce, call).await
    }

    async fn announce_stored(&self, channel: &Channel, payload: Bytes) -> Result<(), BrokerError> {
        let call = self.driver.announce_stored(channel, payload);
        self.call(Operation::AnnounceStored, call).await
    }

    async fn declare_proofs(&self) -> Result<(), BrokerError> {
        self.call(Operation::DeclareProofs, self.driver.declare_proofs())
            .await
    }

    async fn listen(&self, channel: &Channel) -> Result<Listener, BrokerError> {
        self.call(Operation::Listen, self.driver.listen(channel))
            .await
    }

    async fn declare_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        let call = self.driver.declare_log(log);
        self.call(Operation::DeclareLog, call).await
    }

    async fn is_log_empty(&self, log: &StartLog) -> Result<bool, BrokerError> {
        let call = self.driver.is_log_empty(log);
        self.call(Operation::IsLogEmpty, call).await
    }

    async fn append(&self, log: &StartLog, record: Bytes) -> Result<(), BrokerError> {
        let call = self.driver.append(log, record);
        self.call(Operation::Append, call).await
    }

    async fn read_log(&self, log: &StartLog) -> Result<Vec<Bytes>, BrokerError> {
        let call = self.driver.read_log(log);
        self.call(Operation::ReadLog, call).await
    }

    async fn delete_log(&self, log: &StartLog) -> Result<(), BrokerError> {
        let call = self.driver.delete_log(log);
        self.call(Operation::DeleteLog, call).await
    }
}
