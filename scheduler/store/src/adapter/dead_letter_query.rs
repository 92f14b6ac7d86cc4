//! The statement that lists dead letters. Both databases understand it.
//!
//! It reads by id, or by namespace and id. There are at most [`MAX_DEAD_LETTERS`](crate::MAX_DEAD_LETTERS) rows, so the
//! other conditions need no index.

use std::fmt::Write as _;

use super::audit_query::Bound;
use super::convert::{to_i64, without_nul};
use crate::{DeadLetterFilter, Order};

/// What databases write differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// Begins a parameter: `?` or `$`.
    pub marker: char,
    /// The function that finds a text in another one: `instr` or `strpos`.
    pub find: &'static str,
}

/// A statement with its parameters, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// The statement. It consists of texts of this file and of the dialect only.
    pub sql: String,
    /// The parameters.
    pub parameters: Vec<Bound>,
    dialect: Dialect,
}

impl DeadLetterQuery {
    /// The statement for a filter. The columns are those of [`DeadLetterRow`](super::queries::DeadLetterRow).
    pub fn new(filter: &DeadLetterFilter, dialect: Dialect) -> Self {
        let mut query = Self {
            sql: "SELECT id, queue, topic, reason, at, payload, origin, namespace FROM dead_letter WHERE id "
                .to_owned(),
            parameters: Vec::new(),
            dialect,
        };
        let (sign, first, direction) = match filter.order {
            Order::Ascending => ("> ", i64::MIN, ""),
            Order::Descending => ("< ", i64::MAX, " DESC"),
        };
        query.sql.push_str(sign);
        query.bind(Bound::Number(filter.after.unwrap_or(first)));
        if let Some(namespace) = &filter.namespace {
            query.sql.push_str(" AND namespace = ");
            query.bind(Bound::Text(namespace.to_string()));
        }
        query.one_of("queue", &filter.queues);
        query.one_of("topic", &filter.topics);
        query.one_of("origin", &filter.origins);
        query.of_groups(filter);
        for (condition, at) in [(" AND at >= ", filter.since), (" AND at < ", filter.until)] {
            if let Some(at) = at {
                query.sql.push_str(condition);
                query.bind(Bound::Number(at.as_millis()));
            }
        }
        let _ = write!(query.sql, " ORDER BY id{direction} LIMIT ");
        query.bind(Bound::Number(to_i64(filter.limit)));
        query
    }

    fn bind(&mut self, value: Bound) {
        self.parameters.push(value);
        // Writing to a text cannot fail.
        let _ = write!(self.sql, "{}{}", self.dialect.marker, self.parameters.len());
    }

    fn one_of(&mut self, column: &str, values: &[String]) {
        for (index, value) in values.iter().enumerate() {
            let _ = if index == 0 {
                write!(self.sql, " AND {column} IN (")
            } else {
                write!(self.sql, ", ")
            };
            self.bind(Bound::Text(without_nul(value).into_owned()));
        }
        if !values.is_empty() {
            self.sql.push(')');
        }
    }

    /// The origin of a letter of a group is `executor <group>/<name>`. The name has no slash, and the group may have one.
    fn of_groups(&mut self, filter: &DeadLetterFilter) {
        for (index, group) in filter.groups.iter().enumerate() {
            self.sql
                .push_str(if index == 0 { " AND (" } else { " OR " });
            let start = format!("executor {group}/");
            let length = start.chars().count();
            let _ = write!(self.sql, "(substr(origin, 1, {length}) = ");
            self.bind(Bound::Text(start));
            let find = self.dialect.find;
            let _ = write!(
                self.sql,
                " AND {find}(substr(origin, {}), '/') = 0)",
                length + 1
            );
        }
        if !filter.groups.is_empty() {
            self.sql.push(')');
        }
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    const DIALECT: Dialect = Dialect {
        marker: '?',
        find: "instr",
    };

    #[test]
    fn a_statement_has_only_the_conditions_of_its_filter() {
        let query = DeadLetterQuery::new(&DeadLetterFilter::default(), DIALECT);
        assert!(
            query
                .sql
                .ends_with("WHERE id < ?1 ORDER BY id DESC LIMIT ?2"),
            "{}",
            query.sql
        );
        let filter = DeadLetterFilter {
            queues: vec!["a".to_owned(), "b".to_owned()],
            groups: vec!["team-a/x".parse().expect("a name")],
            namespace: Some("team-a".parse().expect("a name")),
            until: Some(Timestamp::from_millis(7)),
            order: Order::Ascending,
            limit: 3,
            ..DeadLetterFilter::default()
        };
        let query = DeadLetterQuery::new(&filter, DIALECT);
        let wanted = "WHERE id > ?1 AND namespace = ?2 AND queue IN (?3, ?4) AND \
                      ((substr(origin, 1, 18) = ?5 AND instr(substr(origin, 19), '/') = 0)) AND at < ?6 \
                      ORDER BY id LIMIT ?7";
        assert!(query.sql.ends_with(wanted), "{}", query.sql);
    }
}
