//! Checks the dependencies between crates. docs/ARCHITECTURE.md has the table with its reasons.

use std::collections::BTreeMap;
use std::path::Path;

/// Each crate, and the crates of the workspace that its normal dependencies may name.
const ALLOWED: [(&str, &[&str]); 23] = [
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
    ("cueline-http", &["cueline-runtime"]),
    (
        "cueline-api",
        &[
            "cueline-http",
            "cueline-model",
            "cueline-protocol",
            "cueline-store",
            "cueline-runtime",
        ],
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
    ("cueline-outbound", &["cueline-model"]),
    ("cueline-handlers", &["cueline-worker", "cueline-outbound"]),
    (
        "cueline-channels",
        &["cueline-model", "cueline-outbound", "cueline-runtime"],
    ),
    ("cueline-interface", &["cueline-model", "cueline-runtime"]),
    // Commands ask the API. Of the worker they know its key file.
    (
        "cueline-commands",
        &[
            "cueline-api",
            "cueline-interface",
            "cueline-model",
            "cueline-protocol",
            "cueline-runtime",
            "cueline-store",
            "cueline-worker",
        ],
    ),
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
    // The harness uses Cueline from outside, and has a worker with a handler of its own. Scenarios may use every crate
    // as a dev-dependency.
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

/// The only crate that names concrete adapters. It may depend on every crate.
const COMPOSITION: &str = "cueline";

#[test]
fn no_crate_has_a_forbidden_dependency() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let packages = super::packages();
    let mut wrong = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().expect("a name");
        if name == COMPOSITION {
            continue;
        }
        let Some(may) = allowed.get(name) else {
            wrong.push(format!(
                "{name} is new: add what it may depend on to this table"
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

/// `doctest = false` saves time in a crate without documentation tests. In a crate that has some they would never run.
#[test]
fn documentation_tests_are_on_in_the_crates_that_have_some() {
    for package in super::packages() {
        let Some(library) = super::library(&package) else {
            continue;
        };
        let folder = super::library_folder(&package).expect("a folder");
        assert_eq!(
            library["doctest"],
            has_documentation_tests(&folder),
            "`doctest` of {} does not say whether it has any",
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
