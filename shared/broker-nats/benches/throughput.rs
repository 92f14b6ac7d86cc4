//! Messages per second through a NATS server on this machine, for several batch sizes and windows: publishing, fetching
//! with acks, and both at once. Run it with `cargo bench -p cueline-broker-nats`; an argument is the number of messages
//! of each measurement. It starts servers of both versions, or uses streams `BENCH_…` of the one at
//! `CUELINE_BENCH_NATS`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Driver, Outgoing, QueueId, Receipt, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use tokio::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PAYLOAD_BYTES: usize = 500;
const WAIT: Duration = Duration::from_secs(5);

fn main() -> Outcome<()> {
    let messages = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(200_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if let Ok(address) = std::env::var("CUELINE_BENCH_NATS") {
        return runtime.block_on(measure_all(&address, messages));
    }
    for version in Version::ALL {
        let server = Nats::start(version)?;
        println!("\nNATS {}", version.number());
        runtime.block_on(measure_all(&server.url(), messages))?;
    }
    Ok(())
}

async fn measure_all(address: &str, messages: usize) -> Outcome<()> {
    println!("messages of {PAYLOAD_BYTES} bytes per second, each confirmed by the server");
    println!("batch | window | ids | publish | fetch+ack | publish beside fetch+ack");
    let options = |window, ids| NatsOptions {
        prefix: "bench".into(),
        max_in_flight: window,
        duplicate_window: Duration::from_secs(if ids { 10 } else { 0 }),
        ..NatsOptions::default()
    };
    for batch in [1, 100, 1_000, 5_000] {
        // Each single message waits for a round trip, so fewer of them suffice.
        let count = if batch == 1 { messages / 50 } else { messages };
        measure(address, options(4_000, true), count, batch).await?;
    }
    for window in [256, 1_000, 8_000] {
        measure(address, options(window, true), messages, 5_000).await?;
    }
    measure(address, options(4_000, false), messages, 5_000).await
}

async fn measure(address: &str, options: NatsOptions, count: usize, batch: usize) -> Outcome<()> {
    let (window, ids) = (options.max_in_flight, !options.duplicate_window.is_zero());
    let driver = Arc::new(NatsDriver::connect(address, options).await?);
    driver.delete(&QueueId::Results, false).await?;
    driver.declare(&QueueId::Results).await?;

    let start = Instant::now();
    publish(&driver, count, batch, 0).await?;
    let publishing = start.elapsed();
    let start = Instant::now();
    consume(&driver, count, batch).await?;
    let consuming = start.elapsed();

    let start = Instant::now();
    let publisher = tokio::spawn({
        let driver = Arc::clone(&driver);
        async move { publish(&driver, count, batch, count).await }
    });
    consume(&driver, count, batch).await?;
    publisher.await??;
    let at_once = start.elapsed();

    println!(
        "{batch:>5} | {window:>6} | {:>3} | {:>7} | {:>9} | {:>24}",
        if ids { "yes" } else { "no" },
        rate(count, publishing),
        rate(count, consuming),
        rate(count, at_once),
    );
    Ok(())
}

fn rate(count: usize, time: Duration) -> u128 {
    count as u128 * 1_000_000 / time.as_micros().max(1)
}

async fn publish(driver: &NatsDriver, count: usize, batch: usize, first: usize) -> Outcome<()> {
    let payload = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    for start in (first..first + count).step_by(batch) {
        let messages: Vec<Outgoing> = (start..start + batch)
            .map(|i| Outgoing {
                queue: QueueId::Results,
                topic: "nightly-report".into(),
                id: i.to_string(),
                payload: payload.clone(),
            })
            .collect();
        for answer in driver.publish(&messages).await? {
            answer?;
        }
    }
    Ok(())
}

async fn consume(driver: &NatsDriver, count: usize, batch: usize) -> Outcome<()> {
    let mut left = count;
    while left > 0 {
        let fetched = driver.fetch(&QueueId::Results, batch, WAIT).await?;
        if fetched.is_empty() {
            return Err(format!("{left} of {count} messages did not arrive").into());
        }
        left -= fetched.len();
        let acks: Vec<(Receipt, Settlement)> = fetched
            .iter()
            .map(|delivery| (delivery.receipt, Settlement::Ack))
            .collect();
        driver.settle(&QueueId::Results, &acks).await?;
    }
    Ok(())
}
