//! A shell that runs the commands of a page of the documentation, and compares what they print with the page.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_servers::Guarded;
use cueline_test_support::eventually_blocking;
use cueline_tests::program;
use cueline_tests::walk_through::{Action, Page, Ports, Step, difference};

/// The home directory of the page's reader.
const READER: &str = "/home/you";
/// The time limit for one command.
const COMMAND_WITHIN: Duration = Duration::from_mins(1);
/// Runs each step in this shell, whose variables and directory stay. Its output and its status are files.
const DRIVER: &str = r#"
for walk_step in "$WALK_STEPS"/*.bash; do
    . "$walk_step" </dev/null >"$walk_step.out" 2>&1
    echo $? >"$walk_step.status.new"
    mv "$walk_step.status.new" "$walk_step.status"
done
"#;

/// A shell that runs the steps of a page. Dropping it kills the shell and all servers that the page has started.
struct Shell {
    ports: Ports,
    /// The home directory.
    home: PathBuf,
    /// The folder of the steps.
    steps: PathBuf,
    _process: Guarded,
}

impl Shell {
    /// Starts the shell, which begins with the first step at once.
    fn start(folder: &Path, page: &Page, ports: Ports, programs: &[PathBuf]) -> Result<Self> {
        let folder = folder.canonicalize()?;
        let (home, steps) = (folder.join("home"), folder.join("steps"));
        for directory in [&home, &steps] {
            fs::create_dir(directory)?;
        }
        for (number, step) in page.steps.iter().enumerate() {
            let script = script(&steps, number);
            fs::write(&script, command(&script, step, &ports)?)?;
        }
        let driver = folder.join("driver");
        fs::write(&driver, DRIVER)?;
        let driver = driver.to_str().context("a path of letters")?;
        let mut bash = program::command(Path::new("bash"), &["--norc", driver]);
        bash.current_dir(&home)
            .env("WALK_STEPS", &steps)
            .env("HOME", &home)
            .env("PATH", path(programs)?)
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("no_proxy", "127.0.0.1");
        for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"] {
            bash.env_remove(name);
        }
        let process = Guarded::start(bash.as_std(), &folder.join("log"))?;
        Ok(Self {
            ports,
            home,
            steps,
            _process: process,
        })
    }

    /// Waits until a step has ended. Returns its status, and its output in the words of the page.
    fn ended(&self, number: usize, step: &Step) -> Result<(i32, String)> {
        let script = script(&self.steps, number);
        let output = || {
            let bytes = fs::read(beside(&script, "out")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let text = text.replace(&self.home.display().to_string(), READER);
            self.ports.to_printed(&text)
        };
        let what = format!("line {} of the page has ended", step.line);
        let status = eventually_blocking(what, COMMAND_WITHIN, || {
            fs::read_to_string(beside(&script, "status")).map_err(|_| output())
        })?;
        Ok((status.trim().parse()?, output()))
    }
}

/// The programs of the page before those of the system.
fn path(programs: &[PathBuf]) -> Result<OsString> {
    let mut folders = Vec::new();
    for program in programs.iter().chain([&program::cueline()]) {
        let folder = program.parent().context("a folder")?;
        folders.push(folder.canonicalize()?);
    }
    let system = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&system));
    Ok(std::env::join_paths(folders)?)
}

/// The file with the commands of a step. The names sort in the order of the page.
fn script(steps: &Path, number: usize) -> PathBuf {
    steps.join(format!("{number:04}.bash"))
}

/// A file of the same step.
fn beside(script: &Path, ending: &str) -> PathBuf {
    script.with_extension(format!("bash.{ending}"))
}

/// The commands of a step, with the ports of the test.
fn command(script: &Path, step: &Step, ports: &Ports) -> Result<String> {
    match &step.action {
        Action::Run(command) => Ok(format!("{}\n", ports.to_real(command))),
        Action::Write { file, text } => {
            let content = beside(script, "content");
            fs::write(&content, ports.to_real(text))?;
            Ok(format!("cp '{}' '{file}'\n", content.display()))
        }
    }
}

/// Runs the page with these programs beside `cueline`. Fails with all differences together.
pub(crate) fn check(name: &str, page: &Page, ports: Ports, programs: &[PathBuf]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shell = Shell::start(folder.path(), page, ports, programs)?;
    let mut differences = Vec::new();
    for (number, step) in page.steps.iter().enumerate() {
        match shell.ended(number, step) {
            Ok((status, output)) => differences.extend(difference(step, status, &output)),
            // The shell cannot go on.
            Err(error) => bail!(
                "{error:#}\n{}\nbefore it:\n{}",
                difference(step, -1, "").unwrap_or_default(),
                differences.join("\n")
            ),
        }
    }
    ensure!(
        differences.is_empty(),
        "{} of {} steps of docs/{name} differ:\n{}",
        differences.len(),
        page.steps.len(),
        differences.join("\n")
    );
    Ok(())
}
