//! `cueline migrate`: brings a store's schema up to date, or checks it.

use std::path::PathBuf;

use clap::Args;
use cueline_interface::{Failure, Out, secret_file};
use serde_json::json;

use crate::adapters::{StoreSettings, StoreUrl};

/// `cueline migrate`
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The store's address.
    #[arg(
        long,
        help = "The store: postgres://user:password@host:5432/database, or sqlite:PATH",
        value_name = "URL",
        env = "CUELINE_STORE",
        hide_env_values = true,
        required_unless_present = "store_file"
    )]
    pub(crate) store: Option<String>,
    /// File that holds the store's URL, instead of the URL itself
    #[arg(
        long,
        value_name = "FILE",
        env = "CUELINE_STORE_FILE",
        conflicts_with = "store"
    )]
    pub(crate) store_file: Option<PathBuf>,
    /// Change nothing; the exit status is 1 if the schema is not up to date
    #[arg(long)]
    pub(crate) check: bool,
    /// Give a new id to a store that was restored from a backup, so that workers do not confuse its new runs with older ones, and end all sessions. Stop all schedulers first
    #[arg(long, conflicts_with = "check")]
    pub(crate) restored: bool,
}

/// Runs the command. Several can run at the same time.
pub(crate) async fn run(out: Out, args: &MigrateArgs) -> Result<(), Failure> {
    cueline_runtime::telemetry::init("warn", false);
    let url = store(args)?;
    if args.check {
        let settings = StoreSettings {
            application: "cueline migrate".to_owned(),
            migrate: false,
            ..StoreSettings::default()
        };
        let store = url.open(&settings).await;
        let store = store.map_err(|error| Failure::failed(error.message))?;
        store.close().await;
        if out.is_json() {
            return out.json(&json!({ "store": url.to_string(), "up_to_date": true }));
        }
        return out.line(&format!("{url} is up to date"));
    }
    if args.restored {
        let id = url.renew_identity().await;
        let id = id.map_err(|error| Failure::failed(error.message))?;
        if out.is_json() {
            return out.json(&json!({ "store": url.to_string(), "id": id }));
        }
        return out.line(&format!(
            "{url} has a new id, {id}; its queued and running attempts are published again\nall sessions have ended; revoke again the API tokens, users and keys of workers that were revoked since the backup"
        ));
    }
    let version = url.migrate().await;
    let version = version.map_err(|error| Failure::failed(error.message))?;
    if out.is_json() {
        return out.json(&json!({ "store": url.to_string(), "version": version }));
    }
    match version {
        Some(version) => out.line(&format!("{url} is up to date, schema version {version}")),
        None => out.line(&format!("{url} is up to date")),
    }
}

fn store(args: &MigrateArgs) -> Result<StoreUrl, Failure> {
    let (name, text) = match (&args.store, &args.store_file) {
        (Some(text), _) => ("--store".to_owned(), text.clone()),
        (None, Some(file)) => (
            format!("--store-file: {}", file.display()),
            secret_file::read(file)
                .map_err(|e| Failure::bad_input(format!("--store-file: {e}")))?,
        ),
        (None, None) => return Err(Failure::bad_input("--store: missing")),
    };
    StoreUrl::parse(&text).map_err(|problem| Failure::bad_input(format!("{name}: {problem}")))
}
