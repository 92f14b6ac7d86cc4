//! Starts and stops the tasks of a process.
//!
//! A stop is first soft (accept no more work, finish the present work) and then hard (end now). A task that ends
//! unexpectedly ends the process with a failure, so that its supervisor restarts it. A process that does half its work
//! is worse than none.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tells a task when to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    soft: CancellationToken,
    hard: CancellationToken,
}

impl Stop {
    /// A stop that has not been requested.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks all tasks to accept no more work and to finish.
    pub fn ask_soft(&self) {
        self.soft.cancel();
    }

    /// Asks all tasks to end now; implies the soft stop.
    pub fn ask_hard(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }

    /// Whether a soft or hard stop was requested.
    pub fn is_soft(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Whether a hard stop was requested.
    pub fn is_hard(&self) -> bool {
        self.hard.is_cancelled()
    }

    /// Returns once a soft or hard stop was requested.
    pub async fn soft(&self) {
        self.soft.cancelled().await;
    }

    /// Returns once a hard stop was requested.
    pub async fn hard(&self) {
        self.hard.cancelled().await;
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By a requested stop.
    Asked,
    /// Because this task ended by itself.
    Unexpectedly(String),
    /// By a hard stop: some tasks did not finish in time.
    Forced,
}

/// The tasks of one part of a process that stop together.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    stop: Stop,
    tasks: TaskTracker,
    broken: tokio::sync::watch::Sender<Option<String>>,
}

impl Lifecycle {
    /// Makes a lifecycle without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The stop that the tasks watch.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Starts a task that should run until the stop. If it ends or panics earlier, [`broken`](Self::broken) returns.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, broken) = (self.stop.clone(), self.broken.clone());
        self.tasks.spawn(async move {
            let ended = tokio::spawn(task).await;
            if ended.is_err() || !stop.is_soft() {
                let how = if ended.is_err() { "panicked" } else { "ended" };
                tracing::error!(
                    task = name,
                    how,
                    "task ended unexpectedly; the process stops, so that its supervisor restarts it"
                );
                broken.send_replace(Some(format!("task {name} {how}")));
            }
        });
    }

    /// Waits until a task ends unexpectedly, and returns its name and how it ended.
    pub async fn broken(&self) -> String {
        let mut watch = self.broken.subscribe();
        match watch.wait_for(Option::is_some).await {
            Ok(name) => name.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops the tasks: first softly, then hard after `grace`.
    pub async fn shut_down(&self, grace: Duration) -> Ended {
        self.stop.ask_soft();
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_ok() {
            return self
                .broken
                .borrow()
                .clone()
                .map_or(Ended::Asked, Ended::Unexpectedly);
        }
        self.stop.ask_hard();
        let _ = tokio::time::timeout(Duration::from_secs(5), self.tasks.wait()).await;
        Ended::Forced
    }
}
