//! `cueline scheduler`: a scheduler node with its API. It shares its store and broker with other nodes.

use anyhow::Result;
use cueline_engine::{EngineOptions, Origins};
use cueline_model::{Actor, ActorKind};

use crate::adapters::{ClientIdentity, OpenBroker, OpenError, OpenStore, StoreSettings};
use crate::components::{
    Http, RunningEngine, Signals, StartupRetry, alarms, descriptors, enrolment_tokens, say,
    setup_hint, unexpected_end,
};
use crate::config::SchedulerConfig;

/// Runs until SIGTERM or Ctrl-C.
pub(crate) async fn run(config: SchedulerConfig) -> Result<()> {
    cueline_runtime::telemetry::init("warn", config.process.log_json);
    let openid = config.openid.provider()?;
    let mut signals = Signals::new()?;
    let connections = descriptors::connections(config.max_connections, descriptors::raise(), 0);
    let http = Http::listen("--listen", config.listen, connections, config.tls.files()).await?;
    say(&banner(&config, &http.url()));
    let node = tokio::select! {
        node = Node::start(&config) => node?,
        () = signals.next() => {
            http.stop().await;
            return Ok(());
        }
    };
    let token = config.token.clone();
    let mut state = node.engine.api(&node.store.ports, token, http.stopping());
    state.metrics_public = config.metrics_public;
    state.retention = cueline_api::ServerRetention {
        age: config.keep,
        audit: config.audit_retention,
        dead_letters: config.dead_letter_retention,
    };
    state.limit_event_streams(descriptors::event_streams(connections));
    state.openid = openid;
    http.answer_by(cueline_api::router(state.clone()));
    if let Some(hint) = setup_hint(&state, &http.url()).await {
        say(&hint);
    }
    say("ready\n");

    let ended = tokio::select! {
        () = signals.next() => None,
        what = node.engine.broken() => Some(what),
    };
    http.stop().await;
    signals.or_at_once(node.stop()).await?;
    ended.map_or(Ok(()), |what| Err(unexpected_end(&what)))
}

struct Node {
    store: OpenStore,
    broker: OpenBroker,
    engine: RunningEngine,
}

impl Node {
    async fn start(config: &SchedulerConfig) -> Result<Self, OpenError> {
        let transport = alarms::transport(config.http.policy(), config.secrets_dir.clone());
        let alarm_transport = transport.map_err(|error| OpenError {
            message: format!("{error:#}"),
            is_transient: false,
        })?;
        let retry = StartupRetry::new(config.process.start_timeout);
        let application = format!("cueline scheduler {}", config.name);
        let options = EngineOptions {
            node_name: config.name.to_string(),
            retention_ms: config.keep.as_millis(),
            audit_retention_ms: config.audit_retention.as_millis(),
            dead_letter_retention_ms: config.dead_letter_retention.as_millis(),
            alarm_retention_ms: config.alarm_retention.as_millis(),
            alarm_transport: Some(alarm_transport),
            ..EngineOptions::default()
                .failing_over_after(config.failover.failover_after.as_millis())
        };
        let settings = StoreSettings::of(&options, &application, !config.store_options.no_migrate);
        let open = async || config.store.open(&settings).await;
        let store = retry
            .with(&format!("the store at {}", config.store), open)
            .await?;
        if let Some(token) = &config.enrol_token_file {
            let by = Actor::new(ActorKind::Node, config.name.as_str());
            let create = async || enrolment_tokens::store_shared(&*store.store, token, &by).await;
            retry.with("the store", create).await?;
        }
        let identity = ClientIdentity {
            connection_name: application.clone(),
            executor: None,
        };
        let broker_settings = config.broker_settings();
        let open = async || config.broker.open(&identity, &broker_settings).await;
        let broker = retry
            .with(&format!("the broker at {}", config.broker), open)
            .await?;
        let engine = RunningEngine::start(
            &store.store,
            &broker.broker,
            &options,
            &config.signing_keys(),
            &Origins::enrolled(store.store.clone()),
            &retry,
        )
        .await?;
        Ok(Self {
            store,
            broker,
            engine,
        })
    }

    /// Stops in order: no more claims, reports, lease, broker, store.
    async fn stop(&self) -> Result<()> {
        self.engine.stop().await;
        let finished = self.engine.finish().await;
        self.broker.close().await;
        self.store.close().await;
        finished
    }
}

fn banner(config: &SchedulerConfig, url: &str) -> String {
    let signs = config.signing_key.iter().map(|entry| {
        let public = cueline_commands::keys::public_text(&entry.key);
        match &entry.group {
            None => format!("signs    {public}\n"),
            Some(group) => format!("signs    {public} for the group {group}\n"),
        }
    });
    let signs: String = signs.collect();
    format!(
        "cueline {} scheduler {}\napi      {url}\nstore    {}\nbroker   {}\n{signs}",
        env!("CARGO_PKG_VERSION"),
        config.name,
        config.store,
        config.broker,
    )
}
