//! What becomes of messages that are refused.

use anyhow::{Context as _, Result, ensure};
use cueline_test_support::try_eventually;
use cueline_tests::cluster::WITHIN;
use serde_json::{Value, json};

use super::server::Server;

async fn listed(server: &Server) -> Result<Vec<Value>> {
    let list = server.run(&["dlq", "list", "-o", "json"]).await?.json()?;
    Ok(list["letters"].as_array().context("a list")?.clone())
}

/// A program triggers a job by a message before the job exists. The message is replayed when it does.
pub(super) async fn a_refused_trigger_is_replayed_and_runs_once(server: &mut Server) -> Result<()> {
    let before = listed(server).await?.len();
    let message = json!({ "v": 1, "job": "not-yet", "params": "of the message", "by": "billing" });
    server.publish_request("not-yet", &message).await?;
    let letters = try_eventually("it is a dead letter", WITHIN, async || {
        let letters = listed(server).await?;
        anyhow::Ok(if letters.len() > before {
            Ok(letters)
        } else {
            Err(format!("{letters:?}"))
        })
    })
    .await?;
    // The newest is the first.
    let letter = &letters[0];
    let reason = letter["reason"].as_str().unwrap_or_default();
    ensure!(
        letter["queue"] == "requests" && reason.contains("there is no job \"not-yet\""),
        "{letter}"
    );
    ensure!(letters.len() == before + 1, "{letters:?}");
    let ran = server.file("replayed");
    let shell = format!("echo \"$CUELINE_RUN_ID $1\" >> {}", ran.display());
    server
        .apply(&json!([{
            "name": "not-yet", "schedule": { "manual": true }, "params": "of the job", "handler": { "shell": shell },
        }]))
        .await?;
    let id = letter["id"].to_string();
    let replay = ["dlq", "replay", &id, "-o", "json"];
    let replayed = server.run(&replay).await?.json()?;
    ensure!(replayed["count"] == 1, "{replayed}");
    let succeeded = |runs: &[Value]| runs.iter().any(|run| run["state"] == "succeeded");
    server.until("not-yet", "it runs", succeeded).await?;
    ensure!(listed(server).await?.len() == before, "the letter is gone");
    // It is no letter any more, so a second replay publishes nothing.
    let replayed = server.run(&replay).await?.json()?;
    ensure!(replayed["count"] == 0, "{replayed}");
    // A later message shows that no second copy was before it.
    let after = json!({ "v": 1, "job": "not-yet", "params": "a later message" });
    server.publish_request("not-yet", &after).await?;
    let both = |runs: &[Value]| runs.iter().all(|run| run["state"] == "succeeded");
    let both = |runs: &[Value]| runs.len() > 1 && both(runs);
    let runs = server.until("not-yet", "the later one runs", both).await?;
    ensure!(runs.len() == 2 && runs[0]["attempt"] == 1, "{runs:?}");
    let said = std::fs::read_to_string(&ran)?;
    let expected = [
        format!("{} of the message", runs[0]["id"]),
        format!("{} a later message", runs[1]["id"]),
    ];
    ensure!(said.lines().eq(expected.iter()), "{said}");
    Ok(())
}
