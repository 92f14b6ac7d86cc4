//! A scheduler, a broker and a worker inside a program of one's own:
//! `cargo run -p cueline --example embedded_scheduler`.
//!
//! The store and the broker are SQLite files in one directory, so no server is needed. It is an example of this crate
//! because only this crate may depend on the engine, a store, a broker and the SDK together.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerOptions};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_engine::{Engine, EngineOptions, Origins};
use cueline_model::{Actor, ActorKind, JobSpec, decode};
use cueline_runtime::{Lifecycle, SystemClock};
use cueline_store::Store;
use cueline_store::{Run, TriggerRequest};
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use cueline_worker::{Context, Failure, Stop, Worker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let run = greet(directory.path()).await?;
    println!(
        "run {} {:?}: {}",
        run.id,
        run.state,
        run.output.unwrap_or_default()
    );
    Ok(())
}

/// Starts everything, runs one job by hand, and stops everything.
async fn greet(directory: &Path) -> Result<Run, Box<dyn Error>> {
    let store = SqliteStore::open(&directory.join("store.db"), SqliteOptions::default()).await?;
    let store: Arc<dyn Store> = Arc::new(store);
    let path = directory.join("broker.db");
    let driver = EmbeddedDriver::open(&path, EmbeddedOptions::default()).await?;
    let broker = Broker::new(driver, BrokerOptions::default());
    store
        .apply_jobs(&[job()?], false, &Actor::new(ActorKind::User, "example"))
        .await?;

    let scheduler = Lifecycle::new();
    let engine = Engine::start(
        store.clone(),
        broker.clone(),
        Arc::new(SystemClock),
        EngineOptions::default(),
        None,               // no signing keys, for the same reason as in the next line
        Origins::InProcess, // the broker is a file that no other process uses
        &scheduler,
    )
    .await?;
    let worker = Worker::builder("default")
        .name("embedded")
        .broker(broker)
        .state_dir(directory.join("worker"))
        .in_process_scheduler()
        .allow_unverified_native()
        .handler("greet", |cx: Context| async move {
            Ok::<_, Failure>(format!("hello {}", cx.params_text()))
        })
        .build()?;
    let stop = Stop::new();
    let running = tokio::spawn(worker.run(stop.clone()));

    let request = TriggerRequest {
        job: "greeting".parse()?,
        params: Some("Ann".to_owned()),
        idempotency_key: None,
        run_at: None,
        by: Actor::new(ActorKind::User, "example"),
        condition: cueline_store::Precondition::None,
    };
    let triggered = engine.admin().trigger(request).await?;
    let run = loop {
        let run = store.run(triggered.runs[0]).await?.run;
        if run.state.is_terminal() {
            break run;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    stop.ask_soft();
    running.await??;
    scheduler.shut_down(Duration::from_secs(10)).await;
    engine.finish().await?;
    Ok(run)
}

/// The definition of a job file, as JSON.
fn job() -> Result<JobSpec, Box<dyn Error>> {
    let definition = serde_json::json!({
        "name": "greeting",
        "schedule": { "cron": "0 0 8 * * ?" },
        "handler": { "native": "greet" },
    });
    decode::job(&definition.into()).map_err(|problems| format!("{problems:?}").into())
}

#[cfg(test)]
mod tests {
    use cueline_model::RunState;

    use super::*;

    #[tokio::test]
    async fn the_embedded_scheduler_runs_its_job() {
        let directory = tempfile::tempdir().expect("directory");
        let run = greet(directory.path()).await.expect("the run ends");
        assert_eq!(run.state, RunState::Succeeded);
        assert_eq!(run.output.as_deref(), Some("hello Ann"));
    }
}
