//! Messages per second through `RabbitMQ` for several batch sizes: publishing, fetching with acks, and both at once.
//! Run it with `cargo bench -p cueline-broker-rabbitmq`; an argument is the number of messages of each measurement.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Driver, Outgoing, QueueId, Receipt, Settlement};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::rabbitmq::Rabbit;
use tokio::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PAYLOAD_BYTES: usize = 500;
const WAIT: Duration = Duration::from_secs(5);

fn main() -> Outcome<()> {
    let messages = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(200_000);
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure_all(messages))
}

async fn measure_all(messages: usize) -> Outcome<()> {
    let server = Rabbit::shared()?;
    println!("messages of {PAYLOAD_BYTES} bytes per second, each confirmed on disk");
    println!("batch |   publish | fetch+ack | publish by 4 | both at once");
    for batch in [1, 100, 500, 2_000] {
        // Each single message waits for the disk, so fewer of them suffice.
        let count = if batch == 1 { messages / 50 } else { messages };
        let options = RabbitOptions {
            prefix: format!("bench{batch}"),
            ..RabbitOptions::default()
        };
        let driver = Arc::new(RabbitDriver::open(&server.url("/"), options).await?);
        driver.declare(&QueueId::Results).await?;

        let start = Instant::now();
        publish(&driver, count, batch).await?;
        let publishing = start.elapsed();
        let start = Instant::now();
        consume(&driver, count, batch).await?;
        let consuming = start.elapsed();

        let start = Instant::now();
        let publishers = (0..4).map(|_| publish(&driver, count / 4, batch));
        futures_util::future::try_join_all(publishers).await?;
        let by_four = start.elapsed();
        consume(&driver, count / 4 / batch * batch * 4, batch).await?;

        let start = Instant::now();
        let publisher = tokio::spawn({
            let driver = Arc::clone(&driver);
            async move { publish(&driver, count, batch).await }
        });
        consume(&driver, count, batch).await?;
        publisher.await??;
        let at_once = start.elapsed();
        driver.close().await;

        println!(
            "{batch:>5} | {:>9} | {:>9} | {:>12} | {:>12}",
            rate(count, publishing),
            rate(count, consuming),
            rate(count, by_four),
            rate(count, at_once),
        );
    }
    Ok(())
}

fn rate(count: usize, time: Duration) -> u128 {
    count as u128 * 1_000_000 / time.as_micros().max(1)
}

async fn publish(driver: &RabbitDriver, count: usize, batch: usize) -> Outcome<()> {
    let payload = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    let messages: Vec<Outgoing> = (0..batch)
        .map(|i| Outgoing {
            queue: QueueId::Results,
            topic: "nightly-report".into(),
            id: i.to_string(),
            payload: payload.clone(),
        })
        .collect();
    for _ in 0..count / batch {
        for answer in driver.publish(&messages).await? {
            answer?;
        }
    }
    Ok(())
}

async fn consume(driver: &RabbitDriver, count: usize, batch: usize) -> Outcome<()> {
    let mut left = count;
    while left > 0 {
        let got = driver.fetch(&QueueId::Results, batch, WAIT).await?;
        if got.is_empty() {
            return Err(format!("{left} of {count} messages did not arrive").into());
        }
        left -= got.len();
        let acks: Vec<(Receipt, Settlement)> = got
            .iter()
            .map(|delivery| (delivery.receipt, Settlement::Ack))
            .collect();
        driver.settle(&QueueId::Results, &acks).await?;
    }
    Ok(())
}
