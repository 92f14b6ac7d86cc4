//! Lists that are all in memory: few entries, which the caller has filtered.

use cueline_store::Order;
use serde::Serialize;

use super::Page;

/// The page that a request asks for, and its `next`. `key` is unique among the entries.
pub(crate) fn page_of<T, K>(
    page: &Page<K>,
    mut entries: Vec<T>,
    key: impl Fn(&T) -> K,
) -> (Vec<T>, Option<String>)
where
    K: Ord + Serialize,
{
    entries.sort_by_cached_key(&key);
    if page.order() == Order::Descending {
        entries.reverse();
    }
    if let Some(after) = &page.after {
        entries.retain(|entry| match page.order() {
            Order::Ascending => key(entry) > *after,
            Order::Descending => key(entry) < *after,
        });
    }
    let next = page.cut(&mut entries, &key);
    (entries, next)
}

#[cfg(test)]
mod tests {
    use super::super::List;
    use super::*;
    use crate::query::Params;

    const NUMBERS: List = List {
        name: "numbers",
        filters: &[],
        sorts: &["number", "-number"],
    };

    fn asked(query: &str) -> Page<(i64,)> {
        let uri = format!("/numbers?limit=2{query}").parse().expect("a URI");
        let mut params = Params::of(&uri, &NUMBERS.parameters());
        let page = NUMBERS.page(&mut params);
        assert!(params.finish().is_ok(), "{query}");
        page
    }

    /// All entries, page by page. Between the pages, the list changes.
    fn all(sort: &str, mut change: impl FnMut(&mut Vec<i64>)) -> Vec<i64> {
        let mut numbers = vec![3, 1, 5, 4, 2];
        let (mut seen, mut query) = (Vec::new(), format!("&sort={sort}"));
        loop {
            let (found, next) = page_of(&asked(&query), numbers.clone(), |number| (*number,));
            assert!(found.len() <= 2);
            seen.extend(found);
            let Some(next) = next else {
                return seen;
            };
            query = format!("&sort={sort}&after={next}");
            change(&mut numbers);
        }
    }

    #[test]
    fn pages_follow_each_other_in_both_directions() {
        assert_eq!(all("number", |_| {}), [1, 2, 3, 4, 5]);
        assert_eq!(all("-number", |_| {}), [5, 4, 3, 2, 1]);
    }

    #[test]
    fn the_entry_that_ends_a_page_may_be_deleted() {
        let seen = all("number", |numbers| numbers.retain(|number| *number != 2));
        assert_eq!(seen, [1, 2, 3, 4, 5]);
    }
}
