//! The statement that lists entries of the audit log. Both databases understand it.
//!
//! A statement has only the conditions of its filter, so that each filter can use its index.

use std::fmt::Write as _;

use super::convert::{to_i64, without_nul};
use crate::{AuditFilter, AuditResult};

/// The most entries in one answer.
pub const MAX_ENTRIES: usize = 1_000;

/// Transactions that write entries take less time than this, in milliseconds. An entry's time is that of the beginning of
/// its transaction, and its number is allocated later, so numbers follow the times up to this difference.
const ORDER_SLACK_MS: i64 = 600_000;

/// A value that is bound to a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// A statement with its parameters, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditQuery {
    /// The statement. It consists of texts of this file only.
    pub sql: String,
    /// The parameters.
    pub parameters: Vec<Bound>,
}

impl AuditQuery {
    /// The statement for a filter. `marker` begins a parameter: `?` or `$`. The columns are those of
    /// [`AuditRow`](super::audit::AuditRow).
    pub fn new(filter: &AuditFilter, marker: char) -> Self {
        let mut query = Self {
            sql: "SELECT id, at, actor, address, action, namespace, group_name, object, result, detail, old_value, new_value
                FROM audit WHERE id < "
                .to_owned(),
            parameters: Vec::new(),
        };
        query.parameter(marker, Bound::Number(filter.before.unwrap_or(i64::MAX)));
        for (condition, text) in texts(filter) {
            query.sql.push_str(condition);
            query.parameter(marker, Bound::Text(text));
        }
        // Not a parameter: an index has only the refused ones.
        query.sql.push_str(match filter.result {
            None => "",
            Some(AuditResult::Done) => " AND result = 'done'",
            Some(AuditResult::Refused) => " AND result = 'refused'",
        });
        if let Some(from) = filter.from {
            query.since(marker, from.as_millis());
        }
        if let Some(to) = filter.to {
            query.until(marker, to.as_millis());
        }
        query.sql.push_str(" ORDER BY id DESC LIMIT ");
        let limit = filter.limit.min(MAX_ENTRIES);
        query.parameter(marker, Bound::Number(to_i64(limit)));
        query
    }

    fn parameter(&mut self, marker: char, value: Bound) {
        self.parameters.push(value);
        // Writing to a text cannot fail.
        let _ = write!(self.sql, "{marker}{}", self.parameters.len());
    }

    /// Not before this time. The index on the time gives the lowest number. Entries are then read by number, because a
    /// list continues from a number, and a range of times would be read again for each page.
    fn since(&mut self, marker: char, at: i64) {
        self.sql.push_str(" AND at + 0 >= ");
        self.parameter(marker, Bound::Number(at));
        self.sql
            .push_str(" AND id > coalesce((SELECT a.id FROM audit a WHERE a.at < ");
        let surely_before = at.saturating_sub(ORDER_SLACK_MS);
        self.parameter(marker, Bound::Number(surely_before));
        self.sql.push_str(" ORDER BY a.at DESC LIMIT 1), 0)");
    }

    /// Before this time. See [`since`](Self::since).
    fn until(&mut self, marker: char, at: i64) {
        self.sql.push_str(" AND at + 0 < ");
        self.parameter(marker, Bound::Number(at));
        self.sql
            .push_str(" AND id < coalesce((SELECT a.id FROM audit a WHERE a.at >= ");
        let surely_after = at.saturating_add(ORDER_SLACK_MS);
        self.parameter(marker, Bound::Number(surely_after));
        let end = i64::MAX;
        let _ = write!(self.sql, " ORDER BY a.at LIMIT 1), {end})");
    }
}

/// The conditions on texts that the filter has.
fn texts(filter: &AuditFilter) -> Vec<(&'static str, String)> {
    let action = filter.action.as_deref().map(|action| {
        if action.contains('.') {
            (" AND action = ", action)
        } else {
            (" AND action_object = ", action)
        }
    });
    let given = [
        filter
            .actor
            .as_deref()
            .map(|actor| (" AND actor = ", actor)),
        action,
        filter
            .object
            .as_deref()
            .map(|object| (" AND object = ", object)),
        filter
            .namespace
            .as_ref()
            .map(|namespace| (" AND namespace = ", namespace.as_str())),
    ];
    given
        .into_iter()
        .flatten()
        .filter(|(_, text)| !text.is_empty())
        .map(|(condition, text)| (condition, without_nul(text).into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    #[test]
    fn a_statement_has_only_the_conditions_of_its_filter() {
        let query = AuditQuery::new(&AuditFilter::default(), '?');
        assert_eq!(
            query.parameters,
            [Bound::Number(i64::MAX), Bound::Number(0)]
        );
        assert!(
            query
                .sql
                .ends_with("WHERE id < ?1 ORDER BY id DESC LIMIT ?2")
        );
        let filter = AuditFilter {
            actor: Some("user ann".to_owned()),
            action: Some("job.pause".to_owned()),
            object: Some(String::new()),
            limit: usize::MAX,
            ..AuditFilter::default()
        };
        let query = AuditQuery::new(&filter, '$');
        let wanted = "WHERE id < $1 AND actor = $2 AND action = $3 ORDER BY id DESC LIMIT $4";
        assert!(query.sql.ends_with(wanted), "{}", query.sql);
        assert_eq!(query.parameters.last(), Some(&Bound::Number(1_000)));
    }

    #[test]
    fn times_are_exact_and_bound_the_numbers() {
        let filter = AuditFilter {
            action: Some("job".to_owned()),
            from: Some(Timestamp::from_millis(1_000_000)),
            to: Some(Timestamp::from_millis(2_000_000)),
            limit: 5,
            ..AuditFilter::default()
        };
        let query = AuditQuery::new(&filter, '?');
        assert!(
            query.sql.contains("AND action_object = ?2"),
            "{}",
            query.sql
        );
        let numbers: Vec<i64> = query
            .parameters
            .iter()
            .filter_map(|value| match value {
                Bound::Number(number) => Some(*number),
                Bound::Text(_) => None,
            })
            .collect();
        assert_eq!(
            numbers,
            [i64::MAX, 1_000_000, 400_000, 2_000_000, 2_600_000, 5]
        );
    }
}
