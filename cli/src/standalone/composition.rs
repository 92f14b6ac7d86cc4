//! Store, broker, engine and executors, put together in one process.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_broker::{Broker, BrokerOptions};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_engine::{Engine, EngineOptions};
use cueline_handlers::{CommandHandler, HttpHandler, ShellHandler, kill_orphans};
use cueline_model::{ExecutorName, GroupName, JobSpec};
use cueline_protocol::VerifyingKeys;
use cueline_runtime::{Clock, Lifecycle, SystemClock};
use cueline_store::Store;
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use cueline_worker::{Handler, Worker};

use super::DataDir;

/// What to put together.
#[derive(Clone)]
pub struct CompositionOptions {
    /// Group of the executors.
    pub group: GroupName,
    /// Their names.
    pub executors: Vec<ExecutorName>,
    /// Built-in kinds of handlers that they may run.
    pub allow: Vec<String>,
    /// Handlers that each runs at once at the most.
    pub concurrency: usize,
    /// How long running handlers may take to end.
    pub drain_timeout: Duration,
    /// Native handlers, by name.
    pub native: HashMap<String, Arc<dyn Handler>>,
    /// The engine's options.
    pub engine: EngineOptions,
    /// Jobs to apply before anything is scheduled: so that `startup` jobs among them run at this very start.
    pub jobs: Vec<JobSpec>,
}

impl CompositionOptions {
    /// Executors that run nothing yet.
    pub fn new(group: GroupName, executors: Vec<ExecutorName>) -> Self {
        Self {
            group,
            executors,
            allow: Vec::new(),
            concurrency: 64,
            drain_timeout: Duration::from_secs(30),
            native: HashMap::new(),
            engine: EngineOptions {
                node_name: "standalone".to_owned(),
                ..EngineOptions::default()
            },
            jobs: Vec::new(),
        }
    }
}

/// A scheduler and its executors in this process.
pub struct Composition {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The broker.
    pub broker: Broker,
    /// The scheduler.
    pub engine: Engine,
    scheduling: Lifecycle,
    working: Lifecycle,
}

impl std::fmt::Debug for Composition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Composition")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl Composition {
    /// Opens the files in `data` and starts everything.
    pub async fn start(data: &DataDir, options: &CompositionOptions) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let file = data.path().join("store.db");
        let store = SqliteStore::open(&file, SqliteOptions::default())
            .await
            .with_context(|| unusable(&file, STORE_HINT))?;
        let store: Arc<dyn Store> = Arc::new(store);
        if !options.jobs.is_empty() {
            store.apply_jobs(&options.jobs, false).await?;
        }
        let file = data.path().join("queue.db");
        let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default())
            .await
            .with_context(|| unusable(&file, QUEUE_HINT))?;
        let broker = Broker::new(driver, BrokerOptions::default());

        let scheduling = Lifecycle::new();
        let engine = Engine::start(
            store.clone(),
            broker.clone(),
            clock.clone(),
            options.engine.clone(),
            Some(data.key().clone()),
            &scheduling,
        )
        .await?;
        let working = Lifecycle::new();
        for name in &options.executors {
            start_executor(data, options, name, &broker, &clock, &working)?;
        }
        Ok(Self {
            store,
            broker,
            engine,
            scheduling,
            working,
        })
    }

    /// Returns when a task has ended unexpectedly, with which.
    pub async fn broken(&self) -> String {
        tokio::select! {
            broken = self.scheduling.broken() => broken,
            broken = self.working.broken() => broken,
        }
    }

    /// Stops in order: no more claims, running attempts, reports, heartbeats, lease.
    pub async fn stop(&self, drain: Duration) -> Result<()> {
        self.scheduling.shut_down(Duration::from_secs(10)).await;
        self.working
            .shut_down(drain + Duration::from_secs(10))
            .await;
        self.engine.finish().await?;
        Ok(())
    }
}

const STORE_HINT: &str =
    "all jobs and runs are in that file: restore it from a backup, or give another --data";
const QUEUE_HINT: &str = "what is queued is known to store.db as well: if the file cannot be mended, move it away (with \
    those that begin with its name), and what was in it is queued again within a minute";

/// The file is why it does not start.
fn unusable(file: &Path, hint: &str) -> crate::Hinted {
    crate::Hinted {
        what: format!("{} cannot be used", file.display()),
        hint: hint.to_owned(),
    }
}

fn start_executor(
    data: &DataDir,
    options: &CompositionOptions,
    name: &ExecutorName,
    broker: &Broker,
    clock: &Arc<dyn Clock>,
    working: &Lifecycle,
) -> Result<()> {
    let state_dir = data.path().join("executors").join(name.as_str());
    let marker = state_dir.display().to_string();
    let keys = VerifyingKeys::from_base64([data.key().public_base64().as_str()])?;
    let mut builder = Worker::builder(options.group.as_str())
        .name(name.as_str())
        .broker(broker.clone())
        .state_dir(&state_dir)
        .trust(keys)
        .concurrency(options.concurrency)
        .drain_timeout(options.drain_timeout)
        .shares_fate_with_schedulers()
        .clock(clock.clone());
    for (native, handler) in &options.native {
        builder = builder.native(native, handler.clone());
    }
    for kind in &options.allow {
        builder = match kind.as_str() {
            "shell" => builder.kind("shell", ShellHandler::new(&marker)),
            "command" => builder.kind("command", CommandHandler::new(&marker)),
            "http" => builder.kind("http", HttpHandler::new()?),
            _ => builder,
        };
    }
    let worker = builder
        .before_start(move || {
            let marker = marker.clone();
            async move {
                match kill_orphans(&marker).await {
                    Ok(0) => Ok(()),
                    Ok(n) => {
                        tracing::warn!(n, "ended processes that an earlier incarnation had left");
                        Ok(())
                    }
                    Err(e) => Err(e.into()),
                }
            }
        })
        .build()?;
    let stop = working.stop();
    working.spawn("executor", async move {
        if let Err(e) = worker.run(stop).await {
            tracing::error!(error = %e, "the executor has failed");
        }
    });
    Ok(())
}
