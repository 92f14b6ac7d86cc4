//! Which jobs run after which others. XXL-JOB has the children of a job, and a job here has its parents.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::dump::Row;

/// The links between the jobs of a dump, without those that would close a cycle.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// The names of the parents, by the id of the child.
    parents: HashMap<String, Vec<String>>,
    /// Children that the dump does not have, by the id of the parent.
    missing: HashMap<String, Vec<String>>,
    /// The names of parents that were left out because of a cycle, by the id of the child.
    cycles: HashMap<String, Vec<String>>,
}

fn id(row: &Row) -> &str {
    row.text(&["id"]).unwrap_or_default()
}

impl Children {
    /// Reads the column `child_jobid`. `names` are those of the rows.
    pub(super) fn read(rows: &[Row], names: &[String]) -> Self {
        let name_of: HashMap<&str, &String> = rows.iter().map(id).zip(names).collect();
        let mut found = Self::default();
        // The children that were accepted, by parent.
        let mut links: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in rows {
            let parent = id(row);
            let listed = row.text(&["child_jobid"]).unwrap_or_default();
            let children = listed.split(',').map(str::trim);
            let mut seen = HashSet::new();
            for child in children.filter(|child| !child.is_empty() && seen.insert(*child)) {
                let (Some(parent_name), true) = (name_of.get(parent), name_of.contains_key(child))
                else {
                    let missing = found.missing.entry(parent.to_owned()).or_default();
                    missing.push(child.to_owned());
                    continue;
                };
                let kept = if reaches(&links, child, parent) {
                    &mut found.cycles
                } else {
                    links.entry(parent).or_default().push(child);
                    &mut found.parents
                };
                let parents = kept.entry(child.to_owned()).or_default();
                parents.push((*parent_name).clone());
            }
        }
        found
    }

    /// The names of the jobs after which this one runs.
    pub(super) fn parents(&self, row: &Row) -> &[String] {
        self.parents.get(id(row)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn has_parents(&self, row: &Row) -> bool {
        !self.parents(row).is_empty()
    }

    /// Children of this job that do not exist.
    pub(super) fn missing(&self, row: &Row) -> &[String] {
        self.missing.get(id(row)).map_or(&[], Vec::as_slice)
    }

    /// Parents of this job that run after it.
    pub(super) fn cycles(&self, row: &Row) -> &[String] {
        self.cycles.get(id(row)).map_or(&[], Vec::as_slice)
    }
}

/// Whether `to` is `from`, or runs after it.
fn reaches<'r>(links: &BTreeMap<&'r str, Vec<&'r str>>, from: &'r str, to: &str) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![from];
    while let Some(one) = open.pop() {
        if one == to {
            return true;
        }
        if seen.insert(one) {
            open.extend(links.get(one).into_iter().flatten());
        }
    }
    false
}
