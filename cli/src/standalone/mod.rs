//! `cueline standalone`: scheduler, worker, store and broker in one process.
//!
//! It composes the same engine, worker and ports as a cluster, with the SQLite store and the embedded broker. No code
//! asks whether it runs standalone.

mod composition;
mod data_dir;
mod worker_keys;

use std::sync::Arc;

use anyhow::Result;
use cueline_interface::{BadInput, discovery, jobfile};
use cueline_model::Namespace;

pub(crate) use composition::{Composition, CompositionOptions};
pub(crate) use data_dir::DataDir;

use crate::components::{
    Http, Signals, alarms, descriptors, ended_by, say, setup_hint, worker_metrics,
};
use crate::config::StandaloneConfig;

/// Runs until SIGTERM or Ctrl-C.
pub(crate) async fn run(config: StandaloneConfig) -> Result<()> {
    cueline_runtime::telemetry::init("warn", config.process.log_json);
    let openid = config.openid.provider()?;
    let mut signals = Signals::new()?;
    let mut options = options(&config)?;
    let found = jobfile::read_all(&config.jobs, &Namespace::default())?;
    (options.jobs, options.calendars) = (found.jobs, found.calendars);
    options.scripts = found.scripts;
    let data = DataDir::open(&config.data)?;
    let handlers = u64::from(config.workers) * u64::from(config.concurrency);
    let connections =
        descriptors::connections(config.max_connections, descriptors::raise(), handlers);
    let tls = config.tls.files();
    let mut http = Http::listen("--listen", config.listen, connections, tls).await?;
    let url = http.url();
    let socket = data.socket();
    if let Err(error) = http.listen_on_socket(&socket) {
        tracing::warn!(%error, socket = %socket.display(), "failed to listen on the socket for commands; give --url and --token to the cueline command, or a shorter path to --data");
    }

    let started = tokio::select! {
        started = Composition::start(&data, &options) => started,
        () = signals.next() => {
            http.stop().await;
            return Ok(());
        }
    };
    let composition = started.map_err(bad_jobs)?;
    let token = data.token().to_owned().into();
    let mut state = composition
        .engine
        .api(composition.ports(), token, http.stopping());
    state.metrics_public = config.metrics_public;
    state.retention = cueline_api::ServerRetention {
        age: config.keep,
        audit: config.audit_retention,
        dead_letters: config.dead_letter_retention,
    };
    state.limit_event_streams(descriptors::event_streams(connections));
    state.openid = openid;
    let workers = composition.workers.clone();
    state.process_metrics = Arc::new(move || worker_metrics::families(&workers));
    // Written before the server is ready, so that commands find it as soon as it is.
    if let Err(e) = discovery::write(&url, &data.token_file(), &socket) {
        tracing::warn!(error = %e, "failed to announce this server to the cueline command; give --url and --token to it");
    }
    http.answer_by(cueline_api::router(state.clone()));
    say(&banner(&config, &url, &data, options.jobs.len()));
    if let Some(hint) = setup_hint(&state, &url).await {
        say(&hint);
    }

    let ended = tokio::select! {
        () = signals.next() => None,
        what = composition.broken() => Some(what),
    };
    http.stop().await;
    let stop = composition.stop(config.drain_timeout);
    signals.or_at_once(stop).await?;
    discovery::remove_if(&socket);
    let _ = std::fs::remove_file(&socket);
    ended_by(ended, composition.wrong_input())
}

fn options(config: &StandaloneConfig) -> Result<CompositionOptions> {
    let mut options = CompositionOptions::new(config.group.clone(), config.executors()?);
    options.allow.clone_from(&config.allow);
    options.allow_run_as.clone_from(&config.allow_run_as);
    options.http = config.http.policy();
    options.secrets = config.secrets.sources();
    options.concurrency = config.concurrency as usize;
    options.labels.clone_from(&config.routing.label);
    options.weight = config.routing.weight;
    options.drain_timeout = config.drain_timeout;
    options.engine.retention_ms = config.keep.as_millis();
    options.engine.audit_retention_ms = config.audit_retention.as_millis();
    options.engine.dead_letter_retention_ms = config.dead_letter_retention.as_millis();
    options.engine.alarm_retention_ms = config.alarm_retention.as_millis();
    let secrets_dir = config.secrets.secrets_dir.clone();
    options.engine.alarm_transport = Some(alarms::transport(config.http.policy(), secrets_dir)?);
    options.store.clone_from(&config.store);
    options.migrate = !config.store_options.no_migrate;
    options.broker.clone_from(&config.broker);
    options.broker_settings = config.broker_settings();
    options.start_timeout = config.process.start_timeout;
    Ok(options)
}

/// Reports a job that the store refuses as an error of the job files.
fn bad_jobs(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<cueline_store::StoreError>() {
        Some(e) if e.kind() == cueline_store::ErrorKind::Invalid => {
            BadInput(format!("--jobs: {e}")).into()
        }
        _ => error,
    }
}

fn banner(config: &StandaloneConfig, url: &str, data: &DataDir, applied: usize) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let store = config.store.as_ref().map(ToString::to_string);
    let broker = config.broker.as_ref().map(ToString::to_string);
    let kept = match (store, broker) {
        (None, None) => "embedded store and broker".to_owned(),
        (store, broker) => format!(
            "store {}, broker {}",
            store.as_deref().unwrap_or("embedded"),
            broker.as_deref().unwrap_or("embedded")
        ),
    };
    let mut text = format!(
        "cueline {version} standalone — data in {}, {kept}\napi      {url}\ntoken    {} (the cueline command on this machine finds it)\n",
        config.data.display(),
        data.token_file().display(),
    );
    if applied > 0 {
        let files: Vec<_> = config
            .jobs
            .iter()
            .map(|f| f.display().to_string())
            .collect();
        // Writing to a text cannot fail.
        let _ = std::fmt::Write::write_fmt(
            &mut text,
            format_args!("jobs     {applied} applied from {}\n", files.join(", ")),
        );
    }
    text
}
