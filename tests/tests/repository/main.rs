//! Checks rules of the repository: dependencies between crates and modules, the tests that the documentation names,
//! that no product has planted bugs, what stays out of commits, and how images, containers and units are protected.

mod arrows;
mod compose;
mod features;
mod grafana;
mod guarantees;
mod ignored_files;
mod images;
mod import_cycles;
mod planted_bugs;
mod systemd_units;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The packages of the workspace, as cargo describes them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("no list of packages: {other}"),
    }
}

/// The package's library, if it has one.
fn library(package: &Value) -> Option<&Value> {
    let mut targets = package["targets"].as_array()?.iter();
    targets.find(|target| target["kind"][0] == "lib")
}

/// The folder of the library's `lib.rs`.
fn library_folder(package: &Value) -> Option<PathBuf> {
    let root = Path::new(library(package)?["src_path"].as_str()?);
    root.parent().map(Path::to_owned)
}
