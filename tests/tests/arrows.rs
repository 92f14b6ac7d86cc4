//! Which crate may depend on which: docs/ARCHITECTURE.md has the table for people, this test holds the code to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// crate → the internal crates that its normal dependencies may name.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("cueline-model", &[]),
    ("cueline-runtime", &[]),
    ("cueline-broker", &[]),
    ("cueline-protocol", &["cueline-model"]),
    ("cueline-store", &["cueline-model"]),
    ("cueline-broker-embedded", &["cueline-broker"]),
    ("cueline-broker-nats", &["cueline-broker"]),
    ("cueline-broker-rabbitmq", &["cueline-broker"]),
    (
        "cueline-store-postgres",
        &["cueline-store", "cueline-model"],
    ),
    ("cueline-store-sqlite", &["cueline-store", "cueline-model"]),
    (
        "cueline-engine",
        &[
            "cueline-model",
            "cueline-protocol",
            "cueline-broker",
            "cueline-store",
            "cueline-runtime",
        ],
    ),
    (
        "cueline-api",
        &["cueline-model", "cueline-store", "cueline-runtime"],
    ),
    (
        "cueline-worker",
        &[
            "cueline-model",
            "cueline-protocol",
            "cueline-broker",
            "cueline-runtime",
        ],
    ),
    ("cueline-handlers", &["cueline-worker"]),
    // The command that it is part of composes what runs in one process.
    (
        "cueline-bench",
        &[
            "cueline-model",
            "cueline-runtime",
            "cueline-store",
            "cueline-worker",
        ],
    ),
    // The harness talks to Cueline from outside, and has a worker with handlers of its own; its scenarios may use anything, as dev-dependencies.
    (
        "cueline-tests",
        &[
            "cueline",
            "cueline-runtime",
            "cueline-test-servers",
            "cueline-test-support",
            "cueline-worker",
        ],
    ),
    ("cueline-test-servers", &["cueline-test-support"]),
    ("cueline-test-support", &[]),
];

/// The one crate that names concrete adapters, and so may depend on everything.
const COMPOSITION: &str = "cueline";

fn metadata() -> Value {
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
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

#[test]
fn no_crate_depends_on_what_it_must_not_know() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        if name == COMPOSITION {
            continue;
        }
        let Some(may) = allowed.get(name) else {
            wrong.push(format!(
                "{name} is new: say in this table what it may depend on"
            ));
            continue;
        };
        for dependency in package["dependencies"]
            .as_array()
            .expect("a list of dependencies")
        {
            let on = dependency["name"].as_str().expect("a name");
            let internal = on == COMPOSITION || on.starts_with("cueline-");
            let normal = dependency["kind"].is_null();
            if internal && normal && !may.contains(&on) {
                wrong.push(format!("{name} → {on}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "forbidden dependencies:\n{}",
        wrong.join("\n")
    );
    for (name, _) in ALLOWED {
        assert!(
            packages.iter().any(|p| p["name"] == *name),
            "{name} is in the table and not in the workspace"
        );
    }
}

/// A crate that has none is not looked through; one that says so and has some would never run them.
#[test]
fn crates_with_documentation_tests_are_those_that_are_looked_through() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    for package in packages {
        let targets = package["targets"].as_array().expect("a list of targets");
        let is_lib = |target: &&Value| target["kind"][0] == "lib";
        let Some(lib) = targets.iter().find(is_lib) else {
            continue;
        };
        let root = Path::new(lib["src_path"].as_str().expect("a path"));
        let has_some = has_documentation_tests(root.parent().expect("a folder"));
        assert_eq!(
            lib["doctest"], has_some,
            "[lib] doctest of {} beside whether it has any",
            package["name"]
        );
    }
}

fn has_documentation_tests(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).expect("lists");
    entries.map(|entry| entry.expect("lists").path()).any(|at| {
        if at.is_dir() {
            return has_documentation_tests(&at);
        }
        if at.extension().is_none_or(|kind| kind != "rs") {
            return false;
        }
        let text = std::fs::read_to_string(&at).expect("reads");
        let lines = text.lines().map(str::trim_start);
        let comments = lines.filter(|l| l.starts_with("///") || l.starts_with("//!"));
        // The first, third … fence of a file begins a block.
        let fences = comments.filter_map(|l| l[3..].trim().strip_prefix("```"));
        fences.step_by(2).any(|kind| kind != "text")
    })
}
