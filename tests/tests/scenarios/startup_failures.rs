//! A server that cannot start prints the error and advice, ends with a status other than 0, and never panics. The
//! advice works.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_servers::free_port;
use cueline_test_support::{SOON, try_eventually};
use cueline_tests::execution_log::{Entry, Event};
use cueline_tests::standalone::{command, process};
use cueline_tests::{ExecutionLog, Finished, Standalone, Tmpfs, finish, program};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

/// A server that cannot start ends within this time.
const FAILED_WITHIN: Duration = Duration::from_mins(1);

/// A server that cannot start, its status, and words of its message.
struct Case<'a> {
    data: &'a Path,
    extra: &'a [&'a str],
    status: i32,
    words: &'a [&'a str],
}

/// Starts the server and compares.
async fn expect_failure(case: &Case<'_>) -> Result<Finished> {
    expect_failure_on(case, free_port()?).await
}

async fn expect_failure_on(case: &Case<'_>, port: u16) -> Result<Finished> {
    let (data, extra) = (case.data, case.extra);
    let server = finish(command(data, port, extra)?, FAILED_WITHIN).await?;
    let shown = || format!("{} {extra:?}: {server:#?}", data.display());
    ensure!(!server.stderr.contains("panicked"), "a panic: {}", shown());
    ensure!(server.status == Some(case.status), "status: {}", shown());
    ensure!(server.stderr.contains("error: "), "no error: {}", shown());
    for word in case.words {
        ensure!(server.stderr.contains(word), "no {word:?}: {}", shown());
    }
    Ok(server)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

#[tokio::test]
async fn a_data_path_that_is_not_a_directory_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("notes");
    std::fs::write(&file, "mine")?;
    let below = file.join("data");
    for (data, words) in [
        (&file, &["--data", text(&file), "is not a directory"][..]),
        (
            &below,
            &["--data", text(&below), "failed to create the directory"],
        ),
    ] {
        let case = Case {
            data,
            extra: &[],
            status: 1,
            words,
        };
        expect_failure(&case).await?;
    }
    assert_eq!(std::fs::read_to_string(&file)?, "mine");
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_and_job_files_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let jobs = folder.path().join("jobs.toml");
    std::fs::write(
        &jobs,
        "[[job]]\nname = \"a b\"\nschedule = { evry = \"1s\" }\nhandler = { shell = \"true\" }\n\n\
         [[job]]\nname = \"c\"\nschedule = { cron = \"61 * * * *\" }\nhandler = { shell = \"true\" }\n",
    )?;
    let orphan = folder.path().join("orphan.toml");
    std::fs::write(
        &orphan,
        "[[job]]\nname = \"child\"\nafter = \"missing-parent\"\nhandler = { shell = \"true\" }\n",
    )?;
    for (extra, words) in [
        (
            &["--allow", "nonsense"][..],
            &["--allow", "\"nonsense\"", "shell, command, http"][..],
        ),
        (&["--workers", "0"], &["--workers", "1..=64"]),
        (&["--group", "a b"], &["--group", "not allowed"]),
        (&["--keep", "soon"], &["--keep", "soon"]),
        (
            &["--jobs", text(&jobs)],
            &[
                "jobs.toml:2: job \"a b\": name",
                "jobs.toml:3:",
                "did you mean \"every\"?",
                "jobs.toml:8: job \"c\": schedule.cron",
                "minute 61",
                "nothing was applied",
            ],
        ),
        (
            &["--jobs", "/nowhere/jobs.toml"],
            &["/nowhere/jobs.toml", "failed to read"],
        ),
    ] {
        let case = Case {
            data: &data,
            extra,
            status: 2,
            words,
        };
        expect_failure(&case).await?;
        assert!(!data.exists(), "{extra:?} created the data directory");
    }
    // Only the store knows that there is no such parent.
    let case = Case {
        data: &data,
        extra: &["--jobs", text(&orphan)],
        status: 2,
        words: &["--jobs", "child", "missing-parent"],
    };
    expect_failure(&case).await?;
    Ok(())
}

#[tokio::test]
async fn a_port_or_a_directory_in_use_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let first = Standalone::start(&data, &[]).await?;
    let pid = first.pid()?.to_string();
    let case = Case {
        data: &data,
        extra: &[],
        status: 1,
        words: &[
            "--data",
            &format!("in use by process {pid};"),
            "a data directory of its own",
        ],
    };
    expect_failure(&case).await?;

    let other = folder.path().join("other");
    let port: u16 = first.url().rsplit(':').next().context("a port")?.parse()?;
    let case = Case {
        data: &other,
        extra: &[],
        status: 1,
        words: &[
            &format!("--listen 127.0.0.1:{port}"),
            "something else",
            "in use",
        ],
    };
    expect_failure_on(&case, port).await?;
    // The first server is not disturbed.
    first.get("/stats").await?;
    first.terminate().await
}

#[tokio::test]
async fn readable_empty_or_malformed_secrets_are_handled() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let first = Standalone::start(&data, &[]).await?;
    let old = first.token().to_owned();
    first.terminate().await?;

    let token = data.join("admin.token");
    let open = |mode| std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode));
    for mode in [0o644, 0o640, 0o604] {
        open(mode)?;
        let case = Case {
            data: &data,
            extra: &[],
            status: 1,
            words: &[
                &format!("(mode {mode:o})"),
                &format!("run: chmod 600 {}", text(&token)),
            ],
        };
        expect_failure(&case).await?;
    }
    open(0o600)?;

    // An earlier start ended while it created the token: the token is created again, for its owner only.
    std::fs::write(&token, "")?;
    let second = Standalone::start(&data, &[]).await?;
    assert!(second.token().len() >= 32 && second.token() != old);
    let mode = std::fs::metadata(&token)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    second.get("/stats").await?;
    second.terminate().await?;

    let key = data.join("signing.key");
    std::fs::write(&key, "this is not a key")?;
    let case = Case {
        data: &data,
        extra: &[],
        status: 1,
        words: &[text(&key), "not a signing key", "delete it"],
    };
    expect_failure(&case).await?;
    Ok(())
}

#[tokio::test]
async fn a_read_only_directory_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let Some(disk) = Tmpfs::mount(&data, 8_192)? else {
        return Ok(());
    };
    Standalone::start(&data, &[]).await?.terminate().await?;
    disk.make_read_only()?;
    let below = data.join("below");
    for data in [&data, &below] {
        let case = Case {
            data,
            extra: &[],
            status: 1,
            words: &["--data", text(data), "Read-only file system"],
        };
        expect_failure(&case).await?;
    }
    Ok(())
}

/// A kind of damage to a database file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// It ends too early, within a page.
    Truncated,
    /// It is no database.
    Garbage,
    /// Only its header is intact.
    Hollow,
    /// A newer program has migrated it.
    Newer,
    /// It belongs to another program.
    OtherProgram,
}

impl Damage {
    const ALL: [Self; 5] = [
        Self::Truncated,
        Self::Garbage,
        Self::Hollow,
        Self::Newer,
        Self::OtherProgram,
    ];

    async fn apply(self, file: &Path) -> Result<()> {
        let mut bytes = std::fs::read(file)?;
        ensure!(bytes.len() > 8_192, "{}: too small", file.display());
        match self {
            Self::Truncated => bytes.truncate(bytes.len() - 5_000),
            Self::Garbage => bytes.fill(0xa5),
            Self::Hollow => bytes[100..].fill(0xa5),
            Self::Newer => return sql(file, "PRAGMA user_version = 99").await,
            Self::OtherProgram => {
                std::fs::remove_file(file)?;
                return sql(file, "CREATE TABLE notes (text); PRAGMA user_version = 1").await;
            }
        }
        Ok(std::fs::write(file, bytes)?)
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Truncated | Self::Hollow => &["malformed"],
            Self::Garbage => &["not a database"],
            Self::Newer => &["version 99", "newer program"],
            Self::OtherProgram => &["database of another program"],
        }
    }
}

/// Runs a statement on the file. Afterwards its write-ahead log is empty.
async fn sql(file: &Path, statement: &'static str) -> Result<()> {
    let url = format!("sqlite://{}?mode=rwc", file.display());
    let mut connection = SqliteConnection::connect(&url).await?;
    sqlx::raw_sql(statement).execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

fn remove(file: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(PathBuf::from(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    Ok(())
}

const BACKLOG: usize = 5;

/// How a server ended.
#[derive(Clone, Copy, PartialEq)]
enum Stopped {
    Terminated,
    Killed,
}

/// Creates the data directory of a server that ended while one run was running and the others waited.
async fn leave_unfinished_runs(data: &Path, log: &ExecutionLog, how: Stopped) -> Result<()> {
    let server = Standalone::start(data, &[]).await?;
    let handler =
        json!({ "command": [program::test_command().to_str(), log.path().to_str(), "700"] });
    server
        .apply(&json!([{ "name": "slow", "schedule": { "manual": true }, "block": "serial", "handler": handler }]))
        .await?;
    for _ in 0..BACKLOG {
        server.post("/jobs/slow/trigger", &Value::Null).await?;
    }
    try_eventually("one runs and the others wait", SOON, async || {
        let counts = server.get("/stats").await?["live"].take();
        // On a loaded machine the first may have ended before they are counted.
        let one_runs = counts["running"] == 1 && counts["queued"].as_u64() > Some(0);
        anyhow::Ok(one_runs.then_some(()).ok_or(counts))
    })
    .await?;
    match how {
        Stopped::Terminated => server.terminate().await?,
        Stopped::Killed => server.kill().await?,
    }
    let ends = ends(log, None)?;
    ensure!(ends < BACKLOG, "no run is left: {ends} ends");
    for file in ["store.db", "queue.db", JOURNAL] {
        // Opening and closing copies the write-ahead log into the file.
        sql(&data.join(file), "SELECT count(*) FROM sqlite_schema").await?;
    }
    Ok(())
}

const JOURNAL: &str = "executors/worker-1/journal.db";

/// How often a handler ran to its end, of one run or of all.
fn ends(log: &ExecutionLog, run: Option<i64>) -> Result<usize> {
    let entries = log.entries()?;
    let of = |entry: &&Entry| entry.event == Event::End && run.is_none_or(|run| entry.run == run);
    Ok(entries.iter().filter(of).count())
}

/// `lost` runs ended lost. Each other one succeeded and was executed once.
async fn check_all_ended(server: &Standalone, log: &ExecutionLog, lost: usize) -> Result<()> {
    server
        .wait_until_all_ended(Duration::from_secs(100))
        .await?;
    let runs = server.all_runs().await?;
    ensure!(runs.len() == BACKLOG, "{} runs", runs.len());
    let (ended_lost, others): (Vec<_>, Vec<_>) =
        runs.iter().partition(|run| run["state"] == "lost");
    ensure!(ended_lost.len() == lost, "lost: {ended_lost:?}");
    for run in others {
        ensure!(run["state"] == "succeeded", "{run}");
        let ends = ends(log, run["id"].as_i64())?;
        ensure!(ends == 1, "executed {ends} times: {run}");
    }
    let entries = log.entries()?;
    let overlap = entries.iter().find(|e| e.event == Event::Overlap);
    ensure!(overlap.is_none(), "{overlap:?}");
    Ok(())
}

/// Damages a file of an intact directory in each way. The message names the file and the damage.
async fn check_each_damage(data: &Path, name: &str, hint: &str) -> Result<()> {
    let file = data.join(name);
    let good = std::fs::read(&file)?;
    for damage in Damage::ALL {
        remove(&file)?;
        std::fs::write(&file, &good)?;
        damage.apply(&file).await?;
        let before = std::fs::read(&file)?;
        let mut words = vec![text(&file)];
        words.extend(damage.words());
        // A file of another or a newer program has advice of its own.
        words.extend(
            [hint]
                .iter()
                .filter(|_| !matches!(damage, Damage::Newer | Damage::OtherProgram)),
        );
        let case = Case {
            data,
            extra: &[],
            status: 1,
            words: &words,
        };
        expect_failure(&case)
            .await
            .with_context(|| format!("{name} {damage:?}"))?;
        if std::fs::read(&file)? != before {
            bail!("{name} {damage:?}: the file was changed");
        }
    }
    remove(&file)
}

#[tokio::test]
async fn a_damaged_store_is_refused_and_a_backup_restores_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let log = ExecutionLog::in_folder(folder.path());
    leave_unfinished_runs(&data, &log, Stopped::Terminated).await?;
    let store = data.join("store.db");
    let backup = std::fs::read(&store)?;
    check_each_damage(&data, "store.db", "restore it from a backup").await?;

    // The advice: with the file of a backup every run succeeds.
    std::fs::write(&store, backup)?;
    let server = Standalone::start(&data, &[]).await?;
    check_all_ended(&server, &log, 0).await
}

#[tokio::test]
async fn a_damaged_queue_is_refused_and_rebuilt_without_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let log = ExecutionLog::in_folder(folder.path());
    leave_unfinished_runs(&data, &log, Stopped::Terminated).await?;
    check_each_damage(&data, "queue.db", "move it away").await?;

    // The advice: without the file, its triggers are published again.
    let server = Standalone::start(&data, &[]).await?;
    check_all_ended(&server, &log, 0).await
}

#[tokio::test]
async fn a_damaged_journal_is_refused_and_rebuilt_without_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let log = ExecutionLog::in_folder(folder.path());
    leave_unfinished_runs(&data, &log, Stopped::Killed).await?;
    check_each_damage(&data, JOURNAL, "move the file away").await?;

    // The advice: without the file, the attempt that had started ends lost. The others are published again.
    let server = Standalone::start(&data, &[]).await?;
    check_all_ended(&server, &log, 1).await
}

/// Only requests over TLS need the certificates of authorities. Their attempts say what is missing.
#[tokio::test]
async fn a_machine_without_certificates_runs_all_but_requests_over_tls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, port) = (folder.path().join("data"), free_port()?);
    let process = process(&data, port, &["--allow", "http", "--allow", "shell"])?
        .env("SSL_CERT_FILE", folder.path().join("missing"))
        .env("SSL_CERT_DIR", folder.path().join("missing"));
    let server = Standalone::launch(process, &data, port).await?;
    let manual = json!({ "manual": true });
    let get = |url: String| json!({ "http": { "method": "GET", "url": url } });
    let ready = format!("{}/readyz", server.url());
    let jobs = json!([
        { "name": "other", "schedule": manual, "handler": { "shell": "true" } },
        { "name": "plain", "schedule": manual, "handler": get(ready.clone()) },
        { "name": "tls", "schedule": manual, "handler": get(ready.replace("http:", "https:")) },
    ]);
    server.apply(&jobs).await?;
    for job in ["other", "plain", "tls"] {
        let trigger = format!("/jobs/{job}/trigger");
        server.post(&trigger, &json!({})).await?;
    }
    server.wait_until_all_ended(FAILED_WITHIN).await?;
    let runs = server.all_runs().await?;
    let run = |job: &str| runs.iter().find(|run| run["job"] == job);
    for job in ["other", "plain"] {
        ensure!(
            run(job).is_some_and(|run| run["state"] == "succeeded"),
            "{runs:?}"
        );
    }
    let request = run("tls").context("no request")?;
    let message = request["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("TLS") && message.contains("no certificates of authorities"),
        "{request}"
    );
    server.terminate().await
}
