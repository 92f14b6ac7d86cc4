//! Scripts with versions.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::server::Server;

pub(super) async fn a_job_runs_the_newest_version_or_the_one_it_is_pinned_to(
    server: &Server,
) -> Result<()> {
    let save = async |text: &str| {
        let script = json!({ "name": "greet", "language": "sh", "text": text });
        server
            .post("/scripts/apply", &json!({ "scripts": [script] }))
            .await
    };
    let job = |name: &str, handler: &Value| json!({ "name": name, "schedule": { "manual": true }, "params": "Ann", "handler": handler });
    save("echo \"hello $1\"").await?;
    server
        .apply(&json!([
            job("newest", &json!({ "script": "greet" })),
            job("pinned", &json!({ "script": "greet", "version": 1 })),
        ]))
        .await?;
    let output = async |job: &str| {
        let run = server.run_to(job, "succeeded").await?;
        anyhow::Ok(run["output"].clone())
    };
    ensure!(output("newest").await? == "hello Ann");
    save("echo \"goodbye $1\"").await?;
    ensure!(output("newest").await? == "goodbye Ann");
    ensure!(output("pinned").await? == "hello Ann");
    server
        .run(&["script", "restore", "greet", "1"])
        .await?
        .success()?;
    ensure!(output("newest").await? == "hello Ann");
    Ok(())
}
