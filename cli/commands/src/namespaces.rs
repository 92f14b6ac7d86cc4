//! Lists of all namespaces.

use clap::Args;

/// Of lists.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct AllNamespaces {
    /// Of all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

impl AllNamespaces {
    /// Puts the column of namespaces before the others, if the list is of all namespaces.
    pub(crate) fn column<T>(self, namespace: T, mut others: Vec<T>) -> Vec<T> {
        if self.all_namespaces {
            others.insert(0, namespace);
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::AllNamespaces;

    #[test]
    fn only_a_list_of_all_namespaces_has_their_column() {
        let row = |all_namespaces| AllNamespaces { all_namespaces }.column("a", vec!["b"]);
        assert_eq!(row(false), ["b"]);
        assert_eq!(row(true), ["a", "b"]);
    }
}
