//! `cueline bench` and its worker process, composed of this program's components.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use cueline_bench::{
    BenchArgs, BenchWorkerArgs, Handlers, Host, Noop, OpenStore, Standalone, answer_questions,
};
use cueline_handlers::SecretSources;
use cueline_handlers::http::AddressPolicy;
use cueline_interface::{BadInput, Failure, Out, secret_file};
use cueline_model::ExecutorId;
use cueline_protocol::VerifyingKeys;
use cueline_protocol::origin::EnrolmentToken;
use cueline_runtime::Lifecycle;
use cueline_store::Store;
use cueline_worker::{KeyFile, Worker, WorkerIdentity};

use crate::adapters::{
    BrokerSettings, BrokerUrl, ClientIdentity, OpenBroker, StoreSettings, StoreUrl,
};
use crate::components::{ExecutorOptions, Executors, Failover, Signals, unexpected_end};
use crate::standalone::{Composition, CompositionOptions, DataDir};

const CONCURRENCY: usize = 10_000;
/// Handlers that a light executor runs at once.
const LIGHT_CONCURRENCY: usize = 64;
/// Identities of light executors that are opened at the same time.
const OPENED_AT_ONCE: usize = 16;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time beyond the drain timeout, to report the last attempts.
const STOP_MARGIN: Duration = Duration::from_secs(10);
const FENCE_AFTER: Duration = Duration::from_secs(20);
const FAILOVER_AFTER: Duration = Duration::from_secs(30);

/// Runs the measurements that `args` name.
pub(crate) async fn run(out: Out, args: BenchArgs) -> Result<(), Failure> {
    if let Some(store) = &args.store {
        StoreUrl::parse(store).map_err(|e| Failure::bad_input(format!("--store: {e}")))?;
    }
    if let Some(broker) = &args.broker {
        BrokerUrl::parse(broker).map_err(|e| Failure::bad_input(format!("--broker: {e}")))?;
    }
    let measured = cueline_bench::run(&Program, args, out.is_json()).await;
    measured.map_err(|error| match error.downcast::<cueline_bench::BadInput>() {
        Ok(error) => Failure::bad_input(error.0),
        Err(error) => error.into(),
    })
}

struct Program;

#[async_trait(?Send)]
impl Host for Program {
    async fn open_store(&self, url: &str) -> Result<OpenStore> {
        let settings = StoreSettings {
            application: "cueline bench".to_owned(),
            ..StoreSettings::default()
        };
        let opened = StoreUrl::parse(url)
            .map_err(BadInput)?
            .open(&settings)
            .await?;
        Ok(OpenStore {
            store: opened.store.clone(),
            close: Box::pin(async move { opened.close().await }),
        })
    }

    async fn start_standalone(
        &self,
        data: &Path,
        handlers: Handlers,
    ) -> Result<Box<dyn Standalone>> {
        let options = CompositionOptions {
            concurrency: CONCURRENCY,
            native: handlers,
            ..CompositionOptions::new("default".parse()?, vec!["worker-1".parse()?])
        };
        let composition = Composition::start(&DataDir::open(data)?, &options).await?;
        Ok(Box::new(InProcess(composition)))
    }
}

struct InProcess(Composition);

#[async_trait]
impl Standalone for InProcess {
    fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    fn wake(&self) {
        self.0.engine.admin().wake_claim();
    }

    async fn stop(self: Box<Self>) -> Result<()> {
        self.0.stop(DRAIN_TIMEOUT).await
    }
}

/// Runs the worker process of a benchmark until SIGTERM, or until the benchmark is gone.
pub(crate) async fn run_worker(args: BenchWorkerArgs) -> Result<()> {
    cueline_runtime::telemetry::init("warn", false);
    let mut signals = Signals::new()?;
    let id = ExecutorId {
        group: "default".parse()?,
        name: args.name.clone(),
    };
    let token = secret_file::read(&args.enrol_token_file).map_err(BadInput)?;
    let token: EnrolmentToken = token.parse()?;
    if let Some(executors) = args.light {
        return run_light_executors(&args, &id, &token, executors, signals).await;
    }
    let key = KeyFile::in_state_dir(&args.state_dir);
    let identity = WorkerIdentity::with_key_file(id.clone(), &key)?.enrolment(Some(token));
    let broker = open_broker(&args, &id, Some(&identity)).await?;
    let noop = Arc::new(Noop::default());
    let options = ExecutorOptions {
        group: id.group,
        allow: Vec::new(),
        allow_run_as: Vec::new(),
        http: AddressPolicy::default(),
        secrets: SecretSources::default(),
        concurrency: CONCURRENCY,
        labels: Vec::new(),
        weight: 1,
        drain_timeout: DRAIN_TIMEOUT,
        native: Handlers::from([("noop".to_owned(), noop.clone() as _)]),
        trust: trusted_keys(&args)?,
        unverified_native: false,
        failover: Failover::After {
            fence_after: FENCE_AFTER,
            failover_after: FAILOVER_AFTER,
        },
    };
    let executors = Executors::new();
    executors.start_sealed(identity, &args.state_dir, &options, &broker.broker)?;
    let ended = tokio::select! {
        () = signals.next() => None,
        what = executors.broken() => Some(what),
        answered = answer_questions(&noop) => {
            answered?;
            None
        }
    };
    executors.stop(options.drain_timeout).await;
    broker.close().await;
    ended.map_or(Ok(()), |what| Err(unexpected_end(&what)))
}

fn trusted_keys(args: &BenchWorkerArgs) -> Result<VerifyingKeys> {
    let text = secret_file::read(&args.trust).map_err(BadInput)?;
    Ok(VerifyingKeys::from_lines(&text)?)
}

/// Connects as `id`. Several executors of this process may share the connection. Without an `identity`, dead letters are
/// not sealed: one connection cannot seal them for several executors, and no-ops refuse no triggers.
async fn open_broker(
    args: &BenchWorkerArgs,
    id: &ExecutorId,
    identity: Option<&WorkerIdentity>,
) -> Result<OpenBroker> {
    let address = std::fs::read_to_string(&args.broker_file)?;
    let settings = BrokerSettings {
        prefix: args.broker_prefix.clone(),
        seal_dead_letters: identity.map(WorkerIdentity::dead_letter_seal),
        ..BrokerSettings::default()
    };
    let client = ClientIdentity {
        connection_name: format!("cueline bench {id}"),
        executor: Some(id.clone()),
    };
    let broker = BrokerUrl::parse(&address).map_err(BadInput)?;
    Ok(broker.open(&client, &settings).await?)
}

/// Runs many executors of the worker SDK that share connections and the handler. They start no processes, so they need
/// no guards.
async fn run_light_executors(
    args: &BenchWorkerArgs,
    id: &ExecutorId,
    token: &EnrolmentToken,
    executors: u32,
    mut signals: Signals,
) -> Result<()> {
    let mut brokers = Vec::new();
    for _ in 0..args.connections {
        brokers.push(open_broker(args, id, None).await?);
    }
    let noop = Arc::new(Noop::default());
    let trusted = trusted_keys(args)?;
    let identities = open_identities(args, id, executors)?;
    let tasks = Lifecycle::new();
    for ((name, identity), broker) in identities.into_iter().zip(brokers.iter().cycle()) {
        let worker = Worker::builder(id.group.as_str())
            .identity(identity.enrolment(Some(token.clone())))
            .broker(broker.broker.clone())
            .concurrency(LIGHT_CONCURRENCY)
            .drain_timeout(DRAIN_TIMEOUT)
            .fence_after(FENCE_AFTER)
            .failover_after(FAILOVER_AFTER)
            .trust(trusted.clone())
            .native("noop", Arc::clone(&noop))
            .build()?;
        let stop = tasks.stop();
        tasks.spawn("executor", async move {
            if let Err(error) = worker.run(stop).await {
                tracing::error!(executor = %name, %error, "executor failed; the benchmark ends");
            }
        });
    }
    let ended = tokio::select! {
        () = signals.next() => None,
        what = tasks.broken() => Some(what),
        answered = answer_questions(&noop) => {
            answered?;
            None
        }
    };
    tasks.shut_down(DRAIN_TIMEOUT + STOP_MARGIN).await;
    for broker in &brokers {
        broker.close().await;
    }
    ended.map_or(Ok(()), |what| Err(unexpected_end(&what)))
}

/// The names and identities of many executors. The first start of each writes a key through to the disk. Executors of a
/// real fleet do that side by side.
fn open_identities(
    args: &BenchWorkerArgs,
    id: &ExecutorId,
    executors: u32,
) -> Result<Vec<(String, WorkerIdentity)>> {
    let names: Vec<String> = (1..=executors)
        .map(|n| format!("{}-{n}", id.name))
        .collect();
    let open = |name: &String| {
        let state_dir = args.state_dir.join(name);
        let identity = WorkerIdentity::open(id.group.as_str(), name, state_dir)?;
        Ok((name.clone(), identity))
    };
    let a_part = names.len().div_ceil(OPENED_AT_ONCE).max(1);
    std::thread::scope(|scope| {
        let begin = |part: &[String]| {
            let part = part.to_vec();
            scope.spawn(move || part.iter().map(open).collect::<Result<Vec<_>>>())
        };
        let parts: Vec<_> = names.chunks(a_part).map(begin).collect();
        let mut identities = Vec::with_capacity(names.len());
        for part in parts {
            identities.extend(part.join().expect("no panic")?);
        }
        Ok(identities)
    })
}
