//! One action on many jobs or runs, and files that own their jobs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_support::eventually;
use cueline_tests::Standalone;
use serde_json::{Value, json};

/// A group without executors: its runs wait.
const NO_EXECUTOR: &str = "no-executor";

fn job(name: &str, group: &str, label: &str) -> Value {
    json!({
        "name": name,
        "group": group,
        "labels": { "repository": label },
        "schedule": { "manual": true },
        "handler": { "command": ["false"] },
    })
}

/// The names of the jobs in this state.
async fn names(server: &Standalone, state: &str) -> Result<Vec<String>> {
    let page = server.json(&["job", "list", "--state", state]).await?;
    let jobs = page["jobs"].as_array().context("no list")?;
    let names = jobs.iter().filter_map(|job| job["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn is_refused(code: Option<i32>) -> Result<()> {
    ensure!(code == Some(2), "status {code:?}");
    Ok(())
}

#[tokio::test]
async fn what_was_counted_is_changed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Standalone::start(&folder.path().join("data"), &[]).await?;
    let jobs = ["a", "b", "c"].map(|name| job(name, NO_EXECUTOR, "billing"));
    let other = job("other", NO_EXECUTOR, "sales");
    server
        .apply(&json!([jobs[0], jobs[1], jobs[2], other]))
        .await?;
    let filter = ["--label", "repository=billing"];
    let bulk = |verb, more: &'static [&'static str]| [&["bulk", verb], &filter[..], more].concat();

    let dry = server.run(&bulk("pause", &["--dry-run"])).await?;
    assert!(
        dry.stdout.contains("would pause 3 jobs: a, b, c"),
        "{dry:?}"
    );
    let without_yes = server.run(&bulk("pause", &[])).await?;
    is_refused(without_yes.status)?;
    let without_filter = server.run(&["bulk", "pause", "--yes"]).await?;
    is_refused(without_filter.status)?;
    assert_eq!(names(&server, "paused").await?, Vec::<String>::new());

    let paused = server.json(&bulk("pause", &["--yes"])).await?;
    assert_eq!(paused["done"].as_array().map(Vec::len), Some(3), "{paused}");
    assert_eq!(names(&server, "paused").await?, ["a", "b", "c"]);
    let again = server.run(&bulk("pause", &["--yes"])).await?;
    assert!(again.stdout.contains("3 paused already"), "{again:?}");
    server.json(&bulk("resume", &["--yes"])).await?;
    assert_eq!(names(&server, "active").await?, ["a", "b", "c", "other"]);

    // Each change has its entry in the audit log.
    let entries = server.get("/audit?action=job.pause").await?;
    assert_eq!(entries["entries"].as_array().map(Vec::len), Some(3));
    server.terminate().await
}

#[tokio::test]
async fn runs_are_cancelled_and_retried_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Standalone::start(&folder.path().join("data"), &[]).await?;
    let waiting = job("waiting", NO_EXECUTOR, "billing");
    let failing = job("failing", "default", "billing");
    server.apply(&json!([waiting, failing])).await?;
    for name in ["waiting", "failing", "failing"] {
        let body = json!({ "params": "p" });
        server.post(&format!("/jobs/{name}/trigger"), &body).await?;
    }
    let cancelled = ["bulk", "cancel", "--job", "waiting", "--yes"];
    let cancelled = server.json(&cancelled).await?;
    assert_eq!(cancelled["done"].as_array().map(Vec::len), Some(1));
    server.wait_until_all_ended(Duration::from_mins(1)).await?;

    let retry = ["bulk", "retry", "--label", "repository=billing", "--until"];
    let now = server.get("/jobs").await?["now"].to_string();
    let retry = [&retry[..], &[&now, "--yes"]].concat();
    let retried = server.json(&retry).await?;
    assert_eq!(
        retried["done"].as_array().map(Vec::len),
        Some(2),
        "{retried}"
    );
    server.wait_until_all_ended(Duration::from_mins(1)).await?;
    // The same runs again: they were retried before.
    let again = server.run(&retry).await?;
    assert!(again.stdout.contains("2 were retried before"), "{again:?}");
    let runs = server.all_runs().await?;
    let failed: Vec<_> = runs.iter().filter(|run| run["job"] == "failing").collect();
    assert_eq!(failed.len(), 4, "{runs:?}");
    assert!(failed.iter().all(|run| run["params"] == "p"), "{failed:?}");
    server.terminate().await
}

fn write(path: &Path, jobs: &[Value]) -> Result<String> {
    std::fs::write(path, json!({ "jobs": jobs }).to_string())?;
    Ok(path.to_str().context("a name")?.to_owned())
}

#[tokio::test]
async fn files_own_the_jobs_with_their_label() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Standalone::start(&folder.path().join("data"), &[]).await?;
    let by_hand = job("by-hand", NO_EXECUTOR, "sales");
    server.apply(&json!([by_hand])).await?;
    let own = |name: &str| job(name, NO_EXECUTOR, "billing");
    let child = json!({
        "name": "child", "group": NO_EXECUTOR, "labels": { "repository": "billing" },
        "after": "old", "handler": { "command": ["true"] },
    });
    let file = folder.path().join("jobs.json");
    let path = write(&file, &[own("kept"), own("old"), child])?;
    let apply = ["job", "apply", "-f", &path, "--prune", "repository=billing"];
    let yes = [&apply[..], &["--yes"]].concat();
    server.run(&yes).await?.success()?;

    // What the files do not have any more is deleted, the child before its parent.
    write(&file, &[own("kept")])?;
    let dry = server.run(&[&apply[..], &["--dry-run"]].concat()).await?;
    assert!(
        dry.stdout.contains("would delete 2 jobs: child, old"),
        "{dry:?}"
    );
    server.run(&yes).await?.success()?;
    assert_eq!(names(&server, "active").await?, ["by-hand", "kept"]);

    // A job that the files would not own.
    write(&file, &[own("kept"), job("new", NO_EXECUTOR, "sales")])?;
    is_refused(server.run(&yes).await?.status)?;
    assert_eq!(names(&server, "active").await?, ["by-hand", "kept"]);

    // An export is a file that changes nothing.
    let export = folder.path().join("export.json");
    let export = export.to_str().context("a name")?;
    server
        .run(&["job", "export", "--out", export])
        .await?
        .success()?;
    let applied = server.run(&["job", "apply", "-f", export]).await?;
    let unchanged = "0 created, 0 changed, 2 unchanged";
    assert!(applied.stdout.contains(unchanged), "{applied:?}");
    server.terminate().await
}

#[tokio::test]
async fn ended_runs_are_pruned_after_a_count() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Standalone::start(&folder.path().join("data"), &[]).await?;
    let mut own = job("own", "default", "billing");
    own["retention"] = json!({ "logs": "1d" });
    let waiting = job("waiting", NO_EXECUTOR, "billing");
    server.apply(&json!([own, waiting])).await?;
    server.post("/jobs/waiting/trigger", &json!({})).await?;
    for _ in 0..4 {
        server.post("/jobs/own/trigger", &json!({})).await?;
    }
    let ended = async || {
        let listed = server
            .json(&["run", "list", "--job", "own", "--state", "failed"])
            .await?;
        Ok::<_, anyhow::Error>(listed["runs"].as_array().map_or(0, Vec::len))
    };
    eventually(
        "four runs have failed",
        Duration::from_mins(1),
        async || match ended().await {
            Ok(4) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    let prune = |more: &'static [&'static str]| {
        [&["run", "prune", "--label", "repository=billing"], more].concat()
    };
    let dry = server.run(&prune(&["--keep", "1", "--dry-run"])).await?;
    assert!(
        dry.stdout.contains("would prune 3 runs of 1 job: own"),
        "{dry:?}"
    );
    is_refused(server.run(&prune(&[])).await?.status)?;
    is_refused(server.run(&["run", "prune", "--yes"]).await?.status)?;
    is_refused(
        server
            .run(&prune(&["--state", "queued", "--yes"]))
            .await?
            .status,
    )?;
    let old = server.run(&prune(&["--older-than", "1d", "--yes"])).await?;
    assert!(old.stdout.contains("0 runs"), "{old:?}");
    assert_eq!(ended().await?, 4);

    let pruned = server.json(&prune(&["--keep", "1", "--yes"])).await?;
    assert_eq!(pruned, json!({ "deleted": 3, "live": [], "refused": [] }));
    assert_eq!(ended().await?, 1);
    let entries = server.get("/audit?action=run.prune").await?;
    assert_eq!(entries["entries"][0]["object"], "own", "{entries}");

    let set = server
        .run(&["retention", "set", "default", "--runs", "5"])
        .await?;
    assert!(set.stdout.contains("the newest 5 runs"), "{set:?}");
    let shown = server.run(&["job", "show", "own"]).await?;
    for part in [
        "7d (set for the server)",
        "the newest 5 runs (set for its group)",
        "logs 1d (set by the job)",
    ] {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    server.terminate().await
}
