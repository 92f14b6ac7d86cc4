//! Selects the names of one namespace in SQL.
//!
//! Names sort by their bytes, so those of a namespace other than `default` are one range of an index. The names of
//! `default` have no slash and lie between those ranges.

use cueline_model::{JobName, Namespace};

/// The most jobs of a namespace whose runs are searched for job by job. The runs of more jobs are close together.
pub const MAX_SEARCHED_JOBS: usize = 1_000;

/// Follows '/' in the order of bytes.
const AFTER_SLASH: char = '0';

/// Sorts after every name, because names begin with a letter, a digit or an underscore.
const AFTER_ALL: &str = "\u{10FFFF}";

/// The names that a statement selects: `name > above AND name < below`, and without a slash if `without_slash`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRange {
    /// Names are greater.
    pub above: String,
    /// Names are less.
    pub below: String,
    /// Names have no slash.
    pub without_slash: bool,
}

impl NameRange {
    /// The names of `namespace`, or of all namespaces, that sort after `after`.
    pub fn new(namespace: Option<&Namespace>, after: Option<&JobName>) -> Self {
        let after = after.map_or_else(String::new, JobName::to_string);
        match namespace {
            Some(namespace) if !namespace.is_default() => Self {
                above: after.max(format!("{namespace}/")),
                below: format!("{namespace}{AFTER_SLASH}"),
                without_slash: false,
            },
            other => Self {
                above: after,
                below: AFTER_ALL.to_owned(),
                without_slash: other.is_some(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(namespace: Option<&str>, after: Option<&str>) -> Vec<&'static str> {
        let names = [
            "a", "a-b", "a-b/x", "a.b/x", "a/", "a/b", "a/z", "a0", "a:b/x", "aa/x", "b/x", "é/x",
            "z", "é",
        ];
        let namespace: Option<Namespace> = namespace.map(|n| n.parse().expect("a namespace"));
        let after: Option<JobName> = after.map(|n| n.parse().expect("a name"));
        let range = NameRange::new(namespace.as_ref(), after.as_ref());
        let is_selected = |name: &&str| {
            **name > *range.above
                && **name < *range.below
                && !(range.without_slash && name.contains('/'))
        };
        // "a/" is no name. It stands for the bound of the range.
        let names = names.into_iter().filter(|name| *name != "a/");
        names.filter(is_selected).collect()
    }

    #[test]
    fn each_namespace_has_its_own_names() {
        assert_eq!(selected(Some("a"), None), ["a/b", "a/z"]);
        assert_eq!(selected(Some("a-b"), None), ["a-b/x"]);
        assert_eq!(selected(Some("é"), None), ["é/x"]);
        assert_eq!(selected(Some("none"), None), [] as [&str; 0]);
        assert_eq!(
            selected(Some("default"), None),
            ["a", "a-b", "a0", "z", "é"]
        );
        assert_eq!(selected(None, None).len(), 13);
    }

    #[test]
    fn a_page_begins_after_the_last_name() {
        assert_eq!(selected(Some("a"), Some("a/b")), ["a/z"]);
        assert_eq!(selected(Some("a"), Some("a")), ["a/b", "a/z"]);
        assert_eq!(selected(Some("default"), Some("a0")), ["z", "é"]);
        assert_eq!(selected(None, Some("b/x")), ["é/x", "z", "é"]);
    }
}
