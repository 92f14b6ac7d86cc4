//! Real crontabs become jobs of a real server, and a line does what cron would do.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cueline_test_support::{SOON, try_eventually};
use cueline_tests::Standalone;
use serde_json::Value;

const CRONTABS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/crontabs");

/// The file whose lines seem to differ: some name a user.
const MIXED: &str = "CollectorsQuest__collectorsquest.com.crontab";

/// Schedule lines in the other eleven files.
const JOBS: usize = 65;

/// A group without executors, so that the commands of other people's crontabs never run.
const NO_EXECUTOR: &str = "no-executor";

fn crontabs() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(CRONTABS)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "crontab") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Imports files. Returns the numbers of jobs created, updated and unchanged.
async fn import(server: &Standalone, files: &[PathBuf], more: &[&str]) -> Result<[usize; 3]> {
    let mut args = vec!["import", "crontab", "--tz", "UTC"];
    args.extend(more);
    for file in files {
        args.push(file.to_str().context("a name")?);
    }
    let answer = server.json(&args).await?;
    let refused = &answer["refused"];
    ensure!(refused == &Value::Array(Vec::new()), "refused: {refused}");
    let applied = answer["answer"]["applied"].as_array().context("no list")?;
    let count = |change: &str| applied.iter().filter(|a| a["change"] == change).count();
    let counts = ["created", "updated", "unchanged"].map(count);
    ensure!(counts.iter().sum::<usize>() == applied.len(), "{answer}");
    Ok(counts)
}

async fn jobs(server: &Standalone) -> Result<Vec<Value>> {
    let mut page = server.json(&["job", "list"]).await?;
    serde_json::from_value(page["jobs"].take()).context("no list of jobs")
}

async fn runs_of(server: &Standalone, job: &str) -> Result<Vec<Value>> {
    let mut page = server.json(&["run", "list", "--job", job]).await?;
    serde_json::from_value(page["runs"].take()).context("no list of runs")
}

/// The name of the only job whose definition contains this text.
async fn job_with(server: &Standalone, text: &str) -> Result<String> {
    let jobs = jobs(server).await?;
    let found: Vec<_> = jobs
        .iter()
        .filter(|job| job.to_string().contains(text))
        .filter_map(|job| job["name"].as_str())
        .collect();
    ensure!(found.len() == 1, "{text}: {found:?}");
    Ok(found[0].to_owned())
}

#[tokio::test]
async fn twelve_real_crontabs_are_imported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Standalone::start(&data, &[]).await?;
    let (mixed, files): (Vec<_>, Vec<_>) = crontabs()?
        .into_iter()
        .partition(|path| path.ends_with(MIXED));
    assert_eq!(files.len(), 11);
    let mixed = mixed[0].to_str().context("a name")?;
    let refused = server
        .run(&["import", "crontab", "--tz", "UTC", mixed])
        .await?;
    assert_eq!(refused.status, Some(2), "{refused:#?}");
    assert!(
        refused.stderr.contains("give --user-column yes"),
        "{refused:#?}"
    );
    let group = ["--group", NO_EXECUTOR];
    assert_eq!(import(&server, &files, &group).await?, [JOBS, 0, 0]);
    assert_eq!(import(&server, &files, &group).await?, [0, 0, JOBS]);

    let listed = jobs(&server).await?;
    assert_eq!(listed.len(), JOBS);
    let boot = job_with(&server, "restart-server").await?;
    for job in &listed {
        assert_eq!(job["group"], NO_EXECUTOR, "{job}");
        // Every other job has a next fire time.
        assert_eq!(job["next_fire"].is_null(), job["name"] == *boot, "{job}");
    }
    let next = |name: String| {
        let server = &server;
        async move {
            let args = [
                "job",
                "next",
                &name,
                "-n",
                "1",
                "--from",
                "2027-02-01T00:00:30Z",
            ];
            server
                .json(&args)
                .await
                .map(|next| next["times"][0].clone())
        }
    };
    // Sundays at 03:35; the 18th of the month at 10:00.
    let sunday = next(job_with(&server, "stats:mailchimp").await?).await?;
    assert_eq!(sunday, 1_801_971_300_000_i64);
    let month = next(job_with(&server, "monthly-retro").await?).await?;
    assert_eq!(month, 1_802_944_800_000_i64);

    // An import is not a start of the server; each start creates one run.
    assert_eq!(runs_of(&server, &boot).await?.len(), 0);
    let mut server = server;
    for starts in 1..=2 {
        server.terminate().await?;
        server = Standalone::start(&data, &[]).await?;
        let runs = runs_of(&server, &boot).await?;
        assert_eq!(runs.len(), starts, "{runs:?}");
        assert!(runs.iter().all(|run| run["kind"] == "startup"), "{runs:?}");
    }
    assert_eq!(import(&server, &files, &group).await?, [0, 0, JOBS]);
    Ok(())
}

/// A crontab with variables, `%`, `\%`, standard input and `@reboot`.
fn site_crontab(folder: &Path) -> Result<PathBuf> {
    let file = folder.join("site.crontab");
    let here = folder.display();
    let text = format!(
        "# A site's crontab\n\
         SHELL=/bin/sh\n\
         GREETING=\"good morning\"\n\
         HOME={here}\n\
         30 2 * * * echo \"$GREETING, 100\\% of $(pwd)\"; cat; echo \"path $PATH\"%first line%second \\% line\n\
         GREETING=good night\n\
         0 0 1 1 * echo \"$GREETING\"; exit 3\n\
         @reboot echo started >> {here}/starts\n"
    );
    std::fs::write(&file, text)?;
    Ok(file)
}

#[tokio::test]
async fn a_crontab_line_does_what_cron_would_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Standalone::start(&data, &[]).await?;
    let file = site_crontab(folder.path())?;
    assert_eq!(import(&server, &[file], &[]).await?, [3, 0, 0]);

    let morning = job_with(&server, "first line").await?;
    let output = server
        .run(&["trigger", &morning, "--wait"])
        .await?
        .success()?;
    let id = output.split_whitespace().nth(1).context("no id")?;
    let log = server.run(&["run", "logs", "-f", id]).await?.success()?;
    let lines: Vec<_> = log.lines().collect();
    let greeting = format!("good morning, 100% of {}", folder.path().display());
    assert_eq!(
        lines,
        [
            &greeting,
            "first line",
            "second % line",
            "path /usr/bin:/bin"
        ]
    );

    let night = server
        .run(&["trigger", &job_with(&server, "exit 3").await?, "--wait"])
        .await?;
    assert_eq!(night.status, Some(1), "{night:#?}");
    let night = runs_of(&server, &job_with(&server, "exit 3").await?).await?;
    assert_eq!(
        (&night[0]["state"], &night[0]["exit_status"]),
        (&"failed".into(), &3.into())
    );

    // The `@reboot` line: not run by the import, run once by each start.
    let boot = job_with(&server, "echo started").await?;
    let starts = folder.path().join("starts");
    assert!(!starts.exists());
    let mut server = server;
    for count in 1..=2 {
        server.terminate().await?;
        server = Standalone::start(&data, &[]).await?;
        try_eventually("the startup run has succeeded", SOON, async || {
            let runs = runs_of(&server, &boot).await?;
            let ended = runs.iter().filter(|run| run["state"] == "succeeded");
            let expected = ended.count() == count;
            anyhow::Ok(expected.then_some(()).ok_or(format!("{runs:?}")))
        })
        .await?;
        assert_eq!(std::fs::read_to_string(&starts)?, "started\n".repeat(count));
    }
    Ok(())
}
