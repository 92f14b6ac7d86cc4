//! Reads limits of dispatches.

use super::fields::{local, optional, required};
use super::reader::{Fields, Reader};
use super::{Node, Value};
use crate::limit::{Concurrency, MAX_CONCURRENCY, MAX_RATE, Rate, RateLimit, RatePer};
use crate::name::{JobName, Namespace};

/// `{ count = 10, per = "second", key = "mail" }`
pub(super) fn rate_limit(
    r: &mut Reader,
    node: &Node,
    path: &str,
    namespace: &Namespace,
) -> Option<RateLimit> {
    if !matches!(node.value, Value::Map(_)) {
        r.mismatch(
            node,
            path,
            "a table such as { count = 10, per = \"second\" }",
        );
        return None;
    }
    let f = r.fields(node, path, &["count", "per", "key"], &[])?;
    let rate = rate_of(r, &f, node);
    let has_key = f.get("key").is_some();
    let key = optional(r, &f, "key", |r, n, p| key(r, n, p, namespace));
    (!has_key || key.is_some()).then_some(())?;
    Some(RateLimit { rate: rate?, key })
}

/// `{ count = 10, per = "second" }`
pub(super) fn rate(r: &mut Reader, node: &Node, path: &str) -> Option<Rate> {
    let f = r.fields(node, path, &["count", "per"], &[])?;
    rate_of(r, &f, node)
}

fn rate_of(r: &mut Reader, f: &Fields<'_>, whole: &Node) -> Option<Rate> {
    let count = required(
        r,
        f,
        whole,
        "count",
        "the number of dispatches",
        |r, n, p| r.integer(n, p, 1..=i64::from(MAX_RATE)),
    );
    let what = "the interval (second, minute or hour)";
    let per = required(r, f, whole, "per", what, |r, n, p| {
        r.word(n, p, "interval", &RatePer::ALL, &[])
    });
    Some(Rate {
        count: count?,
        per: per?,
    })
}

/// `{ key = "db-main", limit = 3 }`
pub(super) fn concurrency(
    r: &mut Reader,
    node: &Node,
    path: &str,
    namespace: &Namespace,
) -> Option<Concurrency> {
    if !matches!(node.value, Value::Map(_)) {
        r.mismatch(node, path, "a table such as { key = \"db\", limit = 3 }");
        return None;
    }
    let f = r.fields(node, path, &["key", "limit"], &[])?;
    let key = required(r, &f, node, "key", "a name that jobs share", |r, n, p| {
        key(r, n, p, namespace)
    });
    let what = "the number of attempts at work at the same time";
    let limit = required(r, &f, node, "limit", what, |r, n, p| {
        r.integer(n, p, 1..=i64::from(MAX_CONCURRENCY))
    });
    Some(Concurrency {
        key: key?,
        limit: limit?,
    })
}

/// A key has the form of a local name.
fn key(r: &mut Reader, node: &Node, path: &str, namespace: &Namespace) -> Option<String> {
    let name = local(r, node, path, |text| JobName::in_namespace(namespace, text))?;
    Some(name.local().to_owned())
}
