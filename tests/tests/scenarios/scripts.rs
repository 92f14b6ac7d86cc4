//! Scripts by the commands that a user types: saved, run, changed, compared, restored.

use std::path::Path;

use anyhow::{Result, ensure};
use cueline_tests::Standalone;
use serde_json::Value;

const FILE: &str = r#"
[[script]]
name = "greet"
language = "sh"
file = "scripts/greet.sh"
remark = "first"

[[job]]
name = "newest"
schedule = { manual = true }
handler = { script = { name = "greet", env = { NAME = "Ann" } } }
params = "hello"

[[job]]
name = "pinned"
schedule = { manual = true }
handler = { script = "greet", version = 1 }
"#;

const FIRST: &str = "echo \"$1 $NAME, shard $2 of $3\"\n";
const SECOND: &str = "echo \"$CUELINE_PARAMS again\"\nexit 3\n";

/// What a run of the job printed last, and the state in which it ended.
async fn run(server: &Standalone, job: &str) -> Result<(String, String)> {
    let triggered = server
        .run(&["trigger", job, "--wait", "-o", "json"])
        .await?;
    let answer: Value = serde_json::from_str(&triggered.stdout)?;
    let run = &answer["runs"][0];
    let logs = server.get(&format!("/runs/{}/logs", run["id"])).await?;
    let lines = logs["lines"].as_array().cloned().unwrap_or_default();
    let line = lines
        .last()
        .map_or("", |line| line["text"].as_str().unwrap_or_default());
    let state = run["state"].as_str().unwrap_or_default();
    Ok((state.to_owned(), line.to_owned()))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
    Ok(std::fs::write(path, text)?)
}

#[tokio::test]
async fn jobs_run_the_newest_version_or_the_one_they_are_pinned_to() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Standalone::start(&folder.path().join("data"), &[]).await?;
    write(folder.path(), "scripts/greet.sh", FIRST)?;
    write(folder.path(), "jobs.toml", FILE)?;
    let file = folder.path().join("jobs.toml");
    let file = file.to_str().unwrap_or_default();
    let compared = server.run(&["job", "diff", "-f", file]).await?;
    ensure!(compared.stdout.contains("+ script greet"), "{compared:?}");
    ensure!(
        compared
            .stdout
            .contains("? newest uses a new calendar or script"),
        "{compared:?}"
    );
    let applied = server.run(&["job", "apply", "-f", file]).await?;
    ensure!(
        applied.stdout.contains("created   script greet"),
        "{applied:?}"
    );
    assert_eq!(
        run(&server, "newest").await?,
        ("succeeded".to_owned(), "hello Ann, shard 0 of 1".to_owned())
    );

    write(folder.path(), "second.sh", SECOND)?;
    let second = folder.path().join("second.sh");
    let second = second.to_str().unwrap_or_default();
    let saved = server
        .run(&["script", "save", "greet", "-f", second, "--remark", "fails"])
        .await?;
    ensure!(saved.stdout.contains("is saved as version 2"), "{saved:?}");
    assert_eq!(
        run(&server, "newest").await?,
        ("failed".to_owned(), "hello again".to_owned())
    );
    assert_eq!(
        run(&server, "pinned").await?,
        ("succeeded".to_owned(), " , shard 0 of 1".to_owned())
    );

    let shown = server.run(&["script", "show", "greet"]).await?;
    ensure!(
        shown.stdout.contains("newest, pinned (version 1)"),
        "{shown:?}"
    );
    ensure!(shown.stdout.ends_with("exit 3\n"), "{shown:?}");
    let text = server
        .run(&["script", "show", "greet", "--version", "1", "--text"])
        .await?;
    assert_eq!(text.stdout, FIRST);
    let difference = server.run(&["script", "diff", "greet", "1"]).await?;
    ensure!(difference.stdout.contains("+exit 3"), "{difference:?}");
    let late = ["script", "save", "greet", "-f", second, "--if-version", "1"];
    let late = server.run(&late).await?;
    ensure!(late.status == Some(1), "{late:?}");
    let restored = server.run(&["script", "restore", "greet", "1"]).await?;
    ensure!(
        restored.stdout.contains("is restored as version 3"),
        "{restored:?}"
    );
    assert_eq!(run(&server, "newest").await?.1, "hello Ann, shard 0 of 1");
    let history = server.run(&["script", "history", "greet"]).await?;
    for words in ["version 1 again", "fails", "first"] {
        ensure!(history.stdout.contains(words), "{words}: {history:?}");
    }
    let exported = server.json(&["job", "export"]).await?;
    assert_eq!(exported["scripts"][0]["text"], FIRST, "{exported}");
    let used = server.run(&["script", "delete", "greet"]).await?;
    ensure!(used.stderr.contains("used by newest, pinned"), "{used:?}");
    let again = server.run(&["job", "apply", "-f", file]).await?;
    ensure!(
        again
            .stdout
            .contains("scripts: 0 created, 0 changed, 1 unchanged"),
        "{again:?}"
    );
    server.terminate().await
}
