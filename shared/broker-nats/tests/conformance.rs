//! The conformance suite of the broker port on both versions of the server. Each case has its own server.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::Driver;
use cueline_broker::conformance::{self, Harness, Limits};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::nats::{Nats, Version};

/// The servers of all places, by address. They are killed when the suite has ended.
struct Servers {
    version: Version,
    running: Mutex<HashMap<String, Arc<Mutex<Nats>>>>,
}

#[async_trait]
impl Harness for Servers {
    async fn place(&self) -> String {
        let server = Nats::start(self.version).unwrap();
        let url = server.url();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.insert(url.clone(), Arc::new(Mutex::new(server)));
        url
    }

    async fn open(&self, place: &str, limits: Limits) -> Arc<dyn Driver> {
        let options = NatsOptions {
            ack_wait: limits.ack_wait,
            // The disk of a busy machine may stand still for some seconds.
            request_timeout: Duration::from_secs(20),
            limits: StreamLimits {
                queue_limit: limits.queue_limit,
                ..StreamLimits::default()
            },
            ..NatsOptions::default()
        };
        match NatsDriver::connect(place, options).await {
            Ok(driver) => Arc::new(driver),
            Err(e) => panic!("{e}"),
        }
    }

    async fn crash(&self, place: &str, driver: Arc<dyn Driver>) {
        let server = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&running[place])
        };
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        server.kill().unwrap();
        drop(driver);
        server.start_again().unwrap();
    }
}

fn main() -> ExitCode {
    // A case in a child process uses the place of its parent and therefore the same version.
    let mut all = ExitCode::SUCCESS;
    for version in Version::ALL {
        println!("\nNATS {}", version.number());
        let ended = conformance::main(Servers {
            version,
            running: Mutex::default(),
        });
        if ended != ExitCode::SUCCESS {
            all = ended;
        }
    }
    all
}
