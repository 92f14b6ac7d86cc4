//! The conformance suite of the broker port, on a real server.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::Driver;
use cueline_broker::conformance::{self, Harness, Limits};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::rabbitmq::Rabbit;

/// Each place is a prefix on the server: `<address>#<prefix>`.
#[derive(Default)]
struct Prefixes {
    places: AtomicU64,
}

#[async_trait]
impl Harness for Prefixes {
    async fn place(&self) -> String {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let server = Rabbit::shared().unwrap();
        format!("{}#c{number}", server.url("/"))
    }

    async fn open(&self, place: &str, limits: Limits) -> Arc<dyn Driver> {
        let (url, prefix) = place.split_once('#').unwrap();
        let defaults = RabbitOptions::default();
        let options = RabbitOptions {
            prefix: prefix.to_owned(),
            // Without a limit of its own, a case must not reach the deadline, and a restart on a busy machine takes long.
            ack_wait: if limits == Limits::default() {
                Duration::from_mins(5)
            } else {
                limits.ack_wait
            },
            queue_limit: limits.queue_limit.unwrap_or(defaults.queue_limit),
            // The machine is busy while the suite runs.
            request_timeout: Duration::from_secs(30),
            ..defaults
        };
        match RabbitDriver::open(url, options).await {
            Ok(driver) => Arc::new(driver),
            Err(e) => panic!("{e}"),
        }
    }

    /// Kills the server once the case's queues are established (see `docs/rabbitmq.md`).
    async fn crash(&self, _place: &str, driver: Arc<dyn Driver>) {
        let server = Rabbit::shared().unwrap();
        let restarted = tokio::task::spawn_blocking(|| {
            server.write_declarations()?;
            server.kill()?;
            server.start_again()
        });
        restarted.await.unwrap().unwrap();
        drop(driver);
    }

    fn crashes_everywhere(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    conformance::main(Prefixes::default())
}
