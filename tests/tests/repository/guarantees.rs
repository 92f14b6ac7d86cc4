//! Every guarantee names its tests, and every named test file exists.

use std::path::Path;

const PAGE: &str = include_str!("../../../docs/GUARANTEES.md");

/// The paths in backticks on lines that begin with "Tests:".
fn named(section: &str) -> Vec<&str> {
    section
        .lines()
        .filter(|line| line.starts_with("Tests: "))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_numbered_guarantee_names_a_test() {
    let is_numbered = |section: &&str| {
        let number = section.strip_prefix('G');
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let numbered = PAGE.split("\n## ").filter(is_numbered);
    let untested: Vec<&str> = numbered
        .clone()
        .filter(|section| named(section).is_empty())
        .filter_map(|section| section.lines().next())
        .collect();
    assert_eq!(numbered.count(), 18, "sections G1 to G18");
    assert!(
        untested.is_empty(),
        "no line \"Tests: …\" below {untested:?}"
    );
}

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let missing: Vec<&str> = named(PAGE)
        .into_iter()
        .filter(|path| !root.join(path).is_file())
        .collect();
    assert!(
        missing.is_empty(),
        "docs/GUARANTEES.md names files that do not exist: {missing:?}"
    );
}
