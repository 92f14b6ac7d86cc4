//! Every feature names a page and a test that exist, or the reason why it is left out.

use crate::root;

const PAGE: &str = include_str!("../../../docs/features.md");

/// A row of one of the page's tables.
struct Feature<'a> {
    name: &'a str,
    described: &'a str,
    test: &'a str,
}

fn features(page: &str) -> Vec<Feature<'_>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| {
        let mut cells = row.trim_end_matches(" |").split(" | ");
        let (name, described, test) = (cells.next()?, cells.next()?, cells.next()?);
        let is_head = test == "test" || name.starts_with("---");
        (!is_head).then_some(Feature {
            name,
            described,
            test,
        })
    })
    .collect()
}

/// The texts in backticks.
fn paths(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The targets of links to pages, without their anchors.
fn pages(cell: &str) -> impl Iterator<Item = &str> {
    let targets = cell
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets
        .filter_map(|target| target.split('#').next())
        .filter(|page| !page.is_empty())
}

#[test]
fn every_feature_names_its_tests_or_a_reason() {
    let features = features(PAGE);
    assert!(
        features.len() > 30,
        "the page was not read: {} rows",
        features.len()
    );
    let silent: Vec<&str> = features
        .iter()
        .filter(|feature| match feature.test {
            "–" => !feature.described.starts_with("not "),
            test => paths(test).next().is_none(),
        })
        .map(|feature| feature.name)
        .collect();
    assert!(
        silent.is_empty(),
        "neither a test nor a reason that begins with \"not\": {silent:?}"
    );
}

#[test]
fn every_named_file_exists() {
    let root = root();
    let missing: Vec<String> = features(PAGE)
        .iter()
        .flat_map(|feature| {
            let tests = paths(feature.test).map(|path| root.join(path));
            let pages = pages(feature.described).map(|page| root.join("docs").join(page));
            tests.chain(pages)
        })
        .filter(|path| !path.is_file())
        .map(|path| path.display().to_string())
        .collect();
    assert!(
        missing.is_empty(),
        "docs/features.md names files that do not exist: {missing:?}"
    );
}

#[test]
fn a_feature_without_test_and_reason_is_found() {
    let rows = features(
        "| feature | described in | test |\n| --- | --- | --- |\n| a | [b](c.md#d) | – |\n",
    );
    assert_eq!(rows.len(), 1);
    assert_eq!(pages(rows[0].described).collect::<Vec<_>>(), ["c.md"]);
    assert_eq!((rows[0].name, rows[0].test), ("a", "–"));
}
