//! What the lists of jobs, runs, dead letters and audit entries have in common.

use std::collections::BTreeMap;

use cueline_model::{AccessScope, GroupName};

/// The most objects that a store looks at for one page. If too few of them match, the page is short and says where the
/// next one begins.
pub const MAX_SCANNED: usize = 10_000;

/// The direction of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The lowest key first.
    Ascending,
    /// The highest key first.
    #[default]
    Descending,
}

/// Selects jobs by one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFilter {
    /// The key, which the job must have.
    pub key: String,
    /// The value; `None` for any.
    pub value: Option<String>,
}

impl LabelFilter {
    /// Whether a job with these labels matches.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels
            .get(&self.key)
            .is_some_and(|found| self.value.as_ref().is_none_or(|value| value == found))
    }
}

/// Selects objects by their name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameFilter {
    /// The object with this name.
    Exact(String),
    /// All objects whose name begins with this text.
    Prefix(String),
}

impl NameFilter {
    /// Whether the name matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(wanted) => name == wanted,
            Self::Prefix(prefix) => name.starts_with(prefix),
        }
    }
}

/// Whether a list that is limited to these scopes has objects of `group`; `None` is no limit.
pub fn is_within(scopes: Option<&[AccessScope]>, group: &GroupName) -> bool {
    let holds = |scope: &AccessScope| match scope {
        AccessScope::Cluster => true,
        AccessScope::Namespace(namespace) => group.is_in(namespace),
        AccessScope::Group(own) => own == group,
    };
    scopes.is_none_or(|scopes| scopes.iter().any(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_matches_by_key_or_by_key_and_value() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let filter = |key: &str, value: Option<&str>| LabelFilter {
            key: key.to_owned(),
            value: value.map(str::to_owned),
        };
        assert!(filter("team", None).matches(&labels));
        assert!(filter("team", Some("a")).matches(&labels));
        assert!(!filter("team", Some("b")).matches(&labels));
        assert!(!filter("other", None).matches(&labels));
    }

    #[test]
    fn a_scope_holds_its_groups() {
        let group: GroupName = "team-a/x".parse().expect("a name");
        let of = |namespace: &str| AccessScope::Namespace(namespace.parse().expect("a name"));
        assert!(is_within(None, &group));
        assert!(!is_within(Some(&[]), &group));
        assert!(is_within(Some(&[AccessScope::Cluster]), &group));
        assert!(is_within(Some(&[of("b"), of("team-a")]), &group));
        assert!(!is_within(Some(&[of("default")]), &group));
        assert!(is_within(
            Some(&[AccessScope::Group(group.clone())]),
            &group
        ));
    }
}
