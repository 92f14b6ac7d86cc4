//! Which crate may depend on which: docs/ARCHITECTURE.md has the table for people, this test holds the code to it.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// crate → the internal crates that its normal dependencies may name.
const ALLOWED: [(&str, &[&str]); 16] = [
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
    // The harness talks to Cueline from outside, and has a worker with handlers of its own; its scenarios may use anything, as dev-dependencies.
    (
        "cueline-tests",
        &[
            "cueline",
            "cueline-runtime",
            "cueline-test-servers",
            "cueline-worker",
        ],
    ),
    ("cueline-test-servers", &[]),
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
