//! One server, which one test at a time has for itself, and the words that tests are written in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Delivery, Driver, Outgoing, QueueId, Receipt, Refusal, Settlement};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::rabbitmq::Rabbit;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// What should happen has to happen within this time.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

pub(crate) struct World {
    pub(crate) server: &'static Rabbit,
    pub(crate) prefix: String,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    pub(crate) async fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        static PREFIXES: AtomicU64 = AtomicU64::new(0);
        let alone = ALONE.lock().await;
        Self {
            server: tokio::task::spawn_blocking(Rabbit::shared)
                .await
                .unwrap()
                .unwrap(),
            prefix: format!("t{}", PREFIXES.fetch_add(1, Ordering::Relaxed)),
            _alone: alone,
        }
    }

    pub(crate) fn options(&self) -> RabbitOptions {
        RabbitOptions {
            prefix: self.prefix.clone(),
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

    /// Does something with the server that takes its time.
    pub(crate) async fn server<T: Send + 'static>(
        &self,
        what: impl FnOnce(&'static Rabbit) -> anyhow::Result<T> + Send + 'static,
    ) -> T {
        let server = self.server;
        let done = tokio::task::spawn_blocking(move || what(server)).await;
        done.unwrap().unwrap()
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

pub(crate) fn messages(queue: &QueueId, numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
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

/// Fetches until `count` messages have come; errors are waited out.
pub(crate) async fn take(driver: &dyn Driver, queue: &QueueId, count: usize) -> Vec<Delivery> {
    let give_up = Instant::now() + DEADLINE;
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(Instant::now() < give_up, "{} of {count} came", taken.len());
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
    how: &Settlement,
) {
    let settlements: Vec<(Receipt, Settlement)> = deliveries
        .iter()
        .map(|d| (d.receipt, how.clone()))
        .collect();
    driver.settle(queue, &settlements).await.unwrap();
}

/// Until `what` succeeds.
pub(crate) async fn until<T, E: std::fmt::Display>(
    mut what: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        match what().await {
            Ok(done) => return done,
            Err(e) => assert!(Instant::now() < give_up, "still: {e}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
