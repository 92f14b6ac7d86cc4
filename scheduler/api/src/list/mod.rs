//! One syntax for all lists: filters, order and pages.
//!
//! Filters are parameters with the name of the field. A parameter that is given several times means any of its values,
//! and different parameters must all hold. `sort` is one of the orders that the list names. `after` is the `next` of the
//! previous page. This module must not know what a list has.

mod cursor;
mod filters;
mod memory;

use cueline_store::Order;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::query::Params;

pub(crate) use filters::Filters;
pub(crate) use memory::page_of;

/// The parameters that every list takes, and no other request.
const PAGING: [&str; 3] = ["sort", "limit", "after"];

/// Entries of a page by default.
const DEFAULT_LIMIT: i64 = 100;

/// A list of the API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    /// Its name, for cursors.
    pub(crate) name: &'static str,
    /// The filters, as parameters are named.
    pub(crate) filters: &'static [&'static str],
    /// The orders, as `sort` gives them. The first one is the default.
    pub(crate) sorts: &'static [&'static str],
}

impl List {
    /// All parameters.
    pub(crate) fn parameters(&self) -> Vec<&'static str> {
        [self.filters, &PAGING[..]].concat()
    }

    /// Reads `sort`, `limit` and `after`. `K` is the key of an entry, which the list's order ends with.
    pub(crate) fn page<K: DeserializeOwned>(&self, params: &mut Params) -> Page<K> {
        let sort = params.parsed("sort", |text| {
            let found = self.sorts.iter().find(|sort| **sort == text);
            found.copied().ok_or_else(|| {
                format!(
                    "{text:?} is not an order of this list; give {}",
                    self.sorts.join(" or ")
                )
            })
        });
        let sort = sort.or_else(|| self.sorts.first().copied());
        let sort = sort.unwrap_or_default();
        Page {
            list: self.name,
            sort,
            after: params.issued("after", cursor::is_well_formed, |text| {
                cursor::decode(self.name, sort, text)
            }),
            limit: params.limit(DEFAULT_LIMIT),
        }
    }
}

/// The page of a list that a request asks for.
#[derive(Debug, Clone)]
pub(crate) struct Page<K> {
    list: &'static str,
    sort: &'static str,
    /// The key after which it begins; `None` for the first page.
    pub(crate) after: Option<K>,
    /// The most entries.
    pub(crate) limit: usize,
}

impl<K: Serialize> Page<K> {
    /// The field by which the list is sorted.
    pub(crate) fn field(&self) -> &'static str {
        self.sort.strip_prefix('-').unwrap_or(self.sort)
    }

    /// The direction of the list.
    pub(crate) fn order(&self) -> Order {
        if self.sort.starts_with('-') {
            Order::Descending
        } else {
            Order::Ascending
        }
    }

    /// `next` of the response, for the page after this key.
    pub(crate) fn next(&self, key: &K) -> String {
        cursor::encode(self.list, self.sort, key)
    }

    /// Ends a page that was read with one entry more than it has. Returns its `next`.
    pub(crate) fn cut<T>(&self, entries: &mut Vec<T>, key: impl FnOnce(&T) -> K) -> Option<String> {
        let has_more = entries.len() > self.limit;
        entries.truncate(self.limit);
        let last = entries.last().filter(|_| has_more)?;
        Some(self.next(&key(last)))
    }
}
