//! Reads retention rules.

use super::fields::optional;
use super::reader::{Fields, Reader};
use super::{Node, Value};
use crate::duration::DurationMs;
use crate::retention::{MAX_KEPT_RUNS, MIN_KEPT, Retention};

const KEYS: [&str; 4] = ["age", "runs", "logs", "outputs"];

/// `"30d"`, or a table with the details.
pub(super) fn read(r: &mut Reader, node: &Node, path: &str) -> Option<Retention> {
    match node.value {
        Value::Text(_) => {
            return time(r, node, path).map(|age| Retention {
                age: Some(age),
                ..Retention::default()
            });
        }
        Value::Map(_) => {}
        _ => {
            let expected = "an age such as \"30d\", or a table with age, runs, logs, outputs,";
            r.mismatch(node, path, expected);
            return None;
        }
    }
    let f = r.fields(node, path, &KEYS, &[])?;
    let rule = Retention {
        age: optional(r, &f, "age", time),
        runs: optional(r, &f, "runs", |r, n, p| {
            r.integer(n, p, 1..=i64::from(MAX_KEPT_RUNS))
        }),
        logs: optional(r, &f, "logs", time),
        outputs: optional(r, &f, "outputs", time),
    };
    refuse_longer(r, &f, "logs", rule.logs, rule.age);
    refuse_longer(r, &f, "outputs", rule.outputs, rule.age);
    Some(rule)
}

fn time(r: &mut Reader, node: &Node, path: &str) -> Option<DurationMs> {
    r.duration(node, path, MIN_KEPT.as_millis())
}

/// A log or an output does not outlive its run, so a longer time would be a mistake.
fn refuse_longer(
    r: &mut Reader,
    f: &Fields<'_>,
    key: &str,
    time: Option<DurationMs>,
    age: Option<DurationMs>,
) {
    if let (Some(time), Some(age)) = (time, age)
        && time > age
        && let Some((node, path)) = f.get(key)
    {
        let message =
            format!("\"{time}\" is longer than age (\"{age}\"); at most that is accepted");
        r.refuse(node.line, &path, message);
    }
}
