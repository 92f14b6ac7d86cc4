//! `cueline worker`: an executor with the allowed built-in handlers.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use cueline_interface::BadInput;

use cueline_model::ExecutorId;
use cueline_worker::{KeyFile, KeyFileError, WorkerIdentity};

use crate::adapters::{BrokerSettings, ClientIdentity};
use crate::components::http::health;
use crate::components::worker_metrics;
use crate::components::{
    ExecutorOptions, Executors, Failover, Http, Native, Signals, StartupRetry, descriptors,
    ended_by, say,
};
use crate::config::WorkerConfig;

/// Runs until SIGTERM or Ctrl-C. `native` are the handlers of the program's own code.
pub(crate) async fn run(mut config: WorkerConfig, native: Native) -> Result<()> {
    cueline_runtime::telemetry::init("warn", config.process.log_json);
    let mut signals = Signals::new()?;
    descriptors::check_handlers(descriptors::raise(), u64::from(config.concurrency));
    config.state_dir = make_state_dir(&config.state_dir)?;
    let http = match config.health {
        Some(address) => {
            let connections = descriptors::HEALTH_CONNECTIONS;
            Some(Http::listen("--health", address, connections, None).await?)
        }
        None => None,
    };
    say(&banner(&config, http.as_ref()));

    let id = ExecutorId {
        group: config.group.clone(),
        name: config.name.clone(),
    };
    let identity = open_identity(&config, &id)?;
    let client = ClientIdentity {
        connection_name: format!("cueline worker {id}"),
        executor: Some(id),
    };
    let retry = StartupRetry::new(config.process.start_timeout);
    let what = format!("the broker at {}", config.broker);
    let broker_settings = BrokerSettings {
        seal_dead_letters: Some(identity.dead_letter_seal()),
        ..config.broker_settings()
    };
    let open = async || config.broker.open(&client, &broker_settings).await;
    let broker = tokio::select! {
        broker = retry.with(&what, open) => broker?,
        () = signals.next() => return Ok(()),
    };
    let executors = Executors::new();
    let options = executor_options(&config, native)?;
    let readiness =
        executors.start_sealed(identity, &config.state_dir, &options, &broker.broker)?;
    if let Some(http) = &http {
        let executors = [readiness.clone()];
        let metrics = move || worker_metrics::families(&executors);
        let problem = move || readiness.problem();
        http.answer_by(health(http.stopping(), problem, metrics));
    }

    let ended = tokio::select! {
        () = signals.next() => None,
        what = executors.broken() => Some(what),
    };
    let stop = async {
        if let Some(http) = &http {
            // From now on the process is alive but not ready.
            http.stopping().ask_soft();
        }
        executors.stop(config.drain_timeout).await;
        broker.close().await;
        Ok(())
    };
    signals.or_at_once(stop).await?;
    ended_by(ended, executors.wrong_input())?;
    match executors.unreported() {
        Some(why) => Err(anyhow!(why)),
        None => Ok(()),
    }
}

/// Creates the directory and returns its canonical path. The worker's processes carry this path as their mark, and the
/// next start kills processes with it. A relative path could also be the mark of a worker in another directory.
fn make_state_dir(path: &Path) -> Result<PathBuf> {
    let failed = || {
        format!(
            "--state-dir {}: failed to create the directory; give one that this user can write to",
            path.display()
        )
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(failed)?;
    path.canonicalize().with_context(failed)
}

fn executor_options(config: &WorkerConfig, native: Native) -> Result<ExecutorOptions> {
    Ok(ExecutorOptions {
        group: config.group.clone(),
        allow: config.allow.clone(),
        allow_run_as: config.allow_run_as.clone(),
        http: config.http.policy(),
        secrets: config.secrets.sources(),
        concurrency: config.concurrency as usize,
        labels: config.routing.label.clone(),
        weight: config.routing.weight,
        drain_timeout: config.drain_timeout,
        native,
        trust: config.verifying_keys()?,
        unverified_native: false,
        failover: Failover::After {
            fence_after: config.fence_after,
            failover_after: Duration::from_millis(config.failover.failover_after.as_millis()),
        },
    })
}

fn open_identity(config: &WorkerConfig, id: &ExecutorId) -> Result<WorkerIdentity> {
    let file = KeyFile::new(&config.worker_key);
    let identity = WorkerIdentity::with_key_file(id.clone(), &file)
        .map(|identity| identity.enrolment(config.enrol_token_file.clone()));
    identity.map_err(|error| match error {
        KeyFileError::NoKey(_) => BadInput(format!("worker_key: {error}")).into(),
        _ => anyhow!("worker_key: {error}"),
    })
}

fn banner(config: &WorkerConfig, http: Option<&Http>) -> String {
    let kinds: Vec<&str> = config.allow.iter().map(|kind| kind.name()).collect();
    let health = http.map_or_else(String::new, |http| format!("health   {}\n", http.url()));
    format!(
        "cueline {} worker {}/{}\nbroker   {}\nallowed  {}\nstate    {}\n{health}",
        env!("CARGO_PKG_VERSION"),
        config.group,
        config.name,
        config.broker,
        kinds.join(", "),
        config.state_dir.display(),
    )
}
