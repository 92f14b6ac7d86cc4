//! Jobs that run after others.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::server::{Server, count, fire_at};

fn job(name: &str, starts: (&str, Value), shell: &str) -> Value {
    let (key, value) = starts;
    json!({ "name": name, key: value, "block": { "parallel": 10 }, "handler": { "shell": shell } })
}

fn manual() -> (&'static str, Value) {
    ("schedule", json!({ "manual": true }))
}

pub(super) async fn a_chain_passes_outputs_on(server: &Server) -> Result<()> {
    let after = |parent: &str| ("after", json!({ "all": [parent], "pass_output": true }));
    server
        .apply(&json!([
            job("chain-1", manual(), "echo 1"),
            job("chain-2", after("chain-1"), "echo $1 2"),
            job("chain-3", after("chain-2"), "echo $1 3"),
        ]))
        .await?;
    server.trigger_one("chain-1").await?;
    let ended = |runs: &[Value]| count(runs, "succeeded") == 1;
    let runs = server
        .until("chain-3", "the end of the chain", ended)
        .await?;
    ensure!(runs[0]["output"] == "1 2 3", "{runs:?}");
    Ok(())
}

pub(super) async fn a_diamond_ends_once_for_each_fire(server: &Server) -> Result<()> {
    let both = json!({ "all": ["left", "right"], "pass_output": true });
    let root = json!({
        "name": "root", "schedule": { "manual": true }, "route": { "sharded": 3 },
        "block": { "parallel": 10 }, "handler": { "shell": "true" },
    });
    server
        .apply(&json!([
            root,
            job("left", ("after", json!("root")), "echo l"),
            job("right", ("after", json!("root")), "sleep 0.5; echo r"),
            job("end", ("after", both), "true"),
            job(
                "page",
                (
                    "after",
                    json!({ "any": ["left", "right"], "on": "failure" })
                ),
                "true"
            ),
        ]))
        .await?;
    for _ in 0..2 {
        ensure!(server.trigger("root", &json!({})).await?.len() == 3);
    }
    let ended = |runs: &[Value]| count(runs, "succeeded") == 2;
    let runs = server.until("end", "both flow runs end", ended).await?;
    ensure!(fire_at(&runs[0]) != fire_at(&runs[1]), "{runs:?}");
    let is_whole = |run: &Value| run["params"] == r#"{"left":"l","right":"r"}"#;
    ensure!(runs.iter().all(is_whole), "{runs:?}");
    for (job, number) in [("left", 2), ("right", 2), ("end", 2), ("page", 0)] {
        let runs = server.runs(job).await?;
        ensure!(runs.len() == number, "{job}: {runs:?}");
    }
    Ok(())
}

pub(super) async fn a_failure_starts_what_runs_after_failures(server: &Server) -> Result<()> {
    let after = |on: &str| ("after", json!({ "all": ["fails"], "on": on }));
    server
        .apply(&json!([
            job("fails", manual(), "exit 1"),
            job("after-success", after("success"), "true"),
            job("after-failure", after("failure"), "true"),
            job("after-all", after("always"), "true"),
        ]))
        .await?;
    server.run_to("fails", "failed").await?;
    let ended = |runs: &[Value]| count(runs, "succeeded") == 1;
    for job in ["after-failure", "after-all"] {
        server.until(job, "it follows", ended).await?;
    }
    ensure!(server.runs("after-success").await?.is_empty());
    Ok(())
}

pub(super) async fn a_flow_run_is_run_again_from_what_failed(server: &Server) -> Result<()> {
    let file = server.file("flow.repaired");
    let shell = format!("test -e {}", file.display());
    server
        .apply(&json!([
            job("flow-a", manual(), "true"),
            job("flow-b", ("after", json!("flow-a")), &shell),
            job("flow-c", ("after", json!("flow-b")), "true"),
        ]))
        .await?;
    let id = server.trigger_one("flow-a").await?;
    let failed = |runs: &[Value]| count(runs, "failed") == 1;
    server.until("flow-b", "it fails", failed).await?;
    std::fs::write(&file, "")?;
    server
        .post(&format!("/flows/{id}/retry"), &Value::Null)
        .await?;
    let ended = |runs: &[Value]| count(runs, "succeeded") == 1;
    server.until("flow-c", "the flow run ends", ended).await?;
    let flow = server.get(&format!("/flows/{id}")).await?;
    ensure!(flow["state"] == "succeeded", "{flow}");
    ensure!(server.runs("flow-a").await?.len() == 1);
    Ok(())
}
