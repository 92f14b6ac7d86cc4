//! Reads the choice of an executor: route and selector.

use super::fields::text_map;
use super::reader::{Reader, shorten};
use super::{Node, Value};
use crate::name::ExecutorName;
use crate::route::Route;
use crate::selector::{Selector, SelectorError};

/// The longest item of a shard, in bytes.
const MAX_ITEM_BYTES: usize = 1_024;
/// The longest selector, in bytes.
const MAX_SELECTOR_BYTES: usize = 4_096;

/// What a word stands for.
#[derive(Debug, Clone, PartialEq)]
enum Word {
    Route(Route),
    /// The strategy needs a table.
    NeedsExecutor,
    NeedsShards,
}

const ROUTES: [(&str, Word); 15] = [
    ("first", Word::Route(Route::First)),
    ("last", Word::Route(Route::Last)),
    ("round", Word::Route(Route::Round)),
    ("random", Word::Route(Route::Random)),
    ("consistent_hash", Word::Route(Route::ConsistentHash)),
    ("lfu", Word::Route(Route::Lfu)),
    ("lru", Word::Route(Route::Lru)),
    ("failover", Word::Route(Route::Failover)),
    ("busyover", Word::Route(Route::Busyover)),
    ("least_loaded", Word::Route(Route::LeastLoaded)),
    ("weighted", Word::Route(Route::Weighted)),
    ("any", Word::Route(Route::Any)),
    ("broadcast", Word::Route(Route::Broadcast)),
    ("sharded", Word::NeedsShards),
    ("executor", Word::NeedsExecutor),
];

/// `"round"`, `{ executor = "worker-2" }`, `{ sharded = 8 }` or `{ sharded = ["0=Beijing", …] }`.
pub(super) fn read(r: &mut Reader, node: &Node, path: &str) -> Option<Route> {
    if let Value::Map(_) = node.value {
        return table(r, node, path);
    }
    match r.word(node, path, "strategy", &ROUTES, &[])? {
        Word::Route(route) => Some(route),
        Word::NeedsExecutor => {
            r.mismatch(
                node,
                path,
                "the executor's name, { executor = \"worker-2\" },",
            );
            None
        }
        Word::NeedsShards => {
            r.mismatch(
                node,
                path,
                "the number of shards or their items, { sharded = 8 } or { sharded = [\"0=Beijing\", \"1=Shanghai\"] },",
            );
            None
        }
    }
}

fn table(r: &mut Reader, node: &Node, path: &str) -> Option<Route> {
    let f = r.fields(node, path, &["sharded", "executor"], &[])?;
    match (f.get("sharded"), f.get("executor")) {
        (Some((shards, path)), None) => sharded(r, shards, &path).map(Route::Sharded),
        (None, Some((name, path))) => executor(r, name, &path).map(Route::Executor),
        _ => {
            r.mismatch(
                node,
                path,
                "a strategy, { executor = \"worker-2\" } or { sharded = 8 },",
            );
            None
        }
    }
}

fn executor(r: &mut Reader, node: &Node, path: &str) -> Option<ExecutorName> {
    let Value::Text(text) = &node.value else {
        r.mismatch(node, path, "the name of an executor");
        return None;
    };
    match text.parse() {
        Ok(name) => Some(name),
        Err(error) => {
            r.refuse(node.line, path, format!("{:?}: {error}", shorten(text)));
            None
        }
    }
}

/// `"zone=a,!spot"` or `{ zone = "a" }`.
pub(super) fn selector(r: &mut Reader, node: &Node, path: &str) -> Option<Selector> {
    let read: Result<Selector, SelectorError> = match &node.value {
        Value::Map(_) => {
            let labels = text_map(r, node, path, "a label")?;
            Selector::of_labels(labels.iter().map(|(k, v)| (k.as_str(), v.as_str())))
        }
        Value::Text(_) => r.text(node, path, MAX_SELECTOR_BYTES)?.parse(),
        _ => {
            r.mismatch(
                node,
                path,
                "labels of executors, \"zone=a,!spot\" or { zone = \"a\" },",
            );
            return None;
        }
    };
    match read {
        Ok(selector) => Some(selector),
        Err(error) => {
            r.refuse(node.line, path, shorten_error(&error));
            None
        }
    }
}

/// The message, without the end of a long part.
fn shorten_error(error: &SelectorError) -> String {
    let shortened = match error {
        SelectorError::Form(text) => SelectorError::Form(shorten(text)),
        SelectorError::Label(text) => SelectorError::Label(shorten(text)),
        SelectorError::Key(text) => SelectorError::Key(shorten(text)),
        SelectorError::Value(text) => SelectorError::Value(shorten(text)),
        SelectorError::TooMany(count) => SelectorError::TooMany(*count),
    };
    shortened.to_string()
}

fn sharded(r: &mut Reader, node: &Node, path: &str) -> Option<Vec<String>> {
    let most = i64::try_from(Route::MAX_SHARDS).unwrap_or(i64::MAX);
    let Value::List(items) = &node.value else {
        if let Value::Int(_) = node.value {
            return r
                .integer(node, path, 1..=most)
                .map(|n| vec![String::new(); n]);
        }
        r.mismatch(
            node,
            path,
            &format!("a number of shards 1–{most} or a list of their items"),
        );
        return None;
    };
    if items.is_empty() || items.len() > Route::MAX_SHARDS {
        r.mismatch(node, path, &format!("a list of 1–{most} shards"));
        return None;
    }
    let texts: Vec<&str> = items
        .iter()
        .enumerate()
        .map(|(index, item)| r.text(item, &format!("{path}[{index}]"), MAX_ITEM_BYTES))
        .collect::<Option<_>>()?;
    Some(in_order(&texts).unwrap_or_else(|| texts.into_iter().map(str::to_owned).collect()))
}

/// The items of `0=Beijing, 1=Shanghai`, ordered by number. `None` unless each shard is numbered exactly once.
fn in_order(texts: &[&str]) -> Option<Vec<String>> {
    let mut items = vec![None; texts.len()];
    for text in texts {
        let (index, item) = text.split_once('=')?;
        let place = items.get_mut(index.trim().parse::<usize>().ok()?)?;
        if place.replace(item.to_owned()).is_some() {
            return None;
        }
    }
    items.into_iter().collect()
}
