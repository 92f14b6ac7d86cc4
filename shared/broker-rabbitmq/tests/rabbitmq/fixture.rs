//! A server for a test, and the steps that tests share.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Delivery, Driver, Outgoing, QueueId, Receipt, Refusal, Settlement};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::rabbitmq::Rabbit;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// The time limit for anything that a test waits for.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Servers for single tests that may run at the same time. Each uses a whole processor while it starts.
const MAX_OWN_SERVERS: usize = 2;
static OWN_SLOTS: Semaphore = Semaphore::const_new(MAX_OWN_SERVERS);
static IDLE_SERVERS: Mutex<Vec<&'static Rabbit>> = Mutex::new(Vec::new());

/// The names of one test on a server. Each test has its own prefix.
pub(crate) struct Fixture {
    pub(crate) server: &'static Rabbit,
    pub(crate) prefix: String,
    slot: Option<SemaphorePermit<'static>>,
}

impl Fixture {
    /// Uses the server that tests share. The test must not stop, stall or block it.
    pub(crate) async fn shared() -> Self {
        let server = spawn_blocking(Rabbit::shared).await.unwrap().unwrap();
        Self::on(server, None)
    }

    /// Uses a server that no other test uses at the same time.
    pub(crate) async fn own_server() -> Self {
        let slot = own_server_slot().await;
        let idle = idle_servers().pop();
        let server = match idle {
            Some(server) => server,
            None => spawn_blocking(Rabbit::start)
                .await
                .unwrap()
                .map(|server| &*Box::leak(Box::new(server)))
                .unwrap(),
        };
        Self::on(server, Some(slot))
    }

    fn on(server: &'static Rabbit, slot: Option<SemaphorePermit<'static>>) -> Self {
        static PREFIXES: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("t{}", PREFIXES.fetch_add(1, Ordering::Relaxed));
        Self {
            server,
            prefix,
            slot,
        }
    }

    /// Calls and queues may take long, because the disk of a busy machine may stand still for some seconds.
    pub(crate) fn options(&self) -> RabbitOptions {
        RabbitOptions {
            prefix: self.prefix.clone(),
            request_timeout: Duration::from_secs(20),
            unresponsive_after: Duration::from_secs(20),
            ..RabbitOptions::default()
        }
    }

    pub(crate) async fn open(&self) -> Arc<RabbitDriver> {
        self.open_with(self.options()).await
    }

    pub(crate) async fn open_with(&self, options: RabbitOptions) -> Arc<RabbitDriver> {
        let driver = RabbitDriver::open(&self.server.url("/"), options).await;
        Arc::new(driver.unwrap())
    }

    /// Runs a blocking call on the server.
    pub(crate) async fn server<T: Send + 'static>(
        &self,
        call: impl FnOnce(&'static Rabbit) -> anyhow::Result<T> + Send + 'static,
    ) -> T {
        let server = self.server;
        spawn_blocking(move || call(server)).await.unwrap().unwrap()
    }

    /// Kills the server once its declarations are on disk, and starts it again.
    pub(crate) async fn kill_and_restart(&self) {
        self.server(|server| {
            server.write_declarations()?;
            server.kill()?;
            server.start_again()
        })
        .await;
    }

    pub(crate) async fn ctl(&self, arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        self.server(move |server| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            server.ctl(&arguments)
        })
        .await
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A failed test may leave its server killed, stalled or blocked.
        if self.slot.is_some() && !std::thread::panicking() {
            idle_servers().push(self.server);
        }
    }
}

fn idle_servers() -> std::sync::MutexGuard<'static, Vec<&'static Rabbit>> {
    IDLE_SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a test may start a server of its own.
pub(crate) async fn own_server_slot() -> SemaphorePermit<'static> {
    OWN_SLOTS.acquire().await.unwrap()
}

pub(crate) fn executor(name: &str) -> QueueId {
    QueueId::Executor {
        group: "billing".into(),
        executor: name.into(),
    }
}

pub(crate) fn message(queue: &QueueId, number: usize) -> Outgoing {
    Outgoing {
        queue: queue.clone(),
        topic: "invoices".into(),
        id: number.to_string(),
        payload: Bytes::from(number.to_string()),
    }
}

pub(crate) fn messages(queue: &QueueId, numbers: Range<usize>) -> Vec<Outgoing> {
    numbers.map(|number| message(queue, number)).collect()
}

pub(crate) async fn publish(driver: &dyn Driver, messages: &[Outgoing]) {
    let answers = driver.publish(messages).await.unwrap();
    assert_eq!(answers, vec![Ok(()); messages.len()]);
}

pub(crate) fn missing(queue: &QueueId) -> Result<(), Refusal> {
    Err(Refusal::NoQueue(queue.to_string()))
}

pub(crate) fn numbers(deliveries: &[Delivery]) -> Vec<usize> {
    deliveries
        .iter()
        .map(|d| std::str::from_utf8(&d.payload).unwrap().parse().unwrap())
        .collect()
}

/// Fetches until `count` messages have arrived. Repeats failed fetches.
pub(crate) async fn take(driver: &dyn Driver, queue: &QueueId, count: usize) -> Vec<Delivery> {
    let give_up = Instant::now() + DEADLINE;
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(
            Instant::now() < give_up,
            "{} of {count} arrived",
            taken.len()
        );
        let wait = Duration::from_millis(500);
        match driver.fetch(queue, count - taken.len(), wait).await {
            Ok(more) => taken.extend(more),
            Err(error) => eprintln!("{error}"),
        }
    }
    taken
}

pub(crate) async fn settle(
    driver: &dyn Driver,
    queue: &QueueId,
    deliveries: &[Delivery],
    settlement: &Settlement,
) {
    let settlements: Vec<(Receipt, Settlement)> = deliveries
        .iter()
        .map(|d| (d.receipt, settlement.clone()))
        .collect();
    driver.settle(queue, &settlements).await.unwrap();
}

/// Repeats `attempt` until it succeeds.
pub(crate) async fn eventually<T, E: std::fmt::Display>(
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(e) => assert!(Instant::now() < give_up, "still failing: {e}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
