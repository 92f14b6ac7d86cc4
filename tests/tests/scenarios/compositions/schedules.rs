//! When jobs fire, and when they do not.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::server::{Server, count, fire_at};

pub(super) async fn each_kind_of_schedule_fires(server: &Server) -> Result<()> {
    let once = (server.now().await? / 1_000 + 2) * 1_000;
    let job = |name: &str, schedule: &Value| json!({ "name": name, "schedule": schedule, "handler": { "shell": "true" } });
    server
        .apply(&json!([
            job("cron", &json!({ "cron": "*/2 * * * * *" })),
            job("rate", &json!({ "every": "700ms" })),
            job("delay", &json!({ "after": "500ms" })),
            job("once", &json!({ "at": once })),
            job("several", &json!([{ "every": "2s" }, { "every": "3s" }])),
        ]))
        .await?;
    for (job, least) in [
        ("cron", 2),
        ("rate", 3),
        ("delay", 3),
        ("once", 1),
        ("several", 3),
    ] {
        let runs = server.until(job, "fires", |runs| count(runs, "succeeded") >= least);
        for pair in runs.await?.windows(2) {
            let (earlier, later) = (&pair[0], &pair[1]);
            match job {
                "delay" => {
                    let ended = earlier["ended_at"].as_i64();
                    ensure!(
                        ended.is_some_and(|at| fire_at(later) >= at + 500),
                        "{pair:?}"
                    );
                }
                _ => ensure!(fire_at(earlier) < fire_at(later), "{pair:?}"),
            }
        }
    }
    for (job, grid) in [("cron", 2_000), ("rate", 700)] {
        let runs = server.runs(job).await?;
        ensure!(runs.iter().all(|run| fire_at(run) % grid == 0), "{runs:?}");
    }
    let runs = server.runs("once").await?;
    ensure!(runs.len() == 1 && fire_at(&runs[0]) == once, "{runs:?}");
    for job in ["cron", "rate", "delay", "several"] {
        delete(server, job).await?;
    }
    Ok(())
}

/// Excluded fire times of the job are skipped with this reason, and none of those times fires.
async fn is_silent(server: &Server, job: &str, times: Range<i64>, reason: &str) -> Result<()> {
    let skipped = server.until(job, "an excluded fire time is skipped", |runs| {
        runs.iter().any(|run| {
            let says = run["message"].as_str().is_some_and(|m| m.contains(reason));
            run["state"] == "skipped" && says
        })
    });
    let runs = skipped.await?;
    let fired: Vec<&Value> = runs
        .iter()
        .filter(|run| times.contains(&fire_at(run)) && run["state"] != "skipped")
        .collect();
    ensure!(fired.is_empty(), "fired in {times:?}: {fired:?}");
    Ok(())
}

async fn fires_again(server: &Server, job: &str) -> Result<()> {
    let since = server.now().await?;
    let fires = |runs: &[Value]| {
        let new = |run: &&Value| run["state"] == "succeeded" && fire_at(run) > since;
        runs.iter().any(|run| new(&run))
    };
    server.until(job, "fires again", fires).await?;
    Ok(())
}

pub(super) async fn a_calendar_excludes_fire_times(server: &Server) -> Result<()> {
    let calendar = |dates: &Value| json!({ "calendars": [{ "name": "freeze", "dates": dates }] });
    let all = calendar(&json!(["2020-01-01/2099-12-31"]));
    let none = calendar(&json!(["2001-01-01"]));
    server.post("/calendars/apply", &none).await?;
    server
        .apply(&json!([{
            "name": "in-calendar", "schedule": { "every": "500ms" }, "calendars": ["freeze"],
            "handler": { "shell": "true" },
        }]))
        .await?;
    fires_again(server, "in-calendar").await?;
    server.post("/calendars/apply", &all).await?;
    let times = server.now().await? + 1..i64::MAX;
    is_silent(
        server,
        "in-calendar",
        times,
        "excluded by calendar \"freeze\"",
    )
    .await?;
    server.post("/calendars/apply", &none).await?;
    fires_again(server, "in-calendar").await?;
    delete(server, "in-calendar").await
}

async fn delete(server: &Server, job: &str) -> Result<()> {
    server.run(&["job", "delete", job]).await?.success()?;
    Ok(())
}

pub(super) async fn a_maintenance_window_excludes_fire_times(server: &Server) -> Result<()> {
    server
        .apply(&json!([{
            "name": "in-window", "schedule": { "every": "500ms" }, "labels": { "tier": "window" },
            "handler": { "shell": "true" },
        }]))
        .await?;
    fires_again(server, "in-window").await?;
    let window = json!({
        "labels": { "tier": "window" }, "cron": "* * * * *", "duration": "2m", "reason": "upgrade",
    });
    let added = server.post("/windows", &window).await?;
    ensure!(added["jobs"] == 1, "{added}");
    let times = server.now().await? + 1..i64::MAX;
    is_silent(server, "in-window", times, "upgrade").await?;
    let id = added["id"].to_string();
    server.run(&["window", "delete", &id]).await?.success()?;
    fires_again(server, "in-window").await?;
    delete(server, "in-window").await
}

pub(super) async fn a_job_is_paused_and_resumed(server: &Server) -> Result<()> {
    let job = |name: &str| json!({ "name": name, "schedule": { "every": "500ms" }, "handler": { "shell": "true" } });
    server.apply(&json!([job("paused"), job("beside")])).await?;
    fires_again(server, "paused").await?;
    server.post("/jobs/paused/pause", &Value::Null).await?;
    let since = server.now().await?;
    fires_again(server, "beside").await?;
    fires_again(server, "beside").await?;
    let runs = server.runs("paused").await?;
    ensure!(runs.iter().all(|run| fire_at(run) <= since), "{runs:?}");
    server.post("/jobs/paused/resume", &Value::Null).await?;
    fires_again(server, "paused").await?;
    delete(server, "paused").await?;
    delete(server, "beside").await
}

pub(super) async fn several_jobs_are_paused_and_go_on_by_themselves(server: &Server) -> Result<()> {
    let job = |name: &str| {
        json!({
            "name": name, "schedule": { "every": "500ms" }, "labels": { "tier": "pause" },
            "handler": { "shell": "true" },
        })
    };
    server
        .apply(&json!([job("several-a"), job("several-b")]))
        .await?;
    fires_again(server, "several-a").await?;
    let pause = json!({ "labels": { "tier": "pause" }, "reason": "incident 4711", "for": "4s" });
    // It lasts longer, by the time that the request takes.
    let until = server.now().await? + 4_000;
    let paused = server.post("/pauses", &pause).await?;
    ensure!(paused["jobs"] == 2, "{paused}");
    let since = server.now().await?;
    for job in ["several-a", "several-b"] {
        is_silent(server, job, since + 1..until, "incident 4711").await?;
    }
    fires_again(server, "several-b").await?;
    delete(server, "several-a").await?;
    delete(server, "several-b").await
}

pub(super) async fn a_backfill_runs_each_fire_time_once(server: &Server) -> Result<()> {
    server
        .apply(&json!([{
            "name": "hourly", "schedule": { "cron": "0 * * * *" }, "block": { "parallel": 4 },
            "handler": { "shell": "echo $CUELINE_FIRE_TIME_MS" },
        }]))
        .await?;
    let window =
        json!({ "from": "2025-01-01T00:00:00Z", "to": "2025-01-01T12:00:00Z", "parallel": 4 });
    let started = server.post("/jobs/hourly/backfills", &window).await?;
    ensure!(started["fires"] == 12, "{started}");
    let all = server.until("hourly", "all fire times are done", |runs| {
        count(runs, "succeeded") >= 12
    });
    let runs = all.await?;
    let fires: BTreeSet<i64> = runs.iter().map(fire_at).collect();
    ensure!(runs.len() == 12 && fires.len() == 12, "{runs:?}");
    for run in &runs {
        ensure!(run["kind"] == "backfill", "{run}");
        let fire_at = fire_at(run).to_string();
        ensure!(run["output"].as_str() == Some(fire_at.as_str()), "{run}");
    }
    Ok(())
}
