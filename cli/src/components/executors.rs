//! Executors in this process.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Result;
use cueline_broker::Broker;
use cueline_handlers::http::AddressPolicy;
use cueline_handlers::{
    CommandHandler, Guard, GuardId, HttpHandler, SecretSources, ShellHandler, kill_orphans,
};
use cueline_model::{ExecutorName, GroupName};
use cueline_protocol::VerifyingKeys;
use cueline_runtime::{BootClock as _, Lifecycle, SystemBootClock, SystemClock};
use cueline_worker::{Builder, Handler, Readiness, Worker, WorkerIdentity};

/// Time beyond the drain timeout, to kill the attempts that still run (10 s), and to report and ack (10 s and 2 s) while
/// the broker takes no reports.
const STOP_MARGIN: Duration = Duration::from_secs(25);

/// Handlers in the program's own code, by name.
pub type Native = HashMap<String, Arc<dyn Handler>>;

/// A built-in kind of handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerKind {
    Shell,
    Command,
    Http,
}

impl HandlerKind {
    pub(crate) const ALL: [Self; 3] = [Self::Shell, Self::Command, Self::Http];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Command => "command",
            Self::Http => "http",
        }
    }

    /// Adds the handler. Processes that it starts carry `marker`, end with `guard`, and may run as the allowed users.
    fn add_to(
        self,
        builder: Builder,
        marker: &str,
        guard: &GuardId,
        options: &ExecutorOptions,
    ) -> Builder {
        let users = options.allow_run_as.iter().cloned();
        let secrets = options.secrets.clone();
        match self {
            Self::Shell => {
                let handler = ShellHandler::new(marker).guarded(guard.clone());
                builder.kind(self.name(), handler.allow_run_as(users).secrets(secrets))
            }
            Self::Command => {
                let handler = CommandHandler::new(marker).guarded(guard.clone());
                builder.kind(self.name(), handler.allow_run_as(users).secrets(secrets))
            }
            Self::Http => {
                let handler = HttpHandler::builder().policy(options.http.clone());
                builder.kind(self.name(), handler.secrets(secrets).build())
            }
        }
    }
}

/// Options that the executors of a process share.
#[derive(Clone)]
pub(crate) struct ExecutorOptions {
    /// Their group.
    pub(crate) group: GroupName,
    /// Built-in kinds of handlers that they may run.
    pub(crate) allow: Vec<HandlerKind>,
    /// Users other than the worker's own that jobs may run as.
    pub(crate) allow_run_as: Vec<String>,
    /// The addresses that HTTP jobs may reach.
    pub(crate) http: AddressPolicy,
    /// Where the values of secrets are.
    pub(crate) secrets: SecretSources,
    /// The most handlers that each executor runs at once.
    pub(crate) concurrency: usize,
    /// The labels by which jobs may select them.
    pub(crate) labels: Vec<(String, String)>,
    /// Their share of the runs of jobs with the route `weighted`.
    pub(crate) weight: u8,
    /// How long running handlers may take to end.
    pub(crate) drain_timeout: Duration,
    pub(crate) native: Native,
    /// The keys whose triggers they run.
    pub(crate) trust: VerifyingKeys,
    /// Whether they run native handlers from unsigned triggers.
    pub(crate) unverified_native: bool,
    /// The treatment of their work when their heartbeats stop.
    pub(crate) failover: Failover,
}

/// The treatment of an executor's work when its heartbeats stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failover {
    /// The work stays. Schedulers and broker are in this process, so they stop with the executor.
    Never,
    /// Schedulers in other processes give the work to other executors.
    After {
        /// After this time without the broker, the executor stops its own attempts.
        fence_after: Duration,
        /// After this time without heartbeats, its work is given to others.
        failover_after: Duration,
    },
}

/// Running executors.
#[derive(Debug, Default)]
pub(crate) struct Executors {
    tasks: Lifecycle,
    /// The first error.
    failure: Arc<OnceLock<cueline_worker::Error>>,
    guards: Mutex<Vec<Guard>>,
}

impl Executors {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts an executor of a broker in this process, with its journal in `state_dir`. It seals nothing. Returns whether it
    /// takes triggers.
    pub(crate) fn start(
        &self,
        name: &ExecutorName,
        state_dir: &Path,
        options: &ExecutorOptions,
        broker: &Broker,
    ) -> Result<Readiness> {
        self.start_with(name, state_dir, options, broker, None)
    }

    /// Starts an executor that seals what it sends.
    pub(crate) fn start_sealed(
        &self,
        identity: WorkerIdentity,
        state_dir: &Path,
        options: &ExecutorOptions,
        broker: &Broker,
    ) -> Result<Readiness> {
        let name = identity.executor().name.clone();
        self.start_with(&name, state_dir, options, broker, Some(identity))
    }

    fn start_with(
        &self,
        name: &ExecutorName,
        state_dir: &Path,
        options: &ExecutorOptions,
        broker: &Broker,
        identity: Option<WorkerIdentity>,
    ) -> Result<Readiness> {
        let marker = state_dir.display().to_string();
        let guard = GuardId::of(&marker, &incarnation());
        let mut builder = Worker::builder(options.group.as_str())
            .name(name.as_str())
            .broker(broker.clone())
            .state_dir(state_dir)
            .trust(options.trust.clone())
            .concurrency(options.concurrency)
            .weight(options.weight)
            .drain_timeout(options.drain_timeout)
            .clock(Arc::new(SystemClock));
        for (key, value) in &options.labels {
            builder = builder.label(key, value);
        }
        builder = match options.failover {
            Failover::Never => builder.in_process_scheduler(),
            Failover::After {
                fence_after,
                failover_after,
            } => {
                let keeper = crate::guard::start(&guard);
                let builder = builder.on_lease_renewed(keeper.renewer());
                self.guards().push(keeper);
                builder
                    .fence_after(fence_after)
                    .failover_after(failover_after)
            }
        };
        if let Some(identity) = identity {
            builder = builder.identity(identity);
        }
        if options.unverified_native {
            builder = builder.allow_unverified_native();
        }
        for (native, handler) in &options.native {
            builder = builder.native(native, handler.clone());
        }
        for kind in &options.allow {
            builder = kind.add_to(builder, &marker, &guard, options);
        }
        let worker = builder.before_start(move || end_orphans(marker)).build()?;
        let readiness = worker.readiness();
        let (stop, failure) = (self.tasks.stop(), self.failure.clone());
        self.tasks.spawn("executor", async move {
            if let Err(error) = worker.run(stop).await {
                if is_unreported(&error) {
                    tracing::error!(%error, "executor stopped with outcomes that are not reported; start it again with its state directory");
                } else if is_wrong_input(&error) {
                    tracing::error!(%error, "executor failed; the process ends. Correct its configuration before the next start");
                } else {
                    tracing::error!(%error, "executor failed; the process ends, so that its supervisor restarts it");
                }
                let _ = failure.set(error);
            }
        });
        Ok(readiness)
    }

    /// Returns when an executor has ended unexpectedly, with the reason.
    pub(crate) async fn broken(&self) -> String {
        let what = self.tasks.broken().await;
        match self.failure.get() {
            Some(why) => format!("{what} unexpectedly: {why}"),
            None => format!("{what} unexpectedly"),
        }
    }

    /// The first error of an executor, if a restart with the same configuration would repeat it.
    pub(crate) fn wrong_input(&self) -> Option<String> {
        let error = self.failure.get().filter(|error| is_wrong_input(error))?;
        Some(error.to_string())
    }

    /// The first error of an executor, if it has stopped with outcomes that it could not report.
    pub(crate) fn unreported(&self) -> Option<String> {
        let error = self.failure.get().filter(|error| is_unreported(error))?;
        Some(error.to_string())
    }

    /// Drains for up to `drain`, reports, and sends the last heartbeat.
    pub(crate) async fn stop(&self, drain: Duration) {
        self.tasks.shut_down(drain + STOP_MARGIN).await;
        let guards = std::mem::take(&mut *self.guards());
        for guard in guards {
            guard.dismiss().await;
        }
    }

    fn guards(&self) -> std::sync::MutexGuard<'_, Vec<Guard>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_wrong_input(error: &cueline_worker::Error) -> bool {
    matches!(error, cueline_worker::Error::NameTaken { .. })
}

fn is_unreported(error: &cueline_worker::Error) -> bool {
    matches!(error, cueline_worker::Error::Unreported { .. })
}

/// Differs after each start of a process on this machine.
fn incarnation() -> String {
    let started = SystemBootClock.up_ms();
    format!("{}-{started}", std::process::id())
}

async fn end_orphans(marker: String) -> Result<(), cueline_worker::BoxError> {
    let ended = kill_orphans(&marker).await?;
    if ended > 0 {
        tracing::warn!(
            processes = ended,
            "killed processes that an earlier start of this worker left behind"
        );
    }
    Ok(())
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use cueline_broker::{BrokerOptions, DeadLetter, Outgoing, QueueId};
    use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
    use cueline_protocol::SigningKey;
    use cueline_worker::{Context, Failure};
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    const UNSIGNED: &str = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":1,"group":"default","executor":"one","kind":"manual","fire_at":1800000000000,"shard":{"index":0,"total":1},"job":{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"serial","scope":"executor","backlog":1000,"kill_grace":"5s","on_lost":"fail","priority":5},"deadline":4102444800000}"#;

    fn options(work: Arc<dyn Handler>, unverified_native: bool) -> ExecutorOptions {
        ExecutorOptions {
            group: "default".parse().expect("a name"),
            allow: Vec::new(),
            allow_run_as: Vec::new(),
            http: AddressPolicy::default(),
            secrets: SecretSources::default(),
            concurrency: 1,
            labels: Vec::new(),
            weight: 1,
            drain_timeout: Duration::ZERO,
            native: Native::from([("work".to_owned(), work)]),
            trust: SigningKey::from_seed([1; 32]).verifying_keys(),
            unverified_native,
            failover: Failover::Never,
        }
    }

    /// The reason of the first dead letter.
    async fn refusal(broker: &Broker) -> String {
        loop {
            let fetched = broker
                .fetch(&QueueId::Dead, 1, Duration::from_secs(1))
                .await;
            if let Some(letter) = fetched.expect("fetches").first() {
                return DeadLetter::decode(&letter.payload)
                    .expect("a letter")
                    .reason;
            }
        }
    }

    /// Why an executor refuses an unsigned trigger of a native handler. `None` if it runs the handler.
    async fn refusal_of_unsigned(unverified_native: bool) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("queue.db");
        let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default()).await;
        let broker = Broker::new(driver.expect("opens"), BrokerOptions::default());
        let queue = QueueId::Executor {
            group: "default".to_owned(),
            executor: "one".to_owned(),
        };
        for queue in [&queue, &QueueId::Results, &QueueId::Dead] {
            broker.declare(queue).await.expect("declares");
        }
        let (sender, mut ran) = mpsc::unbounded_channel();
        let work = cueline_worker::from_fn(move |_: Context| {
            let sender = sender.clone();
            async move {
                let _ = sender.send(());
                Ok::<_, Failure>(())
            }
        });
        let options = options(Arc::new(work), unverified_native);
        let executors = Executors::new();
        let name = "one".parse().expect("a name");
        let started = executors.start(&name, &folder.path().join("one"), &options, &broker);
        started.expect("starts");
        let trigger = Outgoing {
            queue,
            topic: "report".to_owned(),
            id: "1".to_owned(),
            payload: UNSIGNED.into(),
        };
        let published = broker.publish(&[trigger]).await;
        assert_eq!(published.expect("publishes"), [Ok(())]);
        let decided = async {
            tokio::select! {
                Some(()) = ran.recv() => None,
                reason = refusal(&broker) => Some(reason),
            }
        };
        let decided = timeout(Duration::from_mins(1), decided).await;
        executors.stop(Duration::ZERO).await;
        decided.expect("it is decided")
    }

    #[tokio::test]
    async fn an_executor_runs_unsigned_native_triggers_only_if_its_options_say_so() {
        assert_eq!(refusal_of_unsigned(true).await, None);
        let reason = refusal_of_unsigned(false).await.expect("a refusal");
        assert!(reason.contains("is not signed"), "{reason}");
    }
}
