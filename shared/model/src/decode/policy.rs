//! Reads policies: misfire, block, scope, retry, loss and fence.

use super::fields::optional;
use super::reader::{Reader, given};
use super::{Node, Value};
use crate::policy::{Backoff, Block, Fence, Misfire, MisfirePolicy, OnLost, Retry, Scope};
use crate::run::RunState;

const MAX_CATCH_UP: i64 = 10_000;
const MAX_RETRIES: i64 = 1_000;
/// The most triggers that a lane can run at once.
const MAX_PARALLEL: i64 = 10_000;

fn misfire_policy(r: &mut Reader, node: &Node, path: &str) -> Option<MisfirePolicy> {
    let words = [
        ("skip", MisfirePolicy::Skip),
        ("fire_once", MisfirePolicy::FireOnce),
        ("catch_up", MisfirePolicy::CatchUp),
    ];
    r.word(node, path, "policy", &words, &[])
}

/// `"fire_once"`, or a table with the details.
pub(super) fn misfire(r: &mut Reader, node: &Node, path: &str) -> Option<Misfire> {
    let default = Misfire::default();
    if let Value::Text(_) = node.value {
        return misfire_policy(r, node, path).map(|policy| Misfire { policy, ..default });
    }
    let f = r.fields(node, path, &["policy", "grace", "catch_up_limit"], &[])?;
    Some(Misfire {
        policy: optional(r, &f, "policy", misfire_policy).unwrap_or(default.policy),
        grace: optional(r, &f, "grace", |r, n, p| r.duration(n, p, 0)).unwrap_or(default.grace),
        catch_up_limit: optional(r, &f, "catch_up_limit", |r, n, p| {
            r.integer(n, p, 1..=MAX_CATCH_UP)
        })
        .unwrap_or(default.catch_up_limit),
    })
}

/// `"serial"` or `{ parallel = 4 }`.
pub(super) fn block(r: &mut Reader, node: &Node, path: &str) -> Option<Block> {
    const WORDS: [(&str, Option<Block>); 4] = [
        ("serial", Some(Block::Serial)),
        ("discard", Some(Block::Discard)),
        ("cover", Some(Block::Cover)),
        ("parallel", None),
    ];
    if let Value::Map(_) = node.value {
        let f = r.fields(node, path, &["parallel"], &[])?;
        let Some((n, path)) = f.get("parallel") else {
            r.mismatch(node, path, "a policy, or { parallel = 4 },");
            return None;
        };
        return r.integer(n, &path, 1..=MAX_PARALLEL).map(Block::Parallel);
    }
    let block = r.word(node, path, "policy", &WORDS, &[])?;
    if block.is_none() {
        r.mismatch(node, path, "how many at a time, { parallel = 4 },");
    }
    block
}

/// `"group"` or `"executor"`.
pub(super) fn scope(r: &mut Reader, node: &Node, path: &str) -> Option<Scope> {
    let words = [("group", Scope::Group), ("executor", Scope::Executor)];
    r.word(node, path, "scope", &words, &[])
}

/// `"fail"` or `"rerun"`.
pub(super) fn on_lost(r: &mut Reader, node: &Node, path: &str) -> Option<OnLost> {
    let words = [("fail", OnLost::Fail), ("rerun", OnLost::Rerun)];
    r.word(node, path, "policy", &words, &[])
}

/// `"stop"` or `"keep"`.
pub(super) fn fence(r: &mut Reader, node: &Node, path: &str) -> Option<Fence> {
    let words = [("stop", Fence::Stop), ("keep", Fence::Keep)];
    r.word(node, path, "policy", &words, &[])
}

/// Reads a number of retries, or a table with the details.
pub(super) fn retry(r: &mut Reader, node: &Node, path: &str) -> Option<Retry> {
    let default = Retry::default();
    if let Value::Int(_) = node.value {
        return r
            .integer(node, path, 0..=MAX_RETRIES)
            .map(|max| Retry { max, ..default });
    }
    if !matches!(node.value, Value::Map(_)) {
        r.mismatch(
            node,
            path,
            "a number of retries, or a table with max, backoff, first, cap, jitter_percent, on,",
        );
        return None;
    }
    let keys = ["max", "backoff", "first", "cap", "jitter_percent", "on"];
    let f = r.fields(node, path, &keys, &[])?;
    let backoffs = [
        ("fixed", Backoff::Fixed),
        ("exponential", Backoff::Exponential),
    ];
    Some(Retry {
        max: optional(r, &f, "max", |r, n, p| r.integer(n, p, 0..=MAX_RETRIES))
            .unwrap_or(default.max),
        backoff: optional(r, &f, "backoff", |r, n, p| {
            r.word(n, p, "backoff", &backoffs, &[])
        })
        .unwrap_or_default(),
        first: optional(r, &f, "first", |r, n, p| r.duration(n, p, 0)).unwrap_or(default.first),
        cap: optional(r, &f, "cap", |r, n, p| r.duration(n, p, 0)).unwrap_or(default.cap),
        jitter_percent: optional(r, &f, "jitter_percent", |r, n, p| r.integer(n, p, 0..=100))
            .unwrap_or(default.jitter_percent),
        on: optional(r, &f, "on", retried).unwrap_or(default.on),
    })
}

/// Reads the outcomes that are retried.
fn retried(r: &mut Reader, node: &Node, path: &str) -> Option<Vec<RunState>> {
    let Value::List(items) = &node.value else {
        let words = RunState::FAILURES.map(RunState::as_str).join(", ");
        let message = format!("{} given; a list of {words} is expected", given(node));
        r.refuse(node.line, path, message);
        return None;
    };
    let words = RunState::FAILURES.map(|state| (state.as_str(), state));
    let mut on = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let field = format!("{path}[{index}]");
        let Some(state) = r.word(item, &field, "outcome", &words, &[]) else {
            continue;
        };
        if on.contains(&state) {
            r.refuse(
                item.line,
                &field,
                format!("\"{state}\" is given twice; once is enough"),
            );
        } else {
            on.push(state);
        }
    }
    Some(on)
}
