//! `cueline bench` and its worker process, composed of this program's components.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use cueline_bench::{
    BenchArgs, BenchWorkerArgs, Handlers, Host, Noop, OpenStore, Standalone, answer_questions,
};
use cueline_model::ExecutorId;
use cueline_protocol::VerifyingKeys;
use cueline_store::Store;

use crate::adapters::{BrokerSettings, BrokerUrl, ClientIdentity, StoreSettings, StoreUrl};
use crate::components::{ExecutorOptions, Executors, Failover, Signals, unexpected_end};
use crate::failure::{BadInput, Failure};
use crate::output::Out;
use crate::standalone::{Composition, CompositionOptions, DataDir};

const CONCURRENCY: usize = 10_000;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

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
    let address = std::fs::read_to_string(&args.broker_file)?;
    let settings = BrokerSettings {
        prefix: args.broker_prefix,
        ..BrokerSettings::default()
    };
    let id = ExecutorId {
        group: "default".parse()?,
        name: args.name,
    };
    let identity = ClientIdentity {
        connection_name: format!("cueline bench {id}"),
        executor: Some(id.clone()),
    };
    let broker = BrokerUrl::parse(&address).map_err(BadInput)?;
    let broker = broker.open(&identity, &settings).await?;
    let noop = Arc::new(Noop::default());
    let options = ExecutorOptions {
        group: id.group,
        allow: Vec::new(),
        concurrency: CONCURRENCY,
        drain_timeout: DRAIN_TIMEOUT,
        native: Handlers::from([("noop".to_owned(), noop.clone() as _)]),
        trust: VerifyingKeys::default(),
        failover: Failover::After {
            fence_after: Duration::from_secs(20),
            failover_after: Duration::from_secs(30),
        },
    };
    let executors = Executors::new();
    executors.start(&id.name, &args.state_dir, &options, &broker.broker)?;
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
