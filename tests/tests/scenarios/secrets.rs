//! A job names a secret. Its value is at the worker only: not in the store, the queue, the journal, the API or a log.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cueline_tests::Standalone;
use serde_json::json;

const VALUE: &str = "hush-hush-42-hush";

#[tokio::test]
async fn the_value_of_a_secret_stays_at_the_worker() -> Result<()> {
    let home = tempfile::tempdir()?;
    let secrets = home.path().join("secrets");
    fs::create_dir(&secrets)?;
    let file = secrets.join("db-password");
    fs::write(&file, VALUE)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400))?;

    let data = home.path().join("server").join("data");
    fs::create_dir(home.path().join("server"))?;
    let dir = secrets.to_str().context("a path of letters")?;
    let server = Standalone::start(&data, &["--secrets-dir", dir]).await?;
    let script = r#"test "${#PASSWORD}" = 17 && echo "the password is $PASSWORD""#;
    let env = json!({ "PASSWORD": { "secret": "db-password" } });
    let job = json!([{
        "name": "backup",
        "schedule": { "manual": true },
        "handler": { "shell": { "script": script, "env": env } },
    }]);
    server.apply(&job).await?;
    let ran = server.run(&["trigger", "backup", "--wait"]).await?;
    ensure!(ran.status == Some(0), "{ran:?}");
    let kept = server.get("/jobs/backup").await?.to_string();
    ensure!(kept.contains(r#"{"secret":"db-password"}"#), "{kept}");
    let shown = format!("{ran:?} {kept} {:?}", server.all_runs().await?);
    ensure!(!shown.contains(VALUE), "{shown}");
    server.terminate().await?;

    let folder = home.path().join("server");
    // Without this, the search below would prove nothing.
    ensure!(!containing(&folder, "db-password")?.is_empty(), "no name");
    let leaks = containing(&folder, VALUE)?;
    ensure!(leaks.is_empty(), "the value is in {leaks:?}");
    Ok(())
}

/// The files below `folder` that contain `text`.
fn containing(folder: &Path, text: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(containing(&path, text)?);
        } else if path.is_file() {
            let bytes = fs::read(&path)?;
            if bytes.windows(text.len()).any(|w| w == text.as_bytes()) {
                found.push(path);
            }
        }
    }
    Ok(found)
}
