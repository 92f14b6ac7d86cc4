//! Planted bugs and clock steps are in test builds only, and each bug has a place in the code.

use std::collections::BTreeSet;
use std::path::Path;

use cueline_runtime::clock_steps;
use cueline_runtime::planted::{self, BUGS, CONDITIONS};
use serde_json::Value;

const FEATURES: [&str; 2] = ["planted-bugs", "clock-steps"];

/// The crates that may have the features: the one with the code, and the tests.
const WITH_FEATURES: [&str; 2] = ["cueline-runtime", "cueline-tests"];

fn names_feature(features: &Value) -> bool {
    let mut names = features.as_array().into_iter().flatten();
    names.any(|name| {
        let name = name.as_str().unwrap_or_default();
        FEATURES.iter().any(|feature| name.ends_with(feature))
    })
}

#[test]
fn no_default_build_has_planted_bugs_or_clock_steps() {
    // The test itself may be built with all features.
    let asked_for = [
        cfg!(feature = "planted-bugs"),
        cfg!(feature = "clock-steps"),
    ];
    assert_eq!([planted::ENABLED, clock_steps::ENABLED], asked_for);
    for package in super::packages() {
        let name = package["name"].as_str().expect("a name");
        for (feature, enabled) in package["features"].as_object().expect("features") {
            let own = FEATURES.contains(&feature.as_str());
            let allowed = own && WITH_FEATURES.contains(&name);
            let has = own || names_feature(enabled);
            assert!(
                allowed || !has,
                "feature {feature} of {name} is for test builds"
            );
        }
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            assert!(
                !names_feature(&dependency["features"]),
                "{name} asks for a test build of {}",
                dependency["name"]
            );
        }
    }
}

#[test]
fn each_planted_bug_has_one_place() {
    let mut found = Vec::new();
    for package in super::packages() {
        if let Some(folder) = super::library_folder(&package) {
            collect(&folder, &mut found);
        }
    }
    let known: BTreeSet<&str> = BUGS.into_iter().chain(CONDITIONS).collect();
    let places: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(places, known);
    assert_eq!(found.len(), known.len(), "one place each: {found:?}");
}

/// The names in the uses of the macro below this folder.
fn collect(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).expect("reads");
            let uses = text.split("planted!(\"").skip(1);
            found.extend(uses.filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
        }
    }
}
