//! `cueline standalone`: everything in one process, with nothing else installed.
//!
//! A composition, not a mode: the same engine, worker and ports as in a cluster, with SQLite store and embedded broker.

mod composition;
mod data_dir;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_api::ApiState;
use cueline_runtime::Stop;

pub use composition::{Composition, CompositionOptions};
pub use data_dir::DataDir;

use crate::{discovery, jobfile};

/// Arguments of `cueline standalone`.
#[derive(Debug, Clone, clap::Args)]
pub struct StandaloneArgs {
    /// Directory for all data; made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub data: PathBuf,
    /// Address and port of the API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7800")]
    pub listen: std::net::SocketAddr,
    /// Job file to apply at the start (TOML, YAML or JSON); may be repeated
    #[arg(long, value_name = "FILE")]
    pub jobs: Vec<PathBuf>,
    /// Name of the executor; with several, they are NAME-1, NAME-2, …
    #[arg(long, value_name = "NAME", default_value = "worker")]
    pub name: String,
    /// Executors in this process
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Executor group they belong to
    #[arg(long, value_name = "GROUP", default_value = "default")]
    pub group: String,
    /// Kinds of handlers that may run here: shell, command, http
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_values = ["shell", "command", "http"])]
    pub allow: Vec<String>,
    /// Handlers that each executor runs at once at the most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// How long running handlers may take to end after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub drain_timeout: cueline_model::DurationMs,
    /// Ended runs are deleted after this time
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    pub keep: cueline_model::DurationMs,
    /// Logs as JSON lines
    #[arg(long)]
    pub log_json: bool,
}

/// How long requests under way may take to end after a stop was asked for.
const HTTP_GRACE: Duration = Duration::from_secs(3);

/// Runs until SIGTERM or Ctrl-C.
pub async fn run(args: StandaloneArgs) -> Result<()> {
    cueline_runtime::telemetry::init("warn", args.log_json);
    let mut options = options(&args)?;
    options.jobs = jobfile::read_all(&args.jobs)?;
    let data = DataDir::open(&args.data)?;
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| {
            format!(
                "--listen {}: failed to listen there; is something else using the port?",
                args.listen
            )
        })?;
    let address = listener.local_addr()?;
    let url = format!("http://{address}");

    let composition = Composition::start(&data, &options)
        .await
        .map_err(bad_jobs)?;
    let http_stop = Stop::new();
    let nudges = composition.engine.nudges();
    let mut state = ApiState::new(
        composition.store.clone(),
        data.token().to_owned(),
        cueline_api::Nudges {
            due: nudges.due,
            cancel: nudges.cancel,
        },
    );
    // Followers of a log are told at once, not cut off after the grace.
    state.stop = http_stop.clone();
    // Before the first answer: whoever finds it ready finds it.
    if let Err(e) = discovery::write(&url, &data.token_file()) {
        tracing::warn!(error = %e, "the cueline command on this machine will not find this server by itself");
    }
    let server = tokio::spawn(serve(
        listener,
        cueline_api::router(state),
        http_stop.clone(),
    ));
    banner(&args, &url, &data, options.jobs.len());

    let ended = wait_for_end(&composition).await;
    http_stop.ask_soft();
    let _ = tokio::time::timeout(HTTP_GRACE, server).await;
    let drain = Duration::from_millis(args.drain_timeout.as_millis());
    tokio::select! {
        result = composition.stop(drain) => result?,
        () = signal() => eprintln!("stopping at once"),
    }
    discovery::remove_if(&url);
    match ended {
        None => Ok(()),
        Some(broken) => bail!(
            "{broken} unexpectedly; ended so that whoever supervises this process starts it anew"
        ),
    }
}

fn options(args: &StandaloneArgs) -> Result<CompositionOptions> {
    for kind in &args.allow {
        if !["shell", "command", "http", ""].contains(&kind.as_str()) {
            bail!(crate::BadInput(format!(
                "--allow: unknown kind {kind:?}; allowed are shell, command, http"
            )));
        }
    }
    let group = args
        .group
        .parse()
        .map_err(|e| crate::BadInput(format!("--group: {e}")))?;
    let name = |n: String| {
        n.parse()
            .map_err(|e| crate::BadInput(format!("--name: {e}")))
    };
    let executors = if args.workers == 1 {
        vec![name(format!("{}-1", args.name))?]
    } else {
        (1..=args.workers)
            .map(|i| name(format!("{}-{i}", args.name)))
            .collect::<Result<_, _>>()?
    };
    let mut options = CompositionOptions::new(group, executors);
    options.allow.clone_from(&args.allow);
    options.concurrency = args.concurrency as usize;
    options.drain_timeout = Duration::from_millis(args.drain_timeout.as_millis());
    options.engine.retention_ms = args.keep.as_millis();
    Ok(options)
}

/// What the store refuses about the jobs is the files' fault.
fn bad_jobs(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<cueline_store::StoreError>() {
        Some(e) if e.kind() == cueline_store::ErrorKind::Invalid => {
            crate::BadInput(format!("--jobs: {e}")).into()
        }
        _ => error,
    }
}

async fn serve(listener: tokio::net::TcpListener, router: axum::Router, stop: Stop) {
    let server =
        axum::serve(listener, router).with_graceful_shutdown(async move { stop.soft().await });
    if let Err(e) = server.await {
        tracing::error!(error = %e, "the API has stopped");
    }
}

fn banner(args: &StandaloneArgs, url: &str, data: &DataDir, applied: usize) {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "cueline {version} standalone — data in {}, embedded store and broker\napi      {url}\ntoken    {} (the cueline command on this machine finds it)\n",
        args.data.display(),
        data.token_file().display(),
    );
    if applied > 0 {
        let files: Vec<_> = args.jobs.iter().map(|f| f.display().to_string()).collect();
        // Writing to a text cannot fail.
        let _ = std::fmt::Write::write_fmt(
            &mut text,
            format_args!("jobs     {applied} applied from {}\n", files.join(", ")),
        );
    }
    // Whoever started us may have closed our output: that is no reason to end.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Waits for a signal, or for a task to end unexpectedly: then with what did.
async fn wait_for_end(composition: &Composition) -> Option<String> {
    tokio::select! {
        () = signal() => None,
        broken = composition.broken() => Some(broken),
    }
}

async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
