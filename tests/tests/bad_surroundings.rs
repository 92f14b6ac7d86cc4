//! A server in bad surroundings says what is wrong and what to do, ends with a status that is not 0, and never panics. What it advises works.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_tests::standalone::{bare_command, free_port};
use cueline_tests::witness::{Note, What};
use cueline_tests::{Ended, Standalone, Tmpfs, Witness, ended, until, witness};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

/// What a server that does not start may take to say so.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// A server that must not come to life, and what it is to say.
struct Case<'a> {
    data: &'a Path,
    extra: &'a [&'a str],
    status: i32,
    words: &'a [&'a str],
}

/// Starts it, and compares.
async fn refused(case: &Case<'_>) -> Result<Ended> {
    refused_on(case, free_port()?).await
}

async fn refused_on(case: &Case<'_>, port: u16) -> Result<Ended> {
    let (data, extra) = (case.data, case.extra);
    let ended = ended(bare_command(data, port, extra), REFUSED_WITHIN).await?;
    let said = || format!("{} {extra:?}: {ended:#?}", data.display());
    ensure!(!ended.stderr.contains("panicked"), "a panic: {}", said());
    ensure!(ended.status == Some(case.status), "status: {}", said());
    ensure!(ended.stderr.contains("error: "), "no error: {}", said());
    for word in case.words {
        ensure!(ended.stderr.contains(word), "no {word:?}: {}", said());
    }
    Ok(ended)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

#[tokio::test]
async fn data_paths_that_are_no_directories() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("notes");
    std::fs::write(&file, "mine")?;
    let below = file.join("data");
    for (data, words) in [
        (&file, &["--data", text(&file), "is not a directory"][..]),
        (&below, &["--data", text(&below), "failed to make"]),
    ] {
        let case = Case {
            data,
            extra: &[],
            status: 1,
            words,
        };
        refused(&case).await?;
    }
    assert_eq!(std::fs::read_to_string(&file)?, "mine");
    Ok(())
}

#[tokio::test]
async fn arguments_and_job_files_that_are_wrong() -> Result<()> {
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
        "[[job]]\nname = \"child\"\nafter = \"nobody\"\nhandler = { shell = \"true\" }\n",
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
        refused(&case).await?;
        assert!(!data.exists(), "{extra:?} left something behind");
    }
    // What only the store can know: there is no such parent.
    let case = Case {
        data: &data,
        extra: &["--jobs", text(&orphan)],
        status: 2,
        words: &["--jobs", "child", "nobody"],
    };
    refused(&case).await?;
    Ok(())
}

#[tokio::test]
async fn a_port_or_a_directory_that_another_process_has() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let first = Standalone::start(&data, &[]).await?;
    let pid = first.pid().context("it runs")?.to_string();
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
    refused(&case).await?;

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
    refused_on(&case, port).await?;
    // The first one has not noticed.
    first.get("/stats").await?;
    assert_eq!(first.terminate().await?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn secrets_that_are_open_empty_or_nonsense() -> Result<()> {
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
        refused(&case).await?;
    }
    open(0o600)?;

    // The start before was cut short while it made the token: it is made again, for its owner only.
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
    refused(&case).await?;
    Ok(())
}

#[tokio::test]
async fn a_directory_that_cannot_be_written() -> Result<()> {
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
        refused(&case).await?;
    }
    Ok(())
}

/// What a file may be instead of what it should be.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// It ends too early, within a page.
    Truncated,
    /// It has nothing of a database.
    Garbage,
    /// Its header is good and nothing else is.
    Hollow,
    /// A newer program has been here.
    Newer,
    /// It is somebody else's.
    Foreign,
}

impl Damage {
    const ALL: [Self; 5] = [
        Self::Truncated,
        Self::Garbage,
        Self::Hollow,
        Self::Newer,
        Self::Foreign,
    ];

    async fn inflict(self, file: &Path) -> Result<()> {
        let mut bytes = std::fs::read(file)?;
        ensure!(bytes.len() > 8_192, "{}: too small", file.display());
        match self {
            Self::Truncated => bytes.truncate(bytes.len() - 5_000),
            Self::Garbage => bytes.fill(0xa5),
            Self::Hollow => bytes[100..].fill(0xa5),
            Self::Newer => return sql(file, "PRAGMA user_version = 99").await,
            Self::Foreign => {
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
            Self::Foreign => &["database of another program"],
        }
    }
}

/// Runs a statement on the file, which is whole when this returns: nothing is left in a log beside it.
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

/// How a server came to its end.
#[derive(Clone, Copy, PartialEq)]
enum Stopped {
    Asked,
    Killed,
}

/// A data directory of a server that ended while it had things to do: one run under way, the others behind it.
async fn left_at_work(data: &Path, witness: &Witness, how: Stopped) -> Result<()> {
    let server = Standalone::start(data, &[]).await?;
    let handler =
        json!({ "command": [witness::program().to_str(), witness.path().to_str(), "700"] });
    server
        .apply(&json!([{ "name": "slow", "schedule": { "manual": true }, "block": "serial", "handler": handler }]))
        .await?;
    for _ in 0..BACKLOG {
        server.post("/jobs/slow/trigger", &Value::Null).await?;
    }
    until("all but one wait", Duration::from_secs(30), async || {
        let counts = server.get("/stats").await?["live"].take();
        Ok((counts == json!({ "queued": BACKLOG - 1, "running": 1 })).then_some(()))
    })
    .await?;
    match how {
        Stopped::Asked => ensure!(server.terminate().await?.code() == Some(0), "it failed"),
        Stopped::Killed => server.kill().await?,
    }
    let ends = ends(witness, None)?;
    ensure!(ends < BACKLOG, "nothing is left to do: {ends} ends");
    for file in ["store.db", "queue.db", JOURNAL] {
        // Opened and closed: what is in the log beside the file goes into it.
        sql(&data.join(file), "SELECT count(*) FROM sqlite_schema").await?;
    }
    Ok(())
}

const JOURNAL: &str = "executors/worker-1/journal.db";

/// How often a handler came to its end, of one run or of all.
fn ends(witness: &Witness, run: Option<i64>) -> Result<usize> {
    let notes = witness.notes()?;
    let of = |note: &&Note| note.what == What::End && run.is_none_or(|run| note.run == run);
    Ok(notes.iter().filter(of).count())
}

/// All that was asked for has happened: once, or for `most` of them at the most oftener.
async fn all_done(server: &Standalone, witness: &Witness, most: usize) -> Result<()> {
    server.quiet(Duration::from_secs(100)).await?;
    let runs = server.all_runs().await?;
    ensure!(runs.len() == BACKLOG, "{} runs", runs.len());
    let mut oftener = 0;
    for run in &runs {
        ensure!(run["state"] == "succeeded", "{run}");
        let ends = ends(witness, run["id"].as_i64())?;
        ensure!(ends > 0, "it never ended: {run}");
        oftener += usize::from(ends > 1);
    }
    ensure!(oftener <= most, "{oftener} ran oftener than once");
    let notes = witness.notes()?;
    let odd = notes.iter().find(|n| n.what == What::Overlap);
    ensure!(odd.is_none(), "{odd:?}");
    Ok(())
}

/// Inflicts each damage on a file of a good directory; the complaint names the file and what is wrong with it.
async fn every_damage(data: &Path, name: &str, hint: &str) -> Result<()> {
    let file = data.join(name);
    let good = std::fs::read(&file)?;
    for damage in Damage::ALL {
        remove(&file)?;
        std::fs::write(&file, &good)?;
        damage.inflict(&file).await?;
        let before = std::fs::read(&file)?;
        let mut words = vec![text(&file)];
        words.extend(damage.words());
        // Somebody else's and newer ones have advice of their own.
        words.extend(
            [hint]
                .iter()
                .filter(|_| !matches!(damage, Damage::Newer | Damage::Foreign)),
        );
        let case = Case {
            data,
            extra: &[],
            status: 1,
            words: &words,
        };
        refused(&case)
            .await
            .with_context(|| format!("{name} {damage:?}"))?;
        if std::fs::read(&file)? != before {
            bail!("{name} {damage:?}: the file was changed");
        }
    }
    remove(&file)
}

#[tokio::test]
async fn a_damaged_store() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, witness) = (
        folder.path().join("data"),
        Witness::in_folder(folder.path()),
    );
    left_at_work(&data, &witness, Stopped::Asked).await?;
    let store = data.join("store.db");
    let backup = std::fs::read(&store)?;
    every_damage(&data, "store.db", "restore it from a backup").await?;

    // The advice: with the file of a backup all goes on.
    std::fs::write(&store, backup)?;
    let server = Standalone::start(&data, &[]).await?;
    all_done(&server, &witness, 0).await?;
    Ok(())
}

#[tokio::test]
async fn a_damaged_queue() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, witness) = (
        folder.path().join("data"),
        Witness::in_folder(folder.path()),
    );
    left_at_work(&data, &witness, Stopped::Asked).await?;
    every_damage(&data, "queue.db", "move it away").await?;

    // The advice: without the file, all that was in it comes again.
    let server = Standalone::start(&data, &[]).await?;
    all_done(&server, &witness, 0).await?;
    Ok(())
}

#[tokio::test]
async fn a_damaged_journal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, witness) = (
        folder.path().join("data"),
        Witness::in_folder(folder.path()),
    );
    left_at_work(&data, &witness, Stopped::Killed).await?;
    every_damage(&data, JOURNAL, "move it away").await?;

    // The advice: without the file, what it held comes again, and the one that had started may run again.
    let server = Standalone::start(&data, &[]).await?;
    all_done(&server, &witness, 1).await?;
    Ok(())
}
