//! Selects jobs for lists: which rows of an index to read, and which of them belong to the list.
//!
//! Names sort by their bytes. A range of names begins with `from`, and ends before `below`.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use cueline_model::{AccessScope, GroupName, Job, JobId, JobName, Namespace, Timestamp};

use super::convert::parse_name;
use crate::{
    JobFilter, JobPosition, JobSort, LabelFilter, NameFilter, Order, RunFilter, StoreError,
    is_within,
};

/// The most values of a filter that are looked up one by one in an index. With more, all rows are looked at.
const MAX_LOOKED_UP: usize = 20;

/// Sorts after every character of a name.
const AFTER_ALL: &str = "\u{10FFFF}";

/// Sorts before every character of a name.
const BEFORE_ALL: &str = "\u{1}";

/// Follows '/' in the order of bytes.
const AFTER_SLASH: char = '0';

/// Jobs that one index gives in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRange {
    /// The group; `None` for all groups.
    pub group: Option<GroupName>,
    /// The lowest name.
    pub from: String,
    /// Above the highest name.
    pub below: String,
}

impl JobRange {
    fn all(group: Option<GroupName>) -> Self {
        Self {
            group,
            from: String::new(),
            below: AFTER_ALL.to_owned(),
        }
    }

    fn of_names(filter: &NameFilter) -> Self {
        let (from, end) = match filter {
            NameFilter::Exact(name) => (name, BEFORE_ALL),
            NameFilter::Prefix(prefix) => (prefix, AFTER_ALL),
        };
        Self {
            group: None,
            from: from.clone(),
            below: format!("{from}{end}"),
        }
    }

    /// The part of the range behind a name.
    fn behind(mut self, last: &str, order: Order) -> Self {
        match order {
            Order::Ascending => self.from = self.from.max(format!("{last}{BEFORE_ALL}")),
            Order::Descending => self.below = self.below.min(last.to_owned()),
        }
        self
    }
}

/// The ranges that have all jobs of the filter, sorted by name, behind the job `last`.
pub fn ranges(filter: &JobFilter, last: Option<&str>, order: Order) -> Vec<JobRange> {
    let groups = looked_up_groups(&filter.groups, filter.within.as_deref());
    let ranges = if (1..=MAX_LOOKED_UP).contains(&filter.names.len()) {
        filter.names.iter().map(JobRange::of_names).collect()
    } else if let Some(groups) = groups {
        groups
            .into_iter()
            .map(|group| JobRange::all(Some(group)))
            .collect()
    } else {
        let (from, below, _) = name_range(filter.namespace.as_ref());
        vec![JobRange {
            group: None,
            from,
            below,
        }]
    };
    match last {
        Some(last) => ranges
            .into_iter()
            .map(|range| range.behind(last, order))
            .collect(),
        None => ranges,
    }
}

/// The names of a namespace, or of all: the lowest one, what is above the highest one, and whether only names without a
/// slash belong to it. Those of `default` lie between the other namespaces.
pub fn name_range(namespace: Option<&Namespace>) -> (String, String, bool) {
    match namespace {
        Some(namespace) if !namespace.is_default() => (
            format!("{namespace}/"),
            format!("{namespace}{AFTER_SLASH}"),
            false,
        ),
        other => (String::new(), AFTER_ALL.to_owned(), other.is_some()),
    }
}

/// The groups that are looked up one by one, if the filter or the scopes name only some.
pub fn looked_up_groups(
    groups: &[GroupName],
    within: Option<&[AccessScope]>,
) -> Option<Vec<GroupName>> {
    let mut found = if groups.is_empty() {
        let group = |scope: &AccessScope| match scope {
            AccessScope::Group(group) => Some(group.clone()),
            AccessScope::Cluster | AccessScope::Namespace(_) => None,
        };
        within?.iter().map(group).collect::<Option<Vec<_>>>()?
    } else {
        groups.to_vec()
    };
    found.sort_unstable();
    found.dedup();
    (found.len() <= MAX_LOOKED_UP).then_some(found)
}

/// A job that may belong to a list: id, version, name, group, whether enabled, next fire time.
pub type CandidateRow = (i64, i64, String, String, bool, Option<i64>);

/// The position of a candidate in a list.
pub fn position(sort: JobSort, row: &CandidateRow) -> JobPosition {
    let next_fire = match sort {
        JobSort::Name(_) => None,
        JobSort::NextFire(_) => row.5.map(Timestamp::from_millis),
    };
    JobPosition {
        next_fire,
        id: JobId(row.0),
    }
}

/// Brings the candidates of several ranges into one order.
pub fn merged(mut rows: Vec<CandidateRow>, order: Order) -> Vec<CandidateRow> {
    rows.sort_unstable_by(|a, b| match order {
        Order::Ascending => a.2.cmp(&b.2),
        Order::Descending => b.2.cmp(&a.2),
    });
    // Ranges of names may overlap.
    rows.dedup_by(|a, b| a.0 == b.0);
    rows
}

/// Whether a job belongs to the list, as far as its columns tell.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for names that are not valid.
pub fn fits(filter: &JobFilter, row: &CandidateRow) -> Result<bool, StoreError> {
    let (.., name, group, enabled, _) = row;
    if filter.enabled.is_some_and(|wanted| wanted != *enabled) {
        return Ok(false);
    }
    let names = &filter.names;
    if !names.is_empty() && !names.iter().any(|wanted| wanted.matches(name)) {
        return Ok(false);
    }
    let name: JobName = parse_name(name)?;
    if filter
        .namespace
        .as_ref()
        .is_some_and(|own| !name.is_in(own))
    {
        return Ok(false);
    }
    has_group(&filter.groups, filter.within.as_deref(), group)
}

/// Whether a job of a run belongs to the list, as far as its columns tell.
///
/// # Errors
///
/// As [`fits`].
pub fn fits_runs(filter: &RunFilter, name: &str, group: &str) -> Result<bool, StoreError> {
    let name: JobName = parse_name(name)?;
    let is_wanted = (filter.jobs.is_empty() || filter.jobs.contains(&name))
        && filter.namespace.as_ref().is_none_or(|own| name.is_in(own));
    Ok(is_wanted && has_group(&filter.groups, filter.within.as_deref(), group)?)
}

fn has_group(
    groups: &[GroupName],
    within: Option<&[AccessScope]>,
    group: &str,
) -> Result<bool, StoreError> {
    if groups.is_empty() && within.is_none() {
        return Ok(true);
    }
    let group: GroupName = parse_name(group)?;
    Ok((groups.is_empty() || groups.contains(&group)) && is_within(within, &group))
}

/// Whether the job has all labels. A job whose definition cannot be read has none.
pub fn has_labels(
    labels: &[LabelFilter],
    jobs: &HashMap<i64, Arc<Job>, impl BuildHasher>,
    id: i64,
) -> bool {
    labels.is_empty()
        || jobs
            .get(&id)
            .is_some_and(|job| labels.iter().all(|label| label.matches(&job.spec.labels)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &JobRange, name: &str) -> bool {
        *range.from <= *name && *name < *range.below
    }

    fn of(filter: &JobFilter, last: Option<&str>, order: Order) -> Vec<&'static str> {
        let names = [
            "a", "a-b", "a-b/x", "a.b/x", "a/b", "a/z", "a0", "a:b/x", "aa/x", "b/x", "z", "é",
            "é/x",
        ];
        let ranges = ranges(filter, last, order);
        let found = |name: &&str| ranges.iter().any(|range| holds(range, name));
        names.into_iter().filter(found).collect()
    }

    #[test]
    fn a_range_has_the_names_of_its_namespace() {
        let filter = |namespace: &str| JobFilter {
            namespace: Some(namespace.parse().expect("a name")),
            ..JobFilter::default()
        };
        let ascending = Order::Ascending;
        assert_eq!(of(&filter("a"), None, ascending), ["a/b", "a/z"]);
        assert_eq!(of(&filter("a-b"), None, ascending), ["a-b/x"]);
        assert_eq!(of(&filter("é"), None, ascending), ["é/x"]);
        assert_eq!(of(&filter("default"), None, ascending).len(), 13);
        assert_eq!(of(&filter("a"), Some("a/b"), ascending), ["a/z"]);
        assert_eq!(of(&filter("a"), Some("a/z"), Order::Descending), ["a/b"]);
    }

    #[test]
    fn a_range_has_the_names_of_its_filter() {
        let filter = |names: &[NameFilter]| JobFilter {
            names: names.to_vec(),
            ..JobFilter::default()
        };
        let exact = NameFilter::Exact("a".to_owned());
        let prefix = NameFilter::Prefix("a/".to_owned());
        let both = filter(&[exact, prefix]);
        assert_eq!(of(&both, None, Order::Ascending), ["a", "a/b", "a/z"]);
        assert_eq!(of(&both, Some("a"), Order::Ascending), ["a/b", "a/z"]);
        assert_eq!(of(&both, Some("a/z"), Order::Descending), ["a", "a/b"]);
    }

    #[test]
    fn scopes_of_groups_are_looked_up() {
        let group = |name: &str| AccessScope::Group(name.parse().expect("a name"));
        let named = |within: &[AccessScope]| {
            let groups = looked_up_groups(&[], Some(within));
            groups.map(|groups| groups.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let two = [group("b"), group("a"), group("b")];
        assert_eq!(named(&two), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(named(&[group("b"), AccessScope::Cluster]), None);
        assert_eq!(named(&[]), Some(Vec::new()));
        assert_eq!(looked_up_groups(&[], None), None);
    }
}
