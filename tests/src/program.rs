//! The programs that tests start.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// `cueline`.
pub fn cueline() -> PathBuf {
    beside_tests("cueline")
}

/// `cueline` with one more handler, `record`.
pub fn test_worker() -> PathBuf {
    beside_tests("cueline-test-worker")
}

/// The command that records its execution.
pub fn test_command() -> PathBuf {
    beside_tests("cueline-test-command")
}

/// A program that cargo has built beside the running test.
fn beside_tests(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let folder = test
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("."));
    let program = folder.join(name);
    assert!(
        program.exists(),
        "{} is missing; build it first: cargo build -p cueline -p cueline-tests --bins",
        program.display()
    );
    program
}

/// A command without the `CUELINE_*` variables of this process.
pub fn command(program: &Path, args: &[impl AsRef<str>]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CUELINE_") {
            command.env_remove(name);
        }
    }
    command.args(args.iter().map(AsRef::as_ref));
    command
}
