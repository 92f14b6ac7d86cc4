//! Compares two definitions field by field.

use std::collections::BTreeMap;

use cueline_model::JobSpec;
use serde_json::Value;

use crate::human::one_line;

/// The differences as `field: old → new`. `–` means the field is left at its default on that side.
pub(crate) fn fields(old: &JobSpec, new: &JobSpec) -> Vec<String> {
    let (old, new) = (flat(old), flat(new));
    let mut paths: Vec<&String> = old.keys().chain(new.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .map(|path| {
            format!(
                "{path}: {} → {}",
                shown(old.get(path)),
                shown(new.get(path))
            )
        })
        .collect()
}

fn flat(spec: &JobSpec) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    // A definition consists of maps with text keys and finite numbers, so writing it as JSON never fails.
    let value = serde_json::to_value(spec).unwrap_or_default();
    flatten(String::new(), value, &mut found);
    found
}

fn flatten(path: String, value: Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key
                } else {
                    format!("{path}.{key}")
                };
                flatten(path, value, found);
            }
        }
        value => {
            found.insert(path, value);
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "–".to_owned(),
        Some(Value::String(text)) => format!("{:?}", one_line(text, 60)),
        Some(other) => one_line(&other.to_string(), 60),
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{JobSpec, decode};
    use serde_json::json;

    fn spec(mut value: serde_json::Value) -> JobSpec {
        value["name"] = "a".into();
        decode::job(&value.into()).expect("a definition")
    }

    #[test]
    fn each_changed_field_is_named_with_both_values() {
        let old = spec(
            json!({"schedule": {"every": "10s"}, "handler": {"shell": "true"}, "priority": 3}),
        );
        let new = spec(
            json!({"schedule": {"every": "20s"}, "handler": {"shell": "true"}, "timeout": "1m"}),
        );
        let found = super::fields(&old, &new);
        assert_eq!(
            found,
            [
                "priority: 3 → 5",
                "schedule.every: \"10s\" → \"20s\"",
                "timeout: – → \"1m\"",
            ]
        );
        assert!(super::fields(&new, &new).is_empty());
    }
}
