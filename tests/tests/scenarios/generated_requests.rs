//! Schemathesis sends generated requests to a server, and compares the answers with the OpenAPI document. A short run with a
//! fixed seed; `infra/dev/schemathesis` without arguments is a long one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::Guarded;
use cueline_tests::program;

/// Two minutes on two idle cores.
const WITHIN: Duration = Duration::from_mins(12);

/// The examples of the document, and a few generated requests for each operation. A slow machine is no finding.
const ARGUMENTS: [&str; 8] = [
    "--phases",
    "examples,fuzzing",
    "-n",
    "3",
    "--seed",
    "1",
    "--suppress-health-check",
    "all",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The tool of this version of the script. The test does not install it.
fn tool(script: &str) -> Result<PathBuf> {
    let version = script
        .lines()
        .find_map(|line| line.strip_prefix("version="));
    let version = version.context("the script names its version")?;
    let tool = repository().join(format!(
        "target/tools/schemathesis-{version}/bin/schemathesis"
    ));
    ensure!(
        tool.is_file(),
        "there is no Schemathesis {version} at {}; `infra/dev/servers schemathesis` puts it there",
        tool.display()
    );
    Ok(tool)
}

#[test]
fn answers_to_generated_requests_are_those_of_the_document() -> Result<()> {
    let script = repository().join("infra/dev/schemathesis");
    if let Err(missing) = tool(&fs::read_to_string(&script)?) {
        eprintln!("skipped: {missing:#}");
        return Ok(());
    }
    let home = tempfile::tempdir()?;
    let log = home.path().join("log");
    let mut command = Command::new("sh");
    // The guard of the processes has no exit status of its own.
    command.args(["-c", "\"$@\"; echo \"exit status $?\"", "sh"]);
    command.arg(&script).args(ARGUMENTS);
    command.env("CUELINE", program::cueline());
    command.env("TMPDIR", home.path());
    let ended = Guarded::start(&command, &log)?.wait(WITHIN);
    let text = fs::read_to_string(&log)?;
    ended.with_context(|| text.clone())?;
    ensure!(text.trim_end().ends_with("exit status 0"), "{text}");
    // Both roles have sent requests.
    ensure!(text.matches("Test cases:").count() == 2, "{text}");
    Ok(())
}
