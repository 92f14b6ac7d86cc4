//! The statement that lists entries of the audit log. Both databases understand it.
//!
//! A statement has only the conditions of its filter, so that each filter can use its index. For several values of one
//! column, it reads the first entries of each value by the index, and merges them.

use std::fmt::Write as _;

use super::convert::{to_i64, without_nul};
use crate::{AuditFilter, AuditResult, Order};

/// The most entries in one answer: a page, and one more that tells whether there is a next page.
pub const MAX_ENTRIES: usize = 1_001;

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
    marker: char,
}

/// Conditions of which one must hold: columns with their values.
type AnyOf = Vec<(&'static str, String)>;

impl AuditQuery {
    /// The statement for a filter. `marker` begins a parameter: `?` or `$`. The columns are those of
    /// [`AuditRow`](super::audit::AuditRow).
    pub fn new(filter: &AuditFilter, marker: char) -> Self {
        let mut query = Self {
            sql: String::new(),
            parameters: Vec::new(),
            marker,
        };
        let wanted = wanted(filter);
        // Of several values, an index gives the entries of one after the other, and not in their order.
        let merged = wanted.iter().position(|any_of| any_of.len() > 1);
        let Some(merged) = merged else {
            query.part(filter, &wanted);
            return query;
        };
        for (index, condition) in wanted[merged].iter().enumerate() {
            let mut part = wanted.clone();
            part[merged] = vec![condition.clone()];
            query.sql.push_str(if index == 0 {
                "SELECT * FROM ("
            } else {
                " UNION ALL SELECT * FROM ("
            });
            query.part(filter, &part);
            let _ = write!(query.sql, ") part{index}");
        }
        query.end(filter);
        query
    }

    /// Selects the first entries for which all conditions hold.
    fn part(&mut self, filter: &AuditFilter, wanted: &[AnyOf]) {
        let (sign, first) = match filter.order {
            Order::Ascending => ('>', i64::MIN),
            Order::Descending => ('<', i64::MAX),
        };
        let _ = write!(
            self.sql,
            "SELECT id, at, actor, address, action, namespace, group_name, object, result, detail, old_value, new_value
                FROM audit WHERE id {sign} "
        );
        self.parameter(Bound::Number(filter.after.unwrap_or(first)));
        for any_of in wanted {
            self.any_of(any_of);
        }
        // Not a parameter: an index has only the refused ones.
        self.sql.push_str(match filter.result {
            None => "",
            Some(AuditResult::Done) => " AND result = 'done'",
            Some(AuditResult::Refused) => " AND result = 'refused'",
        });
        if let Some(since) = filter.since {
            self.since(since.as_millis());
        }
        if let Some(until) = filter.until {
            self.until(until.as_millis());
        }
        self.end(filter);
    }

    fn end(&mut self, filter: &AuditFilter) {
        self.sql.push_str(match filter.order {
            Order::Ascending => " ORDER BY id LIMIT ",
            Order::Descending => " ORDER BY id DESC LIMIT ",
        });
        let limit = filter.limit.min(MAX_ENTRIES);
        self.parameter(Bound::Number(to_i64(limit)));
    }

    fn parameter(&mut self, value: Bound) {
        self.parameters.push(value);
        // Writing to a text cannot fail.
        let _ = write!(self.sql, "{}{}", self.marker, self.parameters.len());
    }

    fn any_of(&mut self, any_of: &[(&'static str, String)]) {
        let is_one = any_of.len() == 1;
        for (index, (column, value)) in any_of.iter().enumerate() {
            self.sql.push_str(match (index, is_one) {
                (0, true) => " AND ",
                (0, false) => " AND (",
                _ => " OR ",
            });
            let _ = write!(self.sql, "{column} = ");
            self.parameter(Bound::Text(value.clone()));
        }
        if !is_one {
            self.sql.push(')');
        }
    }

    /// Not before this time. The index on the time gives the lowest number. Entries are then read by number, because a
    /// list continues from a number, and a range of times would be read again for each page.
    fn since(&mut self, at: i64) {
        self.sql.push_str(" AND at + 0 >= ");
        self.parameter(Bound::Number(at));
        self.sql
            .push_str(" AND id > coalesce((SELECT a.id FROM audit a WHERE a.at < ");
        let surely_before = at.saturating_sub(ORDER_SLACK_MS);
        self.parameter(Bound::Number(surely_before));
        self.sql.push_str(" ORDER BY a.at DESC LIMIT 1), 0)");
    }

    /// Before this time. See [`since`](Self::since).
    fn until(&mut self, at: i64) {
        self.sql.push_str(" AND at + 0 < ");
        self.parameter(Bound::Number(at));
        self.sql
            .push_str(" AND id < coalesce((SELECT a.id FROM audit a WHERE a.at >= ");
        let surely_after = at.saturating_add(ORDER_SLACK_MS);
        self.parameter(Bound::Number(surely_after));
        let end = i64::MAX;
        let _ = write!(self.sql, " ORDER BY a.at LIMIT 1), {end})");
    }
}

/// What the filter is about. All of it must hold, and none of it is empty.
fn wanted(filter: &AuditFilter) -> Vec<AnyOf> {
    let of = |column: &'static str, values: &[String]| -> AnyOf {
        let values = values.iter();
        values
            .map(|value| (column, without_nul(value).into_owned()))
            .collect()
    };
    let (actions, kinds): (Vec<String>, Vec<String>) = filter
        .actions
        .iter()
        .cloned()
        .partition(|action| action.contains('.'));
    let is_of_kind = |action: &String| {
        kinds
            .iter()
            .any(|kind| action.split('.').next() == Some(kind.as_str()))
    };
    let actions: Vec<String> = actions.into_iter().filter(|a| !is_of_kind(a)).collect();
    let groups: Vec<String> = filter.groups.iter().map(ToString::to_string).collect();
    let namespace: Vec<String> = filter.namespace.iter().map(ToString::to_string).collect();
    let mut of_action = of("action_object", &kinds);
    of_action.extend(of("action", &actions));
    let mut wanted = vec![
        of("object", &filter.objects),
        of("group_name", &groups),
        of("actor", &filter.actors),
        of_action,
        of("namespace", &namespace),
    ];
    for any_of in &mut wanted {
        any_of.sort_unstable();
        any_of.dedup();
    }
    wanted.retain(|any_of| !any_of.is_empty());
    wanted
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    fn texts(values: &[&str]) -> Vec<String> {
        values.iter().map(|&value| value.to_owned()).collect()
    }

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
            actors: texts(&["user ann"]),
            actions: texts(&["job.pause"]),
            order: Order::Ascending,
            limit: usize::MAX,
            ..AuditFilter::default()
        };
        let query = AuditQuery::new(&filter, '$');
        let wanted = "WHERE id > $1 AND actor = $2 AND action = $3 ORDER BY id LIMIT $4";
        assert!(query.sql.ends_with(wanted), "{}", query.sql);
        assert_eq!(query.parameters.last(), Some(&Bound::Number(1_001)));
    }

    #[test]
    fn several_values_are_read_one_after_the_other_and_merged() {
        let filter = AuditFilter {
            actors: texts(&["user bob", "user ann", "user bob"]),
            actions: texts(&["job.pause", "user", "user.create"]),
            limit: 5,
            ..AuditFilter::default()
        };
        let query = AuditQuery::new(&filter, '?');
        for part in [
            "actor = ?2 AND (action = ?3 OR action_object = ?4) ORDER BY id DESC LIMIT ?5) part0 UNION ALL",
            "actor = ?7 AND (action = ?8 OR action_object = ?9) ORDER BY id DESC LIMIT ?10) part1 ORDER BY id DESC LIMIT ?11",
        ] {
            assert!(query.sql.contains(part), "{}", query.sql);
        }
        assert_eq!(query.parameters[1], Bound::Text("user ann".to_owned()));
    }

    #[test]
    fn times_are_exact_and_bound_the_numbers() {
        let filter = AuditFilter {
            actions: texts(&["job"]),
            since: Some(Timestamp::from_millis(1_000_000)),
            until: Some(Timestamp::from_millis(2_000_000)),
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
