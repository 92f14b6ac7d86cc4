//! The conformance suite of the broker port, on the embedded broker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cueline_broker::Driver;
use cueline_broker::conformance::{self, Harness, Limits};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use tempfile::TempDir;

/// Each place is a file in a directory that is removed when the tests have ended.
struct Files {
    dir: TempDir,
    places: AtomicU64,
}

#[async_trait]
impl Harness for Files {
    async fn place(&self) -> String {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let path: PathBuf = self.dir.path().join(format!("{number}.db"));
        path.display().to_string()
    }

    async fn open(&self, place: &str, limits: Limits) -> Arc<dyn Driver> {
        let defaults = EmbeddedOptions::default();
        let options = EmbeddedOptions {
            ack_wait: limits.ack_wait,
            queue_limit: limits.queue_limit.unwrap_or(defaults.queue_limit),
            // A small window, so that backlogs are read from the file.
            window_messages: 1_000,
            // The previous driver may still be closing, or its process may just have been killed.
            lock_wait: Duration::from_secs(30),
            ..defaults
        };
        match EmbeddedDriver::open(Path::new(place), options).await {
            Ok(driver) => Arc::new(driver),
            Err(e) => panic!("{e}"),
        }
    }

    /// Within one process the harness can only drop the driver mid-work. A case of the suite covers a real kill.
    async fn crash(&self, _place: &str, driver: Arc<dyn Driver>) {
        drop(driver);
    }
}

fn main() -> ExitCode {
    conformance::main(Files {
        dir: tempfile::tempdir().unwrap(),
        places: AtomicU64::new(0),
    })
}
