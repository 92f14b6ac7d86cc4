//! Composes store, broker, engine and executors in one process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cueline_api::StorePorts;
use cueline_engine::{EngineOptions, Origins};
use cueline_handlers::SecretSources;
use cueline_handlers::http::AddressPolicy;
use cueline_interface::Hinted;
use cueline_model::{
    Actor, ActorKind, CalendarSpec, ExecutorId, ExecutorName, GroupName, JobSpec, ScriptSpec,
};
use cueline_protocol::SigningKeys;
use cueline_store::{Precondition, Store};
use cueline_worker::Readiness;

use super::DataDir;
use super::worker_keys::{NODE, WorkerKeys};
use crate::adapters::{
    BrokerSettings, BrokerUrl, ClientIdentity, OpenBroker, OpenError, OpenStore, StoreSettings,
    StoreUrl,
};
use crate::components::{
    ExecutorOptions, Executors, Failover, HandlerKind, Native, RunningEngine, StartupRetry,
};

/// The options of a composition.
#[derive(Clone)]
pub(crate) struct CompositionOptions {
    /// Group of the executors.
    pub(crate) group: GroupName,
    /// Their names.
    pub(crate) executors: Vec<ExecutorName>,
    /// Built-in kinds of handlers that they may run.
    pub(crate) allow: Vec<HandlerKind>,
    /// Users other than this process's own that jobs may run as.
    pub(crate) allow_run_as: Vec<String>,
    /// The addresses that HTTP jobs may reach.
    pub(crate) http: AddressPolicy,
    /// Where the values of secrets are.
    pub(crate) secrets: SecretSources,
    /// The most handlers that each executor runs at once.
    pub(crate) concurrency: usize,
    /// The labels of the executors.
    pub(crate) labels: Vec<(String, String)>,
    /// The weight of each of them.
    pub(crate) weight: u8,
    /// How long running handlers may take to end.
    pub(crate) drain_timeout: Duration,
    pub(crate) native: Native,
    /// The engine's options.
    pub(crate) engine: EngineOptions,
    /// Jobs to apply before scheduling begins, so that `startup` jobs among them run at this start.
    pub(crate) jobs: Vec<JobSpec>,
    /// The calendars of the job files.
    pub(crate) calendars: Vec<CalendarSpec>,
    /// The scripts of the job files.
    pub(crate) scripts: Vec<ScriptSpec>,
    /// The store; a file in the data directory by default.
    pub(crate) store: Option<StoreUrl>,
    /// Whether to migrate the store; true by default.
    pub(crate) migrate: bool,
    /// The broker; a file in the data directory by default.
    pub(crate) broker: Option<BrokerUrl>,
    pub(crate) broker_settings: BrokerSettings,
    /// How long to try to reach store and broker; for ever by default.
    pub(crate) start_timeout: Option<Duration>,
}

impl CompositionOptions {
    /// Executors that run nothing yet.
    pub(crate) fn new(group: GroupName, executors: Vec<ExecutorName>) -> Self {
        Self {
            group,
            executors,
            allow: Vec::new(),
            allow_run_as: Vec::new(),
            http: AddressPolicy::default(),
            secrets: SecretSources::default(),
            concurrency: 64,
            labels: Vec::new(),
            weight: 1,
            drain_timeout: Duration::from_secs(30),
            native: Native::new(),
            engine: EngineOptions {
                node_name: NODE.to_owned(),
                ..EngineOptions::default()
            },
            jobs: Vec::new(),
            calendars: Vec::new(),
            scripts: Vec::new(),
            store: None,
            migrate: true,
            broker: None,
            broker_settings: BrokerSettings::default(),
            start_timeout: None,
        }
    }

    /// Whether other processes may use the broker.
    fn has_shared_broker(&self) -> bool {
        self.broker.as_ref().is_some_and(|url| !url.is_embedded())
    }

    /// Whether triggers of native handlers are signed, and verified by the executors.
    ///
    /// The queue in the data directory lies beside the signing key, so a signature would protect nothing there. The file
    /// of another address may have another owner.
    fn signs_native(&self) -> bool {
        self.broker.is_some()
    }

    fn executor_ids(&self) -> Vec<ExecutorId> {
        let id = |name: &ExecutorName| ExecutorId {
            group: self.group.clone(),
            name: name.clone(),
        };
        self.executors.iter().map(id).collect()
    }

    /// If the store or broker is external, other schedulers may use it.
    fn failover(&self) -> Failover {
        if self.store.is_none() && self.broker.is_none() {
            return Failover::Never;
        }
        let failover_after = Duration::from_millis(self.engine.failover_after_ms);
        Failover::After {
            // The default of every worker; see `Builder::fence_after`.
            fence_after: failover_after * 2 / 3,
            failover_after,
        }
    }
}

/// A scheduler and its executors in this process.
pub(crate) struct Composition {
    #[cfg_attr(
        not(feature = "bench"),
        expect(dead_code, reason = "benchmarks write to it")
    )]
    pub(crate) store: Arc<dyn Store>,
    pub(crate) engine: RunningEngine,
    /// What each executor does.
    pub(crate) workers: Vec<Readiness>,
    executors: Executors,
    open_store: OpenStore,
    open_broker: OpenBroker,
}

impl std::fmt::Debug for Composition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Composition")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl Composition {
    /// Opens store and broker and starts everything.
    pub(crate) async fn start(data: &DataDir, options: &CompositionOptions) -> Result<Self> {
        let retry = StartupRetry::new(options.start_timeout);
        let opened = Box::pin(open(data, options, &retry));
        let (open_store, mut keys, open_broker) = opened.await?;
        let store = open_store.store.clone();
        let broker = &open_broker.broker;
        let origins = match &keys {
            Some(_) => Origins::enrolled(store.clone()),
            None => Origins::InProcess,
        };
        let engine_options = EngineOptions {
            sign_native: options.signs_native(),
            ..options.engine.clone()
        };
        let signing = SigningKeys::from(data.key().clone());
        let engine =
            RunningEngine::start(&store, broker, &engine_options, &signing, &origins, &retry)
                .await?;
        let executors = Executors::new();
        let shared = ExecutorOptions {
            group: options.group.clone(),
            allow: options.allow.clone(),
            allow_run_as: options.allow_run_as.clone(),
            http: options.http.clone(),
            secrets: options.secrets.clone(),
            concurrency: options.concurrency,
            labels: options.labels.clone(),
            weight: options.weight,
            drain_timeout: options.drain_timeout,
            native: options.native.clone(),
            trust: data.key().verifying_keys(),
            unverified_native: !options.signs_native(),
            failover: options.failover(),
        };
        let mut workers = Vec::with_capacity(options.executors.len());
        for name in &options.executors {
            let state_dir = state_dir(data, name);
            let worker = match keys.as_mut().and_then(|keys| keys.take(name)) {
                Some(identity) => executors.start_sealed(identity, &state_dir, &shared, broker)?,
                None => executors.start(name, &state_dir, &shared, broker)?,
            };
            workers.push(worker);
        }
        Ok(Self {
            store,
            engine,
            workers,
            executors,
            open_store,
            open_broker,
        })
    }

    /// The store as each of its ports, for the API.
    pub(crate) fn ports(&self) -> &StorePorts {
        &self.open_store.ports
    }

    /// Returns the name of a task that has ended unexpectedly.
    pub(crate) async fn broken(&self) -> String {
        tokio::select! {
            broken = self.engine.broken() => broken,
            broken = self.executors.broken() => broken,
        }
    }

    /// The first error of an executor, if a restart with the same configuration would repeat it.
    pub(crate) fn wrong_input(&self) -> Option<String> {
        self.executors.wrong_input()
    }

    /// Stops in order: no more claims, running attempts, reports, heartbeats, lease, broker, store.
    pub(crate) async fn stop(&self, drain: Duration) -> Result<()> {
        self.engine.stop().await;
        self.executors.stop(drain).await;
        let finished = self.engine.finish().await;
        self.open_broker.close().await;
        self.open_store.close().await;
        finished
    }
}

const STORE_HINT: &str =
    "all jobs and runs are in that file: restore it from a backup, or give another --data";
const QUEUE_HINT: &str = "store.db also has the queued triggers; if you cannot repair this file, move it away with its \
    -wal and -shm files, and the triggers are queued again within a minute";

/// Opens the store with what the job files have, and the broker.
async fn open(
    data: &DataDir,
    options: &CompositionOptions,
    retry: &StartupRetry,
) -> Result<(OpenStore, Option<WorkerKeys>, OpenBroker)> {
    let filled = async {
        let opened = open_store(data, options, retry).await?;
        put_job_files(&*opened.store, options).await?;
        Ok(opened)
    };
    if !options.has_shared_broker() {
        // Neither needs the other, and each waits for its disk.
        let broker = open_broker(data, options, None, retry);
        let (store, broker) = tokio::try_join!(filled, broker)?;
        return Ok((store, None, broker));
    }
    let store = filled.await?;
    let executors = options.executor_ids();
    let state_dir = |name: &ExecutorName| state_dir(data, name);
    let keys = WorkerKeys::open(&executors, state_dir, &*store.store, retry).await?;
    let broker = open_broker(data, options, Some(&keys), retry).await?;
    Ok((store, Some(keys), broker))
}

/// The state directory of an executor.
fn state_dir(data: &DataDir, name: &ExecutorName) -> PathBuf {
    data.path().join("executors").join(name.as_str())
}

async fn put_job_files(store: &dyn Store, options: &CompositionOptions) -> Result<()> {
    if options.jobs.is_empty() && options.calendars.is_empty() && options.scripts.is_empty() {
        return Ok(());
    }
    let by = Actor::new(ActorKind::Node, NODE);
    store
        .put_calendars(&options.calendars, &Precondition::None, false, &by)
        .await?;
    for script in &options.scripts {
        store
            .put_script(script, &Precondition::None, false, &by)
            .await?;
    }
    store.apply_jobs(&options.jobs, false, &by).await?;
    Ok(())
}

async fn open_store(
    data: &DataDir,
    options: &CompositionOptions,
    retry: &StartupRetry,
) -> Result<OpenStore> {
    let settings = StoreSettings::of(&options.engine, "cueline standalone", options.migrate);
    let opened = |url: StoreUrl, retry: StartupRetry| {
        let settings = &settings;
        async move {
            let open = async || url.open(settings).await;
            retry.with(&format!("the store at {url}"), open).await
        }
    };
    if let Some(url) = &options.store {
        return Ok(opened(url.clone(), *retry).await?);
    }
    let file = data.path().join("store.db");
    let url = StoreUrl::parse(&format!("sqlite:{}", file.display())).map_err(anyhow::Error::msg)?;
    // Retries would not help: a local file does not become available later.
    let store = opened(url, StartupRetry::none()).await;
    store.map_err(|error| unusable(&file, error, STORE_HINT))
}

async fn open_broker(
    data: &DataDir,
    options: &CompositionOptions,
    keys: Option<&WorkerKeys>,
    retry: &StartupRetry,
) -> Result<OpenBroker> {
    let settings = BrokerSettings {
        seal_dead_letters: keys.map(WorkerKeys::dead_letter_seal),
        ..options.broker_settings.clone()
    };
    let identity = ClientIdentity {
        connection_name: "cueline standalone".to_owned(),
        executor: None,
    };
    let opened = |url: BrokerUrl, retry: StartupRetry| {
        let (identity, settings) = (&identity, &settings);
        async move {
            let open = async || url.open(identity, settings).await;
            retry.with(&format!("the broker at {url}"), open).await
        }
    };
    if let Some(url) = &options.broker {
        return Ok(opened(url.clone(), *retry).await?);
    }
    let file = data.path().join("queue.db");
    let url =
        BrokerUrl::parse(&format!("embedded:{}", file.display())).map_err(anyhow::Error::msg)?;
    let broker = opened(url, StartupRetry::none()).await;
    broker.map_err(|error| unusable(&file, error, QUEUE_HINT))
}

/// An error that names the unusable file and adds a hint.
fn unusable(file: &Path, error: OpenError, hint: &str) -> anyhow::Error {
    anyhow::Error::new(error).context(Hinted {
        what: format!("{} cannot be used", file.display()),
        hint: hint.to_owned(),
    })
}

#[cfg(all(test, feature = "sqlite", feature = "embedded"))]
mod tests {
    use cueline_broker::{Broker, Channel};
    use cueline_model::Timestamp;
    use cueline_protocol::{
        Control, HeartbeatMessage, Incarnation, VERSION, WorkerProcess, decode, encode,
    };

    use super::*;
    use crate::components::ended_by;
    use cueline_interface::BadInput;

    /// Tells the executor that the incarnation of this heartbeat is refused.
    async fn refuse(broker: &Broker, heartbeat: &[u8]) {
        let refused: HeartbeatMessage = decode(heartbeat).expect("readable");
        let incarnation = |id: String| Incarnation {
            incarnation: id,
            process: WorkerProcess {
                host: Some("elsewhere".to_owned()),
                pid: 7,
                started_at: Timestamp::from_millis(1),
            },
        };
        let conflict = Control::NameConflict {
            v: VERSION,
            kept: incarnation("another".to_owned()),
            refused: incarnation(refused.heartbeat.incarnation),
        };
        let executor = refused.heartbeat.executor;
        let channel = Channel::Control {
            group: executor.group.to_string(),
            executor: executor.name.to_string(),
        };
        let sent = broker.announce(&channel, encode(&conflict).into());
        sent.await.expect("announces");
    }

    #[test]
    fn only_the_queue_in_the_data_directory_has_unsigned_triggers() {
        let group = "default".parse().expect("a name");
        let own_queue = CompositionOptions::new(group, Vec::new());
        assert!(!own_queue.signs_native());
        let elsewhere = BrokerUrl::parse("embedded:/srv/queue.db").expect("an address");
        let other = CompositionOptions {
            broker: Some(elsewhere),
            ..own_queue
        };
        assert!(other.signs_native());
    }

    #[tokio::test]
    async fn a_name_that_another_worker_has_is_wrong_input() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = DataDir::open(folder.path()).expect("opens");
        let group = "default".parse().expect("a name");
        let executors = vec!["one".parse().expect("a name")];
        let options = CompositionOptions::new(group, executors);
        let started = Composition::start(&data, &options).await;
        let composition = started.expect("starts");
        let broker = &composition.open_broker.broker;
        let mut heartbeats = broker
            .listen(&Channel::Heartbeats)
            .await
            .expect("a listener");
        let refusing = async {
            loop {
                tokio::select! {
                    ended = composition.broken() => return ended,
                    // The executor may not listen yet, so each heartbeat is answered.
                    Some(heartbeat) = heartbeats.recv() => refuse(broker, &heartbeat.payload).await,
                }
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(30), refusing).await;
        let ended = ended.expect("the executor ends");
        composition.stop(Duration::ZERO).await.expect("stops");
        let error = ended_by(Some(ended), composition.wrong_input()).expect_err("it has ended");
        let BadInput(text) = error.downcast_ref().expect("wrong input");
        assert!(text.contains("process 7 on elsewhere"), "{text}");
        let other = ended_by(Some("task x ended".to_owned()), None).expect_err("it has ended");
        assert!(other.downcast_ref::<BadInput>().is_none(), "{other}");
    }
}
