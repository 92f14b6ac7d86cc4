//! What becomes of runs: triggers by hand, retries, time limits, cancellations, lanes.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::server::{Server, count};

fn by_hand(name: &str, shell: &str, more: &Value) -> Value {
    let mut job =
        json!({ "name": name, "schedule": { "manual": true }, "handler": { "shell": shell } });
    for (key, value) in more.as_object().into_iter().flatten() {
        job[key] = value.clone();
    }
    job
}

pub(super) async fn a_trigger_by_hand_has_parameters_a_time_and_a_key(
    server: &Server,
) -> Result<()> {
    let own = json!({ "params": "its own" });
    server
        .apply(&json!([by_hand("hello", "echo \"$1\"", &own)]))
        .await?;
    let run = server.run_to("hello", "succeeded").await?;
    ensure!(
        run["output"] == "its own" && run["kind"] == "manual",
        "{run}"
    );

    let request = json!({ "params": { "full": true }, "idempotency_key": "order-17" });
    let first = server.trigger("hello", &request).await?;
    let second = server.trigger("hello", &request).await?;
    ensure!(first == second, "{first:?} {second:?}");
    let run = server.reached(first[0], "succeeded").await?;
    ensure!(run["output"] == r#"{"full":true}"#, "{run}");

    let at = server.now().await? + 1_500;
    let time = jiff::Timestamp::from_millisecond(at)?.to_string();
    let later = server.trigger("hello", &json!({ "run_at": time })).await?;
    let run = server.reached(later[0], "succeeded").await?;
    ensure!(
        run["started_at"]
            .as_i64()
            .is_some_and(|started| started >= at),
        "{run}"
    );
    Ok(())
}

pub(super) async fn a_failed_attempt_is_retried(server: &Server) -> Result<()> {
    let retry = json!({ "retry": { "max": 2, "first": "100ms", "jitter_percent": 0 } });
    server
        .apply(&json!([
            by_hand("third-time", "test $CUELINE_ATTEMPT = 3", &retry),
            by_hand("never", "exit 7", &retry),
        ]))
        .await?;
    let run = server.run_to("third-time", "succeeded").await?;
    ensure!(run["attempt"] == 3, "{run}");
    let timeline = run["timeline"].as_array().context("a timeline")?;
    let retries = timeline.iter().filter(|entry| entry["event"] == "retry");
    ensure!(retries.count() == 2, "{run}");
    let run = server.run_to("never", "failed").await?;
    ensure!(run["attempt"] == 3 && run["exit_status"] == 7, "{run}");
    Ok(())
}

pub(super) async fn an_attempt_has_a_time_limit(server: &Server) -> Result<()> {
    let limit = json!({ "timeout": "500ms", "kill_grace": "200ms" });
    server
        .apply(&json!([by_hand("too-long", "sleep 600", &limit)]))
        .await?;
    server.run_to("too-long", "timed_out").await?;
    Ok(())
}

pub(super) async fn a_run_is_cancelled_in_each_state(server: &Server) -> Result<()> {
    server
        .apply(&json!([by_hand("long", "sleep 600", &json!({}))]))
        .await?;
    let cancel = async |run: i64| {
        server
            .post(&format!("/runs/{run}/cancel"), &json!({}))
            .await?;
        server.reached(run, "cancelled").await
    };
    let running = server.trigger_one("long").await?;
    server.reached(running, "running").await?;
    // It waits for its time, and another one for the lane.
    let later = json!({ "run_at": "2096-01-01T00:00:00Z" });
    let later = server.trigger("long", &later).await?[0];
    let behind = server.trigger_one("long").await?;
    for waiting in [later, behind] {
        let run = cancel(waiting).await?;
        ensure!(run["started_at"].is_null(), "{run}");
    }
    let run = cancel(running).await?;
    ensure!(run["started_at"].is_i64(), "{run}");
    Ok(())
}

/// A handler that says when it starts and ends.
fn says(server: &Server, name: &str, seconds: &str) -> String {
    let log = server.file(&format!("{name}.said"));
    format!(
        "echo start $CUELINE_RUN_ID >> {0}; sleep {seconds}; echo end $CUELINE_RUN_ID >> {0}",
        log.display()
    )
}

fn said(server: &Server, name: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(server.file(&format!("{name}.said")))?;
    Ok(text.lines().map(str::to_owned).collect())
}

pub(super) async fn a_serial_lane_runs_one_after_the_other(server: &Server) -> Result<()> {
    let shell = says(server, "one-by-one", "0.2");
    let more = json!({ "route": "round" });
    server
        .apply(&json!([by_hand("one-by-one", &shell, &more)]))
        .await?;
    let mut expected = Vec::new();
    for _ in 0..4 {
        let run = server.trigger_one("one-by-one").await?;
        expected.extend([format!("start {run}"), format!("end {run}")]);
    }
    let all = |runs: &[Value]| count(runs, "succeeded") == 4;
    server.until("one-by-one", "all succeed", all).await?;
    let said = said(server, "one-by-one")?;
    ensure!(said == expected, "{said:?}");
    Ok(())
}

pub(super) async fn a_discard_lane_ends_what_meets_a_busy_lane(server: &Server) -> Result<()> {
    let open = server.file("discard.open");
    let shell = format!("until test -e {}; do sleep 0.05; done", open.display());
    let more = json!({ "block": "discard", "route": "round" });
    server
        .apply(&json!([by_hand("discards", &shell, &more)]))
        .await?;
    let first = server.trigger_one("discards").await?;
    server.reached(first, "running").await?;
    for _ in 0..2 {
        let run = server.run_to("discards", "discarded").await?;
        ensure!(run["started_at"].is_null(), "{run}");
    }
    std::fs::write(&open, "")?;
    server.reached(first, "succeeded").await?;
    server.run_to("discards", "succeeded").await?;
    Ok(())
}

pub(super) async fn a_cover_lane_runs_the_newest(server: &Server) -> Result<()> {
    let open = server.file("cover.open");
    let shell = format!("until test -e {}; do sleep 0.05; done", open.display());
    let more = json!({ "block": "cover", "kill_grace": "1s", "route": "round" });
    server
        .apply(&json!([by_hand("covers", &shell, &more)]))
        .await?;
    let first = server.trigger_one("covers").await?;
    server.reached(first, "running").await?;
    let second = server.trigger_one("covers").await?;
    let first = server.reached(first, "covered").await?;
    let second = server.reached(second, "running").await?;
    ensure!(
        second["started_at"].as_i64() >= first["ended_at"].as_i64(),
        "{first} {second}"
    );
    std::fs::write(&open, "")?;
    server
        .reached(second["id"].as_i64().context("an id")?, "succeeded")
        .await?;
    Ok(())
}

pub(super) async fn a_parallel_lane_runs_as_many_as_it_says(server: &Server) -> Result<()> {
    let shell = says(server, "two-at-once", "0.5");
    let more = json!({ "block": { "parallel": 2 }, "route": "round" });
    server
        .apply(&json!([by_hand("two-at-once", &shell, &more)]))
        .await?;
    for _ in 0..5 {
        server.trigger_one("two-at-once").await?;
    }
    let all = |runs: &[Value]| count(runs, "succeeded") == 5;
    server.until("two-at-once", "all succeed", all).await?;
    let (mut running, mut most) = (0, 0);
    for line in said(server, "two-at-once")? {
        running += if line.starts_with("start ") { 1 } else { -1 };
        most = most.max(running);
    }
    ensure!(most == 2 && running == 0, "{most} at once");
    Ok(())
}

pub(super) async fn a_run_is_replayed_with_its_parameters(server: &Server) -> Result<()> {
    let file = server.file("repaired");
    let shell = format!("test -e {} && echo \"$1\"", file.display());
    server
        .apply(&json!([by_hand("broken", &shell, &json!({}))]))
        .await?;
    let failed = server.trigger("broken", &json!({ "params": "p" })).await?[0];
    server.reached(failed, "failed").await?;
    std::fs::write(&file, "")?;
    let retry = ["bulk", "retry", "--job", "broken", "--yes", "-o", "json"];
    let replayed = server.run(&retry).await?.json()?;
    ensure!(
        replayed["done"].as_array().map(Vec::len) == Some(1),
        "{replayed}"
    );
    let good = |runs: &[Value]| count(runs, "succeeded") == 1;
    let runs = server.until("broken", "the replay succeeds", good).await?;
    ensure!(runs.len() == 2 && runs[1]["output"] == "p", "{runs:?}");
    Ok(())
}

pub(super) async fn a_log_has_the_lines_of_both_streams(server: &Server) -> Result<()> {
    let shell = "echo out; echo err >&2; echo ::progress 0.5; echo last";
    server
        .apply(&json!([by_hand("talks", shell, &json!({}))]))
        .await?;
    let run = server.run_to("talks", "succeeded").await?;
    ensure!(run["output"] == "last", "{run}");
    let log = server
        .get(&format!("/runs/{}/logs?wait_ms=10000", run["id"]))
        .await?;
    let lines = log["lines"].as_array().context("lines")?;
    let mut found: Vec<(&str, &str)> = lines
        .iter()
        .filter_map(|line| Some((line["stream"].as_str()?, line["text"].as_str()?)))
        .collect();
    found.sort_unstable();
    ensure!(
        found == [("err", "err"), ("out", "last"), ("out", "out")],
        "{log}"
    );
    Ok(())
}

pub(super) async fn a_run_that_waits_is_explained(server: &Server) -> Result<()> {
    let more = json!({ "group": "nobody" });
    server
        .apply(&json!([by_hand("waits", "true", &more)]))
        .await?;
    let run = server.trigger_one("waits").await?;
    let explained = server.get(&format!("/runs/{run}/explain")).await?;
    let sentence = explained["sentence"].as_str().context("a sentence")?;
    ensure!(sentence.contains("nobody"), "{explained}");
    server
        .post(&format!("/runs/{run}/cancel"), &json!({}))
        .await?;
    server.reached(run, "cancelled").await?;
    Ok(())
}
