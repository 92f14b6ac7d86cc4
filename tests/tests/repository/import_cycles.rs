//! Modules of a crate import each other in one direction only.
//!
//! The rule holds at each level: between the files and folders of `src`, and between those of each folder in it. A
//! module and its own submodules count as one. Tests do not count.

mod imports;

use std::collections::{BTreeMap, BTreeSet};

use imports::{Crate, Import};

#[test]
fn modules_do_not_import_each_other_in_a_cycle() {
    let mut violations = Vec::new();
    for package in super::packages() {
        let name = package["name"].as_str().expect("a name");
        if let Some(source) = super::library_folder(&package) {
            let cycles = cycles(&Crate::read(&source));
            violations.extend(cycles.into_iter().map(|cycle| format!("{name}: {cycle}")));
        }
    }
    assert!(
        violations.is_empty(),
        "modules that import each other:\n{}",
        violations.join("\n")
    );
}

type Siblings<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Import>>;

/// Describes one cycle of each folder that has any.
fn cycles(krate: &Crate) -> Vec<String> {
    let mut folders = BTreeMap::<&[String], Siblings>::new();
    for import in &krate.imports {
        let shared = import.from.iter().zip(&import.to);
        let depth = shared.take_while(|(from, to)| from == to).count();
        // Without both parts, one of the two modules contains the other, and they are no siblings.
        if let (Some(from), Some(to)) = (import.from.get(depth), import.to.get(depth)) {
            let siblings = folders.entry(&import.from[..depth]).or_default();
            siblings
                .entry(from)
                .or_default()
                .entry(to)
                .or_insert(import);
        }
    }
    let cycles = folders.values().filter_map(first_cycle);
    cycles.map(|cycle| describe(&cycle)).collect()
}

/// The imports of one cycle, in order.
fn first_cycle<'a>(siblings: &Siblings<'a>) -> Option<Vec<&'a Import>> {
    let mut done = BTreeSet::new();
    siblings
        .keys()
        .find_map(|start| search(siblings, start, &mut Vec::new(), &mut done))
}

fn search<'a>(
    siblings: &Siblings<'a>,
    module: &'a str,
    path: &mut Vec<(&'a str, &'a Import)>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a Import>> {
    if let Some(start) = path.iter().position(|(visited, _)| *visited == module) {
        return Some(path[start..].iter().map(|(_, import)| *import).collect());
    }
    if !done.contains(module) {
        for (next, import) in siblings.get(module).into_iter().flatten() {
            path.push((module, import));
            if let Some(found) = search(siblings, next, path, done) {
                return Some(found);
            }
            path.pop();
        }
        done.insert(module);
    }
    None
}

fn describe(cycle: &[&Import]) -> String {
    let lines = cycle.iter().map(|import| {
        let (from, to) = (import.from.join("::"), import.to.join("::"));
        format!("  {from} → {to}")
    });
    format!("a cycle:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_cycle_is_found_between_siblings_only() {
    let krate = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, text)| {
            let path = path.split("::").filter(|name| !name.is_empty());
            (path.map(str::to_owned).collect(), (*text).to_owned())
        });
        Crate::parse(&files.collect())
    };
    let two = |a: &str, b: &str| cycles(&krate(&[("", ""), ("a", a), ("b", b)])).len();
    assert_eq!(two("use crate::b::B;", "use crate::a::{self, A};"), 1);
    assert_eq!(two("fn f() { super::b::g() }", "use super::a::f;"), 1);
    assert_eq!(two("use crate::b::B;", ""), 0);
    assert_eq!(
        two(
            "use crate::b::B;",
            "// use crate::a::A;\nconst T: &str = \"crate::a\";"
        ),
        0
    );
    let test = "#[cfg(test)]\nmod tests { use crate::a::A; }\nfn g() {}";
    assert_eq!(two("use crate::b::B;", test), 0);
    // By a name that the root exports.
    let exported = [
        ("", "pub use a::A;"),
        ("a", "use crate::b::B;"),
        ("b", "use crate::A;"),
    ];
    assert_eq!(cycles(&krate(&exported)).len(), 1);
    // Below a folder, and between a folder and its parent.
    let nested = [
        ("", ""),
        ("a", "mod x; mod y; use x::X;"),
        ("a::x", "use super::y::Y;"),
        ("a::y", "use crate::a::x::X; use super::Shared;"),
    ];
    assert_eq!(cycles(&krate(&nested)).len(), 1);
    let parent = [
        ("", ""),
        ("a", "use self::x::X;"),
        ("a::x", "use super::Shared;"),
    ];
    assert_eq!(cycles(&krate(&parent)).len(), 0);
}
