//! The conformance suite of the broker port, on real servers.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::Driver;
use cueline_broker::conformance::{self, Harness, Limits};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::rabbitmq::Rabbit;
use tokio::task::spawn_blocking;

/// Servers for cases that crash. Each uses a whole processor while it starts.
const CRASH_SERVERS: usize = 2;

/// Each place is a prefix on a server: `<address>#<prefix>`.
#[derive(Default)]
struct Prefixes {
    places: AtomicU64,
}

/// Returns one of the servers that cases crash. The first case on it starts it.
async fn crash_server(number: usize) -> &'static Rabbit {
    static SERVERS: [OnceLock<Rabbit>; CRASH_SERVERS] = [const { OnceLock::new() }; CRASH_SERVERS];
    let start = move || SERVERS[number].get_or_init(|| Rabbit::start().unwrap());
    spawn_blocking(start).await.unwrap()
}

#[async_trait]
impl Harness for Prefixes {
    async fn place(&self) -> String {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let server = spawn_blocking(Rabbit::shared).await.unwrap().unwrap();
        format!("{}#c{number}", server.url("/"))
    }

    fn crash_servers(&self) -> usize {
        CRASH_SERVERS
    }

    async fn place_on(&self, server: usize) -> String {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        format!("{}#{server}-{number}", crash_server(server).await.url("/"))
    }

    async fn open(&self, place: &str, limits: Limits) -> Arc<dyn Driver> {
        let (url, prefix) = place.split_once('#').unwrap();
        let defaults = RabbitOptions::default();
        let options = RabbitOptions {
            prefix: prefix.to_owned(),
            // A case without a limit of its own must not reach the deadline, and a restart takes long on a busy
            // machine.
            ack_wait: if limits == Limits::default() {
                Duration::from_mins(5)
            } else {
                limits.ack_wait
            },
            queue_limit: limits.queue_limit.unwrap_or(defaults.queue_limit),
            // The machine is busy while the suite runs.
            request_timeout: Duration::from_secs(30),
            unresponsive_after: Duration::from_secs(30),
            ..defaults
        };
        match RabbitDriver::open(url, options).await {
            Ok(driver) => Arc::new(driver),
            Err(e) => panic!("{e}"),
        }
    }

    /// Kills the server once the case's queues are established (see `docs/rabbitmq.md`).
    async fn crash(&self, place: &str, driver: Arc<dyn Driver>) {
        let number = place
            .split_once('#')
            .and_then(|(_, prefix)| prefix.split_once('-'));
        let server = crash_server(number.unwrap().0.parse().unwrap()).await;
        let restarted = spawn_blocking(|| {
            server.write_declarations()?;
            server.kill()?;
            server.start_again()
        });
        restarted.await.unwrap().unwrap();
        drop(driver);
    }
}

fn main() -> ExitCode {
    conformance::main(Prefixes::default())
}
